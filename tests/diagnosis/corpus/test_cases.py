"""The recorded cases: real NCCL failures whose cause was injected and is written in their truth.json.

Every case is diagnosed as recorded, and again with some of its evidence taken away. What can still be known then is
written down in LESS; everything that is not listed there must come out exactly right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hangscope
from frozen import diagnosis
from hangscope.errors import NotFoundError
from kits.lost_evidence import (
    PERTURBATIONS,
    culprit_dumps_removed,
    dumps_only,
    logs_only,
    perturbed,
    untouched,
)
from kits.recorded import CASES, all_cases, truth_of

SHARED = (
    *("alltoall", "broadcast_link", "coalesced", "cpu_stall", "dtype_mismatch", "exception", "gpu_stall", "healthy"),
    *("link_stall", "multi_pg", "p2p", "pg_order", "sigkill", "sigstop", "size_mismatch", "skipped", "straggler"),
    "type_mismatch",
)
"""The cases of the first recording, to which LESS belongs."""
NO_DUMPS = ("join_default", "join_killed", "join_split", "kill_no_dump", "log_only")
"""Where PyTorch wrote none, or one without entries."""
LATER = sorted(set(all_cases()) - set(SHARED))

OPERATIONS: dict[str, tuple[str, int, int | None]] = {
    # case: operation, sequence number, line of train.py, as the recording program made the call (see cases/README.md)
    "alltoall": ("all_to_all", 16, 182),
    "broadcast_link": ("broadcast", 17, 168),
    "cpu_stall": ("all_reduce", 16, 17),
    "dtype_mismatch": ("all_reduce", 16, 90),
    "exception": ("all_reduce", 16, 17),
    "gpu_stall": ("all_reduce", 16, 17),
    "link_stall": ("all_reduce", 17, 128),
    "multi_pg": ("all_reduce", 6, 113),
    "p2p": ("all_reduce", 16, 17),
    "pg_order": ("all_reduce", 2, 120),
    "sigkill": ("all_reduce", 16, 17),
    "sigstop": ("all_reduce", 16, 17),
    "size_mismatch": ("all_reduce", 16, 85),
    "skipped": ("all_reduce", 20, 95),
    "type_mismatch": ("all_reduce", 16, 80),
}

LESS: dict[tuple[str, str], tuple[str, list[int]]] = {
    # The watchdog's lines of a point-to-point batch name no peers, and those of a subgroup no members.
    ("coalesced", "logs_only"): ("unknown", []),
    ("pg_order", "logs_only"): ("unknown", []),
    # The one rank that is inside the batch is the one whose recording is lost.
    ("coalesced", "innocent_removed"): ("unknown", []),
    ("coalesced", "innocent_truncated"): ("unknown", []),
    # Nothing hung, so no log speaks of it, and the other dumps agree with each other.
    ("dtype_mismatch", "culprit_dumps_removed"): ("none", []),
    ("dtype_mismatch", "logs_only"): ("unknown", []),
    ("size_mismatch", "culprit_dumps_removed"): ("none", []),
    ("size_mismatch", "logs_only"): ("unknown", []),
    ("straggler", "culprit_dumps_removed"): ("none", []),
    # Without timing, or without the dump of one member, a GPU that never started looks like a network that fails.
    ("gpu_stall", "culprit_dumps_removed"): ("unknown", []),
    ("gpu_stall", "logs_only"): ("unknown", []),
    ("gpu_stall", "timing_off"): ("unknown", []),
    ("link_stall", "logs_only"): ("unknown", []),
    ("link_stall", "innocent_removed"): ("unknown", []),
    ("link_stall", "timing_off"): ("unknown", []),
    # The wrong peer is only in NCCL's log: PyTorch records an unbatched receive after its connection is made.
    ("p2p", "no_nccl_logs"): ("absent", [0, 1]),
    ("p2p", "logs_only"): ("absent", [0, 1]),
    ("p2p", "dumps_only"): ("absent", [0, 1]),
    # Silence alone cannot tell a frozen process from one that is gone.
    ("sigstop", "dumps_only"): ("dead", [1]),
}

SAYS_NOTHING = {("healthy", "logs_only"), ("straggler", "logs_only")}
"""The ranks' output has no line of PyTorch or NCCL at all: that is unusable input, said as such."""


