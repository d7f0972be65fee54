"""GPU core dumps as NVIDIA's driver writes them, after what was seen on an H200: ELF with the debugger's sections.

core([Kernel("_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl", blocks=1)])
core([])                                        nothing runs
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

SPIN = "_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl"
ALL_REDUCE = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"
SEND_RECV = "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE"
MACHINE = 190
CORE = 4
EXECUTABLE = 2
PROGBITS = 1
SYMTAB = 2
STRTAB = 3
_OF_DEBUGGER = 0x80000000
_SECTION = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Kernel:
    """One grid. `by_symbol`: its image names it by a symbol only; `named` false: by nothing."""

    name: str
    blocks: int = 1
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] = (128, 1, 1)
    by_symbol: bool = False
    named: bool = True


@dataclass(frozen=True)
class Section:
    name: str
    data: bytes = b""
    kind: int = PROGBITS
    address: int = 0
    entry: int = 0
    link: int = 0
    size: int | None = None
    """What it says of itself, where that is a lie."""
    offset: int | None = None


def elf(sections: Sequence[Section], *, kind: int = CORE, machine: int = MACHINE) -> bytes:
    """A 64-bit ELF file with these sections, and one with their names at the end."""
    names = bytearray(1)
    at: list[int] = []
    for section in [*sections, Section(".shstrtab")]:
        at.append(len(names))
        names += section.name.encode() + b"\0"
    whole = [Section(""), *sections, Section(".shstrtab", bytes(names), STRTAB)]
    body = bytearray()
    headers = bytearray()
    for number, section in enumerate(whole):
        offset = section.offset if section.offset is not None else 64 + len(body)
        size = section.size if section.size is not None else len(section.data)
        name = at[number - 1] if number else 0
        kind_of = section.kind if number else 0
        first = (offset, size) if number else (0, 0)
        headers += _SECTION.pack(name, kind_of, 0, section.address, *first, section.link, 0, 8, section.entry)
        body += section.data
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", kind, machine, 1) + struct.pack("<QQQ", 0, 0, 0)
    header = bytearray(header + struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, 0, 0))
    struct.pack_into("<Q", header, 0x28, 64 + len(body))
    count = len(whole)
    if count < 0xFF00:
        struct.pack_into("<HH", header, 0x3C, count, count - 1)
    else:  # the first header has the numbers
        struct.pack_into("<HH", header, 0x3C, 0, 0xFFFF)
        headers[: _SECTION.size] = _SECTION.pack(0, 0, 0, 0, 0, count, count - 1, 0, 0, 0)
    return bytes(header + body + headers)


def image(kernels: Sequence[tuple[Kernel, int]]) -> bytes:
    """A module as it was loaded: a section of code a kernel, at its address, and symbols."""
    sections = [Section(f".text.{k.name}", bytes(64), address=at) for k, at in kernels if k.named and not k.by_symbol]
    strings = b"\0"
    symbols = bytes(24)
    for kernel, address in kernels:
        if kernel.named:
            symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, address, 64)
            strings += kernel.name.encode() + b"\0"
    sections.append(Section(".strtab", strings, STRTAB))
    sections.append(Section(".symtab", symbols, SYMTAB, link=len(sections), entry=24))
    return elf(sections, kind=EXECUTABLE)


def grid_entry(number: int, address: int, kernel: Kernel) -> bytes:
    entry = bytearray(0x88)
    struct.pack_into("<4Q", entry, 0, number, 1, address - 16, address)
    struct.pack_into("<6I", entry, 18 * 4, *(kernel.grid or (kernel.blocks, 1, 1)), *kernel.block)
    return bytes(entry)


def block_entry(number: int) -> bytes:
    return struct.pack("<Q", number) + bytes(0x30)


def sections(kernels: Sequence[Kernel] = (), *, modules: int = 1, padding: int = 0) -> list[Section]:
    """The debugger's sections of a process in which these kernels run. `modules`: so many images, the kernels in the
    last one; `padding`: bytes of the image that nobody needs."""
    placed = [(kernel, 0x7F0000000000 + 0x1000 * (number + 1)) for number, kernel in enumerate(kernels)]
    own = _OF_DEBUGGER
    found = [
        Section(".cudbg.devtbl", bytes(0x80), own + 9),
        Section(".cudbg.ctxtbl.dev0", bytes(0x40), own + 10),
        Section(".cudbg.smtbl.dev0", bytes(0x10 * 4), own + 11),
    ]
    for number in range(modules - 1):
        other = image([(Kernel(f"_Z5other{number}v"), 0x7E0000000000 + 0x1000 * number)])
        found.append(Section(".cudbg.relfimg.dev0.ctx1", other, own + 7))
    found.append(Section(".cudbg.relfimg.dev0.ctx1", image(placed) + bytes(padding), own + 7))
    if kernels:
        table = b"".join(grid_entry(n + 1, address, kernel) for n, (kernel, address) in enumerate(placed))
        found.append(Section(".cudbg.gridtbl.dev0", table, own + 12, entry=0x88))
    for number, kernel in enumerate(kernels):
        for sm in range(kernel.blocks):
            found.append(Section(f".cudbg.ctatbl.dev0.sm{sm}", block_entry(number + 1), own + 13, entry=0x38))
    return found


def core(kernels: Sequence[Kernel] = (), *, modules: int = 1, padding: int = 0) -> bytes:
    """The whole file."""
    return elf(sections(kernels, modules=modules, padding=padding))
