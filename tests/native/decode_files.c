/* The decoder alone, without Python: for sanitizers and for a fuzzer.
 *
 * As a program it decodes every file that it is given, and each file's beginnings; built with -DFUZZER it is libFuzzer's
 * target. Everything that the decoder hands out is looked at, so that a sanitizer sees a wrong pointer or an id that
 * points nowhere. */

#include "dump_decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "broken promise: %s\n", what);
        abort();
    }
}

static uint64_t seen;

static void look_at_table(const hs_table *table) {
    for (uint32_t id = 0; id < table->count; id++) {
        uint32_t size;
        const int64_t *words = hs_interned(table, id, &size);
        for (uint32_t i = 0; i < size; i++)
            seen += (uint64_t)words[i];
    }
}

static void look_at_value(const hs_dump *d, hs_value value) {
    if (value.tag == HS_STR) {
        check((size_t)value.as.number < d->string_count, "a string that was never made");
        const hs_string *text = &d->strings[value.as.number];
        for (uint32_t i = 0; i < text->size; i++)
            seen += d->data[text->at + i];
    } else if (value.tag == HS_BIG) {
        check((size_t)value.as.number + value.length <= d->size, "an integer beyond the file");
    } else if (value.tag >= HS_LIST) {
        check((size_t)value.as.number < d->node_count, "a container that was given back");
        check(d->nodes[value.as.number].tag == value.tag, "a container of another kind");
    } else {
        check(value.tag != HS_UNSET, "a value that was never set");
    }
}

static void look_at_ids(const hs_dump *d, int column, uint32_t count) {
    const int32_t *ids = (const int32_t *)(const void *)d->columns[column];
    for (size_t row = 0; row < d->rows; row++)
        check(ids[row] >= 0 && (uint32_t)ids[row] < count, hs_column_names[column]);
}

static void look_at(const hs_dump *d) {
    const hs_table *tables[] = {&d->names,  &d->threads, &d->groups, &d->shapes,
                                &d->dtypes, &d->frames,  &d->stacks, &d->sizes};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        look_at_table(tables[i]);
    for (int i = 0; i < HS_COLUMNS; i++)
        for (size_t byte = 0; byte < d->rows * hs_column_widths[i]; byte++)
            seen += (uint8_t)d->columns[i][byte];
    look_at_ids(d, HS_C_NAME, d->names.count);
    look_at_ids(d, HS_C_GROUP, d->groups.count);
    look_at_ids(d, HS_C_IN_SHAPES, d->shapes.count);
    look_at_ids(d, HS_C_OUT_SHAPES, d->shapes.count);
    look_at_ids(d, HS_C_IN_DTYPES, d->dtypes.count);
    look_at_ids(d, HS_C_OUT_DTYPES, d->dtypes.count);
    look_at_ids(d, HS_C_SIZE, d->sizes.count);
    look_at_ids(d, HS_C_STACK, d->stacks.count);
    look_at_ids(d, HS_C_THREAD, d->threads.count + 1);
    for (size_t i = 0; i < d->top; i++)
        look_at_value(d, d->stack[i]);
    for (size_t id = 0; id < d->node_count; id++)
        for (size_t i = 0; i < (size_t)d->nodes[id].count * (d->nodes[id].tag == HS_DICT ? 2 : 1); i++)
            look_at_value(d, d->cells[d->nodes[id].at + i]);
    check(d->at <= d->size, "an offset beyond the file");
}

static enum hs_status decode(const uint8_t *data, size_t size) {
    static const hs_limits limits = {256 << 20, 40, 64, 4000000, 4 << 20, 32, 2000000, 5000};
    /* A copy of exactly its size: the sanitizer then sees a read of one byte too many. */
    uint8_t *copy = malloc(size ? size : 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, size);
    hs_dump dump;
    enum hs_status status = hs_decode(&dump, copy, size, &limits);
    if (status != HS_NOT_MINE)
        look_at(&dump);
    hs_free(&dump);
    free(copy);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    decode(data, size);
    return 0;
}

#ifndef FUZZER
int main(int count, char **names) {
    unsigned long ended[HS_NOT_MINE + 1] = {0};
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        if (file == NULL || fseek(file, 0, SEEK_END) != 0)
            return 2;
        long size = ftell(file);
        rewind(file);
        uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
        if (data == NULL || size < 0 || fread(data, 1, (size_t)size, file) != (size_t)size)
            return 2;
        fclose(file);
        ended[decode(data, (size_t)size)]++;
        for (size_t part = 1; part < 8; part++)
            ended[decode(data, (size_t)size * part / 8)]++;
        free(data);
    }
    for (int i = 0; i <= HS_NOT_MINE; i++)
        printf("%lu ", ended[i]);
    printf("\n%llu\n", (unsigned long long)seen);
    return 0;
}
#endif
