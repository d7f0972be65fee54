/* Where redaction has to look. What is there is judged in Python (bundle/redact): this only passes over the rest.
 *
 * Most bytes of a log are passed over, so this is what the time of redaction is made of. Each function has a slower twin
 * in redact/scan.py with the same answer, or one that only names more places. */

#include "scan.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void add(hs_places *found, uint64_t place) {
    if (found->count == found->room) {
        size_t room = found->room ? found->room * 2 : 256;
        uint64_t *more = realloc(found->at, room * sizeof *more);
        if (!more) {
            found->failed = 1;
            return;
        }
        found->at = more;
        found->room = room;
    }
    found->at[found->count++] = place;
}

void hs_scan_words(const hs_words *w, const uint8_t *data, size_t size, hs_places *found) {
    uint16_t first[256];
    for (int byte = 0; byte < 256; byte++)
        first[byte] = w->classes[byte] ? w->next[w->classes[byte]] : 0;
    for (size_t at = 0; at < size; at++) {
        size_t node = first[data[at]];
        for (size_t next = at + 1; node; next++) {
            if (w->ends[node])
                add(found, (uint64_t)at << 16 | (uint64_t)(w->ends[node] - 1));
            uint8_t class = next < size ? w->classes[data[next]] : 0;
            node = class ? w->next[node * w->width + class] : 0;
        }
    }
}

/* ---- long words -------------------------------------------------------------------------------------------------- */

enum { OTHER, LOWER_HEX, LOWER, UPPER_HEX, UPPER, DIGIT, PLUS, JOIN, SPLIT };
/* JOIN: / _ and -, which are inside of a piece and between two runs. SPLIT: = ~ and ., which part pieces. */

static uint8_t kinds[256];

static void fill_kinds(void) {
    if (kinds['0'])
        return;
    for (int byte = 'a'; byte <= 'z'; byte++)
        kinds[byte] = byte <= 'f' ? LOWER_HEX : LOWER;
    for (int byte = 'A'; byte <= 'Z'; byte++)
        kinds[byte] = byte <= 'F' ? UPPER_HEX : UPPER;
    kinds['+'] = PLUS;
    kinds['/'] = kinds['_'] = kinds['-'] = JOIN;
    kinds['='] = kinds['~'] = kinds['.'] = SPLIT;
    for (int byte = '9'; byte >= '0'; byte--)
        kinds[byte] = DIGIT;
}

enum { LONG = 20, RUN = 12, HASH = 64, SHORT_HASH = 32, ENDLESS = 64 << 10 };
/* The numbers of redact/random_words.py and handlers.py: shorter words are not looked at, shorter runs are jargon, and
 * an endless one is not judged. */

/* Whether the letters and digits from `at` to `end`, all of one run, may be a part of something random. */
static bool odd_run(const uint8_t *data, size_t at, size_t end, size_t stop) {
    if (end - at < RUN)
        return false;
    unsigned seen = 0;
    for (size_t i = at; i < end; i++)
        seen |= 1u << kinds[data[i]];
    if (!(seen & ~(1u << DIGIT)))
        return false;
    if (seen & ~(1u << DIGIT | 1u << LOWER_HEX) || !(seen & 1u << DIGIT))
        return true;
    /* A hash says nothing; but for the keys of two services that are made of one. */
    return (end - at == HASH && at && data[at - 1] == '.') ||
           (end - at == SHORT_HASH && stop - end > 3 && !memcmp(data + end, "-us", 3));
}

/* Whether a piece, without the signs that part pieces, may be random. */
static bool odd_piece(const uint8_t *data, size_t at, size_t end, size_t stop) {
    if (end - at < LONG)
        return false;
    unsigned seen = 0;
    for (size_t i = at; i < end; i++)
        seen |= 1u << kinds[data[i]];
    unsigned lower = seen & (1u << LOWER_HEX | 1u << LOWER), upper = seen & (1u << UPPER_HEX | 1u << UPPER);
    if (!lower && !upper)
        return false;
    if (seen & 1u << PLUS || (end < stop && data[end] == '='))
        return true;
    if (!(seen & 1u << DIGIT) && !(lower && upper))
        return false;
    bool odd = false;
    for (size_t i = at; i < end && !odd;) {
        size_t begin = i;
        while (i < end && kinds[data[i]] != JOIN)
            i++;
        odd = odd_run(data, begin, i, stop);
        i++;
    }
    return odd;
}

void hs_scan_long(const uint8_t *data, size_t size, hs_places *found) {
    fill_kinds();
    for (size_t at = LONG - 1; at < size;) {
        if (!kinds[data[at]]) { /* whatever is longer and begins behind this place covers the next one */
            at += LONG;
            continue;
        }
        size_t begin = at, end = at + 1;
        while (begin && kinds[data[begin - 1]])
            begin--;
        while (end < size && kinds[data[end]])
            end++;
        bool odd = end - begin >= ENDLESS;
        if (end - begin >= LONG)
            for (size_t i = begin; i < end && !odd;) {
                size_t piece = i;
                while (i < end && kinds[data[i]] != SPLIT)
                    i++;
                odd = odd_piece(data, piece, i, end);
                i++;
            }
        if (odd) {
            add(found, begin);
            add(found, end);
        }
        at = end + LONG;
    }
}

/* ---- escapes ----------------------------------------------------------------------------------------------------- */

static bool is_hex(uint8_t byte) {
    return (byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'f');
}

static bool escapes(const uint8_t *data, size_t at, size_t size) {
    uint8_t next = at + 1 < size ? data[at + 1] : 0;
    switch (data[at]) {
    case '\\':
    case 0x1b:
        return true;
    case 0: /* text in UTF-16 */
        return next && at + 2 < size && !data[at + 2];
    case '%':
        return next >= '2' && next <= '7' && at + 2 < size && is_hex(data[at + 2]);
    case '&':
        return next && strchr("qalg#", next);
    case '^':
        return next == '[';
    default:
        return false;
    }
}

void hs_scan_escaped(const uint8_t *data, size_t size, hs_places *found) {
    static const uint8_t signs[] = {'\\', 0x1b, '%', '&', '^', 0};
    uint8_t sign[256] = {0};
    for (size_t i = 0; i < sizeof signs; i++)
        sign[signs[i]] = 1;
    for (size_t at = 0; at < size; at++) {
        if (!sign[data[at]] || !escapes(data, at, size))
            continue;
        size_t begin = at, end = at, lines = 0;
        while (begin && !(data[begin - 1] == '\n' && ++lines == 2))
            begin--;
        for (lines = 0; end < size && !(data[end] == '\n' && ++lines == 2);)
            end++;
        if (found->count && begin <= found->at[found->count - 1] + 1) {
            found->at[found->count - 1] = end;
        } else {
            add(found, begin);
            add(found, end);
        }
        if (found->failed)
            return;
        const uint8_t *line = memchr(data + at, '\n', size - at);
        if (!line)
            return;
        at = (size_t)(line - data);
    }
}
