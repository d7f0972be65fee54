/* Scans files, whole and cut, in memory of exactly their size; says how many places were found. For test_scan.py. */

#include "scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const WORDS[] = {"key", "token", "tok", "pass", "@", "://"};
enum { COUNT = sizeof WORDS / sizeof *WORDS, NODES = 64, WIDTH = 257 };

static uint8_t classes[256];
static uint16_t next[NODES * WIDTH], ends[NODES];

static void build(void) {
    uint16_t nodes = 1;
    for (int i = 0; i < 256; i++)
        classes[i] = i < 255 ? (uint8_t)(i + 1) : 0;
    for (uint16_t word = 0; word < COUNT; word++) {
        uint16_t node = 0;
        for (const char *c = WORDS[word]; *c; c++) {
            uint16_t *step = &next[node * WIDTH + classes[(uint8_t)*c]];
            if (!*step)
                *step = nodes++;
            node = *step;
        }
        ends[node] = (uint16_t)(word + 1);
    }
}

int main(int argc, char **argv) {
    build();
    hs_words tree = {classes, next, ends, NODES, WIDTH};
    size_t found = 0;
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file)
            return 2;
        static uint8_t all[1 << 22];
        size_t size = fread(all, 1, sizeof all, file);
        fclose(file);
        for (size_t cut = 0; cut < 8; cut++) {
            size_t left = size - size * cut / 8;
            uint8_t *data = malloc(left ? left : 1);
            memcpy(data, all + (size - left), left);
            hs_places places[3] = {{0}, {0}, {0}};
            hs_scan_words(&tree, data, left, &places[0]);
            hs_scan_long(data, left, &places[1]);
            hs_scan_escaped(data, left, &places[2]);
            for (int kind = 0; kind < 3; kind++) {
                found += places[kind].count;
                free(places[kind].at);
            }
            free(data);
        }
    }
    printf("%zu\n", found);
    return 0;
}
