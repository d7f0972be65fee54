/* Where redaction has to look: what scan.c finds in one pass over the bytes of a log. */

#ifndef HANGSCOPE_SCAN_H
#define HANGSCOPE_SCAN_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t *at;
    size_t count, room;
    int failed; /* no memory */
} hs_places;

/* Words as a tree: of every node the next one for each class of bytes, and which word ends there (0: none). */
typedef struct {
    const uint8_t *classes; /* 256: the class of a byte, large letters as small ones; 0: in no word */
    const uint16_t *next;   /* nodes x width */
    const uint16_t *ends;   /* nodes: number of the word + 1 */
    size_t nodes, width;
} hs_words;

/* Every place at which a word begins, as place << 16 | number of the word; of several at one place the short first. */
void hs_scan_words(const hs_words *words, const uint8_t *data, size_t size, hs_places *found);

/* Begin and end of every long run of the letters that keys are made of, but for those that cannot be random. */
void hs_scan_long(const uint8_t *data, size_t size, hs_places *found);

/* Begin and end of stretches of whole lines that hold an escape, each with a line before and behind. */
void hs_scan_escaped(const uint8_t *data, size_t size, hs_places *found);

#endif
