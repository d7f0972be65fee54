"""Plain values of another process's Python, read in its memory: whole numbers, texts, lists, tuples, dicts, and the
locals of a frame. CPython 3.10 to 3.14, with a GIL.

What kind an object is, it says itself; what is of another kind than the one that is asked for is `Torn`. Nothing is
locked: whoever needs to be sure reads twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hangscope.sources.cannot_read import Torn
from hangscope.sources.python_code import Interpreter

MOST_ITEMS = 1 << 16
_MOST_DIGITS = 3
_DIGIT_BITS = 30
_MOST_NAMES = 512
_TAG = 7
"""From 3.14 on the lowest bits of what a frame holds are a tag."""
_KEYS_WITH_HASH = 0
_METHOD_SELF = 24
_MOST_TYPE_NAME = 48
_MODULE_DICT = 16
"""The dict of a module is the first field after the head of an object."""


def whole_number(python: Interpreter, address: int) -> int:
    """An int, and no bool."""
    if python.kind(address) != b"int":
        raise Torn("a number that is no int")
    memory, at = python.memory, python.offsets
    tag = memory.word(address + at["int.tag"])
    if python.minor >= 12:  # the sign is in the lowest two bits, and the number of digits above the third
        digits, negative = tag >> 3, tag & 3 == 2
        zero = tag & 3 == 1
    else:
        signed = tag - (1 << 64) if tag >> 63 else tag
        digits, negative, zero = abs(signed), signed < 0, signed == 0
    if zero:
        return 0
    if not 0 < digits <= _MOST_DIGITS:
        raise Torn("a number that is too long")
    raw = struct.unpack(f"<{digits}I", memory.read(address + at["int.digits"], 4 * digits))
    value = sum(int(digit) << _DIGIT_BITS * place for place, digit in enumerate(raw))
    return -value if negative else value


def truth(python: Interpreter, address: int) -> bool:
    """A bool, and no int."""
    if python.kind(address) != b"bool":
        raise Torn("a truth that is no bool")
    return int.from_bytes(python.memory.read(address + python.offsets["int.digits"], 4), "little") == 1


def members(python: Interpreter, address: int, most: int = MOST_ITEMS) -> tuple[int, ...]:
    """Where the members of a list or tuple are."""
    memory, at = python.memory, python.offsets
    kind = python.kind(address)
    if kind not in (b"list", b"tuple"):
        raise Torn("no list and no tuple")
    size = memory.word(address + at["list.size" if kind == b"list" else "tuple.size"])
    if size > most:
        raise Torn(f"a list of {size} members")
    if not size:
        return ()
    begin = memory.word(address + at["list.items"]) if kind == b"list" else address + at["tuple.items"]
    return memory.words(begin, size)


def whole_numbers(python: Interpreter, address: int, most: int = MOST_ITEMS) -> list[int]:
    """A list or tuple of ints alone."""
    return [whole_number(python, each) for each in members(python, address, most)]


def items(python: Interpreter, address: int, most: int = MOST_ITEMS) -> list[tuple[int, int]]:
    """Where the keys and values of a dict are, in its order. Of one that shares its keys with others nothing is known:
    instances have such."""
    if python.kind(address) != b"dict":
        raise Torn("no dict")
    memory, at = python.memory, python.offsets
    used = memory.word(address + at["dict.keys"] - 16)  # ma_used, then a version, then the keys: 3.10 to 3.14
    keys = memory.word(address + at["dict.keys"])
    if memory.word(address + at["dict.values"]):
        raise Torn("a dict that shares its keys")
    if used > most:
        raise Torn(f"a dict of {used} items")
    return list(_entries(python, keys, used)) if used else []


def _entries(python: Interpreter, keys: int, used: int) -> Iterator[tuple[int, int]]:
    head = python.memory.read(keys, 40)
    if python.minor == 10:
        size, count = struct.unpack_from("<Q", head, 8)[0], struct.unpack_from("<Q", head, 32)[0]
        if size & (size - 1) or not 0 < size <= 4 * MOST_ITEMS:
            raise Torn("a table of a size that is none")
        width = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4
        begin, step = keys + 40 + size * width, 3
    else:
        count = struct.unpack_from("<Q", head, 24)[0]
        if head[9] > 20:
            raise Torn("a table of a size that is none")
        begin, step = keys + 32 + (1 << head[9]), 3 if head[10] == _KEYS_WITH_HASH else 2
    if not used <= count <= 2 * MOST_ITEMS:
        raise Torn("a table with fewer entries than it counts")
    words = python.memory.words(begin, step * count)
    pairs = [(words[place + step - 2], words[place + step - 1]) for place in range(0, step * count, step)]
    there = [(key, value) for key, value in pairs if key and value]
    if len(there) != used:
        raise Torn("a table that counts its entries otherwise")
    yield from there


def named(python: Interpreter, address: int, *names: str) -> tuple[int, ...]:
    """The values that a dict has under some texts; 0 where it has none."""
    length = python.offsets["unicode.length"]
    lengths = set(map(len, names))
    found: dict[str, int] = {}
    for key, value in items(python, address):
        # of thousands of names only those of the same length are read
        if python.memory.word(key + length) in lengths and python.kind(key) == b"str":
            found[python.text(key)] = value
    return tuple(found.get(name, 0) for name in names)


def module(python: Interpreter, name: str) -> int:
    """The dict of a module that has been imported; 0 where it has not."""
    memory, at = python.memory, python.offsets
    interpreter = memory.word(python.runtime + at["interpreters"])
    modules = memory.word(interpreter + at["interpreter.modules"])
    [found] = named(python, modules, name) if modules else [0]
    return memory.word(found + _MODULE_DICT) if found and python.kind(found) == b"module" else 0


def on_stack(python: Interpreter, frame: int, most: int) -> Iterator[int]:
    """Where the objects are that the frame has on its stack, and those whose methods it has there. A place above its
    top may still hold what was there before, or nothing."""
    memory, at = python.memory, python.offsets
    code = memory.word(frame + at["frame.code"]) & ~_TAG
    count = len(members(python, memory.word(code + at["code.names"]), _MOST_NAMES))
    for place in memory.words(frame + at["frame.locals"] + 8 * count, most):
        address = place & ~_TAG
        try:
            kind = python.kind(address)
            yield memory.word(address + _METHOD_SELF) if kind == b"method" else address
        except Torn:
            continue


def type_name(python: Interpreter, address: int) -> str:
    """How an object's type calls itself in full; of a class of pybind11's, its own name."""
    metaclass = python.kind(address) == b"pybind11_type"
    kind = address if metaclass else python.memory.word(address + python.offsets["object.type"])
    raw = python.memory.read(python.memory.word(kind + python.offsets["type.name"]), _MOST_TYPE_NAME)
    return raw.partition(b"\0")[0].decode(errors="replace")


def frame_locals(python: Interpreter, frame: int) -> dict[str, int]:
    """Where the arguments and locals of a frame are, by their names; those without a value are left out."""
    memory, at = python.memory, python.offsets
    code = memory.word(frame + at["frame.code"]) & ~_TAG
    if python.kind(code) != b"code":
        raise Torn("a frame without code")
    names = members(python, memory.word(code + at["code.names"]), _MOST_NAMES)
    places = memory.words(frame + at["frame.locals"], len(names)) if names else ()
    return {python.text(name): place & ~_TAG for name, place in zip(names, places, strict=True) if place & ~_TAG}
