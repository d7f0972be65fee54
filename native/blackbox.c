/* The black box: an NCCL profiler plugin that keeps what each transfer waits for in a file that outlives the process.
 *
 * NCCL calls start, record and stop from the user's threads and from its proxy threads. Each call writes a few words
 * into a MAP_SHARED file and returns: no lock, no allocation, no system call (the clock is the vDSO's). Nothing here
 * returns an error or follows a pointer that NCCL hands back: contexts and handles are numbers, checked against the
 * slot that they name, because with PXN they may come from another process, and NCCL may stop a thing twice. A full
 * table drops the event and counts it. The layout is in blackbox_layout.h. */
#define _GNU_SOURCE
#include "blackbox_layout.h"
#include "nccl_profiler_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GET(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define PUT(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define ADD(place, value) __atomic_fetch_add(&(place), (value), __ATOMIC_RELAXED)
#define EXPORT __attribute__((visibility("default")))

enum { PROBES = 32, MIN_BYTES = 128 << 10, DEFAULT_BYTES = 1 << 20, MAX_BYTES = 64 << 20, BEAT_MS = 500 };

static struct {
  struct bb_header *header;
  struct bb_comm *comms;
  struct bb_op *ops;
  struct bb_link *links;
  struct bb_proxy *proxies;
  struct bb_event *events;
  uint32_t slots[BB_TABLES];
  int pid;
  int mask;
  bool failed;
} box;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* taken where a communicator is made, never after */

/* ---- clocks, texts, sequence locks --------------------------------------------------------------------------------*/

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

typedef uint64_t __attribute__((may_alias)) word;

struct text {
  uint64_t words[BB_TEXT / 8];
};

static struct text text_of(const char *from) {
  char copy[BB_TEXT] = {0};
  for (int i = 0; from && i < BB_TEXT - 1 && from[i]; i++) copy[i] = from[i];
  struct text text;
  memcpy(&text, copy, sizeof text);
  return text;
}

static inline void put_text(char *to, struct text text) {
  for (int i = 0; i < BB_TEXT / 8; i++) PUT(((word *)(void *)to)[i], text.words[i]);
}

static inline struct text get_text(char *from) {
  struct text text;
  for (int i = 0; i < BB_TEXT / 8; i++) text.words[i] = GET(((word *)(void *)from)[i]);
  return text;
}

static void put_long_text(char *to, size_t size, const char *from) {
  char copy[64] = {0};
  for (size_t i = 0; from && i < size - 1 && from[i]; i++) copy[i] = from[i];
  for (size_t i = 0; i < size / 8; i++) {
    uint64_t value;
    memcpy(&value, copy + 8 * i, 8);
    PUT(((word *)(void *)to)[i], value);
  }
}

