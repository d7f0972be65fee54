/* Plays NCCL to a profiler plugin as far as its mask asks for, with the events of every kind.
 *
 *   drive_mask PLUGIN NEWEST THREADS EVENTS SEED
 *
 * As NCCL of that newest version, it takes the newest version of the interface that the plugin offers. Which events a mask
 * brings is read from NCCL's profiler.cc once more, and not taken from the black box. Each thread has a communicator and
 * random numbers of its own, so that one thread makes the same calls in every run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUP = 1, COLL = 2, P2P = 4, OP = 8, STEP = 16, CTRL = 32, KERNEL = 64, NET = 128, GROUP_API = 256,
       COLL_API = 512, P2P_API = 1024, LAUNCH = 2048, CE_COLL = 4096, CE_SYNC = 8192, CE_BATCH = 16384 };
enum { PROXY = OP | STEP | NET, TASK = PROXY | KERNEL, CE = CE_COLL | CE_SYNC | CE_BATCH };
static const int brings[][2] = {
    {GROUP, GROUP | COLL | P2P | TASK}, {COLL, COLL | TASK}, {P2P, P2P | TASK}, {OP, PROXY}, {STEP, STEP | NET},
    {CTRL, CTRL}, {KERNEL, KERNEL}, {NET, NET}, {COLL_API, COLL_API | COLL | TASK | CE},
    {GROUP_API, GROUP_API | COLL_API | P2P_API | LAUNCH | GROUP | COLL | P2P | TASK | CE},
    {P2P_API, P2P_API | P2P | TASK}, {LAUNCH, LAUNCH}, {CE_COLL, CE}, {CE_SYNC, CE_SYNC}, {CE_BATCH, CE_BATCH}};

struct plugin {
  const char *name;
  void *init;
  int (*start)(void *, void **, void *);
  int (*stop)(void *);
  int (*record)(void *, int, void *);
  int (*finalize)(void *);
};
static struct plugin *plugin;
static int version, mask; /* NCCL's one mask of the process */

struct worker {
  pthread_t thread;
  int number, events;
  uint64_t random;
  void *context;
};

static void must(int good, const char *what) {
  if (!good) fprintf(stderr, "drive_mask: %s\n", what), exit(3);
}
static int draw(struct worker *w, int below) {
  w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
  return (int)((w->random >> 33) % (uint64_t)below);
}

struct descriptor {
  unsigned char at[256] __attribute__((aligned(8)));
};
static void put(struct descriptor *d, int at, const void *value, size_t size) { memcpy(d->at + at, value, size); }

static struct descriptor blank(int type, void *parent, int rank) {
  struct descriptor d;
  uint64_t wide = (uint64_t)type;
  memset(&d, 0x5a, sizeof d);
  put(&d, 0, &wide, version >= 5 ? 8 : 1), put(&d, 8, &parent, 8), put(&d, 16, &rank, 4);
  memset(d.at + 20, 0, 4);
  return d;
}

static void *start(struct worker *w, struct descriptor *d) {
  void *handle = NULL;
  int type = version >= 5 ? *(int *)(void *)d->at : d->at[0], asked = __atomic_load_n(&mask, __ATOMIC_RELAXED);
  if (version < 5 && type > 255) return NULL;
  for (size_t i = 0; i < sizeof brings / sizeof *brings; i++)
    if (brings[i][0] == type && (asked & brings[i][1])) {
      struct descriptor before = *d;
      must(plugin->start(w->context, &handle, d) == 0, "startEvent returned an error");
      must(!memcmp(&before, d, sizeof before), "the descriptor was changed");
    }
  return handle;
}
static void stop(void *handle) {
  if (handle) must(plugin->stop(handle) == 0, "stopEvent returned an error");
}
static void record(void *handle, int state, uint64_t bytes) {
  uint64_t args[2] = {bytes, 0};
  if (handle) must(plugin->record(handle, state, args) == 0, "recordEventState returned an error");
}

static void *start_task(struct worker *w, int type, void *api, void *group, int n) {
  static const char *const funcs[] = {"AllReduce", "Broadcast", "Send", "Recv"};
  struct descriptor d = blank(type, version >= 5 ? api : group, w->number);
  const char *func = funcs[type == COLL ? n % 2 : 2 + n % 2], *text = "ncclInt8", *none = NULL;
  uint64_t seq = (uint64_t)n, count = 64;
  int at = 24, peer = n % 8;
  memset(d.at + 24, 0, 128);
  if (version == 3) put(&d, 24, &none, 8), put(&d, 32, &seq, 8), at = 40;
  if (type == COLL) {
    put(&d, at, &seq, 8), put(&d, at + 8, &func, 8), put(&d, at + 32, &count, 8), put(&d, at + 48, &text, 8);
    put(&d, at + 64, &none, 8), put(&d, at + 72, &none, 8);
    if (version >= 5) put(&d, at + 80, &group, 8);
  } else {
    put(&d, at, &func, 8), put(&d, at + 16, &text, 8), put(&d, at + 24, &count, 8), put(&d, at + 32, &peer, 4);
    if (version >= 5) put(&d, at + 40, &group, 8);
  }
  return start(w, &d);
}

