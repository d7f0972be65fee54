"""Where in a log something is to be looked at: the places of words, long words, and lines with escapes.

The C scanner (native/scan.c) passes over the rest at the speed of memory, where it was built; else Python does the same
with regular expressions, and takes several times as long.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence

from hangscope.bundle.redact.plain_view import MARK
from hangscope.bundle.redact.random_words import LONG

try:
    from hangscope.bundle.redact import _scan
except ImportError:  # installed without a C compiler
    _scan = None  # type: ignore[assignment]

VARIABLE = "HANGSCOPE_SCANNER"
"""``python`` in this variable of the environment has everything scanned by Python."""
_MOST_NODES = 1 << 16

Spans = Iterable[tuple[int, int]]


def built() -> bool:
    """Whether the C scanner is here."""
    return _scan is not None


def in_use() -> bool:
    """Whether logs are scanned by it."""
    return built() and os.environ.get(VARIABLE) != "python"


class Words:
    """Lower-case words that are looked for all at once, in large and small letters."""

    def __init__(self, words: Iterable[bytes], *, in_c: bool) -> None:
        self._words = sorted(words)
        self._tree = self._build() if in_c else None
        if self._tree is None:
            self._search = re.compile(_trie(self._words)).search
            self._longer = {
                word: [number for number, other in enumerate(self._words) if other.startswith(word)]
                for word in self._words
            }

    def __iter__(self) -> Iterator[bytes]:
        """The words in the order of their numbers."""
        return iter(self._words)

    def places(self, data: bytes) -> Sequence[int]:
        """Every place at which one begins, as place << 16 | number, in order."""
        if self._tree is not None:
            return memoryview(_scan.words(self._tree, data)).cast("Q")
        return list(self._searched(data.lower()))

    def _searched(self, lower: bytes) -> Iterator[int]:
        words = self._words
        longer = self._longer
        search = self._search
        hit = search(lower)
        while hit is not None:
            at = hit.start()
            for number in longer[hit.group()]:
                if lower.startswith(words[number], at):
                    yield at << 16 | number
            hit = search(lower, at + 1)  # another one may begin inside of it

    def _build(self) -> object | None:
        letters = sorted(set(b"".join(self._words)))
        classes = bytearray(256)
        for number, byte in enumerate(letters, 1):
            classes[byte] = number
            classes[bytes([byte]).upper()[0]] = number
        width = len(letters) + 1
        nodes = array("H", bytes(2 * width))
        ends = array("H", bytes(2))
        for number, word in enumerate(self._words, 1):
            node = 0
            for byte in word:
                at = node * width + classes[byte]
                if not nodes[at]:
                    if len(ends) == _MOST_NODES or number == _MOST_NODES:
                        return None
                    nodes[at] = len(ends)
                    nodes.frombytes(bytes(2 * width))
                    ends.append(0)
                node = nodes[at]
            ends[node] = number
        return _scan.tree(bytes(classes), nodes.tobytes(), ends.tobytes())


def long_words(data: bytes) -> Spans:
    """Where long runs of the letters of keys are; those that cannot be random need not be among them."""
    if not in_use():
        return (match.span() for match in LONG.finditer(data))
    return _pairs(_scan.long_words(data))


def escaped(data: bytes) -> Spans:
    """Stretches of whole lines with escapes in them, each with a line before and behind."""
    return _pairs(_scan.escaped(data)) if in_use() else _marked(data)


def _pairs(found: bytes) -> Spans:
    numbers = memoryview(found).cast("Q")
    return zip(numbers[::2], numbers[1::2], strict=True)


def _marked(data: bytes) -> Iterator[tuple[int, int]]:
    span = (0, -2)
    mark = MARK.search(data)
    while mark is not None:
        at = mark.start()
        first = data.rfind(b"\n", 0, at)
        first = data.rfind(b"\n", 0, max(0, first)) + 1
        line_end = data.find(b"\n", at)
        end = data.find(b"\n", line_end + 1) if line_end >= 0 else -1
        end = end if end >= 0 else len(data)
        if first > span[1] + 1 and span[1] >= 0:
            yield span
            span = (first, end)
        else:
            span = (span[0] if span[1] >= 0 else first, end)
        mark = MARK.search(data, line_end) if line_end >= 0 else None
    if span[1] >= 0:
        yield span


def _trie(words: Iterable[bytes]) -> bytes:
    """One regular expression for all words, by their common beginnings. A word that begins another one hides it."""
    root: dict[int, object] = {}
    for word in sorted(words):
        node = root
        for byte in word[:-1]:
            step = node.setdefault(byte, {})
            if step is None:
                break
            node = step  # type: ignore[assignment]  # a nested dictionary of the same kind
        else:
            node[word[-1]] = None

    def build(node: dict[int, object]) -> bytes:
        parts = []
        for byte, below in node.items():
            parts.append(re.escape(bytes([byte])) + (build(below) if isinstance(below, dict) else b""))
        return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"

    return build(root)
