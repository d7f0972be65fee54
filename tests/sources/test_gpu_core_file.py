"""GPU core dumps: what ran, from files as the driver writes them, and from files that lie."""

from __future__ import annotations

import lzma
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hangscope.sources.gpu_core import core_file as gpu_core
from hangscope.sources.gpu_core.core_file import Damaged, GpuCore
from kits.gpu_cores import ALL_REDUCE, SPIN, Kernel, Section, block_entry, core, elf, grid_entry, sections


def read(data: bytes) -> GpuCore:
    return gpu_core.read(lambda size, at: data[at : at + size], len(data))


def test_a_kernel_is_named_with_its_grid_and_blocks() -> None:
    """The kernel that runs has its mangled name, its dimensions, and how many of its blocks are on the SMs."""
    found = read(core([Kernel(ALL_REDUCE, blocks=2, grid=(2, 1, 1), block=(544, 1, 1))], modules=3))
    assert found.blocks == 2
    (grid,) = found.grids
    assert (grid.kernel, grid.grid, grid.block, grid.blocks) == (ALL_REDUCE, (2, 1, 1), (544, 1, 1), 2)


def test_an_idle_gpu_has_no_grid() -> None:
    """A core of a process that runs nothing is a whole core without grids, and no damage."""
    assert read(core([])) == GpuCore((), 0)


def test_several_kernels_are_told_apart() -> None:
    """Blocks are counted by the grid that they belong to."""
    found = read(core([Kernel(SPIN, 1), Kernel(ALL_REDUCE, 4)]))
    assert [(grid.kernel, grid.blocks) for grid in found.grids] == [(SPIN, 1), (ALL_REDUCE, 4)]


def test_a_kernel_without_a_section_is_named_by_its_symbol() -> None:
    """Where no section of code stands at the kernel's address, the symbol there names it."""
    assert read(core([Kernel(SPIN, by_symbol=True)])).grids[0].kernel == SPIN


def test_a_kernel_that_no_image_has_stays_without_a_name() -> None:
    """A grid whose module is not in the core runs all the same."""
    assert [grid.kernel for grid in read(core([Kernel(SPIN, named=False)])).grids] == [None]


def test_more_sections_than_a_header_can_count() -> None:
    """A GPU with tables for each warp has more sections than sixteen bits: the first header counts them."""
    many = [Section(f".cudbg.lntbl.dev0.sm{n}", b"") for n in range(66_000)]
    assert read(elf([*sections([Kernel(SPIN)]), *many])).grids[0].kernel == SPIN


@pytest.mark.parametrize("part", [0, 10, 63, 64, 200, 0.3, 0.5, 0.9, 0.99, -1])
def test_a_cut_core_is_damaged(part: float) -> None:
    """A core that is not all there says nothing: in particular not that nothing ran."""
    whole = core([Kernel(ALL_REDUCE, 2)])
    size = len(whole) + int(part) if part < 0 else int(part * len(whole)) if part < 1 else int(part)
    with pytest.raises(Damaged):
        read(whole[:size])


def test_other_files_are_no_cores() -> None:
    """A program, a compiled kernel and zeros are refused."""
    for data in (b"", bytes(4096), elf([Section(".text", b"x")], machine=62), elf([Section(".text.k", b"x")])):
        with pytest.raises(Damaged):
            read(data)


def test_blocks_without_a_grid_are_no_empty_gpu() -> None:
    """A core that contradicts itself does not say that nothing ran."""
    alone = [s for s in sections([Kernel(SPIN)]) if ".gridtbl" not in s.name]
    with pytest.raises(Damaged, match="no grid is listed"):
        read(elf(alone))


def _lying_sections() -> bytes:
    data = bytearray(core([Kernel(SPIN)]))
    struct.pack_into("<HH", data, 0x3C, 0, 0xFFFF)
    at = struct.unpack_from("<Q", data, 0x28)[0]
    struct.pack_into("<Q", data, at + 32, 1 << 40)
    return bytes(data)


def _endless_table() -> bytes:
    """A table of grids that is said to have the size of the file, with small entries."""
    entry = grid_entry(1, 4096, Kernel(SPIN))
    return elf([Section(".cudbg.devtbl", bytes(8)), Section(".cudbg.gridtbl.dev0", entry * 20_000, entry=0x88)])


def _images_of_images() -> bytes:
    """Thousands of modules that are all the same bytes, with thousands of sections each."""
    module = elf([Section(f".text.k{n}", b"") for n in range(3000)])
    found = sections([Kernel(SPIN, named=False)])
    first = 64 + sum(len(s.data) for s in found)
    shared = Section(".cudbg.relfimg.dev0.ctx1", module)
    same = [Section(".cudbg.relfimg.dev0.ctx1", b"", offset=first, size=len(module)) for _ in range(5000)]
    return elf([*found, shared, *same])


def _long_symbol() -> bytes:
    return core([Kernel("_ZN" + "1a" * 500_000 + "Ev")])


def _many_blocks() -> bytes:
    table = Section(".cudbg.ctatbl.dev0.sm0", block_entry(1) * 100_000, entry=0x38)
    first = 64 + len(bytes(8))
    same = [Section(f".cudbg.ctatbl.dev0.sm{n}", b"", offset=first, size=5_600_000) for n in range(1, 200)]
    return elf([Section(".cudbg.devtbl", bytes(8)), table, *same])


@pytest.mark.parametrize(
    "make", [_lying_sections, _endless_table, _images_of_images, _long_symbol, _many_blocks], ids=lambda f: f.__name__
)
def test_a_lying_core_is_bounded(make: Callable[[], bytes]) -> None:
    """Lying sizes, endless tables and symbols of a megabyte cost little time, and give little back."""
    data = make()
    begun = time.process_time()
    try:
        found = read(data)
    except Damaged:
        found = GpuCore((), 0)
    assert time.process_time() - begun < 5
    assert len(found.grids) <= gpu_core.MOST_GRIDS
    assert all(len(grid.kernel or "") <= gpu_core.LONGEST_NAME for grid in found.grids)
    assert len(str(gpu_core.table(found))) < 400_000


def test_bytes_that_changed_raise_nothing_else() -> None:
    """Whatever bytes of a core are changed, it is read or damaged."""
    whole = core([Kernel(ALL_REDUCE, 2), Kernel(SPIN)], modules=2)
    random_bytes = random.Random(23)
    was_read = damaged = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(random_bytes.choice((1, 2, 8, 64))):
            data[random_bytes.randrange(len(data))] = random_bytes.choice((0, 1, 127, 255, random_bytes.randrange(256)))
        try:
            read(bytes(data))
            was_read += 1
        except Damaged:
            damaged += 1
    assert was_read and damaged


RECORDED = {
    "spin.rank_2": "_ZN2at4cuda",
    "spin.rank_0": "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "graph.rank_2": "",
}
"""Of an H200 (driver 580, NCCL 2.28.9), with the machine code taken out: a kernel that never ends, a peer in NCCL, and
the rank that a replayed graph waits for."""


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_cores_are_read(name: str) -> None:
    """Cores that a real driver wrote give the kernel that ran, with its one block, or nothing where nothing ran."""
    file = Path(__file__).parents[1] / "recorded_gpu" / f"{name}.core.xz"
    found = read(lzma.decompress(file.read_bytes()))
    assert [(grid.kernel or "").startswith(RECORDED[name]) for grid in found.grids] == [True] * bool(RECORDED[name])
    assert [grid.blocks for grid in found.grids] == [1] * bool(RECORDED[name])
    assert not found.problems
