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
    monkeypatch.setattr("hangscope.recorder.process.linux_process.environment", lambda pid: found.get(pid, {}))
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
    """Two programs that both count from 0, and a rank that torch.distributed knows: no number is better than a wrong
    one."""
    boxes = {10: box(10, (1, 0, 2)), 11: box(11, (1, 1, 2)), 12: box(12, (2, 0, 2)), 13: box(13, (2, 1, 2))}
    assert identify(boxes, {}, ()) == []
    assert identify({10: boxes[10], 11: boxes[11]}, {}, {0}) == []
    assert [each.rank for each in identify({10: boxes[10], 11: boxes[11]}, {10: 0}, ())] == [1]