/* One launch, with what NCCL does for it on both of its threads. */
static int launch(struct worker *w, int n) {
  int p2p = draw(w, 3) == 0, made = 6;
  struct descriptor d = blank(GROUP_API, NULL, w->number);
  void *api_group = start(w, &d);
  record(api_group, 23, 0);
  d = blank(p2p ? P2P_API : COLL_API, api_group, w->number);
  void *api = start(w, &d);
  d = blank(GROUP, NULL, w->number);
  void *group = start(w, &d);
  void *task = start_task(w, p2p ? P2P : COLL, api, group, n);
  d = blank(LAUNCH, api_group, w->number);
  void *kernel_launch = start(w, &d);
  stop(kernel_launch), stop(task), stop(group), stop(api), stop(api_group);
  d = blank(KERNEL, task, w->number);
  void *kernel = start(w, &d), *proxies[4], *steps[4][8] = {{0}};
  for (int p = 0; p < 4; p++) {
    int fields[6] = {draw(w, 5) ? (int)getpid() : 1, p, draw(w, 8), 9, 4096, p % 2}; /* a neighbour's by PXN */
    void *foreign = (void *)(uintptr_t)0x3abcdef012345678ull;
    d = blank(OP, fields[0] == 1 ? foreign : task, w->number);
    put(&d, 24, fields, sizeof fields);
    proxies[p] = start(w, &d), record(proxies[p], 19, 0), made++;
  }
  for (int s = 0; s < 9; s++)
    for (int p = 0; p < 4; p++) {
      if (s >= 8) stop(steps[p][s % 8]);
      d = blank(STEP, proxies[p], w->number);
      put(&d, 24, &s, 4);
      void *step = steps[p][s % 8] = start(w, &d);
      record(step, p % 2 ? 8 : 10, 0), record(step, p % 2 ? 20 : 11, 0), record(step, p % 2 ? 9 : 12, 512);
      d = blank(NET, step, w->number);
      stop(start(w, &d)), made++;
      if (s >= 8 || draw(w, 2)) stop(step), steps[p][s % 8] = NULL;
    }
  for (int p = 0; p < 4; p++) {
    for (int s = 0; s < 8; s++) stop(steps[p][s]);
    stop(proxies[p]);
  }
  record(kernel, 22, 1), stop(kernel);
  d = blank(CTRL, NULL, 0);
  void *control = start(w, &d);
  record(control, 13, 0), stop(control);
  d = blank(CE_COLL, NULL, w->number), memset(d.at + 24, 0, 128);
  void *engine = version >= 6 ? start(w, &d) : NULL;
  d = blank(CE_SYNC, engine, w->number);
  if (engine) stop(start(w, &d));
  stop(engine);
  return made;
}

static void *work(void *worker) {
  struct worker *w = worker;
  for (int made = 0, n = 0; made < w->events; n++) made += launch(w, n);
  return NULL;
}

static void log_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list rest;
  (void)level, (void)flags, (void)file, (void)line;
  va_start(rest, format);
  vprintf(format, rest), putchar('\n');
  va_end(rest);
}

int main(int argc, char **argv) {
  must(argc == 6, "usage: drive_mask PLUGIN NEWEST THREADS EVENTS SEED");
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  must(library != NULL, "the plugin cannot be loaded");
  for (version = atoi(argv[2]); version > 0 && !plugin; version--) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    plugin = dlsym(library, symbol);
    if (plugin) break;
  }
  must(plugin != NULL, "no version that NCCL knows");
  printf("version %d\n", version);
  int threads = atoi(argv[3]);
  struct worker *workers = calloc((size_t)threads, sizeof *workers);
  for (int i = 0; i < threads; i++) {
    struct worker *w = &workers[i];
    *w = (struct worker){.number = i, .events = atoi(argv[4]), .random = strtoull(argv[5], NULL, 10) + (uint64_t)i};
    int error;
    typedef int (*v3)(void **, int *);
    typedef int (*v4)(void **, int *, const char *, uint64_t, int, int, int, void *);
    typedef int (*v5)(void **, uint64_t, int *, const char *, int, int, int, void *);
    if (version <= 3)
      error = ((v3)plugin->init)(&w->context, &mask);
    else if (version == 4)
      error = ((v4)plugin->init)(&w->context, &mask, "name", 7u + (unsigned)i, 1, threads, i, (void *)log_line);
    else
      error = ((v5)plugin->init)(&w->context, 7u + (unsigned)i, &mask, "name", 1, threads, i, (void *)log_line);
    if (error) printf("init %d\n", error), w->events = 0;
  }
  printf("mask %d\n", mask);
  for (int i = 0; i < threads; i++) pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
  for (int i = 0; i < threads; i++)
    if (workers[i].context) plugin->finalize(workers[i].context);
  free(workers);
  return 0;
}
