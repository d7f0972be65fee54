"""Which function, file and line a code object of another process's Python is, for CPython 3.10 to 3.14.

What kind of object lies at an address is asked of the object: its type names itself ("code", "str", "bytes"), or it is
taken for nothing.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.elf_symbols import Library
from hangscope.sources.known_pythons import DEBUG_OFFSETS_AT, OFFSETS
from hangscope.sources.process_memory import Mapping, ProcessMemory

MOST_TEXT = 4096
MOST_TABLE = 1 << 20
MOST_LINES = 1 << 16
_COOKIE = b"xdebugpy"
_DEBUG_OFFSETS = 1024
_NAMED = re.compile(r"(?:lib)?python3\.(\d{1,2})(?:\D|$)")
_HIGHEST_OFFSET = 1 << 20
_MOST_LIBRARIES = 64
"""Of the files in which the interpreter is looked for, the likeliest first."""


class CodeLine(NamedTuple):
    name: str
    filename: str
    line: int


@dataclass(frozen=True, slots=True)
class _Code:
    name: str
    filename: str
    first: int
    table: bytes


@dataclass(slots=True)
class Interpreter:
    """The Python of a process: its release, and where in its objects the fields lie."""

    memory: ProcessMemory
    minor: int
    release: str
    offsets: dict[str, int]
    runtime: int
    """The address of _PyRuntime; 0 where it is not exported."""
    free_threaded: bool = False
    _types: dict[int, bytes] = field(default_factory=dict)
    _texts: dict[int, str] = field(default_factory=dict)
    _codes: dict[int, _Code] = field(default_factory=dict)
    _lines: dict[tuple[int, int], CodeLine] = field(default_factory=dict)

    def forget(self) -> None:
        """Before another reading: an address may be another object's by then."""
        for kept in (self._types, self._texts, self._codes, self._lines):
            kept.clear()

    # ---- objects -----------------------------------------------------------------------------------------------------

    def kind(self, address: int) -> bytes:
        """What the type of the object at an address is called."""
        type_at = self.memory.word(address + self.offsets["object.type"])
        if type_at not in self._types:
            name = self.memory.word(type_at + self.offsets["type.name"])
            self._types[type_at] = self.memory.read(name, 16).partition(b"\0")[0]
        return self._types[type_at]

    def text(self, address: int) -> str:
        """A str."""
        if address in self._texts:
            return self._texts[address]
        if self.kind(address) != b"str":
            raise Torn("a name that is no str")
        offsets = self.offsets
        size = self.memory.word(address + offsets["unicode.length"])
        state = int.from_bytes(self.memory.read(address + offsets["unicode.state"], 4), "little")
        # two bits say whether it is interned; a whole byte does where threads run freely (3.14)
        state >>= 8 if self.free_threaded and self.minor >= 14 else 2
        width, compact, is_ascii = state & 7, bool(state >> 3 & 1), bool(state >> 4 & 1)
        if size > MOST_TEXT or not compact or width not in (1, 2, 4):
            raise Torn("a str of no known form")
        head = offsets["unicode.ascii"]
        data = address + (head if is_ascii else offsets.get("unicode.compact", head + 16))
        raw = self.memory.read(data, size * width)
        found = raw.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")
        self._texts[address] = found
        return found

    def _bytes(self, address: int) -> bytes:
        if self.kind(address) != b"bytes":
            raise Torn("a table that is no bytes")
        size = self.memory.word(address + self.offsets["bytes.size"])
        if size > MOST_TABLE:
            raise Torn(f"a table of {size} bytes")
        return self.memory.read(address + self.offsets["bytes.data"], size)

    # ---- code --------------------------------------------------------------------------------------------------------

    def line_of(self, code: int, instruction: int) -> CodeLine:
        """The line of the instruction at an offset in bytes. Raises Torn where there is no code object."""
        key = code, instruction
        known = self._lines.get(key)
        if known is None:
            held = self._code(code)
            number = line_of(self.minor, held.table, held.first, instruction)
            known = self._lines[key] = CodeLine(held.name, held.filename, number)
        return known

    def _code(self, address: int) -> _Code:
        known = self._codes.get(address)
        if known is not None:
            return known
        if self.kind(address) != b"code":
            raise Torn("no code object")
        at = self.offsets
        words = ("filename", "name", "linetable")
        filename, name, table = (self.memory.word(address + at[f"code.{each}"]) for each in words)
        first = struct.unpack("<i", self.memory.read(address + at["code.firstlineno"], 4))[0]
        found = self._codes[address] = _Code(self.text(name), self.text(filename), first, self._bytes(table))
        return found


