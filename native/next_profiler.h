/* The profiler that was there before us: NCCL takes one plugin a process, so ours loads the other one and passes on
 * every call of NCCL's, with the context and the handles that it gave itself.
 *
 * Part of blackbox.c. What NCCL holds is our handle, a number that is never given twice; which handle of theirs belongs
 * to it is kept beside. Theirs need not be unique: plugins give their context as the handle of every event. Where we keep
 * nothing of an event, NCCL holds theirs itself. A descriptor is theirs as NCCL made it, at the same place, with their
 * handles as its parents for as long as the call takes: it may be longer than we know it.
 *
 * NCCL asks for the versions of the interface downwards with dlsym. Each symbol is a resolver (IFUNC), which answers for
 * the versions that the other plugin has, and for no other: NCCL translates for theirs as it would without us. */

enum { H_THEIRS = H_RECV + 1 }; /* theirs alone, where their handle looks like one of ours */
enum { OLDEST_OURS = 3, NEWEST_OURS = 6, NEWEST = 7 };
enum { WAYS = 8, SETS = 1 << 14 };

struct pair {
  uint64_t key; /* our handle; 0: free, BUSY: being written */
  void *theirs;
};
#define BUSY 1ull
#define REFUSED ((void *)&next) /* their init failed: no event of this communicator is theirs */

static struct {
  struct np_plugin_v5 *plugin[NEWEST + 1]; /* by version; what differs between them is init alone */
  const char *name;
  char trouble[320]; /* why a plugin that was named is not there */
  int mask;          /* what they ask for: they may keep the place, and change it while the job runs */
  int mask_seen;
  int *nccl_mask;
  struct pair *comms, *proxies, *steps, *sets;
  uint32_t slots[BB_TABLES];
  bool both; /* our file is open, and there is room for the pairs; else every call is theirs as it comes */
} next;

/* ---- which events a mask brings ------------------------------------------------------------------------------------*/

enum {
  NP_GROUP_API = 1 << 8,
  NP_COLL_API = 1 << 9,
  NP_P2P_API = 1 << 10,
  NP_KERNEL_LAUNCH = 1 << 11,
  NP_CE_SYNC = 1 << 13,
  NP_CE_BATCH = 1 << 14,
  NP_KERNEL_PHASE = 1 << 15,
};

/* NCCL starts the parents of what is asked for as well (its profiler.cc, the same from 2.26 to 2.30). What is not
 * known here was asked for by them, for we ask for nothing of the kind. */
static inline bool wants(int version, uint64_t type, int mask) {
  const int transfers = NP_PROXY_OP | NP_PROXY_STEP | NP_NET_PLUGIN;
  const int tasks = transfers | NP_KERNEL_CH | (version < 7 ? 0 : NP_KERNEL_PHASE);
  const int engine = NP_CE_COLL | NP_CE_SYNC | NP_CE_BATCH;
  switch (type) {
  case NP_GROUP: return mask & (NP_GROUP | NP_COLL | NP_P2P | tasks);
  case NP_COLL: return mask & (NP_COLL | tasks);
  case NP_P2P: return mask & (NP_P2P | tasks);
  case NP_PROXY_OP: return mask & transfers;
  case NP_PROXY_STEP: return mask & (NP_PROXY_STEP | NP_NET_PLUGIN);
  case NP_GROUP_API:
    return mask & (NP_GROUP_API | NP_P2P_API | NP_COLL_API | NP_KERNEL_LAUNCH | NP_GROUP | NP_COLL | NP_P2P | tasks |
                   engine);
  case NP_COLL_API: return mask & (NP_COLL_API | NP_COLL | tasks | engine);
  case NP_P2P_API: return mask & (NP_P2P_API | NP_P2P | tasks);
  case NP_CE_COLL: return mask & engine;
  case NP_PROXY_CTRL:
  case NP_KERNEL_CH:
  case NP_NET_PLUGIN:
  case NP_KERNEL_LAUNCH:
  case NP_CE_SYNC:
  case NP_CE_BATCH: return mask & (int)type;
  default: return true;
  }
}

/* ---- pairs of handles ----------------------------------------------------------------------------------------------*/

static inline bool is_ours(void *handle) {
  int what = what_of(handle);
  return what >= H_COMM && what <= H_THEIRS;
}

