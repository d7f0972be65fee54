"""The flight recorder of a process that nobody prepared is read from outside, as torch itself would dump it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside_jobs import Job, differences, job, read_from_outside

from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.flight_recorder import outside
from hangscope.sources.flight_recorder.known_layouts import LAYOUTS
from hangscope.sources.flight_recorder.layout import release_of

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two ranks with sub-groups, point-to-point and batches, a ring that has wrapped; rank 1 stays away."""
    with job(tmp_path_factory.mktemp("hung"), "--steps", "30", TORCH_FR_BUFFER_SIZE="64") as started:
        yield started


def test_what_is_read_is_what_torch_dumps(hung: Job) -> None:
    """Every field and every frame of a wrapped ring is the same as in the dump that torch makes itself."""
    read = [read_from_outside(rank.pid) for rank in hung.ranks]
    for of_torch, ours in zip(hung.dumps_of_torch(), read, strict=True):
        assert not differences(of_torch, ours)
        assert len(ours["entries"]) == 64
        assert all(entry["frames"] for entry in ours["entries"])
        assert list(ours["entries"][0]) == list(of_torch["entries"][0])


def test_counters_are_those_of_the_dump(hung: Job) -> None:
    """The counters of all groups, which are read each second, are the dump's pg_status."""
    with outside.open_process(hung.ranks[0].pid) as process:
        assert process.recorders() == ["gloo"]
        status = process.dump("gloo", stacks=False)["pg_status"]
        assert {group: tuple(counters.values()) for group, counters in status.items()} == process.counters()["gloo"]
        assert process.torch == torch.__version__


def test_a_process_without_torch_says_so() -> None:
    """A process that has no torch, or has ended, is an error with its reason."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        time.sleep(0.2)
        with pytest.raises(CannotRead, match="no torch is loaded"):
            outside.open_process(other.pid)
    with pytest.raises(CannotRead, match="has ended"):
        outside.open_process(other.pid)


def test_the_installed_torch_is_in_the_table() -> None:
    """A release of torch that the table of layouts does not name is noticed: release/recorder_layouts.py adds it."""
    known = {release_of(proof.torch) for layout in LAYOUTS for proof in layout.proofs}
    assert release_of(torch.__version__) in known


def test_the_table_was_made_from_wheels() -> None:
    """Each layout names the wheels, the headers and the symbols that it was made from."""
    proofs = [proof for layout in LAYOUTS for proof in layout.proofs]
    assert all(Path(proof.wheel).suffix == ".whl" and len(proof.header) == 16 and proof.symbols for proof in proofs)
