/* A profiler plugin that writes down what it is told, to say whether it is told the same beside another one.
 *
 * COUNT_FILE is where; COUNT_MASK which events it asks for, COUNT_LATER what it asks for after 200 events; COUNT_HANDLES
 * what it gives for an event: a `unique` number's place, its `context`, `one` place for everything of every
 * communicator, `null`, or numbers that are `tagged` like a pointer with bits at its top. */
#define _GNU_SOURCE
#include "nccl_profiler_abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES = 1 << 22 };
static char places[PLACES], contexts[1024], one;
static unsigned next_place, next_context;
static unsigned long counts[17][3], strange;
static int *asked;
static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* not all of them in every build */
#define SOME __attribute__((unused)) static

static int is(const char *mode) {
  const char *set = getenv("COUNT_HANDLES");
  return !strcmp(set ? set : "unique", mode);
}
static long number(const char *name, long otherwise) { return getenv(name) ? strtol(getenv(name), NULL, 0) : otherwise; }

static const char *label(void *handle) {
  static char text[8][32];
  static int turn;
  char *to = text[turn++ % 8];
  if (!handle) return "-";
  if ((char *)handle >= places && (char *)handle < places + PLACES)
    snprintf(to, 32, "h%ld", (long)((char *)handle - places));
  else if ((char *)handle >= contexts && (char *)handle < contexts + sizeof contexts)
    snprintf(to, 32, "c%ld", (long)((char *)handle - contexts));
  else if (handle == &one)
    snprintf(to, 32, "one");
  else if ((uintptr_t)handle >> 60 == 3 && is("tagged"))
    snprintf(to, 32, "t%lu", (unsigned long)((uintptr_t)handle & 0xffffffff));
  else
    strange++, snprintf(to, 32, "strange");
  return to;
}

static int init(void **context, int *mask) {
  pthread_mutex_lock(&lock);
  if (!out && getenv("COUNT_FILE")) out = fopen(getenv("COUNT_FILE"), "w");
  asked = mask;
  *mask = (int)number("COUNT_MASK", 0x1e);
  unsigned n = next_context++;
  *context = is("one") ? &one : is("null") ? NULL : &contexts[n];
  if (out) fprintf(out, "init %s\n", label(*context));
  pthread_mutex_unlock(&lock);
  return n == (unsigned)number("COUNT_REFUSES", -1) ? 3 : 0;
}
SOME int init_v3(void **context, int *mask) { return init(context, mask); }
SOME int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
                   np_logger log) {
  (void)name, (void)hash, (void)nodes, (void)ranks, (void)rank, (void)log;
  return init(context, mask);
}
SOME int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank,
                   np_logger log) {
  (void)name, (void)hash, (void)nodes, (void)ranks, (void)rank, (void)log;
  return init(context, mask);
}

static int bit_of(uint64_t type) {
  int bit = 0;
  while (bit < 16 && type >> bit != 1) bit++;
  return bit;
}

static int start(void *context, void **handle, struct np_event *event, int version) {
  uint64_t type = version < 5 ? event->type_v4 : event->type_v5;
  int foreign = type == NP_PROXY_OP && event->proxy_op.pid != (int)getpid();
  const unsigned char *bytes = (const unsigned char *)event;
  pthread_mutex_lock(&lock);
  counts[bit_of(type)][0]++;
  unsigned n = next_place++ % PLACES;
  *handle = is("context") ? context : is("one") ? &one : is("null") ? NULL : &places[n];
  if (is("tagged")) *handle = (void *)((uintptr_t)3 << 60 | n);
  if (out) {
    fprintf(out, "start %d %s %s %s", (int)type, foreign ? "foreign" : label(context),
            foreign ? "foreign" : label(event->parent), label(*handle));
    if (version >= 5 && type == NP_COLL) fprintf(out, " group %s", label(event->coll.parent_group));
    if (version >= 5 && type == NP_P2P) fprintf(out, " group %s", label(event->p2p.parent_group));
    for (int i = type == NP_PROXY_OP ? 28 : 16; i < 64; i++) fprintf(out, " %02x", bytes[i]); /* the pid is another */
    fputc('\n', out);
  } else if (!foreign)
    label(context), label(event->parent);
  if (next_place == 200 && getenv("COUNT_LATER")) *asked = (int)number("COUNT_LATER", 0);
  pthread_mutex_unlock(&lock);
  return 0;
}
SOME int start_v4(void *c, void **h, struct np_event *e) { return start(c, h, e, 4); }
SOME int start_v5(void *c, void **h, struct np_event *e) { return start(c, h, e, 5); }

static int stop(void *handle) {
  pthread_mutex_lock(&lock);
  counts[16][1]++;
  if (out) fprintf(out, "stop %s\n", label(handle));
  else label(handle);
  pthread_mutex_unlock(&lock);
  return 0;
}
static int record(void *handle, int state, struct np_state_args *args) {
  pthread_mutex_lock(&lock);
  counts[16][2]++;
  if (out) fprintf(out, "record %s %d %lu\n", label(handle), state, args ? (unsigned long)args->bytes : 0);
  else label(handle);
  pthread_mutex_unlock(&lock);
  return 0;
}
static int finalize(void *context) {
  pthread_mutex_lock(&lock);
  if (out) fprintf(out, "finalize %s\n", label(context)), fflush(out);
  pthread_mutex_unlock(&lock);
  return 0;
}

__attribute__((destructor)) static void total(void) {
  if (!getenv("COUNT_TOTAL")) return;
  FILE *to = fopen(getenv("COUNT_TOTAL"), "w");
  if (!to) return;
  for (int i = 0; i < 16; i++) fprintf(to, "%lu ", counts[i][0]);
  fprintf(to, "stops %lu records %lu strange %lu\n", counts[16][1], counts[16][2], strange);
  fclose(to);
}

#define GIVES __attribute__((visibility("default")))
#ifndef OLDEST
#define OLDEST 3
#define NEWEST 7
#endif
#if OLDEST <= 2
GIVES struct np_plugin_v3 ncclProfiler_v2 = {"counting", init_v3, start_v4, stop, record, finalize};
#endif
#if OLDEST <= 3 && NEWEST >= 3
GIVES struct np_plugin_v3 ncclProfiler_v3 = {"counting", init_v3, start_v4, stop, record, finalize};
#endif
#if OLDEST <= 4 && NEWEST >= 4
GIVES struct np_plugin_v4 ncclProfiler_v4 = {"counting", init_v4, start_v4, stop, record, finalize};
#endif
#if OLDEST <= 5 && NEWEST >= 5
GIVES struct np_plugin_v5 ncclProfiler_v5 = {"counting", init_v5, start_v5, stop, record, finalize};
#endif
#if OLDEST <= 6 && NEWEST >= 6
GIVES struct np_plugin_v5 ncclProfiler_v6 = {"counting", init_v5, start_v5, stop, record, finalize};
#endif
#if OLDEST <= 7 && NEWEST >= 7
GIVES struct np_plugin_v5 ncclProfiler_v7 = {"counting", init_v5, start_v5, stop, record, finalize};
#endif
