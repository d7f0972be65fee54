#include "dump_decoder.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* As in reader/dumps/pickle_machine.py and reader/dumps/entries.py: the account of memory, and how many entries are
 * judged together. */
#define SEGMENT ((size_t)1 << 18)
#define FREE_BYTES ((int64_t)8 << 20)
#define VALUE 40
#define MEMO 100
#define CHUNK 1024
#define MAX_INT INT64_MAX
#define MAX_LINE INT32_MAX

/* Own bounds, beyond which the Python reader takes over: crafted keys that all fall into one slot, sparse memos. */
#define MOST_PROBES 4096
#define LEAST_OWN_BYTES ((size_t)64 << 20)

#define UNKNOWN (-1)
#define NOTHING UINT32_MAX

/* Of entries that are recognised as a whole: how many kinds of them are remembered, and how long they may be. */
#define MOST_PATTERNS 512
#define PATTERN_SLOTS 1024
#define PATTERN_WORDS 64

enum { MEMOISED = 1, READ = 2, IS_FRAME = 4 };

/* ---- fields ------------------------------------------------------------------------------------------------------ */

enum field { F_NAME, F_SEQ, F_OLD_SEQ, F_GROUP, F_PG_ID, F_STATE, F_IN_SIZES, F_OUT_SIZES, F_IN_DTYPES, F_OUT_DTYPES,
             F_RECORD_ID, F_P2P_SEQ, F_OP_ID, F_RETIRED, F_CREATED_NS, F_CREATED_US, F_STARTED, F_COMPLETED,
             F_DURATION, F_FRAMES, F_THREAD_NAME, F_THREAD_ID, F_TIMEOUT, FIELDS };

static const char *const field_names[FIELDS] = {
    "profiling_name", "collective_seq_id", "seq_id", "process_group", "pg_id", "state", "input_sizes", "output_sizes",
    "input_dtypes", "output_dtypes", "record_id", "p2p_seq_id", "op_id", "retired", "time_created_ns",
    "time_created_us", "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms", "frames",
    "thread_name", "thread_id", "timeout_ms",
};

/* Other words that the machine has to know again; they share the numbering of fields. */
enum { W_ENTRIES = FIELDS, W_FRAME_NAME, W_FRAME_FILE, W_FRAME_LINE, W_SCHEDULED, W_STARTED, W_COMPLETED, WORDS };
static const char *const other_words[WORDS - FIELDS] = {"entries", "name",    "filename", "line",
                                                        "scheduled", "started", "completed"};

const char *const hs_column_names[HS_COLUMNS] = {
    "index", "record_id", "group", "name", "seq", "p2p_seq", "op_id", "state", "retired", "created_ns", "started_ns",
    "completed_ns", "duration_ms", "in_shapes", "out_shapes", "in_dtypes", "out_dtypes", "size_bytes", "stack",
    "thread", "timeout_ms",
};
const uint8_t hs_column_widths[HS_COLUMNS] = {8, 8, 4, 4, 8, 8, 8, 1, 1, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8};

