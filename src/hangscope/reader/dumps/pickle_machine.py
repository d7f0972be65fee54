"""A pickle machine that can only build plain data, for files that nobody vouches for.

PyTorch writes dumps with about twenty opcodes (protocol 2; `torch::jit::Pickler`, the same from 2.2 to 2.15); tools
that re-pickle them with Python add about twelve more (protocols 3 to 5). This machine knows those and nothing else. It
looks up no class, no function, no persistent id and no extension, so a file cannot make it run anything: an opcode
outside the list ends the read with an error that names the file and the offset.

A stream that ends too early, or turns into bytes that are no opcode at all, gives up what was whole before that point.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any

from hangscope.errors import DamagedError
from hangscope.safeio.limits import DEFAULT, Limits

_FLOAT = Struct(">d").unpack_from
_INT4 = Struct("<i").unpack_from
_UINT4 = Struct("<I").unpack_from
_INT8 = Struct("<q").unpack_from
_UINT8 = Struct("<Q").unpack_from

_REFUSED = {
    0x30: "POP",
    0x31: "POP_MARK",
    0x32: "DUP",
    0x42: "BINBYTES",
    0x43: "SHORT_BINBYTES",
    0x46: "FLOAT",
    0x49: "INT",
    0x4C: "LONG",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x52: "REDUCE",
    0x53: "STRING",
    0x54: "BINSTRING",
    0x55: "SHORT_BINSTRING",
    0x56: "UNICODE",
    0x62: "BUILD",
    0x63: "GLOBAL",
    0x64: "DICT",
    0x67: "GET",
    0x69: "INST",
    0x6C: "LIST",
    0x6F: "OBJ",
    0x70: "PUT",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x8E: "BINBYTES8",
    0x8F: "EMPTY_SET",
    0x90: "ADDITEMS",
    0x91: "FROZENSET",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x96: "BYTEARRAY8",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}

_SEGMENT = 1 << 18
_FREE = 8 << 20  # memory that any file may take, however small it is
_VALUE = 40  # a number and its place in a list
_MEMO = 100
_KEYS = frozenset((str, int))

# Why a read ended, in words that the C decoder's result is put into as well.
CUT = "ends in the middle of the data"
TOO_LARGE = "holds more than {} bytes of objects"
NO_LIST = "appends to something that is no list"
TOO_DEEP = "nested deeper than {}"
LONG_INTEGER = "an integer of {} bytes"
BAD_KEYS = "a dict with something else than text or whole numbers as keys"
LONG_STRING = "a string of {} bytes, with {left} left in the file"
OTHER_PROTOCOL = "pickle protocol {}"
UNFINISHED = "ends with unfinished values"
NO_OPCODE = "byte 0x{:02x} is no pickle opcode"
LARGE_MEMO = "more than {} memo entries"
NEVER_STORED = "refers to a value that was never stored"
EMPTY_STACK = "takes from an empty stack"
DRAINED: Any = object()
"""Lies where an entry was before it was handed over."""

Drain = Callable[[int, Any], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a stream held.

    A stream that broke has `complete` False, and says where and why; `partial` holds the ids of the containers that
    were still open there, so that a reader can tell an unfinished entry from a whole one.
    """

    value: Any
    complete: bool = True
    broke_at: int | None = None
    reason: str | None = None
    partial: frozenset[int] = frozenset()


def is_text_pickle(data: bytes) -> bool:
    """Whether these bytes can be a pickle of protocol 0 or 1, which has no mark at its start and is text in parts.

    It opens with an opcode that text does not open with: a class that is looked up, a mark, a quoted string.
    """
    return data[:1] in b"c(}]" and (data[:1] == b"c" or data[1:2] in b"(cdlpq0123456789iSVIFLKMJTUX}]")


def is_pickle(data: bytes) -> bool:
    """Whether the content starts like a pickle of protocol 2 to 5, whatever it holds."""
    return len(data) > 2 and data[0] == 0x80 and 2 <= data[1] <= 5


def check(data: bytes, file: str, limits: Limits) -> None:
    """Raises DamagedError for what is no pickle of these protocols, or too large to be looked at."""
    if len(data) > limits.input_bytes:
        raise DamagedError(f"{len(data)} bytes, more than the limit of {limits.input_bytes}", file=file)
    if not is_pickle(data):
        raise DamagedError("not a pickle of protocol 2 to 5", file=file, offset=0)


def refusal(op: int, file: str, at: int) -> DamagedError:
    """The error for an opcode that ends before byte `at`, and that could make another reader run something."""
    return DamagedError(
        f"pickle opcode {_REFUSED[op]} is none that a flight recorder dump uses, refused",
        file=file,
        offset=at - 1,
        hint="nothing in the file was run; it is no dump, or was tampered with: open it nowhere else",
    )