/* Takes the slot's lock, or says at once that another thread has it: the caller may take another slot instead. */
static inline bool claim(uint32_t *lock) {
  uint32_t seen = GET(*lock);
  if ((seen & 1) || !__atomic_compare_exchange_n(lock, &seen, seen + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return false;
#ifndef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_RELEASE); /* the odd number is seen before anything written under it */
#endif
  return true;
}

/* Never waits: where another thread writes, this write is left out and counted. */
static inline bool begin(uint32_t *lock) {
  bool ours = claim(lock);
  if (!ours) ADD(box.header->contended, 1);
  return ours;
}

static inline void end(uint32_t *lock) { __atomic_store_n(lock, GET(*lock) + 1, __ATOMIC_RELEASE); }

static inline void drop(int table) { ADD(box.header->dropped[table], 1); }
static inline void *strange(void) {
  ADD(box.header->strange, 1);
  return NULL;
}

/* ---- handles: what it is, which slot, and which of those that had the slot one after another ----------------------*/

enum { H_COMM = 1, H_GROUP, H_OP, H_PROXY, H_STEP, H_SEND, H_RECV };
#define SERIAL_BITS 40
#define SLOT_BITS 20
#define SERIAL_MASK ((1ull << SERIAL_BITS) - 1)

static inline void *handle_of(uint64_t what, uint64_t slot, uint64_t serial) {
  return (void *)(uintptr_t)(what << (SERIAL_BITS + SLOT_BITS) | slot << SERIAL_BITS | serial);
}
static inline int what_of(void *handle) { return (int)((uint64_t)(uintptr_t)handle >> (SERIAL_BITS + SLOT_BITS)); }
static inline uint32_t slot_of(void *handle) {
  return (uint32_t)((uint64_t)(uintptr_t)handle >> SERIAL_BITS) & ((1u << SLOT_BITS) - 1);
}
/* Slot and serial without the kind: what the file keeps of a handle. */
static inline uint64_t place_of(void *handle) {
  return (uint64_t)(uintptr_t)handle & ((1ull << (SERIAL_BITS + SLOT_BITS)) - 1);
}
static inline uint64_t serial_of(void *handle) { return (uint64_t)(uintptr_t)handle & SERIAL_MASK; }

static inline uint64_t next_serial(void) {
  uint64_t serial = ADD(box.header->serials, 1) & SERIAL_MASK;
  return serial ? serial : ADD(box.header->serials, 1) & SERIAL_MASK;
}

static struct bb_comm *comm_of(void *context) {
  uint32_t slot = slot_of(context);
  if (what_of(context) != H_COMM || slot >= box.slots[BB_COMMS]) return NULL;
  struct bb_comm *comm = &box.comms[slot];
  return GET(comm->serial) == serial_of(context) ? comm : NULL;
}

static inline bool is_op(int what) { return what == H_OP || what == H_SEND || what == H_RECV; }

static struct bb_op *op_of(void *handle) {
  uint32_t slot = slot_of(handle);
  if (!is_op(what_of(handle)) || slot >= box.slots[BB_OPS]) return NULL;
  struct bb_op *op = &box.ops[slot];
  return GET(op->serial) == serial_of(handle) ? op : NULL;
}

static struct bb_proxy *proxy_of(void *handle, int what) {
  uint32_t slot = slot_of(handle);
  if (what == H_STEP) slot /= BB_STEPS;
  if (what_of(handle) != what || slot >= box.slots[BB_PROXIES]) return NULL;
  struct bb_proxy *proxy = &box.proxies[slot];
  return GET(proxy->serial) == serial_of(handle) && GET(proxy->state) == BB_LIVE ? proxy : NULL;
}

/* ---- the ring of events -------------------------------------------------------------------------------------------*/

static inline void note(uint64_t at_ns, uint32_t type, uint16_t action, uint32_t state, uint32_t slot, int step) {
  uint64_t ticket = ADD(box.header->events, 1);
  struct bb_event *event = &box.events[ticket % box.slots[BB_EVENTS]];
  __atomic_store_n(&event->ticket, 0, __ATOMIC_RELAXED);
#ifndef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
  PUT(event->at_ns, at_ns);
  PUT(event->type, type);
  PUT(event->action, action);
  PUT(event->state, (uint16_t)state);
  PUT(event->slot, slot);
  PUT(event->step, step);
  __atomic_store_n(&event->ticket, ticket + 1, __ATOMIC_RELEASE);
}

/* ---- launches -----------------------------------------------------------------------------------------------------*/

/* The last launches, with their communicators: what a point-to-point operation belonged to whose slot is gone. */
enum { GROUPS = 256 };
static struct {
  uint64_t serial, comm;
} groups[GROUPS];
static uint32_t next_group;

static void *start_group(void *context) {
  uint64_t serial = next_serial();
  uint32_t at = ADD(next_group, 1) % GROUPS;
  PUT(groups[at].serial, 0);
  PUT(groups[at].comm, serial_of(context));
  __atomic_store_n(&groups[at].serial, serial, __ATOMIC_RELEASE);
  return handle_of(H_GROUP, 0, serial);
}

static uint64_t group_before(uint64_t comm, void *op) {
  uint32_t newest = GET(next_group);
  for (uint32_t i = 1; i <= GROUPS; i++) {
    uint32_t at = (newest - i) % GROUPS;
    uint64_t serial = __atomic_load_n(&groups[at].serial, __ATOMIC_ACQUIRE);
    if (serial && serial < serial_of(op) && GET(groups[at].comm) == comm) return serial;
  }
  return 0;
}

/* ---- operations ---------------------------------------------------------------------------------------------------*/

struct started {
  uint32_t kind;
  uint64_t seq, count, group;
  int peer;
  uint8_t channels, warps;
  const char *func, *datatype, *algorithm, *protocol;
};

/* The slot of the function's last operation: its own, the first free one, or the last of all. */
static struct bb_last *last_of(struct bb_comm *comm, struct text func) {
  for (int i = 0; i < BB_FUNCS; i++) {
    struct text known = get_text(comm->last[i].func);
    if (!known.words[0] || !memcmp(&known, &func, sizeof func) || i == BB_FUNCS - 1) return &comm->last[i];
  }
  return NULL; /* not reached */
}

static void *start_op(struct bb_comm *comm, const struct started *it) {
  uint64_t at = now_ns(), serial = next_serial(), seq = it->seq;
  struct text func = text_of(it->func);
  bool p2p = it->kind == NP_P2P;
  if (begin(&comm->lock)) {
    struct bb_last *last = last_of(comm, func);
    if (p2p) seq = GET(last->seq) + 1;
    put_text(last->func, func);
    PUT(last->seq, seq);
    PUT(last->serial, serial);
    PUT(last->at_ns, at);
    end(&comm->lock);
  }
  uint64_t turn = ADD(comm->ops[p2p], 1) % BB_RING, ring = box.slots[BB_OPS] / 2;
  uint64_t slot = p2p ? ring + ADD(box.header->next_p2p, 1) % ring : (uint64_t)(comm - box.comms) * BB_RING + turn;
  struct bb_op *op = &box.ops[slot];
  if (!begin(&op->lock)) {
    drop(BB_OPS);
    return NULL;
  }
  PUT(op->kind, it->kind);
  PUT(op->serial, serial);
  PUT(op->group, it->group);
  PUT(op->comm, GET(comm->serial));
  PUT(op->seq, seq);
  PUT(op->count, it->count);
  PUT(op->peer, it->peer);
  PUT(op->channels, it->channels);
  PUT(op->warps, it->warps);
  PUT(op->started_ns, at);
  PUT(op->enqueued_ns, 0);
  put_text(op->func, func);
  put_text(op->datatype, text_of(it->datatype));
  put_text(op->algorithm, text_of(it->algorithm));
  put_text(op->protocol, text_of(it->protocol));
  PUT(op->proxies, 0);
  PUT(op->proxies_done, 0);
  end(&op->lock);
  note(at, it->kind, BB_START, 0, (uint32_t)slot, 0);
  return handle_of(!p2p ? H_OP : it->func && it->func[0] == 'S' ? H_SEND : H_RECV, slot, serial);
}

static void stop_op(void *handle) {
  struct bb_op *op = op_of(handle);
  if (!op) return; /* the ring of its communicator has gone round since: nothing strange */
  if (GET(op->enqueued_ns) || !begin(&op->lock)) return;
  uint64_t at = now_ns();
  PUT(op->enqueued_ns, at);
  end(&op->lock);
  note(at, GET(op->kind), BB_STOP, 0, slot_of(handle), 0);
}

/* ---- transfers ----------------------------------------------------------------------------------------------------*/

static uint32_t mixed(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  value ^= value >> 33;
  return (uint32_t)value;
}

/* The link's slot, made where there is none; -1 where the table is full around its place, or another writes to it. */
static int link_of(uint64_t comm, int rank, const struct np_proxy_op *it, uint64_t at, int64_t *ordinal) {
  uint32_t slots = box.slots[BB_LINKS];
  uint16_t is_send = it->is_send ? 1 : 0;
  uint64_t key = comm * 31 + (uint32_t)it->peer * 0x9e3779b97f4a7c15ull + it->channel * 2u + is_send + (uint32_t)it->pid;
  uint32_t from = mixed(key) % slots;
  for (uint32_t i = 0; i < PROBES; i++) {
    uint32_t slot = (from + i) % slots;
    struct bb_link *link = &box.links[slot];
    bool used = GET(link->used);
    if (used && !(GET(link->comm) == comm && GET(link->peer) == it->peer && GET(link->channel) == it->channel &&
                  GET(link->is_send) == is_send && GET(link->pid) == it->pid && GET(link->rank) == rank))
      continue;
    if (!claim(&link->lock)) {
      if (!used) continue; /* another link is being made here: a connection has one thread, so it is not this one */
      break; /* its own: in another slot it would be a second link, counted from 0 */
    }
    if (!used && GET(link->used)) { /* somebody else took it in between */
      end(&link->lock);
      i--;
      continue;
    }
    PUT(link->comm, comm);
    PUT(link->peer, it->peer);
    PUT(link->rank, rank);
    PUT(link->channel, it->channel);
    PUT(link->is_send, is_send);
    PUT(link->pid, it->pid);
    PUT(link->changed_ns, at);
    *ordinal = (int64_t)GET(link->ops);
    PUT(link->ops, GET(link->ops) + 1);
    PUT(link->used, 1);
    end(&link->lock);
    return (int)slot;
  }
  drop(BB_LINKS);
  *ordinal = -1;
  return -1;
}

static void *start_proxy(void *context, const struct np_event *event) {
  const struct np_proxy_op *it = &event->proxy_op;
  uint64_t at = now_ns();
  struct bb_comm *comm = it->pid == box.pid ? comm_of(context) : NULL;
  uint64_t comm_serial = serial_of(context);
  struct bb_op *op = comm ? op_of(event->parent) : NULL;
  int what = what_of(event->parent);
  uint32_t slots = box.slots[BB_PROXIES];
  for (int i = 0; i < PROBES; i++) {
    uint32_t slot = (uint32_t)(ADD(box.header->next_proxy, 1) % slots);
    struct bb_proxy *proxy = &box.proxies[slot];
    if (GET(proxy->state) == BB_LIVE || !claim(&proxy->lock)) continue; /* the next slot is as good */
    if (GET(proxy->state) == BB_LIVE) {
      end(&proxy->lock);
      continue;
    }
    uint64_t serial = next_serial();
    int64_t ordinal = -1;
    int link = link_of(comm_serial, event->rank, it, at, &ordinal);
    PUT(proxy->serial, serial);
    PUT(proxy->op, is_op(what) ? place_of(event->parent) : 0);
    PUT(proxy->group, op ? GET(op->group) : comm && is_op(what) ? group_before(comm_serial, event->parent) : 0);
    PUT(proxy->comm, comm_serial);
    PUT(proxy->seq, op ? GET(op->seq) : 0);
    PUT(proxy->pid, it->pid);
    PUT(proxy->rank, event->rank);
    PUT(proxy->peer, it->peer);
    PUT(proxy->channel, it->channel);
    PUT(proxy->is_send, it->is_send ? 1 : 0);
    PUT(proxy->steps, it->steps);
    PUT(proxy->chunk_bytes, it->chunk_bytes);
    PUT(proxy->steps_started, 0);
    PUT(proxy->steps_done, 0);
    PUT(proxy->progress, 0);
    PUT(proxy->link, link);
    PUT(proxy->ordinal, ordinal);
    /* Of a launch of more point-to-point operations than there are slots, the kind of the handle still tells. */
    put_text(proxy->func, op ? get_text(op->func) : text_of(what == H_SEND ? "Send" : what == H_RECV ? "Recv" : NULL));
    PUT(proxy->started_ns, at);
    PUT(proxy->changed_ns, at);
    for (int s = 0; s < BB_STEPS; s++) {
      PUT(proxy->step[s].step, -1);
      PUT(proxy->step[s].state, 0);
    }
    PUT(proxy->state, BB_LIVE);
    end(&proxy->lock);
    if (op) ADD(op->proxies, 1);
    note(at, NP_PROXY_OP, BB_START, 0, slot, it->peer);
    return handle_of(H_PROXY, slot, serial);
  }
  drop(BB_PROXIES);
  return NULL;
}

static void stop_proxy(void *handle) {
  struct bb_proxy *proxy = proxy_of(handle, H_PROXY);
  if (!proxy) {
    strange();
    return;
  }
  uint64_t at = now_ns();
  if (!begin(&proxy->lock)) return;
  int done = GET(proxy->steps_done), link_slot = GET(proxy->link);
  uint64_t place = GET(proxy->op);
  bool ours = GET(proxy->pid) == box.pid;
  PUT(proxy->state, BB_DONE);
  PUT(proxy->changed_ns, at);
  end(&proxy->lock);
  if (link_slot >= 0 && (uint32_t)link_slot < box.slots[BB_LINKS]) {
    struct bb_link *link = &box.links[link_slot];
    if (begin(&link->lock)) {
      PUT(link->ops_done, GET(link->ops_done) + 1);
      PUT(link->steps_done, GET(link->steps_done) + (uint64_t)(done > 0 ? done : 0));
      PUT(link->changed_ns, at);
      end(&link->lock);
    }
  }
  void *parent = (void *)(uintptr_t)((uint64_t)H_OP /* any of the three */ << (SERIAL_BITS + SLOT_BITS) | place);
  struct bb_op *op = ours && place ? op_of(parent) : NULL;
  if (op) ADD(op->proxies_done, 1);
  note(at, NP_PROXY_OP, BB_STOP, 0, slot_of(handle), GET(proxy->peer));
}

static void *start_step(const struct np_event *event) {
  struct bb_proxy *proxy = proxy_of(event->parent, H_PROXY);
  int step = event->proxy_step.step;
  if (!proxy || step < 0) return event->parent ? strange() : NULL;
  uint32_t in = (uint32_t)step % BB_STEPS;
  struct bb_step *slot = &proxy->step[in];
  void *handle = handle_of(H_STEP, slot_of(event->parent) * BB_STEPS + in, serial_of(event->parent));
  /* NCCL starts a receive again on every poll until the network takes it (net.cc): that is no change. */
  if (GET(slot->step) == step && GET(slot->started_ns) && GET(proxy->steps_done) <= step) return handle;
  uint64_t at = now_ns();
  if (!begin(&proxy->lock)) return NULL;
  PUT(slot->step, step);
  PUT(slot->state, 0);
  PUT(slot->bytes, 0);
  PUT(slot->started_ns, at);
  PUT(slot->changed_ns, at);
  PUT(proxy->changed_ns, at);
  if (GET(proxy->steps_started) <= step) PUT(proxy->steps_started, step + 1);
  end(&proxy->lock);
  note(at, NP_PROXY_STEP, BB_START, 0, slot_of(event->parent), step);
  return handle;
}

static void record_step(void *handle, int state, const struct np_state_args *args) {
  struct bb_proxy *proxy = proxy_of(handle, H_STEP);
  if (!proxy) {
    strange();
    return;
  }
  struct bb_step *slot = &proxy->step[slot_of(handle) % BB_STEPS];
  /* SendPeerWait is recorded anew on every poll until the peer gives credit: only a change is written. */
  if (GET(slot->state) == (uint32_t)state) return;
  uint64_t at = now_ns();
  if (!begin(&proxy->lock)) return;
  PUT(slot->state, (uint32_t)state);
  if (args) PUT(slot->bytes, args->bytes);
  PUT(slot->changed_ns, at);
  PUT(proxy->changed_ns, at);
  end(&proxy->lock);
  note(at, NP_PROXY_STEP, BB_STATE, (uint32_t)state, slot_of(handle) / BB_STEPS, GET(slot->step));
}

static void stop_step(void *handle) {
  struct bb_proxy *proxy = proxy_of(handle, H_STEP);
  if (!proxy) {
    strange();
    return;
  }
  struct bb_step *slot = &proxy->step[slot_of(handle) % BB_STEPS];
  uint64_t at = now_ns();
  if (!begin(&proxy->lock)) return;
  int step = GET(slot->step);
  PUT(slot->step, -1);
  PUT(slot->state, 0);
  PUT(slot->changed_ns, at);
  if (step >= GET(proxy->steps_done)) PUT(proxy->steps_done, step + 1);
  PUT(proxy->changed_ns, at);
  end(&proxy->lock);
  note(at, NP_PROXY_STEP, BB_STOP, 0, slot_of(handle) / BB_STEPS, step);
}

/* ---- what NCCL calls ----------------------------------------------------------------------------------------------*/

static int start(void *context, void **handle, const struct np_event *event, uint64_t type, int version) {
  *handle = NULL;
  if (!context || !box.header) return 0;
  struct started op = {.kind = (uint32_t)type};
  struct bb_comm *comm;
  void *group = NULL;
  switch (type) {
  case NP_GROUP: *handle = start_group(context); return 0;
  case NP_PROXY_OP: *handle = start_proxy(context, event); return 0;
  case NP_PROXY_STEP: *handle = start_step(event); return 0;
  case NP_COLL:
    op.seq = event->coll.seq, op.count = event->coll.count, op.peer = event->coll.root;
    op.channels = event->coll.channels, op.warps = event->coll.warps;
    op.func = event->coll.func, op.datatype = event->coll.datatype;
    op.algorithm = event->coll.algorithm, op.protocol = event->coll.protocol;
    group = version >= 5 ? event->coll.parent_group : event->parent;
    break;
  case NP_P2P:
    op.count = event->p2p.count, op.peer = event->p2p.peer, op.func = event->p2p.func;
    op.datatype = event->p2p.datatype;
    group = version >= 5 ? event->p2p.parent_group : event->parent;
    break;
  case NP_CE_COLL:
    if (version < 6) return 0;
    op.seq = event->ce_coll.seq, op.count = event->ce_coll.count, op.peer = event->ce_coll.root;
    op.func = event->ce_coll.func, op.datatype = event->ce_coll.datatype, op.algorithm = "CE";
    break;
  default: return 0; /* parents and details that nobody asked for */
  }
  comm = comm_of(context);
  if (!comm) {
    strange();
    return 0;
  }
  op.group = what_of(group) == H_GROUP ? serial_of(group) : 0;
  *handle = start_op(comm, &op);
  return 0;
}

/* v3 names the communicator in each operation, and not where it is made. */
static int start_v3(void *context, void **handle, struct np_event *event) {
  *handle = NULL;
  if (!context || !box.header) return 0;
  bool coll = event->type_v4 == NP_COLL;
  if (!coll && event->type_v4 != NP_P2P) return start(context, handle, event, event->type_v4, 3);
  struct bb_comm *comm = comm_of(context);
  if (!comm) {
    strange();
    return 0;
  }
  if (!GET(comm->hash) && begin(&comm->lock)) {
    PUT(comm->hash, coll ? event->coll_v3.comm_hash : event->p2p_v3.comm_hash);
    PUT(comm->rank, event->rank);
    put_long_text(comm->name, sizeof comm->name, coll ? event->coll_v3.comm_name : event->p2p_v3.comm_name);
    end(&comm->lock);
  }
  struct started op = {.kind = event->type_v4};
  if (coll) {
    op.seq = event->coll_v3.seq, op.count = event->coll_v3.count, op.peer = event->coll_v3.root;
    op.channels = event->coll_v3.channels, op.warps = event->coll_v3.warps;
    op.func = event->coll_v3.func, op.datatype = event->coll_v3.datatype;
    op.algorithm = event->coll_v3.algorithm, op.protocol = event->coll_v3.protocol;
  } else {
    op.count = event->p2p_v3.count, op.peer = event->p2p_v3.peer;
    op.func = event->p2p_v3.func, op.datatype = event->p2p_v3.datatype;
  }
  op.group = what_of(event->parent) == H_GROUP ? serial_of(event->parent) : 0;
  *handle = start_op(comm, &op);
  return 0;
}

static int start_v4(void *context, void **handle, struct np_event *event) {
  return start(context, handle, event, event->type_v4, 4);
}
static int start_v5(void *context, void **handle, struct np_event *event) {
  return start(context, handle, event, event->type_v5, 5);
}
static int start_v6(void *context, void **handle, struct np_event *event) {
  return start(context, handle, event, event->type_v5, 6);
}

static int stop(void *handle) {
  if (!handle || !box.header) return 0;
  switch (what_of(handle)) {
  case H_OP:
  case H_SEND:
  case H_RECV: stop_op(handle); break;
  case H_PROXY: stop_proxy(handle); break;
  case H_STEP: stop_step(handle); break;
  case H_GROUP: break;
  default: strange();
  }
  return 0;
}

static int record(void *handle, int state, struct np_state_args *args) {
  if (!handle || !box.header) return 0;
  if (what_of(handle) == H_STEP) {
    if (state >= NP_STATE_SEND_GPU_WAIT) record_step(handle, state, args); /* below: v3's states of operations */
  } else if (what_of(handle) == H_PROXY && state == NP_STATE_OP_IN_PROGRESS) {
    struct bb_proxy *proxy = proxy_of(handle, H_PROXY);
    if (proxy && GET(proxy->progress) != (uint32_t)state && begin(&proxy->lock)) {
      PUT(proxy->progress, (uint32_t)state);
      PUT(proxy->changed_ns, now_ns());
      end(&proxy->lock);
    }
  }
  return 0;
}

/* ---- making the file ----------------------------------------------------------------------------------------------*/

static long number_from(const char *name, long otherwise) {
  const char *text = getenv(name);
  char *rest = NULL;
  if (!text || !*text) return otherwise;
  errno = 0;
  long value = strtol(text, &rest, 10);
  return errno || *rest ? otherwise : value;
}

static uint32_t version_of_nccl(void *caller) {
  /* NCCL is often loaded privately: it is asked through the library that called us. */
  int (*get)(int *) = NULL;
  Dl_info info;
  int version = 0;
  if (caller && dladdr(caller, &info) && info.dli_fname) {
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library) {
      *(void **)&get = dlsym(library, "ncclGetVersion");
      if (get && get(&version)) version = 0;
      dlclose(library);
    }
  }
  return version > 0 ? (uint32_t)version : 0;
}

static void *beat(void *header_) {
  struct bb_header *header = header_;
  struct timespec pause = {BEAT_MS / 1000, (BEAT_MS % 1000) * 1000000L};
  for (;;) {
    PUT(header->alive_ns, now_ns());
    PUT(header->alive_wall_ns, clock_ns(CLOCK_REALTIME));
    ADD(header->alive_count, 1);
    nanosleep(&pause, NULL);
  }
  return NULL;
}

/* One thread that says twice a second that the process is scheduled at all: it tells a stopped or dead process from one
 * whose transfers stand still. It takes no signals, so that the job's handlers run where they always did. */
static void start_beating(struct bb_header *header) {
  pthread_t thread;
  sigset_t all, before;
  pthread_attr_t attributes;
  if (number_from("HANGSCOPE_BLACKBOX_HEARTBEAT", 1) == 0 || pthread_attr_init(&attributes)) return;
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (!pthread_create(&thread, &attributes, beat, header)) { /* without one, no time at all: an old one would accuse */
    PUT(header->alive_ns, now_ns());
    PUT(header->alive_wall_ns, clock_ns(CLOCK_REALTIME));
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
}

static uint64_t lay_out(struct bb_header *header, uint64_t bytes) {
  static const uint32_t sizes[BB_TABLES] = {sizeof(struct bb_comm), sizeof(struct bb_op), sizeof(struct bb_link),
                                            sizeof(struct bb_proxy), sizeof(struct bb_event)};
  uint64_t comms = bytes / 16384 < 16 ? 16 : bytes / 16384 > 1024 ? 1024 : bytes / 16384;
  uint64_t fixed = 1024 + comms * (sizes[BB_COMMS] + 2 * BB_RING * sizes[BB_OPS]);
  uint64_t left = bytes > fixed ? bytes - fixed : 0;
  uint64_t slots[BB_TABLES] = {comms, comms * 2 * BB_RING, left / 5 / sizes[BB_LINKS], left / 2 / sizes[BB_PROXIES],
                               left / 4 / sizes[BB_EVENTS]};
  uint64_t at = 1024;
  if (slots[BB_PROXIES] > (1u << SLOT_BITS) / BB_STEPS) slots[BB_PROXIES] = (1u << SLOT_BITS) / BB_STEPS;
  for (int table = 0; table < BB_TABLES; table++) {
    if (slots[table] == 0) return 0;
    header->tables[table] = (struct bb_table){(uint32_t)at, sizes[table], (uint32_t)slots[table], 0};
    at = (at + slots[table] * sizes[table] + 63) & ~63ull;
  }
  return at;
}

static void fill_header(struct bb_header *header, int version, void *caller) {
  char host[64] = {0};
  gethostname(host, sizeof host - 1);
  header->version = BB_VERSION;
  header->header_bytes = sizeof *header;
  header->pid = (uint32_t)getpid();
  header->rank = (int32_t)number_from("RANK", -1);
  header->local_rank = (int32_t)number_from("LOCAL_RANK", -1);
  header->world_size = (int32_t)number_from("WORLD_SIZE", -1);
  header->nccl_version = version_of_nccl(caller);
  header->api_version = (uint32_t)version;
  header->start_wall_ns = clock_ns(CLOCK_REALTIME);
  header->start_ns = now_ns();
  memcpy(header->host, host, sizeof host);
  /* Where it begins differs between processes, so that a number of another one is hardly ever taken for one of ours. */
  header->serials = ((uint64_t)mixed(header->start_wall_ns) << 7 ^ mixed(header->pid)) & (SERIAL_MASK >> 1);
}

static int open_file(char *path, size_t size) {
  char folder[512], host[64] = {0};
  const char *set = getenv("HANGSCOPE_BLACKBOX_DIR");
  gethostname(host, sizeof host - 1);
  if (set && *set)
    snprintf(folder, sizeof folder, "%s", set);
  else
    snprintf(folder, sizeof folder, "/dev/shm/hangscope-%u", (unsigned)getuid());
  for (char *c = folder + 1; *c; c++) /* with the folders above it */
    if (*c == '/') *c = 0, mkdir(folder, 0700), *c = '/';
  mkdir(folder, 0700);
  for (char *c = host; *c; c++)
    if (*c == '/') *c = '-';
  if ((size_t)snprintf(path, size, "%s/%s.%d.ncclbb", folder, host, (int)getpid()) >= size) return -1;
  unlink(path); /* of an earlier process with our number */
  return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static const char *open_box(int version, void *caller) {
  static char path[640];
  struct bb_header plan;
  memset(&plan, 0, sizeof plan);
  long wanted = number_from("HANGSCOPE_BLACKBOX_BYTES", DEFAULT_BYTES);
  wanted = wanted < MIN_BYTES ? MIN_BYTES : wanted > MAX_BYTES ? MAX_BYTES : wanted;
  uint64_t bytes = lay_out(&plan, (uint64_t)wanted);
  int file = bytes ? open_file(path, sizeof path) : -1;
  if (file < 0) return NULL;
  /* Every block now: on a full /dev/shm a write into the mapping would otherwise kill the job later. */
  void *at = posix_fallocate(file, 0, (off_t)bytes) ? MAP_FAILED
                                                    : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) {
    unlink(path);
    return NULL;
  }
  struct bb_header *header = at;
  plan.file_bytes = bytes;
  fill_header(&plan, version, caller);
  memcpy(header, &plan, sizeof plan);
  box.comms = (void *)((char *)at + plan.tables[BB_COMMS].offset);
  box.ops = (void *)((char *)at + plan.tables[BB_OPS].offset);
  box.links = (void *)((char *)at + plan.tables[BB_LINKS].offset);
  box.proxies = (void *)((char *)at + plan.tables[BB_PROXIES].offset);
  box.events = (void *)((char *)at + plan.tables[BB_EVENTS].offset);
  for (int table = 0; table < BB_TABLES; table++) box.slots[table] = plan.tables[table].slots;
  box.pid = getpid();
  box.mask = (int)number_from("HANGSCOPE_BLACKBOX_EVENTS", NP_COLL | NP_P2P | NP_PROXY_OP | NP_PROXY_STEP);
  __atomic_store_n(&header->magic, BB_MAGIC, __ATOMIC_RELEASE); /* last: what has it is whole */
  box.header = header;
  start_beating(header);
  return path;
}

static void *new_comm(const char *name, uint64_t hash, int nodes, int ranks, int rank) {
  for (int reuse = 0; reuse < 2; reuse++)
    for (uint32_t slot = 0; slot < box.slots[BB_COMMS]; slot++) {
      struct bb_comm *comm = &box.comms[slot];
      if (GET(comm->state) != (reuse ? BB_DONE : BB_FREE) || !claim(&comm->lock)) continue;
      uint64_t serial = next_serial();
      PUT(comm->state, BB_LIVE);
      PUT(comm->serial, serial);
      PUT(comm->hash, hash);
      PUT(comm->rank, rank);
      PUT(comm->ranks, ranks);
      PUT(comm->nodes, nodes);
      PUT(comm->created_ns, now_ns());
      PUT(comm->done_ns, 0);
      PUT(comm->ops[0], 0);
      PUT(comm->ops[1], 0);
      put_long_text(comm->name, sizeof comm->name, name);
      for (int i = 0; i < BB_FUNCS; i++) {
        put_text(comm->last[i].func, text_of(NULL));
        PUT(comm->last[i].seq, 0);
      }
      end(&comm->lock);
      return handle_of(H_COMM, slot, serial);
    }
  drop(BB_COMMS);
  return NULL;
}

static void say_trouble(np_logger log);

static int init(int version, void *caller, void **context, int *mask, const char *name, uint64_t hash, int nodes,
                int ranks, int rank, np_logger log) {
  const char *path = NULL;
  *context = NULL;
  pthread_mutex_lock(&opening);
  if (box.header && box.pid != getpid()) box.header = NULL, box.failed = false; /* a fork: the file is its parent's */
  if (!box.header && !box.failed) {
    path = open_box(version, caller);
    box.failed = !path;
    if (log && path) log(3, 1, "blackbox.c", __LINE__, "hangscope black box: %s", path);
    say_trouble(log);
    if (log && !path) log(3, 1, "blackbox.c", __LINE__, "hangscope black box: no file could be made: %s", strerror(errno));
  }
  if (box.header) {
    *context = new_comm(name, hash, nodes, ranks, rank);
    *mask = box.mask;
  } else {
    *mask = 0;
  }
  pthread_mutex_unlock(&opening);
  return 0;
}

static int finalize(void *context) {
  struct bb_comm *comm = context && box.header ? comm_of(context) : NULL;
  if (!comm) return 0;
  uint64_t serial = serial_of(context);
  for (uint32_t i = 0; i < box.slots[BB_PROXIES]; i++) {
    struct bb_proxy *proxy = &box.proxies[i];
    if (GET(proxy->state) != BB_LIVE || GET(proxy->comm) != serial || !begin(&proxy->lock)) continue;
    if (GET(proxy->state) == BB_LIVE && GET(proxy->comm) == serial) PUT(proxy->state, BB_CUT_OFF);
    end(&proxy->lock);
  }
  if (begin(&comm->lock)) {
    PUT(comm->state, BB_DONE);
    PUT(comm->done_ns, now_ns());
    end(&comm->lock);
  }
  return 0;
}

static int init_v3(void **context, int *mask) {
  return init(3, __builtin_return_address(0), context, mask, NULL, 0, 0, 0, -1, NULL);
}
static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
                   np_logger log) {
  return init(4, __builtin_return_address(0), context, mask, name, hash, nodes, ranks, rank, log);
}
static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank,
                   np_logger log) {
  return init(5, __builtin_return_address(0), context, mask, name, hash, nodes, ranks, rank, log);
}
static int init_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank,
                   np_logger log) {
  return init(6, __builtin_return_address(0), context, mask, name, hash, nodes, ranks, rank, log);
}

#include "next_profiler.h"
