/* Plays NCCL to a profiler plugin.
 *
 *   drive PLUGIN VERSION script               events as lines on stdin, see `play`; "hold" waits to be killed
 *   drive PLUGIN VERSION random THREADS EVENTS SEED [hold]   the live state that must be found, on stdout
 *   drive PLUGIN VERSION forever THREADS SEED  random events until it is killed
 *   drive PLUGIN VERSION bench EVENTS EMPTY    ns an event and a collective, beside the plugin EMPTY
 *
 * Descriptors are put together byte by byte from the offsets that NCCL's headers give for each version, and not from
 * the structs that the plugin declares: two readings of the same interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16 };
enum { STEPS = 8 };

struct plugin {
  const char *name;
  void *init;
  int (*start)(void *, void **, void *);
  int (*stop)(void *);
  int (*record)(void *, int, void *);
  int (*finalize)(void *);
};

static int version;
static struct plugin *plugin;

static void must(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "drive: %s\n", what);
  exit(3);
}

/* ---- descriptors --------------------------------------------------------------------------------------------------*/

struct descriptor {
  unsigned char at[256] __attribute__((aligned(8)));
};
static void p8(struct descriptor *d, int at, uint64_t v) { memcpy(d->at + at, &v, 8); }
static void p4(struct descriptor *d, int at, int32_t v) { memcpy(d->at + at, &v, 4); }
static void pp(struct descriptor *d, int at, const void *v) { memcpy(d->at + at, &v, 8); }

static void *start(void *context, int type, void *parent, int rank, struct descriptor *d) {
  void *handle = NULL;
  if (version >= 5)
    p8(d, 0, (uint64_t)type);
  else
    d->at[0] = (unsigned char)type;
  pp(d, 8, parent);
  p4(d, 16, rank);
  must(plugin->start(context, &handle, d) == 0, "startEvent returned an error");
  return handle;
}

static void *start_group(void *context) {
  struct descriptor d;
  memset(&d, 0x5a, sizeof d); /* what NCCL leaves behind in the rest of the union */
  return start(context, GROUP, NULL, 0, &d);
}

static void *start_coll(void *context, void *group, int rank, const char *func, uint64_t seq, uint64_t count,
                        int channels, const char *algorithm, uint64_t hash) {
  struct descriptor d;
  memset(&d, 0x5a, sizeof d);
  int at = 24;
  if (version == 3) pp(&d, 24, "name"), p8(&d, 32, hash), at = 40;
  p8(&d, at, seq), pp(&d, at + 8, func), p8(&d, at + 32, count), p4(&d, at + 40, 0), pp(&d, at + 48, "ncclFloat32");
  d.at[at + 56] = (unsigned char)channels, d.at[at + 57] = 16;
  pp(&d, at + 64, algorithm), pp(&d, at + 72, "SIMPLE");
  if (version >= 5) pp(&d, at + 80, group);
  return start(context, COLL, version >= 5 ? NULL : group, rank, &d);
}

static void *start_p2p(void *context, void *group, int rank, const char *func, uint64_t count, int peer,
                       uint64_t hash) {
  struct descriptor d;
  memset(&d, 0x5a, sizeof d);
  int at = 24;
  if (version == 3) pp(&d, 24, "name"), p8(&d, 32, hash), at = 40;
  pp(&d, at, func), pp(&d, at + 16, "ncclFloat32"), p8(&d, at + 24, count), p4(&d, at + 32, peer);
  if (version >= 4) d.at[at + 36] = 1;
  if (version >= 5) pp(&d, at + 40, group);
  return start(context, P2P, version >= 5 ? NULL : group, rank, &d);
}

static void *start_proxy(void *context, void *op, int rank, int pid, int channel, int peer, int steps, int is_send) {
  struct descriptor d;
  memset(&d, 0x5a, sizeof d);
  p4(&d, 24, pid), d.at[28] = (unsigned char)channel, p4(&d, 32, peer), p4(&d, 36, steps), p4(&d, 40, 4096);
  p4(&d, 44, is_send);
  return start(context, PROXY_OP, op, rank, &d);
}

static void *start_step(void *context, void *proxy, int rank, int step) {
  struct descriptor d;
  memset(&d, 0x5a, sizeof d);
  p4(&d, 24, step);
  return start(context, PROXY_STEP, proxy, rank, &d);
}

