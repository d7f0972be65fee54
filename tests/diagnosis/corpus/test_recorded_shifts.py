"""Jobs of which one rank left something out or did it twice, recorded on an H200.

`recorded_shifts.tar.xz` holds what tests/live_scripts/run.py --shifts nccl left there (torch 2.11.0, NCCL 2.28.9, four
ranks on one GPU), packed by tests/record/pack_live.py. Under FSDP2 and TP the job went on, and two looks at the rings
showed it; under DDP, whose two models differ in size, NCCL waited for what did not fit.
"""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pytest

import hangscope
from frozen import files_of, injected

ARCHIVE = "recorded_shifts.tar.xz"
NAMES = [f"{kind}-{fault}" for kind in ("ddp", "fsdp2", "tp") for fault in ("nan", "batch", "retry")]
RANKS = range(4)


def incident(name: str, target: Path) -> Path:
    for member, data in files_of(ARCHIVE, name).items():
        path = target / member
        if path.name != "truth.json":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return target / name


@pytest.mark.parametrize("name", NAMES)
def test_the_rank_that_came_apart_is_named(name: str, tmp_path: Path) -> None:
    """With the outcome that fits: a job that went on is no hang."""
    truth = injected(ARCHIVE, name)
    found = hangscope.diagnose(hangscope.load(incident(name, tmp_path)))
    said = (found.outcome, found.kind, [c.rank for c in found.culprits])
    assert said == (truth["outcome"], truth["kind"], truth["culprits"])


@pytest.mark.parametrize("name", NAMES)
def test_without_some_ranks_no_innocent_is_named(name: str, tmp_path: Path) -> None:
    """Dumps of any one or two ranks gone: of two that differ nobody can say which, and what stands is no job that is
    well."""
    for number, lost in enumerate(each for count in (1, 2) for each in combinations(RANKS, count)):
        place = incident(name, tmp_path / str(number))
        for rank in lost:
            for path in place.glob(f"nodes/*/dumps/*_rank_{rank}.*"):
                path.unlink()
        found = hangscope.diagnose(hangscope.load(place))
        innocent = {c.rank for c in found.culprits} - {2}
        assert not innocent or found.confidence == "low", (lost, found.headline)
        assert found.outcome != "ok" or injected(ARCHIVE, name)["outcome"] == "desync", (lost, found.headline)


@pytest.mark.parametrize("name", NAMES)
def test_the_rings_alone_are_enough(name: str, tmp_path: Path) -> None:
    """No logs, stacks, node.json: the rank is the same."""
    place = incident(name, tmp_path)
    for path in [*place.glob("nodes/*/*"), *place.glob("*.json")]:
        if path.name != "dumps":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = hangscope.diagnose(hangscope.load(place))
    assert [c.rank for c in found.culprits] == [2], found.headline


def test_where_two_explanations_fit_both_are_said(tmp_path: Path) -> None:
    """A call that was made twice in a row looks like the next one left out; of two sides either may be off."""
    found = hangscope.diagnose(hangscope.load(incident("ddp-retry", tmp_path)))
    assert found.headline == "rank 2 skipped all_reduce #129, or made all_reduce #128 twice"
    place = incident("ddp-batch", tmp_path)
    for rank in (0, 1):
        for path in place.glob(f"nodes/*/dumps/*_rank_{rank}.*"):
            path.unlink()
    found = hangscope.diagnose(hangscope.load(place))
    assert (found.headline, found.confidence) == ("rank 3 skipped all_reduce #108, or rank 2 made it too often", "low")