def interpreter_of(memory: ProcessMemory, files: list[Mapping]) -> Interpreter | None:
    """The Python that runs in the process, None where none does. Raises CannotRead where it is none that is known, or
    where what would tell could not be read."""
    unread = None
    for mapping in sorted(files, key=_unlikely)[:_MOST_LIBRARIES]:
        try:
            library = Library(memory, mapping)
            runtime = library.export(b"_PyRuntime")
        except CannotRead as error:
            if _unlikely(mapping) == 0:
                unread = unread or error
            continue
        if runtime:
            return _interpreter(memory, library, runtime)
    if unread is not None:
        raise unread
    return None


def _unlikely(mapping: Mapping) -> int:
    """How unlikely a file is to hold the interpreter: Python by its name, a program, another library, a module of
    Python's (`x.cpython-311-x86_64-linux-gnu.so`), of which a job has hundreds."""
    name = os.path.basename(mapping.path).lower()
    if name.startswith(("libpython", "python", "pypy")):
        return 0
    if ".so" not in name:
        return 1
    return 3 if ".cpython-" in name or ".abi3." in name else 2


def _interpreter(memory: ProcessMemory, library: Library, runtime: int) -> Interpreter:
    minor, release = _release(memory, library)
    if minor in OFFSETS:
        return Interpreter(memory, minor, release, OFFSETS[minor], runtime)
    if minor not in DEBUG_OFFSETS_AT:
        raise CannotRead(
            f"Python {release} is none that hangscope knows from outside (3.10 to 3.{max(DEBUG_OFFSETS_AT)})"
        )
    raw = memory.read(runtime, _DEBUG_OFFSETS)
    if raw[:8] != _COOKIE:
        raise CannotRead(f"Python {release} does not say where its fields are")
    offsets = {name: struct.unpack_from("<Q", raw, at)[0] for name, at in DEBUG_OFFSETS_AT[minor].items()}
    free_threaded = bool(offsets.pop("free_threaded"))
    if any(value > _HIGHEST_OFFSET for value in offsets.values()):
        raise CannotRead(f"Python {release} has fields where none can be")
    return Interpreter(memory, minor, release, offsets, runtime, free_threaded)


def _release(memory: ProcessMemory, library: Library) -> tuple[int, str]:
    """By `Py_Version` (3.11 and newer), or else by the name of its file."""
    where = library.export(b"Py_Version")
    if where:
        number = memory.word(where)
    else:
        named = _NAMED.search(os.path.basename(library.mapping.path))
        if named is None:
            raise CannotRead("which Python runs in it is not known")
        return int(named[1]), f"3.{named[1]}"
    if number >> 24 != 3:
        raise CannotRead("which Python runs in it is not known")
    return number >> 16 & 0xFF, f"3.{number >> 16 & 0xFF}.{number >> 8 & 0xFF}"


# ---- tables of lines -------------------------------------------------------------------------------------------------


def line_of(minor: int, table: bytes, first: int, instruction: int) -> int:
    """The line of an instruction, 0 where it has none."""
    if minor <= 10:
        return _line_310(table, first, instruction)
    return _line_311(table, first, instruction)


def _line_310(table: bytes, first: int, instruction: int) -> int:
    """PEP 626: pairs of how many bytes of code, and by how many lines further (-128: of no line)."""
    line = first
    address = 0
    for position in range(0, len(table) - 1, 2):
        length = table[position]
        further = table[position + 1]
        known = further != 128
        if known:
            line += further - 256 if further > 127 else further
        if address <= instruction < address + length:
            return line if known else 0
        address += length
    return 0


def _line_311(table: bytes, first: int, instruction: int) -> int:
    """Since 3.11: entries of a kind, a length in units of code, and columns, of which only the line is taken."""
    line = first
    address = 0
    position = 0
    while position < len(table):
        head = table[position]
        kind = head >> 3 & 15
        length = ((head & 7) + 1) * 2
        if kind in (13, 14):
            value = _varint(table, position + 1)
            line += -(value >> 1) if value & 1 else value >> 1
        elif kind in (10, 11, 12):
            line += kind - 10
        if address <= instruction < address + length:
            return line if kind != 15 else 0
        address += length
        position += 1
        while position < len(table) and not table[position] & 128:
            position += 1
    return 0


def _varint(table: bytes, position: int) -> int:
    value = 0
    shift = 0
    while position < len(table) and shift < 36:
        byte = table[position]
        value |= (byte & 63) << shift
        if not byte & 64:
            break
        shift += 6
        position += 1
    return value
