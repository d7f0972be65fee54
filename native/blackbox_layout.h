/* What lies where in a black box file. docs/blackbox.md says it in words; sources/black_box/read.py reads it.
 *
 * Little endian, every field at its natural alignment, every slot behind a sequence lock: `lock` is odd while somebody
 * writes, and grows with every write. A reader copies a slot, and takes the copy only if `lock` was even and is still
 * the same afterwards. Changing anything here means a new BB_VERSION. */
#ifndef HANGSCOPE_BLACKBOX_LAYOUT_H
#define HANGSCOPE_BLACKBOX_LAYOUT_H

#include <stdint.h>

#define BB_MAGIC 0x424c43434e5348ffull /* the bytes ff 'H' 'S' 'N' 'C' 'C' 'L' 'B': no text begins like this */
#define BB_VERSION 1
#define BB_TEXT 16
#define BB_STEPS 8 /* NCCL_STEPS: a connection never has more steps under way */

enum { BB_COMMS, BB_OPS, BB_LINKS, BB_PROXIES, BB_EVENTS, BB_TABLES };

struct bb_table {
  uint32_t offset;
  uint32_t slot_bytes;
  uint32_t slots;
  uint32_t unused;
};

struct bb_header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint32_t pid;
  int32_t rank; /* of the job, from RANK; -1 where nothing says so */
  int32_t local_rank;
  int32_t world_size;
  uint32_t nccl_version; /* as ncclGetVersion says it: 22809 is 2.28.9 */
  uint32_t api_version;
  uint64_t start_wall_ns;
  uint64_t start_ns; /* CLOCK_MONOTONIC, as all times in the tables */
  char host[64];
  struct bb_table tables[BB_TABLES];
  uint64_t copied_wall_ns; /* 0 in the file itself; hangscope's capture writes into its copy when it took it */
  uint64_t unused[3];
  /* written while the job runs, each on a cache line of its own */
  _Alignas(64) uint64_t alive_ns; /* the last heartbeat, on both clocks */
  uint64_t alive_wall_ns;
  uint64_t alive_count;
  _Alignas(64) uint64_t events; /* ever written to the ring */
  _Alignas(64) uint64_t serials;
  _Alignas(64) uint64_t next_proxy;
  uint64_t next_p2p;
  _Alignas(64) uint64_t dropped[BB_TABLES];
  uint64_t contended; /* writes left out because another thread was writing to the same slot */
  uint64_t strange;   /* handles that this process never gave, or that are long gone */
};

enum {
  BB_FREE = 0,
  BB_LIVE = 1,
  BB_DONE = 2,
  BB_CUT_OFF = 3, /* its communicator was destroyed while it was under way */
};

/* The last operation of one function on one communicator. */
struct bb_last {
  char func[BB_TEXT];
  uint64_t seq;
  uint64_t serial;
  uint64_t at_ns;
};
#define BB_FUNCS 16
/* Operations: first so many slots for each communicator's last collectives, then as many again for the last
 * point-to-point operations of all communicators together, of which one launch may bring hundreds. */
#define BB_RING 8

struct bb_comm {
  uint32_t lock;
  uint32_t state;
  uint64_t serial;
  uint64_t hash;
  int32_t rank;
  int32_t ranks;
  int32_t nodes;
  uint32_t unused;
  uint64_t created_ns;
  uint64_t done_ns;
  uint64_t ops[2]; /* ever started: collectives, point-to-point */
  char name[56];
  struct bb_last last[BB_FUNCS];
};

struct bb_op {
  uint32_t lock;
  uint32_t kind; /* NCCL's event type: collective, point-to-point, copy engine */
  uint64_t serial;
  uint64_t group; /* operations of one launch share it */
  uint64_t comm;  /* the communicator's serial */
  uint64_t seq;   /* NCCL counts per function and communicator; point-to-point has none: ours */
  uint64_t count;
  int32_t peer; /* root of a collective */
  uint8_t channels;
  uint8_t warps;
  uint16_t unused;
  uint64_t started_ns;
  uint64_t enqueued_ns; /* 0 until the call has handed it to the GPU */
  char func[BB_TEXT];
  char datatype[BB_TEXT];
  char algorithm[BB_TEXT];
  char protocol[BB_TEXT];
  /* outside the lock: proxy threads count them up */
  uint32_t proxies;
  uint32_t proxies_done;
  uint64_t unused_words[6];
};

/* All transfers of one communicator with one peer on one channel in one direction, since it was made. */
struct bb_link {
  uint32_t lock;
  uint32_t used;
  uint64_t comm;
  int32_t peer;
  int32_t rank;
  uint16_t channel;
  uint16_t is_send;
  int32_t pid;
  uint64_t ops;
  uint64_t ops_done;
  uint64_t steps_done;
  uint64_t changed_ns;
};

struct bb_step {
  int32_t step;
  uint32_t state; /* NCCL's number of the state; 0: not started, or stopped */
  uint64_t bytes;
  uint64_t started_ns;
  uint64_t changed_ns;
};

struct bb_proxy {
  uint32_t lock;
  uint32_t state;
  uint64_t serial;
  uint64_t op; /* its operation in the process that launched it (`pid`): serial in the low 40 bits, slot above */
  uint64_t group;
  uint64_t comm;
  uint64_t seq;
  int32_t pid;
  int32_t rank;
  int32_t peer;
  int16_t channel;
  int16_t is_send;
  int32_t steps;
  int32_t chunk_bytes;
  int32_t steps_started;
  int32_t steps_done;
  uint32_t progress; /* NCCL's state of the operation: 19 once its turn on the connection came */
  int32_t link;
  int64_t ordinal; /* the how manieth on its link; -1 where the table of links is full */
  char func[BB_TEXT];
  uint64_t started_ns;
  uint64_t changed_ns;
  struct bb_step step[BB_STEPS]; /* step number modulo BB_STEPS */
};

enum { BB_START = 1, BB_STOP = 2, BB_STATE = 3 };

struct bb_event {
  uint64_t ticket; /* its number, from 1; 0 while it is written */
  uint64_t at_ns;
  uint32_t type;
  uint16_t action;
  uint16_t state;
  uint32_t slot;
  int32_t step;
};

_Static_assert(sizeof(struct bb_header) <= 1024, "header");
_Static_assert(sizeof(struct bb_last) == 40, "last");
_Static_assert(sizeof(struct bb_comm) == 768, "comm");
_Static_assert(sizeof(struct bb_op) == 192, "op");
_Static_assert(sizeof(struct bb_link) == 64, "link");
_Static_assert(sizeof(struct bb_step) == 32, "step");
_Static_assert(sizeof(struct bb_proxy) == 384, "proxy");
_Static_assert(sizeof(struct bb_event) == 32, "event");

#endif
