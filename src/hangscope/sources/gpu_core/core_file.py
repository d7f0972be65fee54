"""A GPU core dump as NVIDIA's driver writes it, and what is kept of it: which kernels ran, with their grids and blocks.

The file is ELF with sections of its own (`.cudbg.…`) and has up to hundreds of megabytes; what is kept has some hundred
bytes. It is untrusted like any other input, and may still grow while it is read: it is read by position and never
mapped, nothing in it decides how much is read, and what is outside of the file was cut off. Standard library only: it
is read on the node that the process ran on.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hangscope.safeio.file_magic import ELF, is_cuda_elf
from hangscope.sources.gpu_core.schema import SCHEMA

HEADER_BYTES = 64
MOST_BYTES = 4 << 30
"""Of one core without the GPU's memory in it; with NCCL loaded, 124 MB were seen."""
MOST_READ = 512 << 20
"""Of one core, over all its tables: an image of 110 MB has some megabytes of section names."""
MOST_SECTIONS = 1 << 19
"""Of the core and all images in it together. An H200 has 132 SMs with 64 warps each, and a table for each of them."""
MOST_NAMES = 64 << 20
MOST_IMAGES = 50_000
MOST_GRIDS = 1024
MOST_BLOCKS = 1 << 20
LONGEST_NAME = 4096
"""Of a kernel's mangled name. Real ones of templates have some thousand characters."""
_PREFIX = b".cudbg."
_GRIDS = b".cudbg.gridtbl.dev"
_BLOCKS = b".cudbg.ctatbl.dev"
_IMAGES = b".cudbg.relfimg.dev"
_ALWAYS = (b".cudbg.devtbl", b".cudbg.smtbl", b".cudbg.ctxtbl")
"""Tables that each core has, whatever runs: a file without them is none, or only a part of one."""
_TEXT = b".text."
_SYMBOLS = 2
_NO_BYTES = (0, 8)
"""Types of sections that take no place in the file."""
_GRID_BYTES = 0x88
_BLOCK_BYTES = 0x38
_MOST_ENTRY = 0x1000
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_CHUNK = 4096
"""Section headers that are read at a time."""

Pread = Callable[[int, int], bytes]
"""(size, position) → the bytes there, fewer at the file's end: as os.pread without its handle."""


class Damaged(ValueError):
    """What is wrong with a core that cannot be used. `foreign`: it is something else."""

    def __init__(self, why: str, *, foreign: bool = False) -> None:
        super().__init__(why)
        self.foreign = foreign


@dataclass(frozen=True, slots=True)
class Grid:
    """One launch that had not ended. `kernel` is its mangled name, None where no image has it; `blocks` are its blocks
    that were resident on an SM, None where the tables do not tell whose they are."""

    device: int
    number: int
    kernel: str | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    blocks: int | None = None


@dataclass(frozen=True, slots=True)
class GpuCore:
    """What ran on the GPUs of one process; no grid where nothing did."""

    grids: tuple[Grid, ...]
    blocks: int
    """Resident on all SMs."""
    problems: tuple[str, ...] = ()


class _Section(NamedTuple):
    name: bytes
    kind: int
    address: int
    offset: int
    size: int
    link: int
    entry: int


@dataclass(slots=True)
class _File:
    """Reading within limits. `end` is where the file ends."""

    pread: Pread
    end: int
    left: int = MOST_READ
    sections_left: int = MOST_SECTIONS
    problems: list[str] = field(default_factory=list)

    def read(self, offset: int, size: int, what: str) -> bytes:
        if size > self.left:
            raise Damaged(f"{what} has {size:,} bytes, more than is read of one core")
        if offset < 0 or offset + size > self.end:
            raise Damaged(f"cut off: {what} ends at byte {offset + size:,}, and the file has {self.end:,}")
        self.left -= size
        data = self.pread(size, offset)
        if len(data) < size:
            raise Damaged(f"cut off at {what}")
        return data