/* The only place of a thing that has a slot; NULL for what is kept in the sets. */
static struct pair *place_in_table(void *handle) {
  uint32_t slot = slot_of(handle);
  switch (what_of(handle)) {
  case H_COMM: return slot < next.slots[BB_COMMS] ? &next.comms[slot] : NULL;
  case H_PROXY: return slot < next.slots[BB_PROXIES] ? &next.proxies[slot] : NULL;
  case H_STEP: return slot < next.slots[BB_PROXIES] * BB_STEPS ? &next.steps[slot] : NULL;
  default: return NULL;
  }
}

static inline struct pair *set_of(void *handle) { return &next.sets[mixed((uint64_t)(uintptr_t)handle) % SETS * WAYS]; }
static inline bool has_slot(void *handle) {
  int what = what_of(handle);
  return what == H_COMM || what == H_PROXY || what == H_STEP;
}

static bool read_pair(struct pair *at, void *handle, void **theirs) {
  uint64_t key = (uint64_t)(uintptr_t)handle;
  if (!at || __atomic_load_n(&at->key, __ATOMIC_ACQUIRE) != key) return false;
  *theirs = __atomic_load_n(&at->theirs, __ATOMIC_ACQUIRE);
  return GET(at->key) == key;
}

/* Whether we know the handle; `theirs` is NULL where they gave none. */
static bool find_pair(void *handle, void **theirs) {
  *theirs = NULL;
  if (has_slot(handle)) return read_pair(place_in_table(handle), handle, theirs);
  struct pair *set = set_of(handle);
  for (int way = 0; way < WAYS; way++)
    if (read_pair(&set[way], handle, theirs)) return true;
  return false;
}

