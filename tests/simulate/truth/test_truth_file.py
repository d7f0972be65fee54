"""The truth of simulated jobs, against their dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.simulate import Spec, random_spec, simulate

CASES = Path(__file__).parents[2] / "cases"


def test_the_truth_has_the_keys_of_the_recorded_cases() -> None:
    """Everything that truth.json of a recorded case says, a simulated one says too."""
    job = simulate(Spec(ranks=8, fault="network", seed=1, entries=100))
    for case in ("broadcast_link", "healthy"):
        assert set(json.loads((CASES / case / "truth.json").read_text())) <= set(job.truth)
    assert json.loads(json.dumps(job.truth)) == job.truth


@pytest.mark.parametrize("seed", [seed for seed in range(70) if random_spec(seed).ranks <= 32])
def test_the_truth_is_in_the_dumps(seed: int) -> None:
    """Sampled jobs: who is to blame looks like it in the dumps, and the operation at the root is really there."""
    job = simulate(random_spec(seed))
    truth: Any = job.truth
    culprits, kind = truth["culprits"], truth["kind"]
    spec = job.spec
    waiting = {rank: job.contents(rank) for rank in job.dump_ranks}
    if kind in ("dead", "frozen") and not spec.stale_dump:
        assert not set(culprits) & set(job.dump_ranks)
    elif kind not in ("dead", "absent") or not spec.self_dump:
        assert set(culprits) <= set(job.dump_ranks)
    if not truth["hang"]:
        return
    assert len(job.dump_ranks) >= spec.ranks - len(culprits)
    operation = truth["operation"]
    assert set(operation["members"]) <= set(range(spec.ranks))
    if kind in ("absent", "dead", "frozen"):
        assert truth["line"].startswith("/workspace/")
        for rank in culprits:
            contents = waiting.get(rank)
            if contents is not None and kind == "absent" and truth["variant"] != "batch":
                held = contents.ring
                done = held.state == 2
                parts = [held.calls[call].kind == 1 for call in held.call]
                assert (done | parts).all()


def test_several_independent_culprits_are_all_named() -> None:
    """Ranks of different groups that stop at the same place are all in the truth."""
    job = simulate(Spec(ranks=32, tp=2, fault="absent", variant="loader", culprits=(5, 12, 30), entries=100))
    assert job.truth["culprits"] == [5, 12, 30]
