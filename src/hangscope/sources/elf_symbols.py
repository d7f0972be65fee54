"""Symbols of a library of another process: those that it exports, out of the memory; others out of its file.

The table of exports and the code are in the memory of every process that uses a library, in stripped builds too. The
table of local symbols (.symtab) is in the file alone.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator

from hangscope.safeio.file_magic import ELF
from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.process_memory import Mapping, ProcessMemory, open_mapped

X86_64 = 62
AARCH64 = 183
MACHINES = {X86_64: "x86_64", AARCH64: "aarch64"}
_PT_LOAD = 1
_PT_DYNAMIC = 2
_GNU_HASH = 0x6FFFFEF5
_STRTAB = 5
_SYMTAB = 6
_STRSZ = 10
_SHT_SYMTAB = 2
_MOST_HEADERS = 128
_MOST_DYNAMIC = 1024
_MOST_STRINGS = 64 << 20
_MOST_CHAIN = 4096
_SYMBOL = struct.Struct("<IBBHQQ")
_MOST_SEARCHED = 64
_searched: dict[tuple[object, ...], dict[bytes, int]] = {}
"""Files whose .symtab was searched, by what tells them apart: what was found there."""


class Library:
    """A library of a process, as it is in memory. Raises CannotRead where it is not what it should be."""

    def __init__(self, memory: ProcessMemory, mapping: Mapping) -> None:
        self.memory = memory
        self.mapping = mapping
        head = memory.read(mapping.start, 64)
        if not head.startswith(ELF):
            raise CannotRead(f"{os.path.basename(mapping.path)} is no library of 64 bits")
        number, *_, table, _, _, _, size, count, _, _, _ = struct.unpack_from("<HIQQQIHHHHHH", head, 18)
        self.machine = MACHINES.get(number, str(number))
        if size != 56 or not 0 < count <= _MOST_HEADERS:
            raise Torn("no program headers")
        raw = memory.read(mapping.start + table, size * count)
        self._headers = [struct.unpack_from("<IIQQQQQQ", raw, size * each) for each in range(count)]
        loads = [each for each in self._headers if each[0] == _PT_LOAD]
        if not loads:
            raise Torn("nothing of the library is loaded")
        self.base: int = mapping.start - (min(each[3] for each in loads) & -4096)
        self.size: int = max(each[3] + each[6] for each in loads)
        self._dynamic: dict[int, int] | None = None

    def holds(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    # ---- exports -----------------------------------------------------------------------------------------------------

    def export(self, name: bytes) -> int:
        """The address of an exported symbol, by the hash table; 0 where there is none."""
        dynamic = self._entries()
        if not {_GNU_HASH, _SYMTAB, _STRTAB} <= dynamic.keys():
            return 0
        where = self._absolute(dynamic[_GNU_HASH])
        buckets, first, masks, _ = struct.unpack("<4I", self.memory.read(where, 16))
        wanted = _gnu_hash(name)
        if not buckets:
            return 0
        table = where + 16 + 8 * masks
        index = int.from_bytes(self.memory.read(table + 4 * (wanted % buckets), 4), "little")
        if index < first:
            return 0
        chains = table + 4 * buckets
        for number in range(index, index + _MOST_CHAIN):
            chained = int.from_bytes(self.memory.read(chains + 4 * (number - first), 4), "little")
            if chained | 1 == wanted | 1:
                symbol = self._symbol_at(number)
                if symbol is not None and self._name(symbol[0], len(name) + 1) == name + b"\0":
                    return self.base + symbol[4]
            if chained & 1:
                break
        return 0

    def _symbol_at(self, number: int) -> tuple[int, ...] | None:
        symbol = _SYMBOL.unpack(self.memory.read(self._absolute(self._entries()[_SYMTAB]) + 24 * number, 24))
        return symbol if symbol[3] and symbol[4] else None

    def _name(self, offset: int, size: int) -> bytes:
        return self.memory.read(self._absolute(self._entries()[_STRTAB]) + offset, size)

    def _absolute(self, value: int) -> int:
        """glibc writes the addresses into the table, others leave it as it is in the file."""
        return value if self.holds(value) else self.base + value

    def _entries(self) -> dict[int, int]:
        if self._dynamic is None:
            header = next((each for each in self._headers if each[0] == _PT_DYNAMIC), None)
            if header is None or header[6] > 16 * _MOST_DYNAMIC:
                raise Torn("no table of exports")
            raw = self.memory.read(self.base + header[3], header[6] // 16 * 16)
            self._dynamic = {}
            for tag, value in struct.iter_unpack("<qQ", raw):
                if tag == 0:
                    break
                self._dynamic.setdefault(tag, value)
        return self._dynamic

    # ---- what code loads ---------------------------------------------------------------------------------------------

    def loaded_by(self, function: int, size: int) -> list[int]:
        """The addresses within the library that the code there reads from or takes, in their order, each once."""
        ways = {"x86_64": _loads_x86, "aarch64": _loads_arm}
        return [each for each in self._named_by(ways.get(self.machine), function, size) if each % 8 == 0]

    def called_by(self, function: int, size: int) -> list[int]:
        """The functions within the library that the code there calls by their addresses, in their order, each once."""
        ways = {"x86_64": _calls_x86, "aarch64": _calls_arm}
        return self._named_by(ways.get(self.machine), function, size)

    def _named_by(self, way: Callable[[bytes, int], Iterator[int]] | None, function: int, size: int) -> list[int]:
        size = min(size, self.base + self.size - function)
        if way is None or not self.holds(function):
            return []
        found = way(self.memory.read(function, size), function)
        return [each for each in dict.fromkeys(found) if self.holds(each)]

    # ---- local symbols -----------------------------------------------------------------------------------------------

    def local(self, names: Collection[bytes]) -> dict[bytes, int]:
        """The addresses of local symbols, out of the file's .symtab: a search over its bytes, some 50 ms for 400 MB.

        It is made once a file: the ranks of a node use the same one."""
        handle = open_mapped(self.memory.pid, self.mapping)
        try:
            state = os.fstat(handle)
            key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, frozenset(names))
            if key not in _searched:
                with mmap.mmap(handle, 0, prot=mmap.PROT_READ) as file:
                    values = dict(_local_symbols(file, names))
                if len(_searched) >= _MOST_SEARCHED:
                    _searched.clear()
                _searched[key] = values
            return {name: self.base + value for name, value in _searched[key].items()}
        except (ValueError, OSError, struct.error, IndexError):
            return {}
        finally:
            os.close(handle)


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _loads_x86(code: bytes, at: int) -> Iterator[int]:
    """`mov` and `lea` of eight bytes relative to the instruction: REX.W, 8b or 8d, a mode of rip + disp32."""
    for position in range(len(code) - 6):
        if code[position] & 0xF8 == 0x48 and code[position + 1] in (0x8B, 0x8D) and code[position + 2] & 0xC7 == 0x05:
            yield at + position + 7 + struct.unpack_from("<i", code, position + 3)[0]


def _calls_x86(code: bytes, at: int) -> Iterator[int]:
    """`call` relative to the instruction: e8 and a disp32."""
    for position in range(len(code) - 4):
        if code[position] == 0xE8:
            yield at + position + 5 + struct.unpack_from("<i", code, position + 1)[0]


def _calls_arm(code: bytes, at: int) -> Iterator[int]:
    """`bl`: 26 bits, of words, relative to the instruction."""
    for position in range(0, len(code) - 3, 4):
        word = struct.unpack_from("<I", code, position)[0]
        if word & 0xFC000000 == 0x94000000:
            offset = word & 0x3FFFFFF
            yield at + position + 4 * (offset - (1 << 26) if offset >> 25 else offset)


def _loads_arm(code: bytes, at: int) -> Iterator[int]:
    """`adrp` of a page, and the `ldr` or `add` that completes the address from the same register."""
    pages: dict[int, int] = {}
    for position in range(0, len(code) - 3, 4):
        word = struct.unpack_from("<I", code, position)[0]
        source = word >> 5 & 31
        if word & 0x9F000000 == 0x90000000:
            pages[word & 31] = _adrp_page(word, at + position)
        elif word & 0xFFC00000 == 0xF9400000 and source in pages:  # ldr xt, [xn, #imm * 8]
            yield pages[source] + (word >> 10 & 0xFFF) * 8
        elif word & 0xFFC00000 == 0x91000000 and source in pages:  # add xd, xn, #imm
            address = pages[source] + (word >> 10 & 0xFFF)
            yield address
            pages[word & 31] = address  # a load relative to it may follow


def _adrp_page(word: int, at: int) -> int:
    offset = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    signed = offset - (1 << 21) if offset >> 20 else offset
    return (at & -4096) + (signed << 12)


def _local_symbols(file: mmap.mmap, names: Collection[bytes]) -> Iterator[tuple[bytes, int]]:
    sections, size, count = struct.unpack_from("<Q", file, 40)[0], *struct.unpack_from("<HH", file, 58)
    for number in range(count):
        section = struct.unpack_from("<IIQQQQIIQQ", file, sections + number * size)
        if section[1] != _SHT_SYMTAB or section[6] >= count:
            continue
        strings = struct.unpack_from("<IIQQQQIIQQ", file, sections + section[6] * size)
        for name in names:
            begin = file.find(b"\0" + name + b"\0", strings[4], strings[4] + strings[5])
            wanted = struct.pack("<I", begin + 1 - strings[4]) if begin >= 0 else b""
            value = _symbol_named(file, wanted, section[4], section[5]) if wanted else 0
            if value:
                yield name, value


def _symbol_named(file: mmap.mmap, wanted: bytes, start: int, size: int) -> int:
    """The value of the symbol whose name begins with those four bytes in the table of strings."""
    place = file.find(wanted, start, start + size)
    while place >= 0:
        if (place - start) % 24 == 0:
            return int(_SYMBOL.unpack_from(file, place)[4])
        place = file.find(wanted, place + 1, start + size)
    return 0