static bool write_pair(struct pair *at, uint64_t seen, void *handle, void *theirs) {
  if (seen == BUSY || !__atomic_compare_exchange_n(&at->key, &seen, BUSY, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return false;
  __atomic_store_n(&at->theirs, theirs, __ATOMIC_RELEASE);
  __atomic_store_n(&at->key, (uint64_t)(uintptr_t)handle, __ATOMIC_RELEASE);
  return true;
}

/* False where there is no room. In the sets the oldest goes: an operation's handle has no end that we are told of, and
 * 50,000 later ones are far more than NCCL has under way. */
static bool keep_pair(void *handle, void *theirs) {
  if (has_slot(handle)) {
    struct pair *at = place_in_table(handle);
    if (!at) return false;
    PUT(at->key, 0); /* whoever was given the slot is alone with it */
    __atomic_store_n(&at->theirs, theirs, __ATOMIC_RELEASE);
    __atomic_store_n(&at->key, (uint64_t)(uintptr_t)handle, __ATOMIC_RELEASE);
    return true;
  }
  struct pair *set = set_of(handle);
  for (int again = 0; again < 2 * WAYS; again++) {
    struct pair *oldest = &set[0];
    uint64_t least = UINT64_MAX, seen = BUSY;
    for (int way = 0; way < WAYS; way++) {
      uint64_t key = GET(set[way].key), age = key ? key & SERIAL_MASK : 0;
      if (key != BUSY && age < least) least = age, oldest = &set[way], seen = key;
    }
    if (write_pair(oldest, seen, handle, theirs)) return true;
  }
  return false;
}

/* Their handle in place of the one that NCCL holds. NULL: they gave none for it. */
static void *theirs_for(void *handle) {
  void *theirs;
  if (!is_ours(handle)) return handle;
  find_pair(handle, &theirs);
  return theirs;
}

/* ---- NCCL's calls, for both ----------------------------------------------------------------------------------------*/

/* NCCL reads one mask, at every call: it follows where they change theirs. */
static inline void follow_mask(void) {
  int mask = GET(next.mask);
  if (mask == GET(next.mask_seen)) return;
  PUT(next.mask_seen, mask);
  if (next.nccl_mask) PUT(*next.nccl_mask, box.mask | mask);
}

static void **second_parent(struct np_event *event, uint64_t type, int version) {
  if (version < 5) return NULL;
  return type == NP_COLL ? &event->coll.parent_group : type == NP_P2P ? &event->p2p.parent_group : NULL;
}

static int start_theirs(int version, void *context, void **handle, struct np_event *event, uint64_t type) {
  void *parent = event->parent, **second = second_parent(event, type, version), *group = second ? *second : NULL;
  /* With PXN what another process was given comes here: it is passed on as it is, as it would be without us. */
  if (type != NP_PROXY_OP || event->proxy_op.pid == box.pid) event->parent = theirs_for(parent);
  if (second) *second = theirs_for(group);
  int result = next.plugin[version]->start(context, handle, event);
  event->parent = parent;
  if (second) *second = group;
  return result;
}

static int both_start(int version, np_start ours, void *context, void **handle, struct np_event *event) {
  if (!next.both) return next.plugin[version]->start(context, handle, event);
  uint64_t type = version < 5 ? event->type_v4 : event->type_v5;
  void *mine = NULL, *theirs = NULL, *their_context = context;
  int result = 0;
  follow_mask();
  if (is_ours(context)) {
    if (wants(version, type, box.mask)) ours(context, &mine, event);
    if (!find_pair(context, &their_context)) their_context = context; /* of another process */
  }
  if (their_context != REFUSED && wants(version, type, GET(next.mask)))
    result = start_theirs(version, their_context, &theirs, event, type);
  *handle = mine;
  bool kept = !mine || (!theirs && !has_slot(mine)) || keep_pair(mine, theirs);
  if (!mine || !kept) { /* theirs comes first: ours is left out, and counted */
    if (mine) stop(mine), drop(BB_EVENTS);
    *handle = theirs;
    if (is_ours(theirs) && box.header) {
      void *wrapped = handle_of(H_THEIRS, 0, next_serial());
      *handle = keep_pair(wrapped, theirs) ? wrapped : NULL;
    }
  }
  return result;
}

static int both_stop(int version, void *handle) {
  void *theirs = handle;
  if (!next.both || !is_ours(handle)) return next.plugin[version]->stop(handle);
  find_pair(handle, &theirs); /* first: a slot that was stopped may be taken */
  if (what_of(handle) != H_THEIRS) stop(handle);
  return theirs ? next.plugin[version]->stop(theirs) : 0;
}

static int both_record(int version, void *handle, int state, struct np_state_args *args) {
  void *theirs = handle;
  if (!next.both || !is_ours(handle)) return next.plugin[version]->record(handle, state, args);
  find_pair(handle, &theirs);
  if (what_of(handle) != H_THEIRS) record(handle, state, args);
  return theirs ? next.plugin[version]->record(theirs, state, args) : 0;
}

static int both_finalize(int version, void *context) {
  void *theirs = context;
  if (!next.both || !is_ours(context)) return next.plugin[version]->finalize(context);
  if (!find_pair(context, &theirs)) theirs = NULL;
  finalize(context);
  return theirs && theirs != REFUSED ? next.plugin[version]->finalize(theirs) : 0; /* NCCL ends no empty context */
}

/* Room for the pairs, by the tables of our file; called under `opening`. */
static bool make_room(void) {
  if (!box.header) return false;
  if (next.sets && !memcmp(next.slots, box.slots, sizeof next.slots)) return true;
  uint64_t comms = box.slots[BB_COMMS], proxies = box.slots[BB_PROXIES];
  uint64_t pairs = comms + proxies * (1 + BB_STEPS) + (uint64_t)SETS * WAYS;
  void *at = mmap(NULL, pairs * sizeof(struct pair), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return false;
  next.comms = at, next.proxies = next.comms + comms, next.steps = next.proxies + proxies;
  next.sets = next.steps + proxies * BB_STEPS;
  memcpy(next.slots, box.slots, sizeof next.slots);
  return true;
}

static int init_theirs(int version, void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                       int rank, np_logger log) {
  if (version == 3) return ((struct np_plugin_v3 *)(void *)next.plugin[3])->init(context, mask);
  if (version == 4)
    return ((struct np_plugin_v4 *)(void *)next.plugin[4])->init(context, mask, name, hash, nodes, ranks, rank, log);
  return next.plugin[version]->init(context, hash, mask, name, nodes, ranks, rank, log);
}

static int both_init(int version, void *caller, void **context, int *mask, const char *name, uint64_t hash, int nodes,
                     int ranks, int rank, np_logger log) {
  void *mine = NULL, *theirs = NULL;
  int our_mask = 0;
  init(version < NEWEST_OURS ? version : NEWEST_OURS, caller, &mine, &our_mask, name, hash, nodes, ranks, rank, log);
  pthread_mutex_lock(&opening);
  bool both = make_room();
  if (next.nccl_mask == NULL) next.both = both;
  pthread_mutex_unlock(&opening);
  if (!next.both) return init_theirs(version, context, mask, name, hash, nodes, ranks, rank, log);
  next.nccl_mask = mask;
  int result = init_theirs(version, &theirs, &next.mask, name, hash, nodes, ranks, rank, log);
  if (result && log)
    log(3, 1, "blackbox.c", __LINE__, "hangscope black box: the profiler %s failed with %d: it gets no events of this"
        " communicator", next.name, result);
  *context = mine && keep_pair(mine, result ? REFUSED : theirs) ? mine : result ? NULL : theirs;
  PUT(next.mask_seen, GET(next.mask));
  PUT(*mask, box.mask | GET(next.mask));
  if (log && !result) log(3, 1, "blackbox.c", __LINE__, "hangscope black box: beside the profiler %s", next.name);
  return 0;
}

/* NCCL knows a plugin by its functions alone, which do not say the version: each version has its own. */
#define BOTH(V, OURS)                                                                                                  \
  static int both_start_v##V(void *c, void **h, struct np_event *e) { return both_start(V, OURS, c, h, e); }           \
  static int both_stop_v##V(void *h) { return both_stop(V, h); }                                                       \
  static int both_record_v##V(void *h, int s, struct np_state_args *a) { return both_record(V, h, s, a); }             \
  static int both_finalize_v##V(void *c) { return both_finalize(V, c); }
#define BOTH_INIT(V)                                                                                                   \
  static int both_init_v##V(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, \
                            np_logger log) {                                                                           \
    return both_init(V, __builtin_return_address(0), context, mask, name, hash, nodes, ranks, rank, log);              \
  }
#define BOTH_OF(V) both_init_v##V, both_start_v##V, both_stop_v##V, both_record_v##V, both_finalize_v##V

BOTH(3, start_v3)
BOTH(4, start_v4)
BOTH(5, start_v5)
BOTH(6, start_v6)
BOTH(7, start_v6) /* what we read of v7 lies where it did (profiler_v7.h of NCCL 2.31) */
BOTH_INIT(5)
BOTH_INIT(6)
BOTH_INIT(7)
static int both_init_v3(void **context, int *mask) {
  return both_init(3, __builtin_return_address(0), context, mask, NULL, 0, 0, 0, -1, NULL);
}
static int both_init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
                        np_logger log) {
  return both_init(4, __builtin_return_address(0), context, mask, name, hash, nodes, ranks, rank, log);
}

static struct np_plugin_v3 both_v3 = {"hangscope", BOTH_OF(3)};
static struct np_plugin_v4 both_v4 = {"hangscope", BOTH_OF(4)};
static struct np_plugin_v5 both_v5 = {"hangscope", BOTH_OF(5)};
static struct np_plugin_v5 both_v6 = {"hangscope", BOTH_OF(6)};
static struct {
  struct np_plugin_v5 plugin;
  void *more[8]; /* forks of v7 end with one function more, which may be missing */
} both_v7 = {{"hangscope", BOTH_OF(7)}, {0}};

/* ---- loading the other one -----------------------------------------------------------------------------------------*/

EXPORT const char hangscope_blackbox[] = "hangscope's black box";

static void *opened(const char *name, int flags) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);
  if (library && name && dlsym(library, "hangscope_blackbox")) { /* ourselves, or another copy of us */
    dlclose(library);
    return NULL;
  }
  return library;
}

