"""What libstdc++ and c10 keep in their containers, read out of another process's memory.

Each reading is bounded, and follows no pointer twice: a tree whose nodes do not name their parents, or a list that runs
in a circle, is none. All of it is the ABI of libstdc++ since GCC 5 on 64 bits, on x86-64 and aarch64 alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hangscope.sources.cannot_read import Torn
from hangscope.sources.process_memory import ProcessMemory

STRING = 32
MOST_TEXT = 4096
MOST_NODES = 65536
MOST_NUMBERS = 4096
MOST_RANKS = 1 << 20
_INLINE = 15
"""The longest text that a string keeps within itself."""


def string(memory: ProcessMemory, address: int, raw: bytes | None = None) -> str:
    """A std::string; `raw` are the 32 bytes that lie there, where they are read already."""
    held = memory.read(address, STRING) if raw is None else raw
    data, size = struct.unpack_from("<QQ", held)
    if size > MOST_TEXT:
        raise Torn(f"a string of {size} bytes")
    if data == address + 16:
        if size > _INLINE:
            raise Torn("a string that is longer than its place")
        text = held[16 : 16 + size]
    else:
        # a moved-from or long string; one that has a place of its own has room for 16 bytes at least
        text = memory.read(data, size)
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Torn("a string that is no text") from None


def bounds(memory: ProcessMemory, address: int, item: int, most: int) -> tuple[int, int]:
    """(begin, count) of a std::vector whose items have `item` bytes. Raises Torn where its sizes do not divide."""
    return bounds_of(memory.read(address, 24), item, most)


def bounds_of(raw: bytes, item: int, most: int) -> tuple[int, int]:
    begin, end, room = struct.unpack_from("<QQQ", raw)
    if not begin <= end <= room or (end - begin) % item or (room - begin) % item:
        raise Torn("a vector whose sizes do not divide")
    count = (end - begin) // item
    if count > most or (count and not begin):
        raise Torn(f"a vector of {count} items")
    return begin, count


def small_numbers(memory: ProcessMemory, address: int, raw: bytes, inline: int) -> tuple[int, ...]:
    """A c10::SmallVector<int64_t, inline>: `raw` are its bytes."""
    data, count, room = struct.unpack_from("<QII", raw)
    if not count <= room or count > MOST_NUMBERS or room < inline:
        raise Torn(f"a small vector of {count} in {room}")
    if data == address + 16:
        if count > inline:
            raise Torn("a small vector that is longer than its place")
        return struct.unpack_from(f"<{count}q", raw, 16)
    return struct.unpack(f"<{count}q", memory.read(data, 8 * count))


def map_values(memory: ProcessMemory, address: int) -> list[int]:
    """The addresses of the pairs of a std::map, in their order. Every node names its parent, or it is no map."""
    header = address + 8
    root, first, last, count = memory.words(address + 16, 4)
    if count > MOST_NODES or bool(root) != bool(count):
        raise Torn(f"a map of {count}")
    if not root and (first, last) != (header, header):  # an empty one points to itself; empty memory does not
        raise Torn("what looks like an empty map is none")
    found: list[int] = []
    waiting: list[tuple[int, int, bool]] = [(root, header, False)] if root else []
    while waiting:
        node, parent, passed = waiting.pop()
        if passed:
            found.append(node + 32)
            if len(found) > count:
                raise Torn("a map with more nodes than it counts")
            continue
        if len(waiting) > 256:
            raise Torn("a map that is too deep")
        _, above, left, right = memory.words(node, 4)
        if above != parent:
            raise Torn("a map whose nodes do not hang together")
        if right:
            waiting.append((right, node, False))
        waiting.append((node, parent, True))
        if left:
            waiting.append((left, node, False))
    if len(found) != count:
        raise Torn("a map with fewer nodes than it counts")
    return found


def hash_nodes(memory: ProcessMemory, address: int, most: int) -> Iterator[int]:
    """The addresses of what the nodes of a std::unordered_map hold."""
    _, buckets, node, count = memory.words(address, 4)
    if count > most or not buckets or buckets > 1 << 24:
        raise Torn(f"a table of {count} in {buckets}")
    seen = 0
    while node:
        seen += 1
        if seen > count:
            raise Torn("a table with more nodes than it counts")
        yield node + 8
        node = memory.word(node)
    if seen != count:
        raise Torn("a table with fewer nodes than it counts")


def hash_size(memory: ProcessMemory, address: int) -> int:
    """How many a std::unordered_map holds. Raises Torn where it is none."""
    place, buckets, _, count = memory.words(address, 4)
    if count > MOST_NODES or not 0 < buckets <= 1 << 24 or not place:
        raise Torn(f"a table of {count} in {buckets}")
    return count