def read(pread: Pread, size: int) -> GpuCore:
    """What ran, from a core of `size` bytes. Raises Damaged where that cannot be said: cut, lying, or no core."""
    if size > MOST_BYTES:
        raise Damaged(f"it has {size >> 20:,} MiB, more than a core without the GPU's memory")
    file = _File(pread, size)
    if size < HEADER_BYTES or not is_cuda_elf(file.read(0, HEADER_BYTES, "the header")):
        raise Damaged("no GPU core: it does not begin like one", foreign=True)
    sections = [section for section in _sections(file, 0, size) if section.name.startswith(_PREFIX)]
    if not any(section.name.startswith(_ALWAYS) for section in sections):
        why = "its table of devices is missing" if sections else "no GPU core: it has no section of the debugger"
        raise Damaged(why, foreign=not sections)
    for section in sections:
        if section.kind not in _NO_BYTES and section.offset + section.size > size:
            raise Damaged(f"cut off: {_shown(section.name)} ends behind the file's end")
    return _core(file, sections)


def _core(file: _File, sections: list[_Section]) -> GpuCore:
    raw = list(_grids(file, [section for section in sections if section.name.startswith(_GRIDS)]))
    by_grid, blocks = _blocks(file, [section for section in sections if section.name.startswith(_BLOCKS)])
    images = [section for section in sections if section.name.startswith(_IMAGES)]
    names = _names(file, images, {entry for _, _, entry, _, _ in raw})
    whose = sum(by_grid[number] for number in {number for _, number, _, _, _ in raw}) == blocks
    grids = tuple(
        Grid(device, number, names.get(entry), grid, block, by_grid[number] if whose else None)
        for device, number, entry, grid, block in raw
    )
    if blocks and not grids:
        raise Damaged(f"{blocks} blocks are resident, and no grid is listed")
    return GpuCore(grids, blocks, tuple(file.problems))


# ---- ELF -------------------------------------------------------------------------------------------------------------


def _sections(file: _File, start: int, size: int) -> Iterator[_Section]:
    """The sections of an ELF file that begins at `start`; their places are within it."""
    header = file.read(start, HEADER_BYTES, "an ELF header")
    if not header.startswith(ELF):
        raise Damaged("not 64-bit ELF")
    (at,) = struct.unpack_from("<Q", header, 0x28)
    entry, count, names_index = struct.unpack_from("<HHH", header, 0x3A)
    if not at:
        return
    if entry != _SECTION.size:
        raise Damaged(f"its section headers have {entry} bytes")
    if at + entry > size:
        raise Damaged("cut off before its section headers")
    first = _SECTION.unpack(file.read(start + at, entry, "the first section header"))
    count = count or first[5]  # more than 65,279 are counted in the first header
    names_index = first[6] if names_index == 0xFFFF else names_index
    if count > file.sections_left:
        raise Damaged(f"it lists {count:,} sections, more than {MOST_SECTIONS:,} are not read")
    file.sections_left -= count
    if at + count * entry > size:
        raise Damaged("cut off in its section headers")
    if names_index >= count:
        raise Damaged("its sections have no names")
    table = file.read(start + at + names_index * entry, entry, "the header of the section names")
    _, _, _, _, offset, length, *_ = _SECTION.unpack(table)
    if length > MOST_NAMES or offset + length > size:
        raise Damaged("cut off in its section names" if length <= MOST_NAMES else "its section names never end")
    names = file.read(start + offset, length, "the section names")
    for part in range(0, count, _CHUNK):
        data = file.read(start + at + part * entry, min(_CHUNK, count - part) * entry, "section headers")
        for name, kind, _, address, where, length, link, _, _, each in _SECTION.iter_unpack(data):
            yield _Section(_text(names, name), kind, address, where, length, link, each)


def _text(names: bytes, at: int) -> bytes:
    """A name, as long as a name may be."""
    end = names.find(b"\0", at, at + LONGEST_NAME)
    return names[at : end if end >= 0 else at + LONGEST_NAME]


def _shown(name: bytes) -> str:
    return name[:80].decode("ascii", "replace")


# ---- the tables ------------------------------------------------------------------------------------------------------


def _entries(file: _File, section: _Section, least: int, most: int, what: str) -> Iterator[bytes]:
    """The entries of a table. A later driver may make them longer, and says so."""
    size = section.entry if least <= section.entry <= _MOST_ENTRY else least
    count = section.size // size
    if count > most:
        file.problems.append(f"{_shown(section.name)} lists {count:,} {what}, of which {most:,} were read")
        count = most
    data = file.read(section.offset, count * size, f"the table of {what}")
    for at in range(0, count * size, size):
        yield data[at : at + size]


_RawGrid = tuple[int, int, int, tuple[int, int, int], tuple[int, int, int]]


