"""Which rank a process is that has a black box and no companion to ask: from its environment, else from NCCL.

A launcher's number counts where it tells the processes of this node apart: those that one task started inherit one
number. Otherwise the rank in the largest communicator counts, where no two are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hangscope.recorder.live.boxes.live_box import LiveBox
from hangscope.recorder.live.find_ranks import MOST, RankProcess
from hangscope.recorder.process import linux_process

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


def identify(boxes: Mapping[int, LiveBox], known: Mapping[int, int], taken: Collection[int]) -> list[RankProcess]:
    """The processes that are ranks nobody knows yet, each with a number of its own.

    `known` are the processes that are ranks already, with their numbers; numbers in `taken` are other ranks'.
    """
    environs = {pid: linux_process.environment(pid) for pid in boxes}
    new = [pid for pid in boxes if pid not in known]
    by_launcher = {pid: first_number(environs[pid], NUMBERS) for pid in boxes}
    by_nccl = {pid: _rank_in_largest(box) for pid, box in boxes.items()}
    for numbers in ({**by_launcher, **known}, {**by_nccl, **known}):
        if _tells_apart(numbers.values()) and not {numbers[pid] for pid in new} & set(taken):
            return [_process(pid, numbers[pid], boxes[pid], environs[pid]) for pid in new]
    return []


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