def _accused(verdict: hangscope.Diagnosis) -> list[int]:
    return [c.rank for c in verdict.culprits]


def _honest(truth: dict[str, Any]) -> list[list[int]]:
    return [truth["culprits"], *truth["accept"]]


@pytest.mark.parametrize("case", all_cases())
def test_recorded_case_comes_out_right(case: str) -> None:
    """Hang, kind, the exact culprits and their nodes are what was injected."""
    truth = truth_of(case)
    verdict = diagnosis("cases", f"cases/{case}")
    assert verdict.hang == truth["hang"], verdict.headline
    assert verdict.kind in [truth["kind"], *truth.get("accept_kinds", [])], verdict.headline
    assert _accused(verdict) in _honest(truth), verdict.headline
    for culprit in verdict.culprits:
        assert culprit.node == truth["nodes"][str(culprit.rank)]
    if truth.get("link") and verdict.link is not None:
        assert [verdict.link.sender.rank, verdict.link.receiver.rank] == truth["link"]
    assert verdict.exit_status == (1 if truth["hang"] else 0)


@pytest.mark.parametrize("case", sorted(OPERATIONS))
def test_operation_and_line_are_named(case: str) -> None:
    """The operation at the root, its sequence number and the line of the user's code that called it."""
    name, seq, line = OPERATIONS[case]
    verdict = diagnosis("cases", f"cases/{case}")
    assert verdict.operation is not None
    assert (verdict.operation.name, verdict.operation.seq) == (name, seq)
    own = [f.line for f in verdict.operation.frames if f.filename == "/workspace/train.py"]
    assert own[0] == line


WITH_OPERATION = [c for c in all_cases() if (truth_of(c).get("operation") or {}).get("seq") is not None]


@pytest.mark.parametrize("case", WITH_OPERATION)
def test_operation_is_the_one_that_the_recording_wrote_down(case: str) -> None:
    """Group, sequence number, name and calling line are what a rank at fault wrote down before it went wrong."""
    truth = truth_of(case)
    verdict = diagnosis("cases", f"cases/{case}")
    assert verdict.operation is not None
    named = {"name": verdict.operation.name, "seq": verdict.operation.seq, "members": list(verdict.operation.members)}
    told = [note for note in truth.get("by_culprit", [truth]) if named.items() <= note["operation"].items()]
    assert told, named
    # Backward runs on a thread without Python frames; what ring_lost waits in is no longer in anybody's ring.
    if told[0]["line"] is not None and case != "ring_lost":
        assert told[0]["line"] in {f"{f.filename}:{f.line}" for f in verdict.operation.frames}


SEEN_ELSEWHERE = [
    c
    for c in all_cases()
    if truth_of(c)["kind"] == "absent"
    and "culprit_line" in truth_of(c)
    and all(list((CASES / c).glob(f"*/stacks/rank_{rank}.*")) for rank in truth_of(c)["culprits"])
]


@pytest.mark.parametrize("case", SEEN_ELSEWHERE)
def test_absent_rank_is_shown_at_its_line(case: str) -> None:
    """The stack of an absent rank says where it is instead, and the next step names that line."""
    truth = truth_of(case)
    verdict = diagnosis("cases", f"cases/{case}")
    shown = "\n".join(line for finding in verdict.why for line in finding.detail)
    assert truth["culprit_line"] in shown
    assert truth["culprit_line"] in " ".join(verdict.next_steps)
    # Where a communicator was never made there is no dump, and no operation before it.
    assert verdict.last_completed is not None or case in NO_DUMPS


def test_broadcast_link_names_the_edge() -> None:
    """The ring in NCCL's log turns a stuck receiver into the link that does not deliver."""
    verdict = diagnosis("cases", "cases/broadcast_link")
    assert verdict.link is not None
    assert [verdict.link.sender.rank, verdict.link.receiver.rank] == truth_of("broadcast_link")["link"]