def loads(data: bytes, *, file: str, limits: Limits = DEFAULT, drain: Drain | None = None) -> Loaded:
    """The plain value in `data`: dicts with str or int keys, lists, tuples, strings, numbers, booleans, None.

    With `drain`, each entry of the dump is handed over with its index as soon as it is whole, and `DRAINED` stays in
    its place: a ring of two million entries never lies in memory as two million dicts. Entries written in an unusual
    way may stay in the list; the caller has to look through it.
    """
    check(data, file, limits)
    collecting = gc.isenabled()
    # A hundred thousand new containers make the collector walk them all again and again, and plain data needs it not.
    gc.disable()
    try:
        return _run(data, file, limits, drain)
    finally:
        if collecting:
            gc.enable()


def _run(data: bytes, file: str, limits: Limits, drain: Drain | None) -> Loaded:
    """The machine. One long function with local names: a method call per opcode would double the time."""
    size = len(data)
    nesting = limits.nesting
    memory = min(limits.memory_bytes, _FREE + limits.growth * size)
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}
    append = stack.append
    spent = drained_spent = drained_memo = 0
    pos = 2
    reason = ""
    try:
        while pos < size:
            # Memory is measured once a segment, so that no opcode pays for a check: in between a segment can add
            # at most a hundred times its own size, and one string.
            end = min(size, pos + _SEGMENT)
            if spent + _VALUE * sum(map(len, marks), len(stack)) > memory:
                reason = TOO_LARGE.format(memory)
                break
            while pos < end:
                op = data[pos]
                pos += 1
                if op == 0x68:  # BINGET
                    append(memo[data[pos]])
                    pos += 1
                elif op == 0x4B:  # BININT1
                    append(data[pos])
                    pos += 1
                elif op == 0x65:  # APPENDS
                    items = stack
                    stack = marks.pop()
                    append = stack.append
                    target = stack[-1]
                    if type(target) is not list:
                        reason = NO_LIST
                        break
                    target.extend(items)
                    spent += _VALUE * len(items)
                elif op == 0x5D:  # EMPTY_LIST
                    spent += 72
                    append([])
                    if pos < end and data[pos] == 0x28 and len(marks) < nesting:  # its MARK nearly always follows
                        pos += 1
                        marks.append(stack)
                        stack = []
                        append = stack.append
                elif op == 0x8A:  # LONG1
                    length = data[pos]
                    pos += 1
                    if length == 8:
                        append(_INT8(data, pos)[0])
                    elif length > limits.integer_bytes:
                        reason = LONG_INTEGER.format(length)
                        break
                    else:
                        append(int.from_bytes(data[pos : pos + length], "little", signed=True))
                    pos += length
                elif op == 0x28:  # MARK
                    if len(marks) >= nesting:
                        reason = TOO_DEEP.format(nesting)
                        break
                    marks.append(stack)
                    stack = []
                    append = stack.append
                elif op == 0x89:  # NEWFALSE
                    append(False)
                elif op == 0x88:  # NEWTRUE
                    append(True)
                elif op == 0x4E:  # NONE
                    append(None)
                elif op == 0x4D:  # BININT2
                    append(data[pos] | data[pos + 1] << 8)
                    pos += 2
                elif op == 0x4A:  # BININT
                    append(_INT4(data, pos)[0])
                    pos += 4
                elif op == 0x86:  # TUPLE2
                    last = stack.pop()
                    stack[-1] = (stack[-1], last)
                    spent += 64
                elif op == 0x47:  # BINFLOAT
                    append(_FLOAT(data, pos)[0])
                    pos += 8
                elif op == 0x7D:  # EMPTY_DICT
                    spent += 72
                    append({})
                elif op == 0x75:  # SETITEMS
                    items = stack
                    stack = marks.pop()
                    append = stack.append
                    target = stack[-1]
                    keys = items[::2]
                    # Only text and whole numbers: hashing a tuple of tuples of shared tuples takes for ever.
                    if type(target) is not dict or len(items) & 1 or not _KEYS.issuperset(map(type, keys)):
                        reason = BAD_KEYS
                        break
                    target.update(zip(keys, items[1::2], strict=True))
                    spent += _VALUE * len(items)
                    if drain is not None and 1 <= len(marks) <= 2 and _is_entry(marks):
                        drain(len(marks[-1][-1]) + len(stack) - 1, target)
                        stack[-1] = DRAINED
                        if len(memo) == drained_memo:
                            spent = drained_spent
                        drained_memo, drained_spent = len(memo), spent
                elif op == 0x71:  # BINPUT
                    memo[data[pos]] = stack[-1]
                    pos += 1
                elif op == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                    spent += _MEMO
                elif op == 0x58 or op == 0x8C or op == 0x8D:  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
                    if op == 0x58:
                        length = _UINT4(data, pos)[0]
                        pos += 4
                    elif op == 0x8C:
                        length = data[pos]
                        pos += 1
                    else:
                        length = _UINT8(data, pos)[0]
                        pos += 8
                    if length > limits.string_bytes or length > size - pos:
                        reason = LONG_STRING.format(length, left=size - pos)
                        break
                    append(data[pos : pos + length].decode("utf-8", "surrogateescape"))
                    pos += length
                    # One character outside Latin-1 makes Python store two or four bytes for each.
                    spent += 64 + 4 * length
                elif op == 0x6A:  # LONG_BINGET
                    append(memo[_UINT4(data, pos)[0]])
                    pos += 4
                elif op == 0x72:  # LONG_BINPUT
                    memo[_UINT4(data, pos)[0]] = stack[-1]
                    pos += 4
                    spent += _MEMO
                elif op == 0x61:  # APPEND
                    item = stack.pop()
                    target = stack[-1]
                    if type(target) is not list:
                        reason = NO_LIST
                        break
                    target.append(item)
                    spent += _VALUE
                elif op == 0x73:  # SETITEM
                    item = stack.pop()
                    key = stack.pop()
                    target = stack[-1]
                    if type(target) is not dict or type(key) not in _KEYS:
                        reason = BAD_KEYS
                        break
                    target[key] = item
                    spent += 5 * _VALUE
                elif op == 0x85:  # TUPLE1
                    stack[-1] = (stack[-1],)
                    spent += 64
                elif op == 0x87:  # TUPLE3
                    third, second = stack.pop(), stack.pop()
                    stack[-1] = (stack[-1], second, third)
                    spent += 64
                elif op == 0x29:  # EMPTY_TUPLE
                    append(())
                elif op == 0x74:  # TUPLE
                    items = stack
                    stack = marks.pop()
                    append = stack.append
                    append(tuple(items))
                    spent += 48 + _VALUE * len(items)
                elif op == 0x95:  # FRAME
                    _UINT8(data, pos)
                    pos += 8
                elif op == 0x80:  # PROTO, which Python tolerates in the middle
                    if not 2 <= data[pos] <= 5:
                        reason = OTHER_PROTOCOL.format(data[pos])
                        break
                    pos += 1
                elif op == 0x8B:  # LONG4
                    length = _INT4(data, pos)[0]
                    pos += 4
                    if not 0 <= length <= limits.integer_bytes:
                        reason = LONG_INTEGER.format(length)
                        break
                    append(int.from_bytes(data[pos : pos + length], "little", signed=True))
                    pos += length
                elif op == 0x2E:  # STOP
                    if marks or len(stack) != 1:
                        reason = UNFINISHED
                        break
                    return Loaded(stack[0])
                elif op in _REFUSED:
                    raise refusal(op, file, pos)
                else:
                    reason = NO_OPCODE.format(op)
                    break
            if reason:
                break
            if len(memo) > limits.memo:
                reason = LARGE_MEMO.format(limits.memo)
                break
        reason = reason or CUT
    except KeyError:
        reason = NEVER_STORED
    except (IndexError, StructError):
        # Python's own errors for reading past the end of the bytes, and for taking from an empty stack.
        reason = CUT if pos >= size - 8 else EMPTY_STACK
    return salvage(marks, stack, min(pos, size), reason)