static void record(void *handle, int state, uint64_t bytes) {
  uint64_t args[2] = {bytes, 0};
  must(plugin->record(handle, state, args) == 0, "recordEventState returned an error");
}

static void stop(void *handle) { must(plugin->stop(handle) == 0, "stopEvent returned an error"); }

static void *init(uint64_t hash, int nodes, int ranks, int rank) {
  void *context = NULL;
  int mask = 0, error;
  typedef int (*v3)(void **, int *);
  typedef int (*v4)(void **, int *, const char *, uint64_t, int, int, int, void *);
  typedef int (*v5)(void **, uint64_t, int *, const char *, int, int, int, void *);
  if (version == 3)
    error = ((v3)plugin->init)(&context, &mask);
  else if (version == 4)
    error = ((v4)plugin->init)(&context, &mask, "name", hash, nodes, ranks, rank, NULL);
  else
    error = ((v5)plugin->init)(&context, hash, &mask, "name", nodes, ranks, rank, NULL);
  must(error == 0, "init returned an error");
  must(!context || mask == 0x1e, "another mask than collectives, point-to-point, proxy operations and steps");
  return context;
}

static struct plugin *load(const char *path) {
  char symbol[32];
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "drive: %s\n", dlerror());
  must(library != NULL, "the plugin cannot be loaded");
  snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
  struct plugin *found = dlsym(library, symbol);
  must(found && found->name && found->init && found->start && found->stop && found->record && found->finalize, symbol);
  return found;
}

/* ---- events as lines ----------------------------------------------------------------------------------------------*/

enum { NAMES = 1 << 16 };
struct play {
  void *comms[NAMES], *ops[NAMES], *proxies[NAMES], *steps[NAMES][STEPS];
  uint64_t hashes[NAMES];
};

/*  comm N hash nodes ranks rank | coll N comm group func seq count channels algorithm | p2p N comm group func count peer
 *  proxy N comm op channel peer steps is_send [pid] | step N s | state N s state bytes | done N s | end N (a proxy)
 *  enqueued N (an operation) | progress N | destroy N (a communicator) | sleep ms | hold */
static void play(void) {
  static struct play at;
  static void *groups[NAMES];
  static char funcs[64][16];
  char line[512], word[16], func[16], algorithm[16];
  while (fgets(line, sizeof line, stdin)) {
    unsigned n = 0, c, o, g;
    uint64_t a, b;
    int i, j, k, l, pid = (int)getpid();
    if (sscanf(line, "%15s %u", word, &n) < 1) continue;
    n %= NAMES;
    char *name = func;
    if (sscanf(line, "coll %*u %u %u %15s %" SCNu64 " %" SCNu64 " %d %15s", &c, &g, func, &a, &b, &i, algorithm) == 7 ||
        sscanf(line, "p2p %*u %u %u %15s", &c, &g, func) == 3) /* strings that stay, as NCCL's do */
      for (int f = 0; f < 64; f++) {
        if (!funcs[f][0]) memcpy(funcs[f], func, sizeof func);
        if (!strcmp(funcs[f], func)) {
          name = funcs[f];
          break;
        }
      }
    if (sscanf(line, "comm %*u %" SCNx64 " %d %d %d", &a, &i, &j, &k) == 4)
      at.comms[n] = init(a, i, j, k), at.hashes[n] = a;
    else if (sscanf(line, "coll %*u %u %u %15s %" SCNu64 " %" SCNu64 " %d %15s", &c, &g, func, &a, &b, &i, algorithm) ==
             7) {
      if (!groups[g % NAMES]) groups[g % NAMES] = start_group(at.comms[c]);
      at.ops[n] = start_coll(at.comms[c], groups[g % NAMES], 0, name, a, b, i, algorithm[0] == 'R' ? "RING" : "TREE",
                             at.hashes[c]);
    } else if (sscanf(line, "p2p %*u %u %u %15s %" SCNu64 " %d", &c, &g, func, &a, &i) == 5) {
      if (!groups[g % NAMES]) groups[g % NAMES] = start_group(at.comms[c]);
      at.ops[n] = start_p2p(at.comms[c], groups[g % NAMES], 0, name, a, i, at.hashes[c]);
    } else if (sscanf(line, "proxy %*u %u %u %d %d %d %d %d", &c, &o, &i, &j, &k, &l, &pid) >= 6)
      at.proxies[n] = start_proxy(at.comms[c], at.ops[o % NAMES], 0, pid, i, j, k, l);
    else if (sscanf(line, "step %*u %d", &i) == 1)
      at.steps[n][i % STEPS] = start_step(at.comms[0], at.proxies[n], 0, i);
    else if (sscanf(line, "state %*u %d %d %" SCNu64, &i, &j, &a) == 3)
      record(at.steps[n][i % STEPS], j, a);
    else if (sscanf(line, "done %*u %d", &i) == 1)
      stop(at.steps[n][i % STEPS]), at.steps[n][i % STEPS] = NULL;
    else if (!strcmp(word, "progress"))
      record(at.proxies[n], 19, 0);
    else if (!strcmp(word, "end"))
      stop(at.proxies[n]);
    else if (!strcmp(word, "enqueued"))
      stop(at.ops[n]);
    else if (!strcmp(word, "destroy"))
      plugin->finalize(at.comms[n]);
    else if (!strcmp(word, "sleep"))
      usleep(n * 1000);
    else if (!strcmp(word, "hold")) {
      puts("holding");
      fflush(stdout);
      for (;;) pause();
    } else
      must(0, line);
  }
}