/* What has to wait for the end of its chunk, because the majority there decides what it means. */
struct hs_chunk {
    size_t first; /* row */
    uint32_t present[FIELDS];
    uint32_t bad_seq, bad_old_seq, bad_ns, bad_us, unknown_records, known_records;
    int64_t old_seq[CHUNK], micros[CHUNK];
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The block with room for `wanted` items of `width` bytes, at another place maybe; NULL where there is no memory. */
static void *grown(void *block, size_t *room, size_t wanted, size_t width) {
    size_t next = *room ? *room : 64;
    while (next < wanted) {
        if (next > SIZE_MAX / 2 / width)
            return NULL;
        next *= 2;
    }
    void *found = realloc(block, next * width);
    if (found != NULL)
        *room = next;
    return found;
}

#define GROW(block, room, wanted)                                                \
    ((wanted) <= (room) || ({                                                    \
         void *found_ = grown((block), &(room), (wanted), sizeof *(block));      \
         if (found_ != NULL)                                                     \
             (block) = found_;                                                   \
         found_ != NULL;                                                         \
     }))

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static inline uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

static bool table_rehash(hs_table *table, uint32_t slot_count) {
    uint32_t *slots = malloc((size_t)slot_count * sizeof *slots);
    if (slots == NULL)
        return false;
    memset(slots, 0xFF, (size_t)slot_count * sizeof *slots);
    for (uint32_t id = 0; id < table->count; id++) {
        uint32_t slot = (uint32_t)table->items[id].hash & (slot_count - 1);
        while (slots[slot] != NOTHING)
            slot = (slot + 1) & (slot_count - 1);
        slots[slot] = id;
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = slot_count;
    return true;
}

/* As memcmp, which costs more for the few words that these mostly are. */
static inline bool same_words(const int64_t *one, const int64_t *other, size_t size) {
    int64_t differ = 0;
    for (size_t i = 0; i < size; i++)
        differ |= one[i] ^ other[i];
    return differ == 0;
}

/* The id of this sequence, given one where it is new; -1 where there is no memory or its slot is crowded. */
static int64_t intern(hs_table *table, const int64_t *words, size_t size) {
    uint64_t hash = mix(UINT64_C(0x243F6A8885A308D3), size);
    for (size_t i = 0; i < size; i++)
        hash = mix(hash, (uint64_t)words[i]);
    if ((uint64_t)(table->count + 1) * 2 > table->slot_count &&
        !table_rehash(table, table->slot_count ? table->slot_count * 2 : 64))
        return -1;
    uint32_t slot = (uint32_t)hash & (table->slot_count - 1);
    for (unsigned probes = 0; table->slots[slot] != NOTHING; probes++) {
        uint32_t id = table->slots[slot];
        const struct hs_interned *item = &table->items[id];
        if (item->hash == hash && item->size == size &&
            same_words(table->pool + item->at, words, size))
            return id;
        if (probes > MOST_PROBES)
            return -1;
        slot = (slot + 1) & (table->slot_count - 1);
    }
    size_t room = table->room;
    if (size > UINT32_MAX || table->count >= INT32_MAX / 2 || !GROW(table->items, room, (size_t)table->count + 1) ||
        !GROW(table->pool, table->pool_room, table->pool_used + size + 1))
        return -1;
    table->room = (uint32_t)room;
    struct hs_interned *item = &table->items[table->count];
    item->hash = hash;
    item->at = table->pool_used;
    item->size = (uint32_t)size;
    item->number = -1;
    if (size)
        memcpy(table->pool + table->pool_used, words, size * sizeof *words);
    table->pool_used += size;
    table->slots[slot] = table->count;
    return table->count++;
}

static void table_free(hs_table *table) {
    free(table->pool);
    free(table->items);
    free(table->slots);
}

static size_t table_bytes(const hs_table *table) {
    return table->pool_room * sizeof(int64_t) + (size_t)table->room * sizeof *table->items +
           (size_t)table->slot_count * sizeof(uint32_t);
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static int32_t word_number(const uint8_t *text, uint32_t size) {
    if (size < 4 || size > 28)
        return -1;
    for (int i = 0; i < WORDS; i++) {
        const char *word = i < FIELDS ? field_names[i] : other_words[i - FIELDS];
        if (strlen(word) == size && memcmp(word, text, size) == 0)
            return i;
    }
    return -1;
}

/* The id of the string at `at`; -1 as in `intern`. Nothing is copied: a string is where it first stands in the file. */
static int64_t intern_string(hs_dump *d, size_t at, uint32_t size) {
    const uint8_t *text = d->data + at;
    uint64_t full = mix(UINT64_C(0x13198A2E03707344), size);
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t word;
        memcpy(&word, text + i, 8);
        full = mix(full, word);
    }
    uint64_t rest = 0;
    if (i < size)
        memcpy(&rest, text + i, size - i);
    full = mix(full, rest);
    uint32_t hash = (uint32_t)(full ^ (full >> 32));
    if ((d->string_count + 1) * 2 > d->string_slot_count) {
        size_t count = d->string_slot_count ? d->string_slot_count * 2 : 256;
        uint32_t *slots = malloc(count * sizeof *slots);
        if (slots == NULL)
            return -1;
        memset(slots, 0xFF, count * sizeof *slots);
        for (uint32_t id = 0; id < d->string_count; id++) {
            size_t slot = d->strings[id].hash & (count - 1);
            while (slots[slot] != NOTHING)
                slot = (slot + 1) & (count - 1);
            slots[slot] = id;
        }
        free(d->string_slots);
        d->string_slots = slots;
        d->string_slot_count = count;
    }
    size_t slot = hash & (d->string_slot_count - 1);
    for (unsigned probes = 0; d->string_slots[slot] != NOTHING; probes++) {
        const hs_string *known = &d->strings[d->string_slots[slot]];
        if (known->hash == hash && known->size == size && memcmp(d->data + known->at, text, size) == 0)
            return d->string_slots[slot];
        if (probes > MOST_PROBES)
            return -1;
        slot = (slot + 1) & (d->string_slot_count - 1);
    }
    if (d->string_count >= INT32_MAX / 2 || !GROW(d->strings, d->string_room, d->string_count + 1))
        return -1;
    hs_string *made = &d->strings[d->string_count];
    made->at = at;
    made->size = size;
    made->name = -1;
    made->field = word_number(text, size);
    made->hash = hash;
    d->string_slots[slot] = (uint32_t)d->string_count;
    return (int64_t)d->string_count++;
}

/* ---- one entry becomes a row ------------------------------------------------------------------------------------- */

static inline bool is_sequence(hs_value value) {
    return value.tag == HS_LIST || value.tag == HS_TUPLE;
}

/* What was read must not change any more: the Python reader would see the change, which comes later, as well. */
static inline const hs_node *opened(hs_dump *d, hs_value value) {
    hs_node *node = &d->nodes[value.as.number];
    node->flags |= READ;
    return node;
}

/* A whole number that may be missing. */
static inline bool take_int(hs_value value, int64_t *out) {
    if (value.tag == HS_UNSET)
        *out = UNKNOWN;
    else if (value.tag == HS_INT && value.as.number >= UNKNOWN)
        *out = value.as.number;
    else
        return false;
    return true;
}

/* A moment that is None, 0 or missing where it never came. */
static inline bool take_moment(hs_value value, int64_t *out) {
    if (value.tag == HS_NONE || (value.tag == HS_INT && value.as.number == 0)) {
        *out = UNKNOWN;
        return true;
    }
    return take_int(value, out);
}

static bool reserve_scratch(hs_dump *d, size_t wanted) {
    return GROW(d->scratch, d->scratch_room, wanted);
}

static bool take_shapes(hs_dump *d, hs_value value, int32_t *out) {
    *out = 0;
    if (value.tag == HS_UNSET)
        return true;
    if (!is_sequence(value))
        return false;
    const hs_node *outer = opened(d, value);
    size_t used = 0;
    d->visits -= outer->count;
    for (uint32_t i = 0; i < outer->count && d->visits >= 0; i++) {
        hs_value item = d->cells[outer->at + i];
        if (!is_sequence(item))
            return false;
        const hs_node *inner = opened(d, item);
        d->visits -= inner->count;
        if (d->visits < 0 || !reserve_scratch(d, used + inner->count + 1))
            return false;
        d->scratch[used++] = inner->count;
        for (uint32_t k = 0; k < inner->count; k++) {
            hs_value length = d->cells[inner->at + k];
            if (length.tag != HS_INT || length.as.number < -MAX_INT)
                return false;
            d->scratch[used++] = length.as.number;
        }
    }
    int64_t id = d->visits < 0 ? -1 : intern(&d->shapes, d->scratch, used);
    *out = (int32_t)id;
    return id >= 0;
}

static bool take_dtypes(hs_dump *d, hs_value value, int32_t *out) {
    *out = 0;
    if (value.tag == HS_UNSET)
        return true;
    if (!is_sequence(value))
        return false;
    const hs_node *list = opened(d, value);
    d->visits -= list->count;
    if (d->visits < 0 || !reserve_scratch(d, list->count))
        return false;
    for (uint32_t i = 0; i < list->count; i++) {
        hs_value item = d->cells[list->at + i];
        if (item.tag != HS_STR)
            return false;
        d->scratch[i] = item.as.number;
    }
    int64_t id = intern(&d->dtypes, d->scratch, list->count);
    *out = (int32_t)id;
    return id >= 0;
}

/* The frame that a dict describes; -1 where it is none. */
static int64_t frame_of(hs_dump *d, hs_value value) {
    if (value.tag != HS_DICT)
        return -1;
    hs_node *node = &d->nodes[value.as.number];
    if (node->flags & IS_FRAME)
        return (int64_t)node->mark;
    int64_t words[3] = {-1, -1, 0}; /* a name or file that is not there is an empty text */
    for (uint32_t i = 0; i < node->count; i++) {
        hs_value key = d->cells[node->at + 2 * (size_t)i], item = d->cells[node->at + 2 * (size_t)i + 1];
        int32_t word = key.tag == HS_STR ? d->strings[key.as.number].field : -1;
        if (word == W_FRAME_LINE) {
            if (item.tag != HS_INT && item.tag != HS_BIG)
                return -1;
            words[2] = item.tag == HS_INT && item.as.number >= 0 && item.as.number <= MAX_LINE ? item.as.number : 0;
        } else if (word == W_FRAME_NAME || word == W_FRAME_FILE) {
            if (item.tag != HS_STR)
                return -1;
            words[word - W_FRAME_NAME] = d->strings[item.as.number].size ? item.as.number : -1;
        }
    }
    int64_t id = intern(&d->frames, words, 3);
    if (id >= 0) {
        node->flags |= IS_FRAME | READ;
        node->mark = (uint64_t)id;
    }
    return id;
}

static bool take_stack(hs_dump *d, hs_value value, int32_t *out) {
    *out = 0;
    if (value.tag == HS_UNSET || value.tag == HS_NONE)
        return true;
    if (value.tag != HS_LIST)
        return false;
    d->has_stacks = 1;
    const hs_node *list = opened(d, value);
    d->visits -= list->count;
    if (d->visits < 0 || !reserve_scratch(d, list->count))
        return false;
    for (uint32_t i = 0; i < list->count; i++) {
        int64_t frame = frame_of(d, d->cells[list->at + i]);
        if (frame < 0)
            return false;
        d->scratch[i] = frame;
    }
    int64_t id = intern(&d->stacks, d->scratch, list->count);
    *out = (int32_t)id;
    return id >= 0;
}

static bool take_group(hs_dump *d, hs_value pair, int64_t pg_id, int32_t *out) {
    int64_t words[3] = {pg_id, -1, -1};
    if (pair.tag == HS_UNSET) {
        if (pg_id == UNKNOWN)
            return false;
    } else {
        if (!is_sequence(pair))
            return false;
        const hs_node *node = opened(d, pair);
        if (node->count != 2)
            return false;
        for (int i = 0; i < 2; i++) {
            hs_value text = d->cells[node->at + (size_t)i];
            if (text.tag != HS_STR)
                return false;
            words[1 + i] = text.as.number;
        }
    }
    int64_t id = intern(&d->groups, words, 3);
    *out = (int32_t)id;
    return id >= 0 && id < d->limits.groups;
}

/* Whether a text has a character that is certainly no white space. */
static bool says_something(const hs_dump *d, int64_t string) {
    const hs_string *text = &d->strings[string];
    for (uint32_t i = 0; i < text->size; i++)
        if (d->data[text->at + i] > 0x20 && d->data[text->at + i] < 0x7F)
            return true;
    return false;
}

static bool take_thread(hs_dump *d, hs_value name, hs_value number, int32_t *out) {
    int64_t words[3] = {-1, 0, -1}; /* name, kind of number (0 text, 1 whole number), number */
    bool said = false, empty = true;
    if (name.tag == HS_STR && d->strings[name.as.number].size) {
        words[0] = name.as.number;
        empty = false;
        said = says_something(d, name.as.number);
    }
    if (number.tag == HS_STR && d->strings[number.as.number].size) {
        words[2] = number.as.number;
        empty = false;
        said = said || says_something(d, number.as.number);
    } else if (number.tag == HS_INT) {
        words[1] = 1;
        words[2] = number.as.number;
        empty = false;
        said = true;
    } else if (number.tag == HS_BIG) {
        return false;
    }
    *out = 0;
    if (empty)
        return true;
    if (!said)
        return false;
    int64_t id = intern(&d->threads, words, 3);
    *out = (int32_t)id + 1; /* 0 is no thread at all */
    return id >= 0;
}

static bool take_duration(hs_value value, float *out) {
    if (value.tag == HS_FLOAT) {
        if (fabs(value.as.real) > (double)FLT_MAX)
            return false;
        *out = (float)value.as.real;
    } else if (value.tag == HS_INT && value.as.number >= -MAX_INT) {
        *out = (float)(double)value.as.number;
    } else if (value.tag == HS_UNSET || value.tag == HS_NONE) {
        *out = NAN;
    } else {
        return false;
    }
    return true;
}

static bool grow_columns(hs_dump *d) {
    size_t room = d->row_room ? d->row_room + d->row_room / 2 : CHUNK;
    for (int i = 0; i < HS_COLUMNS; i++) {
        char *found = realloc(d->columns[i], room * hs_column_widths[i]);
        if (found == NULL)
            return false;
        d->columns[i] = found;
    }
    d->row_room = room;
    return true;
}

#define COLUMN(kind, which) ((kind *)(void *)d->columns[which])

/* An entry as a row; false where the Python reader has to look at it. */
static bool add_row(hs_dump *d, int64_t index, const hs_value *f) {
    struct hs_chunk *chunk = d->chunk;
    size_t row = d->rows, place = row - chunk->first;
    if (row == d->row_room && !grow_columns(d))
        return false;
    for (int i = 0; i < FIELDS; i++)
        chunk->present[i] += f[i].tag != HS_UNSET;
    if (f[F_NAME].tag != HS_STR || f[F_STATE].tag != HS_STR)
        return false;
    hs_string *name = &d->strings[f[F_NAME].as.number];
    if (name->name < 0) {
        int64_t word = f[F_NAME].as.number, id = intern(&d->names, &word, 1);
        if (id < 0)
            return false;
        name->name = (int32_t)id;
    }
    int32_t word = d->strings[f[F_STATE].as.number].field;
    int64_t pg_id, record_id, seq = UNKNOWN, micros = UNKNOWN;
    if (!take_int(f[F_PG_ID], &pg_id) || !take_int(f[F_RECORD_ID], &record_id))
        return false;
    chunk->unknown_records += record_id == UNKNOWN;
    chunk->known_records += record_id != UNKNOWN;
    if (f[F_SEQ].tag == HS_UNSET || !take_int(f[F_SEQ], &seq))
        chunk->bad_seq++;
    if (f[F_OLD_SEQ].tag == HS_UNSET || !take_int(f[F_OLD_SEQ], &chunk->old_seq[place]))
        chunk->bad_old_seq++;
    int64_t created = UNKNOWN;
    chunk->bad_ns += !take_int(f[F_CREATED_NS], &created);
    chunk->bad_us += !take_int(f[F_CREATED_US], &micros);
    chunk->micros[place] =
        f[F_CREATED_US].tag == HS_INT && micros >= 0 && micros <= MAX_INT / 1000 ? micros * 1000 : UNKNOWN;
    int8_t retired = UNKNOWN;
    if (f[F_RETIRED].tag == HS_TRUE || f[F_RETIRED].tag == HS_FALSE)
        retired = f[F_RETIRED].tag == HS_TRUE;
    else if (f[F_RETIRED].tag == HS_INT && (f[F_RETIRED].as.number == 0 || f[F_RETIRED].as.number == 1))
        retired = (int8_t)f[F_RETIRED].as.number;
    else if (f[F_RETIRED].tag != HS_UNSET)
        return false;
    COLUMN(int64_t, HS_C_INDEX)[row] = index;
    COLUMN(int64_t, HS_C_RECORD_ID)[row] = record_id;
    COLUMN(int32_t, HS_C_NAME)[row] = name->name;
    COLUMN(int64_t, HS_C_SEQ)[row] = seq;
    COLUMN(int8_t, HS_C_STATE)[row] = (int8_t)(word >= W_SCHEDULED && word <= W_COMPLETED ? word - W_SCHEDULED + 1 : 0);
    COLUMN(int8_t, HS_C_RETIRED)[row] = retired;
    COLUMN(int64_t, HS_C_CREATED)[row] = created;
    if (!take_group(d, f[F_GROUP], pg_id, &COLUMN(int32_t, HS_C_GROUP)[row]) ||
        !take_int(f[F_P2P_SEQ], &COLUMN(int64_t, HS_C_P2P_SEQ)[row]) ||
        !take_int(f[F_OP_ID], &COLUMN(int64_t, HS_C_OP_ID)[row]) ||
        !take_moment(f[F_STARTED], &COLUMN(int64_t, HS_C_STARTED)[row]) ||
        !take_moment(f[F_COMPLETED], &COLUMN(int64_t, HS_C_COMPLETED)[row]) ||
        !take_duration(f[F_DURATION], &COLUMN(float, HS_C_DURATION)[row]) ||
        !take_shapes(d, f[F_IN_SIZES], &COLUMN(int32_t, HS_C_IN_SHAPES)[row]) ||
        !take_shapes(d, f[F_OUT_SIZES], &COLUMN(int32_t, HS_C_OUT_SHAPES)[row]) ||
        !take_dtypes(d, f[F_IN_DTYPES], &COLUMN(int32_t, HS_C_IN_DTYPES)[row]) ||
        !take_dtypes(d, f[F_OUT_DTYPES], &COLUMN(int32_t, HS_C_OUT_DTYPES)[row]) ||
        !take_stack(d, f[F_FRAMES], &COLUMN(int32_t, HS_C_STACK)[row]) ||
        !take_thread(d, f[F_THREAD_NAME], f[F_THREAD_ID], &COLUMN(int32_t, HS_C_THREAD)[row]) ||
        !take_int(f[F_TIMEOUT], &COLUMN(int64_t, HS_C_TIMEOUT)[row]))
        return false;
    d->rows++;
    return true;
}

/* ---- a chunk of rows --------------------------------------------------------------------------------------------- */

/* Whether a field that some entries lack is one that the Python reader would report: most of the others have it. */
static bool complains(hs_dump *d, int field, size_t count) {
    size_t missing = count - d->chunk->present[field];
    if (!(d->expected >> field & 1)) {
        if (missing * 2 > count)
            return false;
        d->expected |= UINT32_C(1) << field;
    }
    return missing > 0;
}

/* Ids in the order in which the Python reader gives them: one column of a chunk after the other. */
static void renumber(hs_dump *d, hs_table *table, int32_t *next, int column, size_t count) {
    int32_t *ids = COLUMN(int32_t, column) + d->chunk->first;
    for (size_t i = 0; i < count; i++) {
        int32_t *number = &table->items[ids[i]].number;
        if (*number < 0)
            *number = (*next)++;
        ids[i] = *number;
    }
}

static bool end_chunk(hs_dump *d) {
    struct hs_chunk *chunk = d->chunk;
    size_t first = chunk->first, count = d->rows - first;
    if (count == 0)
        return true;
    int64_t *seq = COLUMN(int64_t, HS_C_SEQ) + first, *created = COLUMN(int64_t, HS_C_CREATED) + first;
    bool old = false;
    if (!(d->expected >> F_SEQ & 1)) {
        if (chunk->present[F_OLD_SEQ] > chunk->present[F_SEQ]) {
            old = true;
            d->old_sequence = 1;
        } else if (chunk->present[F_SEQ]) {
            d->expected |= UINT32_C(1) << F_SEQ;
        }
    }
    if (old ? chunk->bad_old_seq : chunk->bad_seq)
        return false;
    if (old)
        memcpy(seq, chunk->old_seq, count * sizeof *seq);
    if (chunk->present[F_GROUP] != count && (chunk->present[F_GROUP] || d->expected >> F_GROUP & 1))
        return false;
    static const int reported[] = {F_GROUP,     F_PG_ID,  F_IN_SIZES, F_OUT_SIZES, F_IN_DTYPES, F_OUT_DTYPES,
                                   F_RECORD_ID, F_P2P_SEQ, F_OP_ID,    F_RETIRED,   F_TIMEOUT};
    for (size_t i = 0; i < sizeof reported / sizeof *reported; i++)
        if (complains(d, reported[i], count))
            return false;
    d->numbered = d->numbered || chunk->known_records;
    if (d->numbered && chunk->unknown_records)
        return false;
    if (chunk->present[F_CREATED_NS] || d->expected >> F_CREATED_NS & 1) {
        if (chunk->bad_ns || complains(d, F_CREATED_NS, count))
            return false;
    } else {
        if (chunk->bad_us || complains(d, F_CREATED_US, count))
            return false;
        memcpy(created, chunk->micros, count * sizeof *created);
    }
    renumber(d, &d->shapes, &d->next_shape, HS_C_IN_SHAPES, count);
    renumber(d, &d->shapes, &d->next_shape, HS_C_OUT_SHAPES, count);
    renumber(d, &d->dtypes, &d->next_dtype, HS_C_IN_DTYPES, count);
    renumber(d, &d->dtypes, &d->next_dtype, HS_C_OUT_DTYPES, count);
    for (size_t row = first; row < d->rows; row++) {
        int64_t words[2] = {COLUMN(int32_t, HS_C_IN_SHAPES)[row], COLUMN(int32_t, HS_C_IN_DTYPES)[row]};
        if (!words[0] && !words[1]) {
            words[0] = COLUMN(int32_t, HS_C_OUT_SHAPES)[row];
            words[1] = COLUMN(int32_t, HS_C_OUT_DTYPES)[row];
        }
        int64_t id = intern(&d->sizes, words, 2);
        if (id < 0)
            return false;
        COLUMN(int32_t, HS_C_SIZE)[row] = (int32_t)id;
    }
    memset(chunk, 0, offsetof(struct hs_chunk, old_seq));
    chunk->first = d->rows;
    return true;
}

/* ---- containers -------------------------------------------------------------------------------------------------- */

static bool make_node(hs_dump *d, uint32_t tag, hs_value *out) {
    if (d->node_count >= INT32_MAX || !GROW(d->nodes, d->node_room, d->node_count + 1))
        return false;
    hs_node *node = &d->nodes[d->node_count];
    memset(node, 0, sizeof *node);
    node->tag = (uint8_t)tag;
    node->escapes = d->escapes;
    node->mark = d->cell_count;
    *out = (hs_value){.tag = tag, .as.number = (int64_t)d->node_count++};
    return true;
}

/* Adds `count` cells to a container. Its items move to the end of all cells where they have no room. */
static bool put_cells(hs_dump *d, hs_node *node, const hs_value *items, size_t count, size_t each) {
    size_t used = (size_t)node->count * each, wanted = used + count;
    if (wanted > INT32_MAX)
        return false;
    if (wanted > node->room) {
        size_t room = node->room ? wanted + wanted / 2 : wanted;
        bool last = node->room && node->at + node->room == d->cell_count;
        size_t start = last ? node->at : d->cell_count;
        if (!GROW(d->cells, d->cell_room, start + room))
            return false;
        if (!last && used)
            memcpy(d->cells + start, d->cells + node->at, used * sizeof *items);
        memset(d->cells + start + used, 0, (room - used) * sizeof *items);
        node->at = start;
        node->room = (uint32_t)room;
        d->cell_count = start + room;
    }
    if (count)
        memcpy(d->cells + node->at + used, items, count * sizeof *items);
    node->count = (uint32_t)(wanted / each);
    return true;
}

/* A container that may be changed here: not one that a row was made of, nor one that is held elsewhere too. */
static hs_node *changed(hs_dump *d, hs_value target) {
    hs_node *node = &d->nodes[target.as.number];
    return target.length || node->flags & READ ? NULL : node;
}

static void forget_patterns(hs_dump *d) {
    memset(d->pattern_slots, 0xFF, sizeof d->pattern_slots);
    d->pattern_count = 0;
    d->last_pattern = NOTHING;
}

static bool put_memo(hs_dump *d, size_t key, hs_value value) {
    if (key >= d->memo_room) {
        if (key > 16 * d->memo_count + 65536)
            return false;
        size_t before = d->memo_room;
        if (!GROW(d->memo, d->memo_room, key + 1))
            return false;
        memset(d->memo + before, 0, (d->memo_room - before) * sizeof *d->memo);
    }
    if (d->memo[key].tag == HS_UNSET)
        d->memo_count++;
    else
        forget_patterns(d); /* they hold what the memo held */
    if (value.tag >= HS_LIST) {
        value.length = 1;
        d->nodes[value.as.number].flags |= MEMOISED;
        d->escapes++;
    }
    d->memo[key] = value;
    return true;
}

static size_t own_bytes(const hs_dump *d) {
    return d->top * sizeof *d->stack + d->memo_room * sizeof *d->memo + d->node_room * sizeof *d->nodes +
           d->cell_room * sizeof *d->cells + d->string_room * sizeof *d->strings +
           d->string_slot_count * sizeof *d->string_slots + d->scratch_room * sizeof *d->scratch +
           table_bytes(&d->threads) + table_bytes(&d->groups) + table_bytes(&d->shapes) + table_bytes(&d->dtypes) +
           table_bytes(&d->frames) + table_bytes(&d->stacks) + table_bytes(&d->sizes) + table_bytes(&d->names);
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static inline uint32_t u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t u64(const uint8_t *at) {
    return (uint64_t)u32(at) | (uint64_t)u32(at + 4) << 32;
}

static inline int64_t signed64(uint64_t bits) {
    int64_t value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline bool is_key(hs_value key) {
    return key.tag == HS_STR || key.tag == HS_INT || key.tag == HS_BIG;
}

/* An integer of `size` bytes, as far as the file has them. */
static hs_value integer(const hs_dump *d, size_t at, size_t size) {
    size_t left = at < d->size ? d->size - at : 0;
    if (size > left)
        size = left;
    if (size > 8)
        return (hs_value){.tag = HS_BIG, .length = (uint32_t)size, .as.number = (int64_t)at};
    uint64_t bits = size && d->data[at + size - 1] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = size; i-- > 0;)
        bits = bits << 8 | d->data[at + i];
    return (hs_value){.tag = HS_INT, .as.number = signed64(bits)};
}

/* Whether the opcode is one that Python has and no dump uses. */
static bool refused(uint8_t op) {
    static const uint8_t all[] = {0x30, 0x31, 0x32, 0x42, 0x43, 0x46, 0x49, 0x4C, 0x50, 0x51, 0x52, 0x53,
                                  0x54, 0x55, 0x56, 0x62, 0x63, 0x64, 0x67, 0x69, 0x6C, 0x6F, 0x70, 0x81,
                                  0x82, 0x83, 0x84, 0x8E, 0x8F, 0x90, 0x91, 0x92, 0x93, 0x96, 0x97, 0x98};
    return memchr(all, op, sizeof all) != NULL;
}

enum { CONTINUE = -1, TAKES_NOTHING = -2 }; /* TAKES_NOTHING: Python's IndexError, which the caller puts into words */

/* Whether the dict that was just filled lies in the list of entries: 1, 0, or -1 where Python's look at it fails. */
static int is_entry(const hs_dump *d) {
    size_t outer = d->levels[d->depth - 1], end = d->levels[d->depth];
    if (outer == end)
        return -1;
    if (d->stack[end - 1].tag != HS_LIST)
        return 0;
    if (d->depth == 1)
        return end - outer == 1;
    if (end - outer < 2 || d->stack[end - 2].tag != HS_STR)
        return 0;
    return d->strings[d->stack[end - 2].as.number].field == W_ENTRIES;
}

/* ---- entries that are like an earlier one ------------------------------------------------------------------------ */

/* A job makes the same few calls again and again, and PyTorch writes them in the same bytes but for their numbers: who
 * compares these bytes needs neither the machine nor the tables. A pattern is learned from an entry that the machine
 * has read. It is one that changes nothing but the list it lies in: no memo, no text, one SETITEMS; then all that the
 * entry's row holds follows from equal bytes, as long as no place of the memo is given another value. */

enum { V_RECORD_ID, V_SEQ, V_P2P_SEQ, V_OP_ID, V_CREATED, V_STARTED, V_COMPLETED, V_DURATION, VARIABLES };
static const uint8_t variable_fields[VARIABLES] = {F_RECORD_ID,  F_SEQ,     F_P2P_SEQ,   F_OP_ID,
                                                   F_CREATED_NS, F_STARTED, F_COMPLETED, F_DURATION};
static const uint8_t variable_columns[VARIABLES] = {HS_C_RECORD_ID, HS_C_SEQ,     HS_C_P2P_SEQ,   HS_C_OP_ID,
                                                    HS_C_CREATED,   HS_C_STARTED, HS_C_COMPLETED, HS_C_DURATION};
/* Of the columns without those: what follows from the bytes that are equal. */
static const uint8_t constant_columns[] = {HS_C_GROUP,      HS_C_NAME,       HS_C_IN_SHAPES, HS_C_OUT_SHAPES,
                                           HS_C_IN_DTYPES,  HS_C_OUT_DTYPES, HS_C_STACK,     HS_C_THREAD};
enum { CONSTANTS = sizeof constant_columns };

struct hs_pattern {
    uint64_t bytes[PATTERN_WORDS], mask[PATTERN_WORDS]; /* the mask is 0 where a number may differ */
    uint32_t size, words, hash;
    uint32_t next[2]; /* the patterns that came after this one, the latest first */
    uint32_t present[FIELDS];
    int64_t visits, timeout;
    int64_t fixed[V_DURATION]; /* a number that is no part of the bytes: None, or not there */
    float duration;
    int32_t constants[CONSTANTS];
    int8_t state, retired;
    uint16_t at[VARIABLES];   /* where the number lies */
    uint8_t width[VARIABLES]; /* its bytes; 0 where it is fixed */
};

/* How many bytes follow an opcode that changes no memo and makes no text, -1 for any other. */
static int operand(const uint8_t *data, size_t left) {
    switch (data[0]) {
    case 0x5D: case 0x7D: case 0x29: case 0x28: case 0x65: case 0x75: case 0x74: case 0x61: case 0x85: case 0x86:
    case 0x87: case 0x88: case 0x89: case 0x4E:
        return 0;
    case 0x68: case 0x4B:
        return 1;
    case 0x4D:
        return 2;
    case 0x4A: case 0x6A:
        return 4;
    case 0x47:
        return 8;
    case 0x8A:
        return left > 1 && data[1] == 8 ? 9 : -1;
    default:
        return -1;
    }
}

/* The field that a key names which is fetched from the memo by the bytes at `at`; -1 where they name none. */
static int key_field(const hs_dump *d, const uint8_t *at) {
    size_t key = at[0] == 0x68 ? at[1] : at[0] == 0x6A ? u32(at + 1) : SIZE_MAX;
    if (key >= d->memo_room || d->memo[key].tag != HS_STR)
        return -1;
    return d->strings[d->memo[key].as.number].field;
}

/* Notes where the number of a field lies, if it is one of those that differ from entry to entry. */
static void note_number(struct hs_pattern *p, int field, const uint8_t *start, size_t at) {
    int width = start[at] == 0x4B ? 1 : start[at] == 0x4D ? 2 : start[at] == 0x4A ? 4 : 0;
    if (start[at] == 0x8A || start[at] == 0x47)
        width = 8;
    for (int i = 0; i < VARIABLES && width; i++)
        if (variable_fields[i] == field && (i == V_DURATION) == (start[at] == 0x47)) {
            p->at[i] = (uint16_t)(at + (start[at] == 0x8A ? 2 : 1));
            p->width[i] = (uint8_t)width;
            memset((uint8_t *)p->mask + p->at[i], 0, (size_t)width);
        }
}

/* The places of keys and numbers in the `size` bytes of an entry; false where it is one that a pattern cannot hold. */
static bool take_apart(const hs_dump *d, const uint8_t *start, size_t size, struct hs_pattern *p) {
    size_t marks[16], depth = 0, values = 0; /* `values` on the stack above the entry's own mark */
    uint64_t seen = 0;
    int field = -1;
    if (size < 4 || start[0] != 0x7D || start[1] != 0x28)
        return false;
    for (size_t at = 2; at < size;) {
        int more = operand(start + at, size - at);
        uint8_t op = start[at];
        if (more < 0 || at + 1 + (size_t)more > size || op == 0x7D)
            return false;
        if (op == 0x75)
            return depth == 0 && values % 2 == 0 && at + 1 == size;
        if (depth == 0 && values % 2 == 0) { /* a key, or more of the value before it */
            field = key_field(d, start + at);
            if (field >= 0 && seen >> field & 1)
                return false;
            seen |= field < 0 ? 0 : UINT64_C(1) << field;
        } else if (depth == 0 && field >= 0) {
            note_number(p, field, start, at);
        }
        if (op == 0x28) {
            if (depth == sizeof marks / sizeof *marks)
                return false;
            marks[depth++] = values;
        } else if (op == 0x65 || op == 0x74) { /* APPENDS takes what is above the mark, TUPLE makes one value of it */
            if (depth == 0)
                return false;
            values = marks[--depth] + (op == 0x74);
        } else if (op == 0x61) {
            values -= 1;
        } else if (op >= 0x85 && op <= 0x87) {
            values -= (size_t)op - 0x85;
        } else {
            values += 1;
        }
        if (values > size)
            return false; /* took more than there was */
        at += 1 + (size_t)more;
    }
    return false;
}

static uint32_t pattern_hash(const struct hs_pattern *p) {
    uint64_t hash = p->size;
    for (uint32_t i = 0; i < p->words; i++)
        hash = mix(hash, p->bytes[i] & p->mask[i]);
    return (uint32_t)(hash ^ hash >> 32);
}

static bool same_pattern(const struct hs_pattern *one, const struct hs_pattern *other) {
    if (one->hash != other->hash || one->size != other->size)
        return false;
    for (uint32_t i = 0; i < one->words; i++)
        if (one->mask[i] != other->mask[i] || (one->bytes[i] ^ other->bytes[i]) & one->mask[i])
            return false;
    return true;
}

/* Notes that `id` came after the pattern before, where both are one. */
static void follow(hs_dump *d, uint32_t id) {
    if (d->last_pattern != NOTHING && id != NOTHING) {
        uint32_t *next = d->patterns[d->last_pattern].next;
        if (next[0] != id) {
            next[1] = next[0];
            next[0] = id;
        }
    }
    d->last_pattern = id;
}

static inline int64_t number_at(const uint8_t *at, uint8_t width) {
    switch (width) {
    case 1:
        return at[0];
    case 2:
        return at[0] | at[1] << 8;
    case 4:
        return signed64(((uint64_t)u32(at) ^ 0x80000000u) - 0x80000000u);
    default:
        return signed64(u64(at));
    }
}

static inline double real_at(const uint8_t *at) {
    uint64_t bits = 0;
    double real;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&real, &bits, sizeof real);
    return real;
}

/* Whether the numbers lie where they were found: the machine read the same values from the same bytes. */
static bool agrees(const struct hs_pattern *p, const hs_value *f) {
    const uint8_t *start = (const uint8_t *)p->bytes;
    for (int i = 0; i < VARIABLES; i++) {
        hs_value value = f[variable_fields[i]];
        if (p->width[i] == 0)
            continue;
        if (i == V_DURATION ? value.tag != HS_FLOAT || value.as.real != real_at(start + p->at[i])
                            : value.tag != HS_INT || value.as.number != number_at(start + p->at[i], p->width[i]))
            return false;
    }
    return p->width[V_SEQ] && p->width[V_RECORD_ID] && p->width[V_CREATED];
}

/* The pattern of an entry that the machine has read, of the values that its fields had; where there is none yet, it is
 * made from the last row. NOTHING where a pattern cannot hold it. */
static uint32_t learned(hs_dump *d, size_t end, const hs_value *f, int64_t visits) {
    size_t row = d->rows - 1, size = end - d->entry_at;
    if (size > PATTERN_WORDS * sizeof(uint64_t) || f[F_OLD_SEQ].tag != HS_UNSET || f[F_CREATED_US].tag != HS_UNSET)
        return NOTHING;
    if (d->patterns == NULL && (d->patterns = malloc((MOST_PATTERNS + 1) * sizeof *d->patterns)) == NULL)
        return NOTHING;
    struct hs_pattern *p = &d->patterns[d->pattern_count]; /* there is room for one more than is kept */
    p->size = (uint32_t)size;
    p->words = (uint32_t)((size + 7) / 8);
    p->bytes[p->words - 1] = p->mask[p->words - 1] = 0;
    memcpy(p->bytes, d->data + d->entry_at, size);
    memset(p->mask, 0xFF, size);
    memset(p->width, 0, sizeof p->width);
    if (!take_apart(d, d->data + d->entry_at, size, p) || !agrees(p, f))
        return NOTHING;
    p->hash = pattern_hash(p);
    uint32_t slot = p->hash & (PATTERN_SLOTS - 1);
    for (; d->pattern_slots[slot] != NOTHING; slot = (slot + 1) & (PATTERN_SLOTS - 1))
        if (same_pattern(&d->patterns[d->pattern_slots[slot]], p))
            return d->pattern_slots[slot];
    if (d->pattern_count == MOST_PATTERNS)
        return NOTHING;
    for (int i = 0; i < FIELDS; i++)
        p->present[i] = f[i].tag != HS_UNSET;
    for (int i = 0; i < V_DURATION; i++)
        p->fixed[i] = COLUMN(int64_t, variable_columns[i])[row];
    for (size_t i = 0; i < CONSTANTS; i++)
        p->constants[i] = COLUMN(int32_t, constant_columns[i])[row];
    p->duration = COLUMN(float, HS_C_DURATION)[row];
    p->timeout = COLUMN(int64_t, HS_C_TIMEOUT)[row];
    p->state = COLUMN(int8_t, HS_C_STATE)[row];
    p->retired = COLUMN(int8_t, HS_C_RETIRED)[row];
    p->visits = visits;
    p->next[0] = p->next[1] = NOTHING;
    d->pattern_slots[slot] = d->pattern_count;
    return d->pattern_count++;
}

static inline bool has_bytes(const struct hs_pattern *p, const uint8_t *at) {
    uint64_t differ = 0, word;
    for (uint32_t i = 0; i < p->words; i++) {
        memcpy(&word, at + 8 * (size_t)i, 8);
        differ |= (word ^ p->bytes[i]) & p->mask[i];
    }
    return differ == 0;
}

/* The row of an entry with this pattern; false where a number in it is one that the machine has to look at. */
static bool add_alike(hs_dump *d, int64_t index, const struct hs_pattern *p, const uint8_t *at) {
    struct hs_chunk *chunk = d->chunk;
    size_t row = d->rows;
    int64_t numbers[VARIABLES];
    float duration = p->duration;
    if ((row == d->row_room && !grow_columns(d)) || d->visits < p->visits)
        return false;
    for (int i = 0; i < V_DURATION; i++) {
        numbers[i] = p->width[i] ? number_at(at + p->at[i], p->width[i]) : p->fixed[i];
        if (numbers[i] < UNKNOWN)
            return false;
    }
    if (p->width[V_DURATION]) {
        double real = real_at(at + p->at[V_DURATION]);
        if (fabs(real) > (double)FLT_MAX)
            return false;
        duration = (float)real;
    }
    for (int i = V_STARTED; i <= V_COMPLETED; i++)
        if (p->width[i] && numbers[i] == 0)
            numbers[i] = UNKNOWN;
    for (int i = 0; i < FIELDS; i++)
        chunk->present[i] += p->present[i];
    chunk->unknown_records += numbers[V_RECORD_ID] == UNKNOWN;
    chunk->known_records += numbers[V_RECORD_ID] != UNKNOWN;
    chunk->bad_old_seq++;
    chunk->micros[row - chunk->first] = UNKNOWN;
    COLUMN(int64_t, HS_C_INDEX)[row] = index;
    for (int i = 0; i < V_DURATION; i++)
        COLUMN(int64_t, variable_columns[i])[row] = numbers[i];
    for (size_t i = 0; i < CONSTANTS; i++)
        COLUMN(int32_t, constant_columns[i])[row] = p->constants[i];
    COLUMN(float, HS_C_DURATION)[row] = duration;
    COLUMN(int64_t, HS_C_TIMEOUT)[row] = p->timeout;
    COLUMN(int8_t, HS_C_STATE)[row] = p->state;
    COLUMN(int8_t, HS_C_RETIRED)[row] = p->retired;
    d->visits -= p->visits;
    d->rows++;
    return true;
}

/* The pattern of the entry at these bytes, or NULL. */
static struct hs_pattern *pattern_at(hs_dump *d, size_t pos, size_t end) {
    if (d->last_pattern == NOTHING)
        return NULL;
    const uint32_t *next = d->patterns[d->last_pattern].next;
    for (int i = 0; i < 2 && next[i] != NOTHING; i++) {
        struct hs_pattern *p = &d->patterns[next[i]];
        /* An entry in which the machine would look at its memory is left to it. */
        if (pos + 8 * (size_t)p->words <= d->size && pos + p->size <= end && has_bytes(p, d->data + pos))
            return p;
    }
    return NULL;
}

/* Entries from `*pos` on that are like earlier ones, right behind one that the machine has read. */
static bool read_alike(hs_dump *d, size_t *pos, size_t end) {
    const hs_node *list = &d->nodes[d->stack[d->levels[d->depth] - 1].as.number];
    struct hs_pattern *p;
    while ((p = pattern_at(d, *pos, end)) != NULL) {
        int64_t index = (int64_t)list->count + (int64_t)(d->top - d->levels[d->depth]);
        if (!add_alike(d, index, p, d->data + *pos))
            return true;
        if (d->rows - d->chunk->first == CHUNK && !end_chunk(d))
            return false;
        d->stack[d->top++] = (hs_value){.tag = HS_DRAINED};
        *pos += p->size;
        follow(d, (uint32_t)(p - d->patterns));
    }
    return true;
}

static void fill_row(const hs_dump *d, hs_value *row, const hs_value *pairs, size_t count) {
    for (size_t i = 0; i < count; i += 2) {
        int32_t field = pairs[i].tag == HS_STR ? d->strings[pairs[i].as.number].field : -1;
        if (field >= 0 && field < FIELDS)
            row[field] = pairs[i + 1];
    }
}

/* SETITEMS before `pos`, with the items from `start` on and the dict before them. */
static int set_items(hs_dump *d, size_t start, size_t *pos, size_t end) {
    size_t count = d->top - start;
    d->top = start;
    if (start == d->levels[d->depth])
        return TAKES_NOTHING;
    hs_value *target = &d->stack[start - 1];
    const hs_value *items = d->stack + start;
    bool good = target->tag == HS_DICT && count % 2 == 0;
    for (size_t i = 0; i < count && good; i += 2)
        good = is_key(items[i]);
    if (!good)
        return HS_KEYS;
    hs_node *node = changed(d, *target);
    if (node == NULL)
        return HS_NOT_MINE;
    d->spent += VALUE * (int64_t)count;
    int entry = d->depth == 1 || d->depth == 2 ? is_entry(d) : 0;
    if (entry <= 0) {
        if (!put_cells(d, node, items, count, 2))
            return HS_NOT_MINE;
        return entry < 0 ? TAKES_NOTHING : CONTINUE;
    }
    hs_value row[FIELDS];
    memset(row, 0, sizeof row);
    fill_row(d, row, d->cells + node->at, 2 * (size_t)node->count);
    fill_row(d, row, items, count);
    hs_value list = d->stack[d->levels[d->depth] - 1];
    int64_t index = (int64_t)d->nodes[list.as.number].count + (int64_t)(d->top - d->levels[d->depth]) - 1;
    if (node->flags & MEMOISED) {
        if (!put_cells(d, node, items, count, 2))
            return HS_NOT_MINE;
        node->flags |= READ;
    }
    int64_t visits = d->visits;
    if (!add_row(d, index, row))
        return HS_NOT_MINE;
    bool plain = d->entry_node == (size_t)target->as.number && *pos > d->entry_at;
    follow(d, plain ? learned(d, *pos, row, visits - d->visits) : NOTHING);
    if (d->rows - d->chunk->first == CHUNK && !end_chunk(d))
        return HS_NOT_MINE;
    node = &d->nodes[target->as.number];
    if (node->escapes == d->escapes) {
        /* Nothing that was made since the entry began is held by the memo: it can go. */
        d->cell_count = node->mark;
        d->node_count = (size_t)target->as.number;
    }
    *target = (hs_value){.tag = HS_DRAINED};
    if (d->memo_count == d->drained_memo)
        d->spent = d->drained_spent;
    d->drained_memo = d->memo_count;
    d->drained_spent = d->spent;
    return read_alike(d, pos, end) ? CONTINUE : HS_NOT_MINE;
}

/* APPENDS, with the items from `start` on and the list before them. */
static int append_items(hs_dump *d, size_t start) {
    size_t count = d->top - start;
    d->top = start;
    if (start == d->levels[d->depth])
        return TAKES_NOTHING;
    hs_value target = d->stack[start - 1];
    if (target.tag != HS_LIST)
        return HS_NOT_LIST;
    hs_node *node = changed(d, target);
    if (node == NULL || !put_cells(d, node, d->stack + start, count, 1))
        return HS_NOT_MINE;
    d->spent += VALUE * (int64_t)count;
    return CONTINUE;
}

/* A tuple of the last `count` values of the level, which are there. */
static int make_tuple(hs_dump *d, size_t count) {
    hs_value made;
    if (!make_node(d, HS_TUPLE, &made) ||
        !put_cells(d, &d->nodes[made.as.number], d->stack + d->top - count, count, 1))
        return HS_NOT_MINE;
    d->top -= count;
    d->stack[d->top++] = made;
    return CONTINUE;
}

/* Gives the value of a small tuple, of which Python takes one value after the other. */
static int small_tuple(hs_dump *d, size_t count) {
    size_t there = d->top - d->levels[d->depth];
    if (there < count) {
        d->top -= there < count - 1 ? there : count - 1;
        return TAKES_NOTHING;
    }
    d->spent += 64;
    return make_tuple(d, count);
}

static int set_item(hs_dump *d) {
    size_t there = d->top - d->levels[d->depth];
    if (there < 3) {
        d->top -= there < 2 ? there : 2;
        return TAKES_NOTHING;
    }
    d->top -= 2;
    hs_value target = d->stack[d->top - 1];
    if (target.tag != HS_DICT || !is_key(d->stack[d->top]))
        return HS_KEYS;
    hs_node *node = changed(d, target);
    if (node == NULL || !put_cells(d, node, d->stack + d->top, 2, 2))
        return HS_NOT_MINE;
    d->spent += 5 * VALUE;
    return CONTINUE;
}

static int append_item(hs_dump *d) {
    size_t there = d->top - d->levels[d->depth];
    if (there < 2) {
        d->top -= there;
        return TAKES_NOTHING;
    }
    d->top--;
    hs_value target = d->stack[d->top - 1];
    if (target.tag != HS_LIST)
        return HS_NOT_LIST;
    hs_node *node = changed(d, target);
    if (node == NULL || !put_cells(d, node, d->stack + d->top, 1, 1))
        return HS_NOT_MINE;
    d->spent += VALUE;
    return CONTINUE;
}

/* The dict that was made last, by the opcode at `at`, may be an entry. */
static inline void note_start(hs_dump *d, size_t at) {
    d->entry_at = at;
    d->entry_node = d->node_count - 1;
}

#define PUSH(...) (stack[top++] = (hs_value){__VA_ARGS__})
#define END(status, what)            \
    do {                             \
        d->at = pos;                 \
        d->top = top;                \
        d->detail = (int64_t)(what); \
        return (status);             \
    } while (0)
#define NEED(count)                 \
    do {                            \
        if (size - pos < (count))   \
            END(TAKES_NOTHING, 0);  \
    } while (0)
#define DO(step)                \
    do {                        \
        d->top = top;           \
        int end_ = (step);      \
        top = d->top;           \
        if (end_ != CONTINUE)   \
            END(end_, 0);       \
    } while (0)

/* Runs up to the byte `end`. `pos` is where Python's machine would have it, also where it fails. The stack has room for
 * one value of each byte. */
#define NEXT                 \
    do {                     \
        if (pos >= end)      \
            goto done;       \
        op = data[pos++];    \
        if (!where[op])      \
            goto op_other;   \
        goto *where[op];     \
    } while (0)

static int run_segment(hs_dump *d, size_t *position, size_t end) {
    /* One jump for each opcode, and not one for all: the processor then learns what follows what. */
    static const void *const where[256] = {
        [0x68] = &&op_binget, [0x6A] = &&op_long_binget, [0x71] = &&op_binput, [0x72] = &&op_binput,
        [0x94] = &&op_memoize, [0x4B] = &&op_binint1, [0x4D] = &&op_binint2, [0x4A] = &&op_binint,
        [0x8A] = &&op_long1, [0x8B] = &&op_long4, [0x47] = &&op_binfloat, [0x88] = &&op_newtrue,
        [0x89] = &&op_newfalse, [0x4E] = &&op_none, [0x58] = &&op_binunicode, [0x8C] = &&op_binunicode,
        [0x8D] = &&op_binunicode, [0x28] = &&op_mark, [0x5D] = &&op_empty_list, [0x7D] = &&op_empty_list,
        [0x29] = &&op_empty_tuple, [0x65] = &&op_appends, [0x75] = &&op_setitems, [0x74] = &&op_tuple,
        [0x85] = &&op_tuple1, [0x86] = &&op_tuple1, [0x87] = &&op_tuple1, [0x61] = &&op_append,
        [0x73] = &&op_setitem, [0x95] = &&op_frame, [0x80] = &&op_proto, [0x2E] = &&op_stop,
    };
    const uint8_t *data = d->data;
    const size_t size = d->size;
    hs_value *const stack = d->stack;
    size_t pos = *position, top = d->top;
    uint8_t op;
    NEXT;
op_binget: /* BINGET */
    NEED(1);
    if (data[pos] >= d->memo_room || d->memo[data[pos]].tag == HS_UNSET)
        END(HS_NEVER_STORED, 0);
    stack[top++] = d->memo[data[pos]];
    pos += 1;
    NEXT;
op_long_binget: /* LONG_BINGET */ {
    NEED(4);
    size_t key = u32(data + pos);
    if (key >= d->memo_room || d->memo[key].tag == HS_UNSET)
        END(HS_NEVER_STORED, 0);
    stack[top++] = d->memo[key];
    pos += 4;
    NEXT;
}
op_binput: /* BINPUT, LONG_BINPUT */ {
    size_t width = op == 0x71 ? 1 : 4;
    if (top == d->levels[d->depth])
        END(TAKES_NOTHING, 0);
    NEED(width);
    if (!put_memo(d, op == 0x71 ? data[pos] : u32(data + pos), stack[top - 1]))
        return HS_NOT_MINE;
    pos += width;
    d->spent += op == 0x71 ? 0 : MEMO;
    NEXT;
}
op_memoize: /* MEMOIZE */
    if (top == d->levels[d->depth])
        END(TAKES_NOTHING, 0);
    if (!put_memo(d, d->memo_count, stack[top - 1]))
        return HS_NOT_MINE;
    d->spent += MEMO;
    NEXT;
op_binint1: /* BININT1 */
    NEED(1);
    PUSH(.tag = HS_INT, .as.number = data[pos]);
    pos += 1;
    NEXT;
op_binint2: /* BININT2 */
    NEED(2);
    PUSH(.tag = HS_INT, .as.number = data[pos] | data[pos + 1] << 8);
    pos += 2;
    NEXT;
op_binint: /* BININT */
    NEED(4);
    PUSH(.tag = HS_INT, .as.number = signed64(((uint64_t)u32(data + pos) ^ 0x80000000u) - 0x80000000u));
    pos += 4;
    NEXT;
op_long1: /* LONG1 */ {
    NEED(1);
    size_t length = data[pos++];
    if (length == 8) {
        NEED(8);
        PUSH(.tag = HS_INT, .as.number = signed64(u64(data + pos)));
    } else if ((int64_t)length > d->limits.integer_bytes) {
        END(HS_INTEGER, length);
    } else {
        stack[top++] = integer(d, pos, length);
    }
    pos += length;
    NEXT;
}
op_long4: /* LONG4 */ {
    NEED(4);
    int64_t length = signed64(((uint64_t)u32(data + pos) ^ 0x80000000u) - 0x80000000u);
    pos += 4;
    if (length < 0 || length > d->limits.integer_bytes)
        END(HS_INTEGER, length);
    stack[top++] = integer(d, pos, (size_t)length);
    pos += (size_t)length;
    NEXT;
}
op_binfloat: /* BINFLOAT */ {
    NEED(8);
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | data[pos + (size_t)i];
    PUSH(.tag = HS_FLOAT);
    memcpy(&stack[top - 1].as.real, &bits, sizeof bits);
    pos += 8;
    NEXT;
}
op_newtrue: /* NEWTRUE */
    PUSH(.tag = HS_TRUE);
    NEXT;
op_newfalse: /* NEWFALSE */
    PUSH(.tag = HS_FALSE);
    NEXT;
op_none: /* NONE */
    PUSH(.tag = HS_NONE);
    NEXT;
op_binunicode: /* BINUNICODE, SHORT_BINUNICODE, BINUNICODE8 */ {
    size_t width = op == 0x58 ? 4 : op == 0x8C ? 1 : 8;
    NEED(width);
    uint64_t length = op == 0x58 ? u32(data + pos) : op == 0x8C ? data[pos] : u64(data + pos);
    pos += width;
    if (length > (uint64_t)d->limits.string_bytes || length > size - pos)
        END(HS_STRING, signed64(length));
    int64_t id = intern_string(d, pos, (uint32_t)length);
    if (id < 0)
        return HS_NOT_MINE;
    PUSH(.tag = HS_STR, .as.number = id);
    pos += (size_t)length;
    d->spent += 64 + 4 * (int64_t)length;
    NEXT;
}
op_mark: /* MARK */
    if ((int64_t)d->depth >= d->limits.nesting)
        END(HS_NESTED, d->limits.nesting);
    d->levels[++d->depth] = top;
    NEXT;
op_empty_list: /* EMPTY_LIST, EMPTY_DICT */ {
    hs_value made;
    if (!make_node(d, op == 0x5D ? HS_LIST : HS_DICT, &made))
        return HS_NOT_MINE;
    if (op == 0x7D && (d->depth == 1 || d->depth == 2))
        note_start(d, pos - 1);
    stack[top++] = made;
    d->spent += 72;
    NEXT;
}
op_empty_tuple: /* EMPTY_TUPLE */
    DO(make_tuple(d, 0));
    NEXT;
op_appends: /* APPENDS */
    if (d->depth == 0)
        END(TAKES_NOTHING, 0);
    d->depth--;
    DO(append_items(d, d->levels[d->depth + 1]));
    NEXT;
op_setitems: /* SETITEMS */
    if (d->depth == 0)
        END(TAKES_NOTHING, 0);
    d->depth--;
    DO(set_items(d, d->levels[d->depth + 1], &pos, end));
    NEXT;
op_tuple: /* TUPLE */ {
    if (d->depth == 0)
        END(TAKES_NOTHING, 0);
    size_t count = top - d->levels[d->depth--];
    DO(make_tuple(d, count));
    d->spent += 48 + VALUE * (int64_t)count;
    NEXT;
}
op_tuple1: /* TUPLE1, TUPLE2, TUPLE3 */
    DO(small_tuple(d, op - 0x84u));
    NEXT;
op_append: /* APPEND */
    DO(append_item(d));
    NEXT;
op_setitem: /* SETITEM */
    DO(set_item(d));
    NEXT;
op_frame: /* FRAME */
    NEED(8);
    pos += 8;
    NEXT;
op_proto: /* PROTO */
    NEED(1);
    if (data[pos] < 2 || data[pos] > 5)
        END(HS_PROTOCOL, data[pos]);
    pos += 1;
    NEXT;
op_stop: /* STOP */
    if (d->depth || top != 1)
        END(HS_UNFINISHED, 0);
    END(HS_COMPLETE, 0);
op_other:
    END(refused(op) ? HS_REFUSED : HS_NO_OPCODE, op);
done:
    *position = d->at = pos;
    d->top = top;
    return CONTINUE;
}

static int run(hs_dump *d) {
    int64_t memory = FREE_BYTES + d->limits.growth * (int64_t)d->size;
    if (memory > d->limits.memory_bytes)
        memory = d->limits.memory_bytes;
    size_t own = memory > (int64_t)LEAST_OWN_BYTES ? (size_t)memory : LEAST_OWN_BYTES;
    size_t pos = 2;
    d->at = pos;
    while (pos < d->size) {
        if (d->spent + VALUE * (int64_t)d->top > memory) {
            d->detail = memory;
            return HS_MEMORY;
        }
        size_t segment = d->size - pos < SEGMENT ? d->size - pos : SEGMENT;
        if (!GROW(d->stack, d->stack_room, d->top + segment))
            return HS_NOT_MINE;
        int end = run_segment(d, &pos, pos + segment);
        if (end != CONTINUE)
            return end;
        if ((int64_t)d->memo_count > d->limits.memo)
            return HS_MEMO;
        if (own_bytes(d) > own)
            return HS_NOT_MINE;
    }
    return HS_CUT;
}

enum hs_status hs_decode(hs_dump *d, const uint8_t *data, size_t size, const hs_limits *limits) {
    memset(d, 0, sizeof *d);
    d->data = data;
    d->size = size;
    d->limits = *limits;
    d->visits = limits->visits + (int64_t)size;
    forget_patterns(d);
    if (size < 2 || limits->nesting < 0 || limits->nesting > 1 << 20)
        return HS_NOT_MINE;
    d->levels = calloc((size_t)limits->nesting + 1, sizeof *d->levels);
    d->chunk = calloc(1, sizeof *d->chunk);
    if (d->levels == NULL || d->chunk == NULL || !GROW(d->stack, d->stack_room, 1) || !GROW(d->cells, d->cell_room, 1) ||
        intern(&d->shapes, NULL, 0) < 0 || intern(&d->dtypes, NULL, 0) < 0 || intern(&d->stacks, NULL, 0) < 0)
        return HS_NOT_MINE;
    d->shapes.items[0].number = d->dtypes.items[0].number = 0;
    d->next_shape = d->next_dtype = 1;
    int end = run(d);
    if (end == TAKES_NOTHING)
        end = (int64_t)d->at >= (int64_t)size - 8 ? HS_CUT : HS_EMPTY_STACK;
    if (end != HS_NOT_MINE && !end_chunk(d))
        end = HS_NOT_MINE;
    if (d->at > size)
        d->at = size;
    return (enum hs_status)end;
}

void hs_free(hs_dump *d) {
    free(d->stack);
    free(d->levels);
    free(d->memo);
    free(d->nodes);
    free(d->cells);
    free(d->strings);
    free(d->string_slots);
    free(d->scratch);
    free(d->chunk);
    free(d->patterns);
    for (int i = 0; i < HS_COLUMNS; i++)
        free(d->columns[i]);
    hs_table *tables[] = {&d->names,  &d->threads, &d->groups, &d->shapes,
                          &d->dtypes, &d->frames,  &d->stacks, &d->sizes};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        table_free(tables[i]);
    memset(d, 0, sizeof *d);
}
