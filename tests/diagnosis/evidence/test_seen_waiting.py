"""What the agent saw ranks do, without any recorder: who waits, who stands outside, who moves, who ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.diagnosis.hardware.broken_nodes import broken_nodes


def rank(number: int, **seen: Any) -> dict[str, Any]:
    """One line of node.json: a process that lives and that nobody could ask."""
    base = {"rank": number, "local_rank": number, "pid": 100 + number, "state": "S", "exit_status": None}
    asked = {"ended_at": None, "server_answers": None, "python_answers": None, "waits_in": None, "stood_s": None}
    return {**base, **asked, "moved": None, **seen}


def verdict(
    folder: Path, *ranks: dict[str, Any], reason: str = "stall", log: str = "", **more: Any
) -> hangscope.Diagnosis:
    """`more` are fields of the manifest."""
    node = folder / "nodes" / "n"
    node.mkdir(parents=True, exist_ok=True)
    common = {"job": "1", "attempt": "0", "reason": reason, "captured_at": "2026-11-15T02:30:11.204Z"}
    manifest = {"schema": "hangscope.incident/1", "world_size": len(ranks), "files": {}, **common, **more}
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


def test_a_group_that_one_rank_alone_makes_holds_up_the_rest(tmp_path: Path) -> None:
    """All others wait in an operation for the rank that is in new_group; in a wait for a peer, nobody can tell."""
    for call, expected in (("new_group", ("absent", [2])), ("w.wait", ("unknown", []))):
        folder = tmp_path / call
        dumps = folder / "nodes" / "n" / "dumps"
        dumps.mkdir(parents=True)
        for number in range(3):
            (dumps / f"gloo_rank_{number}.json").write_text(json.dumps(gloo_dump(4 if number < 2 else 3)))
        lines = [rank(number, server_answers=True, waits_in="all_reduce", stood_s=30.0) for number in range(2)]
        found = verdict(folder, *lines, rank(2, server_answers=True, waits_in=call, stood_s=31.0))
        assert accused(found) == expected


def test_who_still_looks_for_the_store_holds_up_those_who_have_it(tmp_path: Path) -> None:
    """One rank was given another port; where all are past the rendezvous, nobody is named, and all are."""
    past, early = ({"waits_in": call, "stood_s": 30.0} for call in ("init_process_group", "rendezvous"))
    found = verdict(tmp_path / "a", rank(0, **past), rank(1, **past), rank(2, **early))
    assert accused(found) == ("absent", [2])
    assert "rank 2 has not reached the store that all others have found" in found.headline
    assert "MASTER_PORT" in found.next_steps[0]
    found = verdict(tmp_path / "b", *(rank(number, **past) for number in range(3)))
    assert found.culprits == ()
    assert found.headline.startswith("ranks 0-2 wait in init_process_group for 30s; ")
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in found.next_steps[0]


def test_who_was_never_seen_or_looks_elsewhere_is_named(tmp_path: Path) -> None:
    """The agents of all nodes say so; the numbers are announced, and the verdict is no more than medium."""
    starts = {"waits_in": "init_process_group", "stood_s": 30.0}
    missing = {"ranks": [2], "text": "no process of rank 2 was seen", "by": "n"}
    found = verdict(tmp_path / "a", rank(0, **starts), rank(1, **starts), world_size=3, never_seen=missing)
    assert (found.outcome, *accused(found), found.confidence) == ("hang", "absent", [2], "medium")
    assert found.headline == "rank 2 was never seen; the others are waiting for it in init_process_group"
    assert "world_size" in found.next_steps[0]
    three = [rank(number, **starts) for number in range(3)]
    found = verdict(tmp_path / "b", *three, elsewhere={**missing, "text": "rank 2 looks at h:2, they meet at h:1"})
    assert (*accused(found), found.confidence) == ("absent", [2], "medium")
    assert (
        found.headline
        == "rank 2 looks for the others at a different address; they are waiting for it in init_process_group"
    )


@pytest.mark.parametrize("said", [None, [2], {"ranks": "2"}, {"ranks": [-1, "x", True]}, {"ranks": []}, {"text": "?"}])
def test_nonsense_about_missing_ranks_names_nobody(tmp_path: Path, said: object) -> None:
    """A manifest comes from anybody."""
    starts = {"waits_in": "init_process_group", "stood_s": 30.0}
    assert verdict(tmp_path, rank(0, **starts), rank(1, **starts), never_seen=said).culprits == ()


SILENT = {"node": "m", "ranks": [1], "silent_s": 12.0}


def test_a_node_that_does_not_answer_is_named_and_excluded(tmp_path: Path) -> None:
    """Its agent went silent and its machine with it: the node is the cause."""
    lost = {"nodes": [{**SILENT, "machine": "no answer"}], "by": "n"}
    found = verdict(tmp_path, rank(0, exit_status=1, state=None), world_size=2, reason="rank-exit", silent_nodes=lost)
    assert (found.outcome, *accused(found), found.confidence) == ("crash", "dead", [1], "medium")
    assert found.headline == "node m has gone silent, and rank 1 with it"
    assert [each.node for each in broken_nodes(hangscope.load([tmp_path]), found)] == ["m"]


@pytest.mark.parametrize("machine", ["answers", "not known", None, 7, "NO ANSWER"])
@pytest.mark.parametrize("waits", [True, False], ids=["the others wait", "the others ended"])
def test_an_agent_that_went_silent_is_no_lost_node(tmp_path: Path, machine: object, waits: bool) -> None:
    """`run` was killed or stopped there, or its disk is full: nobody there is accused, nor is the node excluded."""
    gone = {"nodes": [{**SILENT, "machine": machine}], "by": "n"}
    seen = rank(0, **WAITS) if waits else rank(0, exit_status=1, state=None)
    reason = "stall" if waits else "rank-exit"
    found = verdict(tmp_path, seen, world_size=2, reason=reason, silent_nodes=gone)
    assert found.confidence == "low"
    assert [culprit.rank for culprit in found.culprits if culprit.rank == 1] == []
    assert broken_nodes(hangscope.load([tmp_path]), found) == []
    said = " ".join(f"{gap.what}: {gap.why}" for gap in found.gaps)
    assert "what rank 1 was doing: the agent on m has written nothing for 12 s" in said


def gloo_dump(launched: int, size: int = 64) -> dict[str, Any]:
    """A rank that finished three operations, and waits in what it launched after them."""
    tensors = {"input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    call = {"pg_id": 0, "process_group": ["0", "default_pg"], "p2p_seq_id": 0, "is_p2p": False, "timeout_ms": 600000}
    entries = [
        {
            "record_id": seq - 1,
            "collective_seq_id": seq,
            "op_id": seq,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": 1794709780_000_000_000 + seq,
            "state": "scheduled",
            "retired": seq <= 3,
            **tensors,
            **call,
        }
        for seq in range(1, launched + 1)
    ]
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]", "pg_id": 0}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": entries}


# ---- exceptions that name no rank ------------------------------------------------------------------------------------

RAISED = """Traceback (most recent call last):
  File "/job/train.py", line 12, in read_config
    with open(path) as file:
FileNotFoundError: [Errno 2] No such file or directory: 'config.yaml'
W1115 02:31:00.140000 1 torch/distributed/elastic/multiprocessing/api.py:1028] a line of the launcher's
"""
TOO_LONG = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 12. Received
"""
OF_LAUNCHER = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/env/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in <module>
    main()
OSError: [Errno 98] Address already in use
"""


def ended(number: int, status: int) -> dict[str, Any]:
    return rank(number, state="gone", exit_status=status, ended_at=1794709811.0 + (status < -6))


def test_an_exception_before_the_ranks_have_names_is_the_one_that_ended_so(tmp_path: Path) -> None:
    """Before init_process_group no line names its rank: who ended with status 1, or of SIGABRT, printed it."""
    lines = [ended(0, -15), ended(1, -15), ended(2, 1)]
    found = verdict(tmp_path / "a", *lines, reason="rank-exit", log=RAISED)
    assert (found.outcome, *accused(found)) == ("crash", "dead", [2])
    assert found.headline == (
        "rank 2 ended in read_config (train.py:12) with FileNotFoundError: [Errno 2] No such file or directory:"
        " 'config.yaml'"
    )
    aborted = verdict(tmp_path / "b", ended(0, -15), ended(1, -15), ended(2, -6), reason="rank-exit", log=TOO_LONG)
    assert accused(aborted) == ("mismatch", [2])


@pytest.mark.parametrize(("sizes", "odd"), [((64, 65), [2]), ((65, 64), [0]), ((64, 64), [1])])
def test_who_got_too_much_sides_with_the_smaller_size(tmp_path: Path, sizes: tuple[int, int], odd: list[int]) -> None:
    """Of two recorded sizes, the rank that Gloo ended passed the smaller; where they agree, it is the odd one."""
    dumps = tmp_path / "nodes" / "n" / "dumps"
    dumps.mkdir(parents=True)
    for number, size in zip((0, 2), sizes, strict=True):
        (dumps / f"gloo_rank_{number}.json").write_text(json.dumps(gloo_dump(4, size)))
    found = verdict(tmp_path, ended(0, -15), ended(1, -6), ended(2, -15), reason="rank-exit", log=TOO_LONG)
    assert accused(found) == ("mismatch", odd)


def test_who_closed_its_connections_is_known_by_the_only_one_that_lost_them(tmp_path: Path) -> None:
    """mp.spawn prints the first exception alone, maybe the victim's: the other rank's record shows it idle."""
    lost = (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 0 terminated with the following error:\n"
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 9, in work\n'
        '  File "/env/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n'
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:49862.\n"
    )
    dumps = tmp_path / "nodes" / "n" / "dumps"
    dumps.mkdir(parents=True)
    dump = gloo_dump(3)
    dump["pg_config"]["0"]["ranks"] = "[0, 1]"
    (dumps / "gloo_rank_1.json").write_text(json.dumps(dump))
    found = verdict(tmp_path, ended(0, 1), ended(1, -15), reason="rank-exit", log=lost)
    assert accused(found)[1] == [1]
    assert found.confidence != "high"


def test_what_spawns_parent_quotes_is_its_childs(tmp_path: Path) -> None:
    """The parent of mp.spawn raises an exception of its own, with the child's behind it."""
    parent = (
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 100, in <module>\n'
        '  File "/env/site-packages/torch/multiprocessing/spawn.py", line 211, in join\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 1 terminated with the following error:\n"
    )
    found = verdict(tmp_path, ended(0, -15), ended(1, 1), ended(2, -15), reason="rank-exit", log=parent + RAISED)
    assert accused(found) == ("dead", [1])
    assert "read_config (train.py:12) with FileNotFoundError" in found.headline


