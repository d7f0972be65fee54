"""A pickle machine that can only build plain data, for files that nobody vouches for.

It knows the opcodes that plain data needs (safeio/pickle_opcodes.py) and nothing else. It looks up no class, no
function, no persistent id and no extension, so a file cannot make it run anything: an opcode outside the list ends the
read with an error that names the file and the offset.

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
from hangscope.safeio import pickle_opcodes as op
from hangscope.safeio.limits import DEFAULT, Limits
from hangscope.safeio.pickle_opcodes import is_pickle as is_pickle

_FLOAT = Struct(">d").unpack_from
_INT4 = Struct("<i").unpack_from
_UINT4 = Struct("<I").unpack_from
_INT8 = Struct("<q").unpack_from
_UINT8 = Struct("<Q").unpack_from

_SEGMENT = 1 << 18
_LONGEST_ARGUMENT = 8
_FREE = 8 << 20
"""Memory that any file may take, however small it is."""
_VALUE = 40
"""What a number and its place in a list take."""
_CONTAINER = 72
_SMALL_TUPLE = 64
_TUPLE = 48
_STRING = 64
_WIDEST_CHARACTER = 4
"""One character outside Latin-1 makes Python store two or four bytes for each."""
_MEMO = 100
_KEYS = frozenset((str, int))
"""Keys of dicts are only text and whole numbers: hashing a tuple of tuples of shared tuples takes for ever."""

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
HANDED_OVER: Any = object()
"""Lies where an entry was before it was handed over."""

OnEntry = Callable[[int, Any], None]


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


def check(data: bytes, file: str, limits: Limits) -> None:
    """Raises DamagedError for what is no pickle of these protocols, or too large to be looked at."""
    if len(data) > limits.input_bytes:
        raise DamagedError(f"{len(data)} bytes, more than the limit of {limits.input_bytes}", file=file)
    if not is_pickle(data):
        raise DamagedError("not a pickle of protocol 2 to 5", file=file, offset=0)


def refusal(code: int, file: str, at: int) -> DamagedError:
    """The error for an opcode that ends before byte `at`, and that could make another reader run something."""
    return DamagedError(
        f"pickle opcode {op.FOREIGN[code]} is none that a flight recorder dump uses, refused",
        file=file,
        offset=at - 1,
        hint="nothing in the file was executed; it is not a dump, or was tampered with: do not open it elsewhere",
    )


def loads(data: bytes, *, file: str, limits: Limits = DEFAULT, on_entry: OnEntry | None = None) -> Loaded:
    """The plain value in `data`: dicts with str or int keys, lists, tuples, strings, numbers, booleans, None.

    With `on_entry`, each entry of the dump is handed over with its index as soon as it is whole, and `HANDED_OVER`
    stays in its place: a ring of two million entries never lies in memory as two million dicts. Entries written in an
    unusual way may stay in the list; the caller has to look through it.
    """
    check(data, file, limits)
    collecting = gc.isenabled()
    # A hundred thousand new containers make the collector walk them all again and again, and plain data needs it not.
    gc.disable()
    try:
        return _Machine(data, file, limits, on_entry).run()
    finally:
        if collecting:
            gc.enable()


class _BrokenError(Exception):
    """The stream stops making sense; says why."""


class _Machine:
    """One stream being read. Every opcode has a method, which takes the position behind the opcode and returns the one
    behind its argument."""

    __slots__ = (
        "argument_at",
        "data",
        "file",
        "handed_over_memo",
        "handed_over_spent",
        "limits",
        "marks",
        "memo",
        "most_spent",
        "on_entry",
        "reason",
        "size",
        "spent",
        "stack",
        "stopped",
    )

    def __init__(self, data: bytes, file: str, limits: Limits, on_entry: OnEntry | None) -> None:
        self.data = data
        self.size = len(data)
        self.file = file
        self.limits = limits
        self.on_entry = on_entry
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        """The stacks below the open marks, outermost first."""
        self.memo: dict[int, Any] = {}
        self.spent = 0
        """Bytes that the values take, estimated."""
        self.most_spent = min(limits.memory_bytes, _FREE + limits.growth * self.size)
        self.handed_over_spent = 0
        self.handed_over_memo = 0
        """What was spent, and the length of the memo, when the last entry was handed over."""
        self.stopped = False
        self.reason = ""
        self.argument_at = 0
        """Where the argument begins of the opcode that last had a length in front of it."""

    def run(self) -> Loaded:
        position = op.ARGUMENT_BYTES[op.PROTO] + 1
        while position < self.size and not self.reason:
            # Memory is measured once a segment, so that no opcode pays for a check: in between a segment can add
            # at most a hundred times its own size, and one string.
            if self.spent + _VALUE * sum(map(len, self.marks), len(self.stack)) > self.most_spent:
                self.reason = TOO_LARGE.format(self.most_spent)
                break
            position = self._run_segment(position)
            if self.stopped:
                return Loaded(self.stack[0])
            if not self.reason and len(self.memo) > self.limits.memo:
                self.reason = LARGE_MEMO.format(self.limits.memo)
        return salvage(self.marks, self.stack, min(position, self.size), self.reason or CUT)

    def _run_segment(self, position: int) -> int:
        """Run the opcodes of the next segment. Returns the position behind it, or where the stream broke."""
        data = self.data
        memo = self.memo
        methods = _METHODS
        get = op.BINGET
        end = min(self.size, position + _SEGMENT)
        try:
            while position < end:
                code = data[position]
                if code == get:  # every second opcode of a dump: not worth a call
                    self.stack.append(memo[data[position + 1]])
                    position += 2
                else:
                    position = methods[code](self, position + 1)
            return position
        except _BrokenError as broken:
            self.reason = str(broken)
        except KeyError:
            self.reason = NEVER_STORED
        except (IndexError, StructError):
            # Python's own errors for reading past the end of the bytes, and for taking from an empty stack.
            at_the_end = max(position + 1, self.argument_at) >= self.size - _LONGEST_ARGUMENT
            self.reason = CUT if at_the_end else EMPTY_STACK
        return max(position + 1, self.argument_at)

    # ---- numbers, strings, constants ---------------------------------------------------------------------------------

    def none(self, at: int) -> int:
        self.stack.append(None)
        return at

    def true(self, at: int) -> int:
        self.stack.append(True)
        return at

    def false(self, at: int) -> int:
        self.stack.append(False)
        return at

    def integer_of_1_byte(self, at: int) -> int:
        self.stack.append(self.data[at])
        return at + 1

    def integer_of_2_bytes(self, at: int) -> int:
        self.stack.append(self.data[at] | self.data[at + 1] << 8)
        return at + 2

    def integer_of_4_bytes(self, at: int) -> int:
        self.stack.append(_INT4(self.data, at)[0])
        return at + 4

    def short_long_integer(self, at: int) -> int:
        length = self.data[at]
        if length == 8:  # a time in nanoseconds, as nearly always
            self.argument_at = at + 1
            self.stack.append(_INT8(self.data, at + 1)[0])
            return at + 9
        return self._integer(at + 1, length)

    def long_integer(self, at: int) -> int:
        return self._integer(at + 4, _INT4(self.data, at)[0])

    def _integer(self, at: int, length: int) -> int:
        self.argument_at = at
        if not 0 <= length <= self.limits.integer_bytes:
            raise _BrokenError(LONG_INTEGER.format(length))
        self.stack.append(int.from_bytes(self.data[at : at + length], "little", signed=True))
        return at + length

    def number(self, at: int) -> int:
        self.stack.append(_FLOAT(self.data, at)[0])
        return at + 8

    def string(self, at: int) -> int:
        return self._text(at + 4, _UINT4(self.data, at)[0])

    def short_string(self, at: int) -> int:
        return self._text(at + 1, self.data[at])

    def long_string(self, at: int) -> int:
        return self._text(at + 8, _UINT8(self.data, at)[0])

    def _text(self, at: int, length: int) -> int:
        self.argument_at = at
        left = self.size - at
        if length > self.limits.string_bytes or length > left:
            raise _BrokenError(LONG_STRING.format(length, left=left))
        self.stack.append(self.data[at : at + length].decode("utf-8", "surrogateescape"))
        self.spent += _STRING + _WIDEST_CHARACTER * length
        return at + length

    # ---- containers --------------------------------------------------------------------------------------------------

    def mark(self, at: int) -> int:
        if len(self.marks) >= self.limits.nesting:
            raise _BrokenError(TOO_DEEP.format(self.limits.nesting))
        self.marks.append(self.stack)
        self.stack = []
        return at

    def empty_list(self, at: int) -> int:
        self.spent += _CONTAINER
        self.stack.append([])
        return at

    def append(self, at: int) -> int:
        item = self.stack.pop()
        target = self.stack[-1]
        if type(target) is not list:
            raise _BrokenError(NO_LIST)
        target.append(item)
        self.spent += _VALUE
        return at

    def appends(self, at: int) -> int:
        items = self.stack
        self.stack = self.marks.pop()
        target = self.stack[-1]
        if type(target) is not list:
            raise _BrokenError(NO_LIST)
        target.extend(items)
        self.spent += _VALUE * len(items)
        return at

    def empty_dict(self, at: int) -> int:
        self.spent += _CONTAINER
        self.stack.append({})
        return at

    def set_item(self, at: int) -> int:
        item = self.stack.pop()
        key = self.stack.pop()
        target = self.stack[-1]
        if type(target) is not dict or type(key) not in _KEYS:
            raise _BrokenError(BAD_KEYS)
        target[key] = item
        self.spent += 5 * _VALUE
        return at

    def set_items(self, at: int) -> int:
        items = self.stack
        self.stack = self.marks.pop()
        target = self.stack[-1]
        keys = items[::2]
        if type(target) is not dict or len(items) & 1 or not _KEYS.issuperset(map(type, keys)):
            raise _BrokenError(BAD_KEYS)
        target.update(zip(keys, items[1::2], strict=True))
        self.spent += _VALUE * len(items)
        if self.on_entry is not None and 1 <= len(self.marks) <= 2 and _is_entry(self.marks):
            self._hand_over(self.on_entry, target)
        return at

    def _hand_over(self, on_entry: OnEntry, entry: dict[Any, Any]) -> None:
        on_entry(len(self.marks[-1][-1]) + len(self.stack) - 1, entry)
        self.stack[-1] = HANDED_OVER
        if len(self.memo) == self.handed_over_memo:  # nothing of it can be referred to any more
            self.spent = self.handed_over_spent
        self.handed_over_memo = len(self.memo)
        self.handed_over_spent = self.spent

    def empty_tuple(self, at: int) -> int:
        self.stack.append(())
        return at

    def tuple_of_1(self, at: int) -> int:
        self.stack[-1] = (self.stack[-1],)
        self.spent += _SMALL_TUPLE
        return at

    def tuple_of_2(self, at: int) -> int:
        last = self.stack.pop()
        self.stack[-1] = (self.stack[-1], last)
        self.spent += _SMALL_TUPLE
        return at

    def tuple_of_3(self, at: int) -> int:
        third = self.stack.pop()
        second = self.stack.pop()
        self.stack[-1] = (self.stack[-1], second, third)
        self.spent += _SMALL_TUPLE
        return at

    def tuple_of_any(self, at: int) -> int:
        items = self.stack
        self.stack = self.marks.pop()
        self.stack.append(tuple(items))
        self.spent += _TUPLE + _VALUE * len(items)
        return at

    # ---- the memo ----------------------------------------------------------------------------------------------------

    def long_get(self, at: int) -> int:
        self.stack.append(self.memo[_UINT4(self.data, at)[0]])
        return at + 4

    def put(self, at: int) -> int:
        self.memo[self.data[at]] = self.stack[-1]
        return at + 1

    def long_put(self, at: int) -> int:
        self.memo[_UINT4(self.data, at)[0]] = self.stack[-1]
        self.spent += _MEMO
        return at + 4

    def memoize(self, at: int) -> int:
        self.memo[len(self.memo)] = self.stack[-1]
        self.spent += _MEMO
        return at

    # ---- the stream itself -------------------------------------------------------------------------------------------

    def protocol(self, at: int) -> int:
        """Python tolerates it in the middle too."""
        if self.data[at] not in op.PROTOCOLS:
            raise _BrokenError(OTHER_PROTOCOL.format(self.data[at]))
        return at + 1

    def frame(self, at: int) -> int:
        _UINT8(self.data, at)  # its length says nothing new; a stream that ends within it is cut
        return at + 8

    def stop(self, _: int) -> int:
        if self.marks or len(self.stack) != 1:
            raise _BrokenError(UNFINISHED)
        self.stopped = True
        return self.size

    def foreign(self, at: int) -> int:
        raise refusal(self.data[at - 1], self.file, at)

    def no_opcode(self, at: int) -> int:
        raise _BrokenError(NO_OPCODE.format(self.data[at - 1]))


_METHODS: list[Callable[[_Machine, int], int]] = [_Machine.no_opcode] * 256
"""What to do for each byte that an opcode may be; `_run_segment` itself does BINGET."""
for _code in op.FOREIGN:
    _METHODS[_code] = _Machine.foreign
for _code, _method in {
    op.NONE: _Machine.none,
    op.NEWTRUE: _Machine.true,
    op.NEWFALSE: _Machine.false,
    op.BININT1: _Machine.integer_of_1_byte,
    op.BININT2: _Machine.integer_of_2_bytes,
    op.BININT: _Machine.integer_of_4_bytes,
    op.LONG1: _Machine.short_long_integer,
    op.LONG4: _Machine.long_integer,
    op.BINFLOAT: _Machine.number,
    op.BINUNICODE: _Machine.string,
    op.SHORT_BINUNICODE: _Machine.short_string,
    op.BINUNICODE8: _Machine.long_string,
    op.MARK: _Machine.mark,
    op.EMPTY_LIST: _Machine.empty_list,
    op.APPEND: _Machine.append,
    op.APPENDS: _Machine.appends,
    op.EMPTY_DICT: _Machine.empty_dict,
    op.SETITEM: _Machine.set_item,
    op.SETITEMS: _Machine.set_items,
    op.EMPTY_TUPLE: _Machine.empty_tuple,
    op.TUPLE1: _Machine.tuple_of_1,
    op.TUPLE2: _Machine.tuple_of_2,
    op.TUPLE3: _Machine.tuple_of_3,
    op.TUPLE: _Machine.tuple_of_any,
    op.LONG_BINGET: _Machine.long_get,
    op.BINPUT: _Machine.put,
    op.LONG_BINPUT: _Machine.long_put,
    op.MEMOIZE: _Machine.memoize,
    op.PROTO: _Machine.protocol,
    op.FRAME: _Machine.frame,
    op.STOP: _Machine.stop,
}.items():
    _METHODS[_code] = _method


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
    if stack and type(stack[-1]) in (dict, list) and not stack[-1]:
        partial.add(id(stack[-1]))
    levels = [*marks, stack]
    for inner in range(len(levels) - 1, 0, -1):
        outer = levels[inner - 1]
        if outer:
            partial.add(id(outer[-1]))
            _fill(outer[-1], levels[inner])
    value = None
    if levels[0]:
        value = levels[0][0]
        partial.add(id(value))
        _fill_top(value, levels[0][1:])
    return Loaded(value, complete=False, broke_at=at, reason=reason, partial=frozenset(partial))


def _fill(container: Any, items: list[Any]) -> None:
    """Put the items into a list or dict that was to be filled all at once."""
    if type(container) is list:
        container.extend(items)
    elif type(container) is dict:
        for key, value in zip(items[::2], items[1::2], strict=False):
            if type(key) in _KEYS:
                container[key] = value


def _fill_top(container: Any, items: list[Any]) -> None:
    """Put the item into the outermost list or dict that was to be filled with one at a time."""
    if type(container) is dict and len(items) >= 2 and type(items[0]) in _KEYS:
        container[items[0]] = items[1]
    elif type(container) is list and items:
        container.append(items[0])