def test_lines_where_the_code_paths_part_are_named() -> None:
    """A rank that ran another operation: both lines are in the verdict."""
    verdict = diagnosis("cases", "cases/type_mismatch")
    assert any("train.py:79" in f.text and "train.py:80" in f.text for f in verdict.why)


@pytest.mark.parametrize("perturbation", PERTURBATIONS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("case", SHARED)
def test_less_evidence_gives_a_right_or_an_honest_answer(case: str, perturbation: Any, tmp_path: Path) -> None:
    """With evidence taken away the answer is right, or the one that LESS writes down, and never surely wrong."""
    truth = truth_of(case)
    folder = perturbed(case, perturbation, tmp_path)
    if (case, perturbation.__name__) in SAYS_NOTHING:
        with pytest.raises(NotFoundError):
            hangscope.load([folder])
        return
    verdict = hangscope.diagnose(hangscope.load([folder]))
    expected = LESS.get((case, perturbation.__name__))
    if expected is None:
        assert (verdict.hang, verdict.kind) == (truth["hang"], truth["kind"]), verdict.headline
        assert _accused(verdict) in _honest(truth), verdict.headline
    else:
        assert (verdict.kind, _accused(verdict)) == expected, verdict.headline
        assert verdict.hang == (truth["hang"] and expected[0] != "none")
    guilty = {rank for honest in _honest(truth) for rank in honest}
    assert verdict.confidence != "high" or set(_accused(verdict)) <= guilty


@pytest.mark.parametrize("perturbation", [p for p in PERTURBATIONS if p is not untouched], ids=lambda p: p.__name__)
@pytest.mark.parametrize("case", LATER)
def test_less_evidence_accuses_no_innocent_surely(case: str, perturbation: Any, tmp_path: Path) -> None:
    """Whatever is taken away, nobody who did nothing wrong is accused with high confidence."""
    folder = perturbed(case, perturbation, tmp_path)
    try:
        verdict = hangscope.diagnose(hangscope.load([folder]))
    except NotFoundError:
        assert perturbation is logs_only or case in NO_DUMPS
        return
    guilty = {rank for honest in _honest(truth_of(case)) for rank in honest}
    assert verdict.confidence != "high" or set(_accused(verdict)) <= guilty, verdict.headline


@pytest.mark.parametrize("case", SHARED)
def test_missing_culprit_lowers_confidence(case: str, tmp_path: Path) -> None:
    """Without the culprit's own dump no verdict about what it did is sure, unless its end or its freeze was seen."""
    truth = truth_of(case)
    if not truth["culprits"] or truth["kind"] in ("dead", "frozen", "network"):
        pytest.skip("its dump is no part of the evidence, or others show it as well")
    verdict = hangscope.diagnose(hangscope.load([perturbed(case, culprit_dumps_removed, tmp_path)]))
    assert verdict.kind == "none" or verdict.confidence in ("medium", "low")


def test_young_dumps_that_wait_for_a_missing_one_are_no_healthy_job(tmp_path: Path) -> None:
    """A rank that dies takes the others down within moments: their dumps are young, and it left none."""
    verdict = hangscope.diagnose(hangscope.load([perturbed("fsdp_raise", dumps_only, tmp_path)]))
    assert (verdict.hang, _accused(verdict), verdict.confidence) == (True, [4], "low")


def test_second_cause_of_which_nothing_is_left_makes_the_first_less_sure(tmp_path: Path) -> None:
    """Rank 7 stalls and rank 4 was killed, in two groups; with dumps alone nothing shows rank 4."""
    verdict = hangscope.diagnose(hangscope.load([perturbed("kill_and_sleep", dumps_only, tmp_path)]))
    assert (_accused(verdict), verdict.confidence) == ([7], "medium")
    assert any("rank 4, which left no evidence" in finding.text for finding in verdict.why)
