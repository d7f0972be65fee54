"""What the agent saw ranks do, without any recorder: who waits, who stands outside, who moves, who ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hangscope


def rank(number: int, **seen: Any) -> dict[str, Any]:
    """One line of node.json: a process that lives and that nobody could ask."""
    base = {"rank": number, "local_rank": number, "pid": 100 + number, "state": "S", "exit_status": None}
    asked = {"ended_at": None, "server_answers": None, "python_answers": None, "waits_in": None, "stood_s": None}
    return {**base, **asked, "moved": None, **seen}


def verdict(folder: Path, *ranks: dict[str, Any], reason: str = "stall", log: str = "") -> hangscope.Diagnosis:
    node = folder / "nodes" / "n"
    node.mkdir(parents=True)
    common = {"job": "1", "attempt": "0", "reason": reason, "captured_at": "2026-11-15T02:30:11.204Z"}
    manifest = {"schema": "hangscope.incident/1", "world_size": len(ranks), "files": {}, **common}
    (folder / "incident.json").write_text(json.dumps(manifest))
    listed = {"schema": "hangscope.node/1", "node": "n", "ranks": list(ranks), "gaps": [], **common}
    (node / "node.json").write_text(json.dumps(listed))
    if log:
        (node / "logs").mkdir()
        (node / "logs" / "launcher.log").write_text(log)
    return hangscope.diagnose(hangscope.load([folder]))


def accused(found: hangscope.Diagnosis) -> tuple[str, list[int]]:
    return found.kind, [culprit.rank for culprit in found.culprits]


WAITS = {"waits_in": "store.wait", "stood_s": 31.0}
OUTSIDE = {"waits_in": "", "stood_s": 40.0}


def test_the_one_that_stands_outside_is_accused(tmp_path: Path) -> None:
    """All others were seen to stand in a wait; how long is said, and it is no more than medium."""
    found = verdict(tmp_path, rank(0, **WAITS), rank(1, **OUTSIDE), rank(2, **WAITS))
    assert accused(found) == ("absent", [1])
    assert (found.confidence, found.waiting_s) == ("medium", 31.0)


def test_of_two_ranks_the_one_that_does_not_wait_is_accused(tmp_path: Path) -> None:
    """Two are enough where both were seen."""
    assert accused(verdict(tmp_path, rank(0, **WAITS), rank(1, **OUTSIDE))) == ("absent", [1])


def test_nobody_is_accused_where_one_was_not_seen(tmp_path: Path) -> None:
    """A rank inside autograd may wait as well: without a look at every rank, none is named."""
    found = verdict(tmp_path, rank(0, **WAITS), rank(1, **OUTSIDE), rank(2))
    assert found.culprits == ()


def test_a_rank_that_nobody_could_ask_is_not_frozen(tmp_path: Path) -> None:
    """Without a companion there is no answer to miss; one that was asked in vain answers nothing."""
    found = verdict(tmp_path / "a", rank(0, **WAITS), rank(1, **WAITS), rank(2, **WAITS))
    assert found.kind != "frozen"
    asked = rank(2, server_answers=False)
    found = verdict(tmp_path / "b", rank(0, server_answers=True, **WAITS), rank(1, server_answers=True, **WAITS), asked)
    assert accused(found) == ("frozen", [2])


def test_a_snapshot_is_ok_only_if_every_rank_moved(tmp_path: Path) -> None:
    """Most move: nothing hangs. All move: all is well."""
    some = [rank(0, moved=True), rank(1, moved=True), rank(2, moved=False)]
    assert verdict(tmp_path / "a", *some, reason="snapshot").outcome == "unknown"
    everyone = [rank(number, moved=True) for number in range(3)]
    assert verdict(tmp_path / "b", *everyone, reason="snapshot").outcome == "ok"


def test_a_line_about_another_process_does_not_undo_an_end_that_was_seen(tmp_path: Path) -> None:
    """The launcher stopped a later attempt's rank 1 (another pid): this one still exited with 3."""
    ended = {"state": "gone", "exit_status": 3, "ended_at": 1794709811.0}
    line = "W1115 02:31:00.140000 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {} closing"
    log = "".join(f"{line.format(pid)} signal SIGTERM\n" for pid in (100, 102, 901))
    alive = {"server_answers": True}
    found = verdict(tmp_path, rank(0, **alive), rank(1, **ended), rank(2, **alive), reason="rank-exit", log=log)
    assert accused(found) == ("dead", [1])
