"""What only a process's own memory tells: its environment as it is now, and the ids that an object of it holds.

/proc/<pid>/environ is what the process was started with: RANK, which Ray Train and many scripts set from Python, is not
in it. And which task somebody waits for in `ray.get` stands in no table of Ray's, but in the object refs that the call
was given. Reading memory needs the right to trace, as py-spy does, and stops nobody.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hangscope.processes.linux_process import PROC

_MOST_MAPS = 16 << 20
_MOST_SYMBOLS = 8 << 20
_MOST_VARIABLES = 4096
_MOST_WORD = 32 << 10
_OBJECT_BYTES = 160
"""Of one Python object: a ref holds its id within the first of them, a list the address of its members."""
_ID_BYTES = 24
"""Of the id of a task, with which the id of what it returns begins."""
_MOST_MEMBERS = 20_000
_MOST_READS = 100_000
_DYNSYM = 11
_EXECUTABLE = 2


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a process's memory; `path` where a file is mapped there."""

    start: int
    end: int
    offset: int
    path: str


class ProcessMemory:
    """The memory of one process, opened for reading. Raises OSError where it may not be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._file = os.open(PROC / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        """What lies there; shorter or empty where nothing does."""
        if not 0 < address < 1 << 47:
            return b""
        try:
            return os.pread(self._file, size, address)
        except (OSError, OverflowError):
            return b""

    def word(self, address: int) -> int:
        raw = self.read(address, 8)
        return int(struct.unpack("<Q", raw)[0]) if len(raw) == 8 else 0

    def text(self, address: int) -> bytes:
        """The C string at an address."""
        raw = self.read(address, 256)
        if b"\0" not in raw:
            raw = self.read(address, _MOST_WORD)
        return raw.partition(b"\0")[0]


# ---- the environment -------------------------------------------------------------------------------------------------


def current_environment(pid: int) -> dict[str, str]:
    """The environment of a process as it is now; empty where its memory does not show it."""
    try:
        with ProcessMemory(pid) as memory:
            for address in _environ_addresses(pid):
                found = dict(_variables(memory, memory.word(address)))
                if found:
                    return found
    except OSError:
        pass
    return {}


def _variables(memory: ProcessMemory, table: int) -> Iterator[tuple[str, str]]:
    for number in range(_MOST_VARIABLES):
        address = memory.word(table + 8 * number)
        if not address:
            return
        name, equals, value = memory.text(address).partition(b"=")
        if equals:
            yield os.fsdecode(name), os.fsdecode(value)


def _environ_addresses(pid: int) -> Iterator[int]:
    """Where libc's variable `environ` may lie: the program's own copy of it goes before the library's."""
    seen: set[str] = set()
    for mapping in sorted(_mappings(pid), key=lambda each: "libc" in os.path.basename(each.path)):
        name = os.path.basename(mapping.path)
        if mapping.offset or mapping.path in seen or not name.startswith(("python", "libc.", "libc-", "ld-musl")):
            continue
        seen.add(mapping.path)
        try:
            raw = _program(pid, mapping.path)
        except OSError:
            continue
        value = _symbol(raw, (b"environ", b"__environ"))
        if value:
            yield value if _is_fixed(raw) else mapping.start + value


def _mappings(pid: int) -> list[Mapping]:
    with open(PROC / str(pid) / "maps", "rb") as stream:
        lines = stream.read(_MOST_MAPS).splitlines()
    found = []
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/"):
            start, _, end = fields[0].partition(b"-")
            found.append(Mapping(int(start, 16), int(end, 16), int(fields[2], 16), os.fsdecode(fields[5])))
    return found


def _program(pid: int, path: str) -> bytes:
    """The file of a program or library, as the process itself has it: in a container it is another one."""
    inside = Path(f"{PROC}/{pid}/root{path}")
    with open(inside, "rb") as stream:
        return stream.read(64 << 20)


def _is_fixed(raw: bytes) -> bool:
    return bool(struct.unpack_from("<H", raw, 16)[0] == _EXECUTABLE)


def _symbol(raw: bytes, names: Collection[bytes]) -> int:
    """The value of a symbol that a file of ELF64 defines; 0 where it does not."""
    try:
        if raw[:5] != b"\x7fELF\x02" or raw[5] != 1:
            return 0
        table = struct.unpack_from("<Q", raw, 40)[0]
        size, count = struct.unpack_from("<HH", raw, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", raw, table + size * number) for number in range(count)]
        for section in sections:
            if section[1] == _DYNSYM:
                return _defined(raw, section, sections[section[6]], names)
    except (struct.error, IndexError):
        pass
    return 0


def _defined(raw: bytes, section: tuple[int, ...], strings: tuple[int, ...], names: Collection[bytes]) -> int:
    start = section[4]
    size = min(section[5], _MOST_SYMBOLS)
    for offset in range(start, start + size - 23, 24):
        name, _, _, where, value, _ = struct.unpack_from("<IBBHQQ", raw, offset)
        if where and value:
            begin = strings[4] + name
            if raw[begin : raw.index(b"\0", begin)] in names:
                return int(value)
    return 0


# ---- ids that objects hold -------------------------------------------------------------------------------------------


def ids_held(memory: ProcessMemory, addresses: Collection[int], known: Collection[bytes]) -> list[bytes]:
    """Which of the `known` tasks' ids the objects at these addresses hold, or the members of lists and tuples there.

    How a ref lies in memory is not assumed: a task's id has eight random bytes and more, and where they are found, it
    is meant.
    """
    found: dict[bytes, None] = {}
    reads = 0
    waiting = [(address, 0) for address in addresses]
    seen: set[int] = set()
    while waiting and reads < _MOST_READS:
        address, depth = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        reads += 1
        raw = memory.read(address, _OBJECT_BYTES)
        pieces = (raw[begin : begin + _ID_BYTES] for begin in range(len(raw) - _ID_BYTES + 1))
        found.update(dict.fromkeys(piece for piece in pieces if piece in known))
        if depth < 1:
            waiting += [(member, depth + 1) for member in _members(memory, raw)]
    return list(found)


def _members(memory: ProcessMemory, raw: bytes) -> list[int]:
    """The addresses in what may be a list (its items lie elsewhere) or a tuple (they follow)."""
    if len(raw) < 40:
        return []
    count, items = struct.unpack_from("<qQ", raw, 16)
    if not 0 < count <= _MOST_MEMBERS:
        return []
    elsewhere = memory.read(items, 8 * count)
    following = raw[24 : 24 + 8 * min(count, 17)]
    words = [*struct.iter_unpack("<Q", elsewhere[: len(elsewhere) // 8 * 8]), *struct.iter_unpack("<Q", following)]
    return [word for (word,) in words if word > 4096 and word % 8 == 0]