def _grids(file: _File, tables: list[_Section]) -> Iterator[_RawGrid]:
    """(device, number, address of its kernel, grid, block)."""
    left = MOST_GRIDS
    for table in tables:
        device = _number(table.name[len(_GRIDS) :])
        for entry in _entries(file, table, _GRID_BYTES, left, "grids"):
            left -= 1
            number, _, _, address = struct.unpack_from("<4Q", entry)
            x, y, z, u, v, w = struct.unpack_from("<6I", entry, 18 * 4)
            yield device, number, address, (x, y, z), (u, v, w)


def _number(text: bytes) -> int:
    digits = text.split(b".", 1)[0]
    return int(digits) if digits.isdigit() and len(digits) < 6 else 0


def _blocks(file: _File, tables: Iterable[_Section]) -> tuple[Counter[int], int]:
    """How many blocks each grid has on the SMs, by the number that an entry begins with; and how many there are."""
    found: Counter[int] = Counter()
    for table in tables:
        left = MOST_BLOCKS - found.total()
        for entry in _entries(file, table, _BLOCK_BYTES, left, "blocks"):
            found[struct.unpack_from("<Q", entry)[0]] += 1
    return found, found.total()


# ---- names -----------------------------------------------------------------------------------------------------------


def _names(file: _File, images: list[_Section], wanted: set[int]) -> dict[int, str]:
    """Address → mangled name of the kernel, from the relocated images of the process's modules."""
    found: dict[int, str] = {}
    if len(images) > MOST_IMAGES:
        file.problems.append(f"{len(images):,} modules, of which {MOST_IMAGES:,} were read")
    for image in images[:MOST_IMAGES]:
        if wanted <= found.keys():
            break
        try:
            found.update(_names_in(file, image, wanted - found.keys()))
        except Damaged as error:
            file.problems.append(f"{_shown(image.name)}: {error}"[:200])
            if len(file.problems) > 20:
                break
    return found


def _names_in(file: _File, image: _Section, wanted: set[int]) -> dict[int, str]:
    """The section `.text.NAME` at a kernel's address is the kernel; else a symbol with that address."""
    found: dict[int, str] = {}
    tables: list[_Section] = []
    sections: list[_Section] = []
    for section in _sections(file, image.offset, image.size):
        if section.address in wanted and section.name.startswith(_TEXT):
            found.setdefault(section.address, _readable(section.name[len(_TEXT) :]))
        if section.kind == _SYMBOLS:
            tables.append(section)
        sections.append(section)
    for table in tables if len(found) < len(wanted) else ():
        strings = sections[table.link] if table.link < len(sections) else None
        if strings is not None:
            found = {**_symbols(file, image, table, strings, wanted), **found}
    return found


def _symbols(file: _File, image: _Section, table: _Section, strings: _Section, wanted: set[int]) -> dict[int, str]:
    if max(table.offset + table.size, strings.offset + strings.size) > image.size or strings.size > MOST_NAMES:
        raise Damaged("its symbols are cut off")
    count = table.size // _SYMBOL.size
    if count > MOST_SECTIONS:
        raise Damaged(f"it lists {count:,} symbols")
    data = file.read(image.offset + table.offset, count * _SYMBOL.size, "symbols")
    named = {value: name for name, info, _, _, value, _ in _SYMBOL.iter_unpack(data) if info & 15 == 2}
    hit = wanted & named.keys()
    if not hit:
        return {}
    names = file.read(image.offset + strings.offset, strings.size, "names of symbols")
    return {value: _readable(_text(names, named[value])) for value in hit}


def _readable(name: bytes) -> str:
    return "".join(char if char.isprintable() else "?" for char in name[:LONGEST_NAME].decode("ascii", "replace"))


# ---- what is kept ----------------------------------------------------------------------------------------------------


def table(core: GpuCore, **about: Any) -> dict[str, Any]:
    """The core as nodes/<host>/gpu/rank_<r>.json keeps it. `about` says whose it is, and when it was asked for."""
    return {
        "schema": SCHEMA,
        **about,
        "blocks": core.blocks,
        "grids": [
            {
                "device": grid.device,
                "id": grid.number,
                "kernel": grid.kernel,
                "grid": list(grid.grid),
                "block": list(grid.block),
                "blocks": grid.blocks,
            }
            for grid in core.grids
        ],
        "problems": list(core.problems[:20]),
    }
