/* The binary interface between NCCL and a profiler plugin, as far as the black box reads it.
 *
 * Only facts of the ABI: the order and width of fields per version (v3: NCCL 2.26, v4: 2.27, v5: 2.28, v6: 2.29 to
 * 2.32, which still accept it). Fields that nobody here reads are kept as padding under their own type, because they
 * fix the offsets; the asserts below hold them. */
#ifndef HANGSCOPE_NCCL_PROFILER_ABI_H
#define HANGSCOPE_NCCL_PROFILER_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
  NP_GROUP = 1 << 0,
  NP_COLL = 1 << 1,
  NP_P2P = 1 << 2,
  NP_PROXY_OP = 1 << 3,
  NP_PROXY_STEP = 1 << 4,
  NP_PROXY_CTRL = 1 << 5,
  NP_KERNEL_CH = 1 << 6,
  NP_NET_PLUGIN = 1 << 7,
  NP_CE_COLL = 1 << 12,
};

enum {
  NP_STATE_SEND_GPU_WAIT = 8,
  NP_STATE_SEND_WAIT = 9,
  NP_STATE_RECV_WAIT = 10,
  NP_STATE_RECV_FLUSH_WAIT = 11,
  NP_STATE_RECV_GPU_WAIT = 12,
  NP_STATE_OP_IN_PROGRESS = 19,
  NP_STATE_SEND_PEER_WAIT = 20,
};

struct np_coll_v4 {
  uint64_t seq;
  const char *func;
  const void *send_buffer;
  void *recv_buffer;
  size_t count;
  int root;
  const char *datatype;
  uint8_t channels;
  uint8_t warps;
  const char *algorithm;
  const char *protocol;
  void *parent_group; /* v5 and later */
};

struct np_coll_v3 {
  const char *comm_name;
  uint64_t comm_hash;
  uint64_t seq;
  const char *func;
  const void *send_buffer;
  void *recv_buffer;
  size_t count;
  int root;
  const char *datatype;
  uint8_t channels;
  uint8_t warps;
  const char *algorithm;
  const char *protocol;
};

struct np_p2p_v4 {
  const char *func;
  void *buffer;
  const char *datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void *parent_group; /* v5 and later */
};

struct np_p2p_v3 {
  const char *comm_name;
  uint64_t comm_hash;
  const char *func;
  void *buffer;
  const char *datatype;
  size_t count;
  int peer;
};

struct np_proxy_op {
  int pid; /* of the process that launched it: with PXN another one than this */
  uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};

struct np_ce_coll_v6 {
  uint64_t seq;
  const char *func;
  const void *send_buffer;
  void *recv_buffer;
  size_t count;
  int root;
  const char *datatype;
};

/* The type is one byte up to v4 and eight from v5 on; what follows lies at the same offsets. */
struct np_event {
  union {
    uint8_t type_v4;
    uint64_t type_v5;
  };
  void *parent;
  int rank;
  union {
    struct np_coll_v3 coll_v3;
    struct np_coll_v4 coll;
    struct np_p2p_v3 p2p_v3;
    struct np_p2p_v4 p2p;
    struct np_proxy_op proxy_op;
    struct {
      int step;
    } proxy_step;
    struct np_ce_coll_v6 ce_coll;
  };
};

/* Of a state's arguments only the transferred bytes of a step are read: the first word in every version. */
struct np_state_args {
  size_t bytes;
};

typedef void (*np_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef int (*np_start)(void *context, void **handle, struct np_event *event);
typedef int (*np_stop)(void *handle);
typedef int (*np_record)(void *handle, int state, struct np_state_args *args);
typedef int (*np_finalize)(void *context);

struct np_plugin_v3 {
  const char *name;
  int (*init)(void **context, int *mask);
  np_start start;
  np_stop stop;
  np_record record;
  np_finalize finalize;
};

struct np_plugin_v4 {
  const char *name;
  int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int ranks, int rank,
              np_logger log);
  np_start start;
  np_stop stop;
  np_record record;
  np_finalize finalize;
};

struct np_plugin_v5 { /* v6 has the same */
  const char *name;
  int (*init)(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes, int ranks, int rank,
              np_logger log);
  np_start start;
  np_stop stop;
  np_record record;
  np_finalize finalize;
};

#define NP_AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
NP_AT(struct np_event, parent, 8);
NP_AT(struct np_event, rank, 16);
NP_AT(struct np_event, coll, 24);
NP_AT(struct np_coll_v4, count, 32);
NP_AT(struct np_coll_v4, datatype, 48);
NP_AT(struct np_coll_v4, channels, 56);
NP_AT(struct np_coll_v4, algorithm, 64);
NP_AT(struct np_coll_v4, parent_group, 80);
NP_AT(struct np_coll_v3, seq, 16);
NP_AT(struct np_coll_v3, count, 48);
NP_AT(struct np_coll_v3, datatype, 64);
NP_AT(struct np_coll_v3, algorithm, 80);
NP_AT(struct np_p2p_v4, count, 24);
NP_AT(struct np_p2p_v4, peer, 32);
NP_AT(struct np_p2p_v4, parent_group, 40);
NP_AT(struct np_p2p_v3, func, 16);
NP_AT(struct np_p2p_v3, peer, 48);
NP_AT(struct np_proxy_op, channel, 4);
NP_AT(struct np_proxy_op, peer, 8);
NP_AT(struct np_proxy_op, is_send, 20);

#endif