/* ---- random events, as a proxy thread makes them ------------------------------------------------------------------*/

struct transfer {
  void *handle, *step[STEPS];
  int peer, channel, is_send, steps, posted, sent, done, state[STEPS];
};

struct worker {
  pthread_t thread;
  int number;
  uint64_t events, random;
  void *context;
  struct transfer live[12];
};

static uint64_t draw(struct worker *w, uint64_t below) {
  w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
  return (w->random >> 33) % below;
}

static void begin_transfer(struct worker *w, struct transfer *t, void *op) {
  memset(t, 0, sizeof *t);
  t->peer = (int)draw(w, 8), t->channel = (int)draw(w, 4), t->is_send = (int)draw(w, 2);
  t->steps = 1 + (int)draw(w, 40);
  t->handle = start_proxy(w->context, op, w->number, (int)getpid(), t->channel, t->peer, t->steps, t->is_send);
  record(t->handle, 19, 0);
}

/* One thing that NCCL's send or receive progress would do next. */
static void go_on(struct worker *w, struct transfer *t) {
  int act = (int)draw(w, 3), s;
  if (act == 0 && t->posted < t->steps && t->posted < t->done + STEPS) {
    s = t->posted % STEPS;
    t->step[s] = start_step(w->context, t->handle, w->number, t->posted++);
    record(t->step[s], t->state[s] = t->is_send ? 8 : 10, 0);
  } else if (act == 1 && t->sent < t->posted) {
    s = t->sent++ % STEPS;
    if (t->is_send)
      for (int again = 0; again < 3; again++) record(t->step[s], 20, 0);
    record(t->step[s], t->state[s] = t->is_send ? 9 : 12, 4096);
  } else if (t->done < t->sent) {
    s = t->done++ % STEPS;
    stop(t->step[s]);
    t->step[s] = NULL, t->state[s] = 0;
    if (t->done == t->steps) stop(t->handle), t->handle = NULL;
  }
}

