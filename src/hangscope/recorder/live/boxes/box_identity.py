"""Which rank a process is that has a black box and no companion to ask: from its environment, else from NCCL.

A launcher's number counts where it tells the processes of this node apart: those that one task started inherit one
number. Otherwise the rank in the largest communicator counts, where no two are the same; otherwise what an engine
titles its processes. Several programs that share no communicator, and each count from 0, are numbered one after the
other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hangscope import engine_roles
from hangscope.processes import linux_process, process_roles
from hangscope.recorder.live.boxes.live_box import LiveBox
from hangscope.recorder.live.find_ranks import MOST, RankProcess

NUMBERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
"""Where launchers say which process of the job this is, the most particular first."""
LOCAL_NUMBERS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")


def identify(
    boxes: Mapping[int, LiveBox], known: Mapping[int, int], taken: Collection[int], *, started: bool = False
) -> list[RankProcess]:
    """The processes that are ranks nobody knows yet, each with a number of its own.

    `known` are the processes that are ranks already, with their numbers; numbers in `taken` are other ranks'. `started`
    is whether they have run for so long that no larger communicator is to be expected: only then they are programs of
    their own.
    """
    environs = {pid: linux_process.environment(pid) for pid in boxes}
    new = [pid for pid in boxes if pid not in known]
    by_launcher = {pid: first_number(environs[pid], NUMBERS) for pid in boxes}
    by_nccl = {pid: _rank_in_largest(box) for pid, box in boxes.items()}
    by_title: dict[int, int | None] = dict(engine_roles.numbers(process_roles.workers(process_roles.roles_of(boxes))))
    in_blocks = _one_after_the_other({pid: boxes[pid] for pid in new}, {*known.values(), *taken}) if started else {}
    for numbers in (by_launcher, by_nccl, by_title, in_blocks):
        mine = {pid: numbers.get(pid) for pid in new}
        if _tells_apart([*mine.values(), *known.values()]) and not set(mine.values()) & set(taken):
            return [_process(pid, mine[pid], boxes[pid], environs[pid]) for pid in new]
    return []


def _one_after_the_other(boxes: Mapping[int, LiveBox], taken: Collection[int]) -> dict[int, int | None]:
    """Numbers for programs that each have all their members here: the next free one, and NCCL's rank added to it."""
    programs: dict[int, list[int]] = {}
    for pid, box in boxes.items():
        if box.largest is not None:
            programs.setdefault(box.largest.hash, []).append(pid)
    found: dict[int, int | None] = {}
    start = max(taken, default=-1) + 1
    for _, pids in sorted(programs.items(), key=lambda each: min(each[1])):
        largest = boxes[pids[0]].largest
        if largest is None or len(pids) != largest.size:
            return {}
        for pid in pids:
            inner = _rank_in_largest(boxes[pid])
            found[pid] = None if inner is None else start + inner
        start += largest.size
    return found


def first_number(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first of these variables that is a number."""
    found = (linux_process.whole_number(environ.get(name, ""), MOST) for name in names)
    return next((number for number in found if number is not None), None)


def _rank_in_largest(box: LiveBox) -> int | None:
    largest = box.largest
    return largest.rank if largest is not None and 0 <= largest.rank < largest.size else None


def _tells_apart(numbers: Collection[int | None]) -> bool:
    return None not in numbers and len(set(numbers)) == len(numbers)


def _process(pid: int, number: int | None, box: LiveBox, environ: Mapping[str, str]) -> RankProcess:
    size = first_number(environ, SIZES)
    if size is None or number is None or number >= size:
        size = box.largest.size if box.largest is not None else None
    return RankProcess(
        pid=pid, rank=number, local_rank=first_number(environ, LOCAL_NUMBERS), world_size=size, by_box=True
    )