/* As NCCL takes NCCL_PROFILER_PLUGIN: a path, a library, or NAME for libnccl-profiler-NAME.so (RCCL: librccl-…). */
static void *open_named(const char *name) {
  char longer[PATH_MAX];
  if (!strcmp(name, "STATIC_PLUGIN")) return opened(NULL, 0);
  void *library = opened(name, 0);
  if (!library) { /* the first reason is the one that was meant; the system's own words */
    const char *why = dlerror();
    snprintf(next.trouble, sizeof next.trouble, "%s", why ? why : "it is hangscope itself");
  }
  if (library || strchr(name, '/')) return library;
  for (int rccl = 0; !library && rccl < 2; rccl++) {
    snprintf(longer, sizeof longer, "lib%s-profiler-%s.so", rccl ? "rccl" : "nccl", name);
    library = opened(longer, 0);
  }
  return library;
}

static int find_rccl(struct dl_phdr_info *info, size_t size, void *path_) {
  char *path = path_;
  (void)size;
  const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
  if (!base || strncmp(base, "/librccl.so", 11)) return 0;
  return snprintf(path, PATH_MAX, "%.*s/librccl-profiler-proxytrace.so", (int)(base - info->dlpi_name),
                  info->dlpi_name) < PATH_MAX;
}

static void say_trouble(np_logger log) {
  if (log && next.trouble[0])
    log(3, 1, "blackbox.c", __LINE__, "hangscope black box: the other profiler was not loaded: %s", next.trouble);
}