static void *work(void *worker) {
  struct worker *w = worker;
  static const char *funcs[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast"};
  uint64_t seq[4] = {0};
  void *op = NULL;
  for (uint64_t n = 0; n < w->events; n++) {
    struct transfer *t = &w->live[draw(w, 12)];
    if (!t->handle) {
      if (draw(w, 4) == 0) {
        int f = (int)draw(w, 4);
        void *group = start_group(w->context);
        op = start_coll(w->context, group, w->number, funcs[f], seq[f]++, 1024, 2, "RING", 0x1000u + (unsigned)w->number);
        stop(op);
        stop(group);
      }
      begin_transfer(w, t, op);
    } else
      go_on(w, t);
    if (draw(w, 1000) == 0) { /* what NCCL must not do, and what must not matter */
      stop((void *)(uintptr_t)(w->random | 1));
      record((void *)(uintptr_t)(w->random | 1), (int)draw(w, 40), 1);
      stop(op);
    }
  }
  return NULL;
}

static void random_events(int threads, uint64_t events, uint64_t seed, int hold) {
  struct worker *workers = calloc((size_t)threads, sizeof *workers);
  for (int i = 0; i < threads; i++) {
    workers[i].number = i, workers[i].events = events, workers[i].random = seed * 1000003 + (uint64_t)i;
    workers[i].context = init(0x1000u + (unsigned)i, 1, threads, i);
  }
  for (int i = 0; i < threads; i++) pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
  for (int i = 0; i < threads; i++)
    for (int j = 0; j < 12; j++) {
      struct transfer *t = &workers[i].live[j];
      if (!t->handle) continue;
      printf("%x %d %d %d %d %d %d", 0x1000u + (unsigned)i, t->peer, t->channel, t->is_send, t->steps, t->posted, t->done);
      for (int s = t->done; s < t->posted; s++) printf(" %d:%d", s, t->state[s % STEPS]);
      putchar('\n');
    }
  puts("end");
  fflush(stdout);
  while (hold) pause();
  free(workers);
}

/* ---- cost ---------------------------------------------------------------------------------------------------------*/

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* what others do on this machine is no cost of ours */
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Collectives of two channels, each a send and a receive of 16 steps: as many events of each kind as NCCL makes. */
static double spend(void *context, uint64_t events, uint64_t *collectives, uint64_t *made) {
  double begun = now();
  int pid = (int)getpid();
  uint64_t n = 0, seq = 0;
  while (n < events) {
    void *group = start_group(context);
    void *op = start_coll(context, group, 0, "AllReduce", seq++, 1 << 20, 2, "RING", 1);
    stop(op), stop(group), n += 4;
    for (int p = 0; p < 4; p++) {
      void *proxy = start_proxy(context, op, 0, pid, p / 2, p & 1 ? 1 : 3, 16, p & 1);
      record(proxy, 19, 0), n += 2;
      for (int s = 0; s < 16; s++) {
        void *step = start_step(context, proxy, 0, s);
        record(step, p & 1 ? 8 : 10, 0);
        if (p & 1) record(step, 20, 0);
        record(step, p & 1 ? 9 : 11, 4096);
        if (!(p & 1)) record(step, 12, 4096);
        stop(step), n += 5;
      }
      stop(proxy), n++;
    }
  }
  *collectives = seq, *made = n;
  return now() - begun;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void bench(uint64_t events, const char *empty) {
  enum { ROUNDS = 21 };
  double cost[2][ROUNDS], each[2][ROUNDS];
  struct plugin *both[2] = {plugin, NULL};
  void *contexts[2];
  int keep = version;
  version = 5, both[1] = load(empty), version = keep;
  for (int k = 0; k < 2; k++) plugin = both[k], contexts[k] = init(1, 1, 4, 0);
  for (int round = 0; round < ROUNDS; round++)
    for (int k = 0; k < 2; k++) {
      uint64_t collectives, made;
      plugin = both[k];
      double spent = spend(contexts[k], events, &collectives, &made);
      cost[k][round] = spent / (double)made, each[k][round] = spent / (double)collectives;
    }
  for (int k = 0; k < 2; k++) qsort(cost[k], ROUNDS, sizeof(double), by_value), qsort(each[k], ROUNDS, sizeof(double), by_value);
  printf("{\"event_ns\": %.1f, \"empty_event_ns\": %.1f, \"collective_ns\": %.0f, \"empty_collective_ns\": %.0f}\n",
         cost[0][ROUNDS / 2], cost[1][ROUNDS / 2], each[0][ROUNDS / 2], each[1][ROUNDS / 2]);
}

int main(int argc, char **argv) {
  must(argc >= 4, "usage: drive PLUGIN VERSION script|random|forever|bench ...");
  version = atoi(argv[2]);
  plugin = load(argv[1]);
  if (!strcmp(argv[3], "script"))
    play();
  else if (!strcmp(argv[3], "random") && argc >= 7)
    random_events(atoi(argv[4]), strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10), argc > 7);
  else if (!strcmp(argv[3], "forever") && argc >= 6)
    random_events(atoi(argv[4]), UINT64_MAX, strtoull(argv[5], NULL, 10), 0);
  else if (!strcmp(argv[3], "bench") && argc >= 6)
    bench(strtoull(argv[4], NULL, 10), argv[5]);
  else
    must(0, "no such way to drive");
  return 0;
}