def _is_entry(marks: list[list[Any]]) -> bool:
    """Whether the dict just finished lies in the list of entries: of the top dict, or the top itself (torch 2.2)."""
    outer = marks[-1]
    if type(outer[-1]) is not list:
        return False
    if len(marks) == 1:
        return len(outer) == 1
    key = outer[-2] if len(outer) > 1 else None
    return type(key) is str and key == "entries"


def salvage(marks: list[list[Any]], stack: list[Any], at: int, reason: str) -> Loaded:
    """Closes every open container with what it had so far, from the innermost out."""
    partial = set()
    levels = [*marks, stack]
    if stack and type(stack[-1]) in (dict, list) and not stack[-1]:
        partial.add(id(stack[-1]))
    for inner in range(len(levels) - 1, 0, -1):
        items, outer = levels[inner], levels[inner - 1]
        if not outer:
            continue
        container = outer[-1]
        partial.add(id(container))
        if type(container) is list:
            container.extend(items)
        elif type(container) is dict:
            for key, value in zip(items[::2], items[1::2], strict=False):
                if type(key) in _KEYS:
                    container[key] = value
    value = None
    if levels[0]:
        value = levels[0][0]
        if type(value) is dict and len(levels[0]) >= 3 and type(levels[0][1]) in _KEYS:
            value[levels[0][1]] = levels[0][2]
        elif type(value) is list and len(levels[0]) >= 2:
            value.append(levels[0][1])
        partial.add(id(value))
    return Loaded(value, complete=False, broke_at=at, reason=reason, partial=frozenset(partial))