def test_an_exception_that_may_be_anybodys_is_nobodys(tmp_path: Path) -> None:
    """Two ended so and one traceback was printed; two were, of two kinds; the launcher's own is no rank's."""
    two, one = [ended(0, 1), ended(1, -15), ended(2, 1)], [ended(0, -15), ended(1, -15), ended(2, 1)]
    cases = [(two, RAISED), (one, RAISED + RAISED.replace("FileNotFound", "Permission")), (one, OF_LAUNCHER)]
    for number, (lines, log) in enumerate(cases):
        found = verdict(tmp_path / str(number), *lines, reason="rank-exit", log=log)
        assert not any("rank 2's log ends with" in finding.text for finding in found.why)


def test_each_that_printed_the_same_exception_has_it(tmp_path: Path) -> None:
    """All ranks miss the same file: as many copies as ended so."""
    found = verdict(tmp_path, ended(0, 1), ended(1, 1), ended(2, -15), reason="rank-exit", log=RAISED + RAISED)
    assert accused(found) == ("dead", [0, 1])
    assert "FileNotFoundError" in found.headline


def test_who_has_just_lost_a_peer_does_not_make_a_crash_a_hang(tmp_path: Path) -> None:
    """Gloo says so in every log at once; the agent saw the end itself."""
    lost = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/job/train.py", line 3, in step\n'
        '[rank0]:   File "/env/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n'
        "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:49862.\n"
    )
    found = verdict(tmp_path, ended(0, -15), ended(1, 3), reason="rank-exit", log=lost)
    assert (found.outcome, *accused(found)) == ("crash", "dead", [1])


def test_ctrl_c_shows_where_each_rank_stood(tmp_path: Path) -> None:
    """The traceback of the interrupt is a stack: the line of the rank that stands apart is in the headline."""
    place = {0: ("step", 40), 1: ("save_checkpoint", 8), 2: ("step", 40), 3: ("step", 40)}
    log = "".join(
        f"[rank{number}]: Traceback (most recent call last):\n"
        f'[rank{number}]:   File "/job/train.py", line {line}, in {name}\n'
        f"[rank{number}]: KeyboardInterrupt\n"
        for number, (name, line) in place.items()
    )
    found = verdict(tmp_path, *(ended(number, -2) for number in place), reason="rank-exit", log=log)
    assert (accused(found), found.outcome) == (("absent", [1]), "hang")
    assert found.headline == "rank 1 is at /job/train.py:8, the other 3 ranks at /job/train.py:40"


def test_what_a_rank_printed_last_is_shown_where_nothing_says_why_it_ended(tmp_path: Path) -> None:
    """`sys.exit(7)` leaves nothing else."""
    ranks = (rank(0, **WAITS), rank(1, exit_status=7, ended_at=1.0, state="gone"), rank(2, **WAITS))
    found = verdict(tmp_path, *ranks, reason="rank-exit", log="quota reached, stopping\n")
    assert accused(found) == ("dead", [1])
    assert "the output has among its last lines: quota reached, stopping" in [each.text for each in found.why]


def test_what_another_rank_printed_last_says_nothing(tmp_path: Path) -> None:
    """A line that speaks of a rank says nothing of why another one ended."""
    ranks = (rank(0, **WAITS), rank(1, exit_status=7, ended_at=1.0, state="gone"), rank(2, **WAITS))
    found = verdict(tmp_path, *ranks, reason="rank-exit", log="rank 0 step 17\n")
    assert not any("last lines" in each.text for each in found.why)
