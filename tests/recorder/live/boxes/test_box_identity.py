"""Which rank a process is that calls NCCL and runs nothing of torch.distributed."""

from __future__ import annotations

import pytest

from hangscope.recorder.live.boxes.box_identity import identify
from hangscope.recorder.live.boxes.live_box import LiveBox, LiveComm


def box(pid: int, *comms: tuple[int, int, int]) -> LiveBox:
    """`comms` are (hash, rank, size)."""
    made = tuple(LiveComm(hash_, rank, size, "", number, 0, {}) for number, (hash_, rank, size) in enumerate(comms))
    return LiveBox(pid, None, None, made)


@pytest.fixture
def environs(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    monkeypatch.setattr("hangscope.processes.linux_process.environment", lambda pid: found.get(pid, {}))
    return found


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"])
def test_a_launchers_number_is_the_rank(name: str, environs: dict[int, dict[str, str]]) -> None:
    """torchrun, srun, Open MPI, MPICH and PMIx each have their own name for it."""
    environs.update({10: {name: "4"}, 11: {name: "5"}})
    found = identify({10: box(10, (1, 0, 2)), 11: box(11, (1, 1, 2))}, {}, ())
    assert [(each.pid, each.rank) for each in found] == [(10, 4), (11, 5)]


def test_a_number_that_all_inherited_is_none(environs: dict[int, dict[str, str]]) -> None:
    """One task of srun starts four workers: NCCL's own numbers in the largest communicator tell them apart."""
    environs.update({pid: {"SLURM_PROCID": "0"} for pid in range(10, 14)})
    boxes = {pid: box(pid, (pid // 2, pid % 2, 2), (9, pid - 10, 4)) for pid in range(10, 14)}
    assert [(each.pid, each.rank, each.world_size) for each in identify(boxes, {}, ())] == [
        (10, 0, 4),
        (11, 1, 4),
        (12, 2, 4),
        (13, 3, 4),
    ]


def test_nobody_gets_a_number_that_is_anothers(environs: dict[int, dict[str, str]]) -> None:
    """Processes that may still make a larger communicator, and a rank that torch.distributed knows: no number is better
    than a wrong one."""
    boxes = {10: box(10, (1, 0, 2)), 11: box(11, (1, 1, 2)), 12: box(12, (2, 0, 2)), 13: box(13, (2, 1, 2))}
    assert identify(boxes, {}, ()) == []
    assert identify({10: boxes[10], 11: boxes[11]}, {}, {0}) == []
    assert [each.rank for each in identify({10: boxes[10], 11: boxes[11]}, {10: 0}, ())] == [1]


def test_two_programs_are_numbered_one_after_the_other(environs: dict[int, dict[str, str]]) -> None:
    """Both count from 0 and share no communicator for long: each has its own block, behind numbers that are taken."""
    boxes = {10: box(10, (1, 0, 2)), 11: box(11, (1, 1, 2)), 12: box(12, (2, 1, 2)), 13: box(13, (2, 0, 2))}
    found = identify(boxes, {}, (), started=True)
    assert {each.pid: each.rank for each in found} == {10: 0, 11: 1, 12: 3, 13: 2}
    later = identify(boxes, {10: 0, 11: 1}, (), started=True)
    assert {each.pid: each.rank for each in later} == {12: 3, 13: 2}
    part_elsewhere = {pid: each for pid, each in boxes.items() if pid != 13}
    assert identify(part_elsewhere, {}, (), started=True) == []


@pytest.mark.parametrize(
    ("titles", "wanted"),
    [
        ([f"VLLM::Worker_DP{at // 2}_TP{at % 2}" for at in range(4)], [0, 1, 2, 3]),
        ([f"sglang::scheduler_DP{at // 2}_TP{at % 2}" for at in (3, 2, 1, 0)], [3, 2, 1, 0]),
    ],
)
def test_replicas_are_told_apart_by_their_titles(
    titles: list[str], wanted: list[int], environs: dict[int, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas of an engine each count from 0 in NCCL; what the engine titles them says which is which, at once."""
    named = dict(zip(range(10, 14), titles, strict=True))
    monkeypatch.setattr("hangscope.processes.linux_process.command_line", lambda pid: [named[pid]])
    boxes = {pid: box(pid, (pid // 2, pid % 2, 2)) for pid in range(10, 14)}
    assert [each.rank for each in identify(boxes, {}, ())] == wanted