/* What the library itself would have loaded, were we not set: RCCL's own where its variable asks for it, else
 * libnccl-profiler.so, else the network plugin that is loaded already. */
static void *open_default(void) {
  char path[PATH_MAX] = "";
  const char *trace = getenv("RCCL_ENABLE_PROXY_TRACE"), *net = getenv("NCCL_NET_PLUGIN");
  void *library = NULL;
  if (trace && strcmp(trace, "") && strcmp(trace, "0") && dl_iterate_phdr(find_rccl, path)) library = opened(path, 0);
  if (!library) library = opened("libnccl-profiler.so", 0);
  if (!library) library = opened(net && *net ? net : "libnccl-net.so", RTLD_NOLOAD);
  return library;
}

/* When NCCL loads us, and before it asks for a version. */
__attribute__((constructor)) static void load_next(void) {
  const char *name = getenv("HANGSCOPE_NEXT_PROFILER");
  if (name && !strcasecmp(name, "none")) return;
  void *library = name && *name ? open_named(name) : open_default();
  bool any = false;
  for (int version = 1; library && version <= NEWEST; version++) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    next.plugin[version] = dlsym(library, symbol);
    any = any || next.plugin[version];
  }
  for (int version = 1; version <= NEWEST; version++)
    if (next.plugin[version]) next.name = next.plugin[version]->name ? next.plugin[version]->name : "without a name";
  if (any)
    next.trouble[0] = 0;
  else if (library && name && *name)
    snprintf(next.trouble, sizeof next.trouble, "%s has no version of the profiler interface that is known", name);
}

/* The plugin for a version of the interface. NCCL asks downwards: where theirs has an older one only, that is waited for.
 * Older than we read (v1, v2: they have no other): theirs alone. */
static void *offer(int version, void *ours, void *both) {
  bool older = false;
  for (int v = 1; v < version; v++) older = older || next.plugin[v];
  if (next.plugin[version]) return both ? both : next.plugin[version];
  return older ? NULL : ours;
}

#define OFFER(V, OURS, BOTH_)                                                                                          \
  typedef void (*symbol_v##V)(void);                                                                                   \
  static symbol_v##V offer_v##V(void) { return (symbol_v##V)offer(V, OURS, BOTH_); }                                   \
  EXPORT void ncclProfiler_v##V(void) __attribute__((ifunc("offer_v" #V)));

static struct np_plugin_v3 ours_v3 = {"hangscope", init_v3, start_v3, stop, record, finalize};
static struct np_plugin_v4 ours_v4 = {"hangscope", init_v4, start_v4, stop, record, finalize};
static struct np_plugin_v5 ours_v5 = {"hangscope", init_v5, start_v5, stop, record, finalize};
static struct np_plugin_v5 ours_v6 = {"hangscope", init_v6, start_v6, stop, record, finalize};

OFFER(1, NULL, NULL)
OFFER(2, NULL, NULL)
OFFER(3, &ours_v3, &both_v3)
OFFER(4, &ours_v4, &both_v4)
OFFER(5, &ours_v5, &both_v5)
OFFER(6, &ours_v6, &both_v6)
OFFER(7, NULL, &both_v7)
