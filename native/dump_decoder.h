/* Reads a flight recorder dump (a pickle) into columns in one pass, without Python.
 *
 * It runs the machine of reader/dumps/pickle_machine.py opcode by opcode, with the same limits and the same account of
 * memory, and turns each entry into numbers as reader/dumps/entries.py does, a thousand at a time. What it does not do
 * is judge: at the first entry that the Python reader would complain about, or that it would read in a way of its own,
 * the answer is HS_NOT_MINE and the Python reader reads the file from its start. So there is one place that says what
 * is wrong with a file, and this one only has to be right about files in which nothing is.
 *
 * No byte of the file decides how much memory is taken beyond `hs_limits`, and nothing here recurses. */

#ifndef HANGSCOPE_DUMP_DECODER_H
#define HANGSCOPE_DUMP_DECODER_H

#include <stddef.h>
#include <stdint.h>

/* How the machine ended. The order is that of _ENDS in reader/dumps/native_decoder.py. */
enum hs_status {
    HS_COMPLETE,
    HS_CUT,           /* ends in the middle of the data */
    HS_MEMORY,        /* more objects than the limit; detail: the limit */
    HS_NOT_LIST,      /* appends to something that is no list */
    HS_NESTED,        /* nested too deep */
    HS_INTEGER,       /* a huge integer; detail: its length */
    HS_KEYS,          /* a dict with other keys than text and whole numbers */
    HS_STRING,        /* a string longer than allowed or than what is left; detail: its length */
    HS_PROTOCOL,      /* detail: the protocol */
    HS_UNFINISHED,    /* ends with unfinished values */
    HS_REFUSED,       /* an opcode that no dump uses; detail: the opcode */
    HS_NO_OPCODE,     /* detail: the byte */
    HS_MEMO,          /* more memo entries than the limit */
    HS_NEVER_STORED,  /* refers to a value that was never stored */
    HS_EMPTY_STACK,   /* takes from an empty stack */
    HS_NOT_MINE       /* the Python reader has to read this file */
};

typedef struct {
    int64_t memory_bytes, growth, nesting, memo, string_bytes, integer_bytes, visits, groups;
} hs_limits;

enum hs_tag { HS_UNSET, HS_NONE, HS_TRUE, HS_FALSE, HS_INT, HS_BIG, HS_FLOAT, HS_STR, HS_DRAINED,
              HS_LIST, HS_TUPLE, HS_DICT };

/* One value of the machine. `number` is the integer, the id of a string or container, or where a big integer lies. */
typedef struct {
    uint32_t tag;
    uint32_t length; /* of a big integer; of a container: 1 where it was taken from the memo */
    union {
        int64_t number;
        double real;
    } as;
} hs_value;

typedef struct {
    uint8_t tag, flags;
    uint32_t count, room, escapes;
    uint64_t at;   /* its items in `cells`; a dict has two for each pair */
    uint64_t mark; /* of a dict: how many cells there were when it began; once read as a frame, that frame's id */
} hs_node;

typedef struct {
    uint64_t at;
    uint32_t size;
    int32_t name; /* its id among the names of operations, or -1 */
    int32_t field;
    uint32_t hash;
} hs_string;

/* Distinct sequences of numbers, each once: shapes, types, stacks, frames, groups, threads and pairs of ids. */
typedef struct {
    int64_t *pool;
    size_t pool_used, pool_room;
    struct hs_interned {
        uint64_t hash;
        size_t at;
        uint32_t size;
        int32_t number; /* the id that the Python reader would give it, once known */
    } *items;
    uint32_t count, room;
    uint32_t *slots;
    uint32_t slot_count;
} hs_table;

enum hs_column { HS_C_INDEX, HS_C_RECORD_ID, HS_C_GROUP, HS_C_NAME, HS_C_SEQ, HS_C_P2P_SEQ, HS_C_OP_ID, HS_C_STATE,
                 HS_C_RETIRED, HS_C_CREATED, HS_C_STARTED, HS_C_COMPLETED, HS_C_DURATION, HS_C_IN_SHAPES,
                 HS_C_OUT_SHAPES, HS_C_IN_DTYPES, HS_C_OUT_DTYPES, HS_C_SIZE, HS_C_STACK, HS_C_THREAD, HS_C_TIMEOUT,
                 HS_COLUMNS };

/* An entry as it was found before, but for its numbers: most entries of a dump are, and need no machine. */
struct hs_pattern;

extern const char *const hs_column_names[HS_COLUMNS];
extern const uint8_t hs_column_widths[HS_COLUMNS]; /* bytes of one value */

typedef struct hs_dump {
    const uint8_t *data;
    size_t size;
    hs_limits limits;

    /* the machine */
    hs_value *stack;
    size_t top, stack_room;
    size_t *levels; /* where each level of marks begins; levels[0] is 0 */
    size_t depth;
    hs_value *memo;
    size_t memo_room, memo_count;
    hs_node *nodes;
    size_t node_count, node_room;
    hs_value *cells;
    size_t cell_count, cell_room;
    hs_string *strings;
    size_t string_count, string_room;
    uint32_t *string_slots;
    size_t string_slot_count;
    uint32_t escapes;
    int64_t spent, drained_spent;
    size_t drained_memo;

    /* the entries */
    char *columns[HS_COLUMNS];
    size_t rows, row_room;
    hs_table names, threads, groups, shapes, dtypes, frames, stacks, sizes;
    int32_t next_shape, next_dtype;
    int64_t visits;
    int64_t *scratch;
    size_t scratch_room;
    struct hs_chunk *chunk;
    size_t entry_at, entry_node; /* where the dict begins that may be an entry, and which it is */
    struct hs_pattern *patterns;
    uint32_t pattern_count, pattern_slots[1024], last_pattern;
    uint32_t expected;
    uint8_t has_stacks, old_sequence, numbered;

    /* how it ended */
    size_t at;
    int64_t detail;
} hs_dump;

/* Decodes the bytes. The result lies in `dump`, also where a file broke; hs_free gives it back in every case. */
enum hs_status hs_decode(hs_dump *dump, const uint8_t *data, size_t size, const hs_limits *limits);
void hs_free(hs_dump *dump);

static inline const int64_t *hs_interned(const hs_table *table, uint32_t id, uint32_t *size) {
    *size = table->items[id].size;
    return table->pool + table->items[id].at;
}

#endif
