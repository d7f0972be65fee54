"""Single decisions of the diagnosis, on jobs built by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.diagnosis.phrases import shape_texts
from hangscope.model import (
    Facts,
    Frame,
    KernelMessage,
    Operation,
    Process,
    PythonError,
    Source,
    TransportEvent,
    WatchdogReport,
)
from kits.small_jobs import Op, job, recv, send

A, B, D = "A", "B", "default_pg"


def accused(verdict: Diagnosis) -> list[int]:
    return [c.rank for c in verdict.culprits]


def done(group: str, count: int, **more: object) -> list[Op]:
    return [Op(group, **more) for _ in range(count)]  # type: ignore[arg-type]


def test_absent_rank_is_blamed_and_its_peers_are_victims() -> None:
    """Only the rank that never launched what the others are inside of is a culprit."""
    verdict = diagnose(
        job(
            {D: [0, 1, 2]},
            {0: [*done(D, 3), Op(D, state="started")], 1: [*done(D, 3), Op(D, state="started")], 2: done(D, 3)},
        )
    )
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("absent", [2], "high")
    assert [v.rank for v in verdict.victims] == [0, 1]
    assert verdict.operation is not None
    assert (verdict.operation.name, verdict.operation.seq, verdict.operation.state_by_rank[2]) == (
        "all_reduce",
        4,
        "not launched",
    )
    assert verdict.last_completed is not None
    assert verdict.last_completed.seq == 3


def test_victims_are_traced_through_other_groups_to_the_root() -> None:
    """Rank 0 waits for 1 in one group, 1 waits for 2 in another: only 2 is a culprit, and the chain says so."""
    verdict = diagnose(
        job(
            {A: [0, 1], B: [1, 2]},
            {0: [Op(A), Op(A, state="started")], 1: [Op(A), Op(B), Op(B, state="started")], 2: [Op(B)]},
        )
    )
    assert (verdict.kind, accused(verdict)) == ("absent", [2])
    assert {v.rank: v.chain for v in verdict.victims} == {0: (0, 1, 2), 1: (1, 2)}


def test_two_independent_culprits_are_both_named() -> None:
    """Two groups that hang for reasons of their own give two culprits."""
    verdict = diagnose(
        job(
            {A: [0, 1], B: [2, 3]},
            {0: [Op(A), Op(A, state="started")], 1: [Op(A)], 2: [Op(B)], 3: [Op(B), Op(B, state="started")]},
        )
    )
    assert (verdict.kind, accused(verdict)) == ("absent", [1, 2])


def test_wrapped_ring_is_an_unknown_past_and_not_a_missing_operation() -> None:
    """A rank whose ring lost the position that others wait in, and that is far past it, is not accused."""
    verdict = diagnose(
        job(
            {A: [0, 1, 2], B: [0, 1, 2]},
            {
                0: [*done(A, 3), Op(B, state="started")],
                1: [*done(A, 3), Op(B, state="started")],
                2: done(A, 2),
            },
            first={2: {A: 1, B: 7}},
        )
    )
    assert accused(verdict) == [2]
    assert verdict.operation is not None
    assert verdict.operation.group == B


def test_deadlock_names_the_minority_side() -> None:
    """A cycle of waits over two groups accuses the side with fewer ranks."""
    ranks = {r: [Op(A), Op(B), Op(A, state="started")] for r in (0, 2, 3)} | {1: [Op(A), Op(B), Op(B, state="started")]}
    verdict = diagnose(job({A: [0, 1, 2, 3], B: [0, 1, 2, 3]}, ranks))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("deadlock", [1], "high")


def test_deadlock_with_equal_sides_names_both_and_is_less_sure() -> None:
    """Two ranks that wait for each other: neither is in the minority."""
    verdict = diagnose(job({A: [0, 1], B: [0, 1]}, {0: [Op(A, state="started")], 1: [Op(B, state="started")]}))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("deadlock", [0, 1], "medium")


def test_majority_decides_a_mismatch_whatever_the_rank_order() -> None:
    """The odd rank is blamed even when it is rank 0."""
    odd = [*done(D, 2), Op(D, "broadcast", line=79), Op(D, state="started")]
    rest = [*done(D, 2), Op(D, line=80), Op(D, state="started", line=12)]
    verdict = diagnose(job({D: [0, 1, 2, 3]}, {0: odd, 1: rest, 2: rest, 3: rest}))
    assert (verdict.kind, accused(verdict)) == ("mismatch", [0])
    assert verdict.operation is not None
    assert (verdict.operation.name, verdict.operation.seq) == ("all_reduce", 3)
    assert any("train.py:79" in f.text and "train.py:80" in f.text for f in verdict.why)


def test_mismatch_of_two_is_shown_as_two_sides() -> None:
    """With one rank against one nobody can say who is wrong: both are named, with less confidence."""
    verdict = diagnose(
        job({A: [0, 1]}, {0: [Op(A), Op(A, "broadcast", state="started")], 1: [Op(A), Op(A, state="started")]})
    )
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("mismatch", [0, 1], "medium")


def test_sibling_groups_break_a_tie() -> None:
    """Other groups with the same description run the same line: they say which of two ranks is wrong."""
    good = [Op("dp"), Op("dp", state="started")]
    groups = {"dp": [0, 1]}
    built = job(groups, {0: good, 1: [Op("dp"), Op("dp", "broadcast", state="started")]})
    assert accused(diagnose(built)) == [0, 1]
    two = job(
        {"dp": [0, 1], "dp ": [2, 3]},
        {
            0: good,
            1: [Op("dp"), Op("dp", "broadcast", state="started")],
            2: [Op("dp "), Op("dp ")],
            3: [Op("dp "), Op("dp ")],
        },
    )
    siblings = tuple(_renamed(g, "dp") for g in two.groups)
    from dataclasses import replace

    from hangscope.model import Operations

    two = replace(two, groups=siblings, ops=Operations(two.ops.columns, two.ops.tables, siblings))
    assert accused(diagnose(two)) == [1]


def _renamed(group: object, desc: str) -> object:
    from dataclasses import replace

    return replace(group, desc=desc)  # type: ignore[type-var]


def test_skipped_call_is_named_with_its_line() -> None:
    """A rank that left one call out is recognised by its later calls, and the call is named from the others."""
    steps = [Op(D, line=17), Op(D, "_all_gather_base", line=21, out=64)]
    rest = [*steps, Op(D, line=95), *[Op(o.group, o.name, "scheduled", line=o.line, out=o.out) for o in steps * 2]]
    rest[2] = Op(D, line=95, state="started", elements=4)
    odd = [*steps, *[Op(o.group, o.name, "scheduled", line=o.line, out=o.out) for o in steps * 2]]
    odd[2] = Op(D, line=17, state="started")
    verdict = diagnose(job({D: [0, 1, 2, 3]}, {0: rest, 1: rest, 2: odd, 3: rest}))
    assert (verdict.kind, accused(verdict)) == ("mismatch", [2])
    assert "skipped" in verdict.headline
    assert verdict.operation is not None
    assert verdict.operation.frames[1].line == 95


def test_silent_mismatch_is_reported_without_a_hang() -> None:
    """Sizes that differ while everything completes are silent corruption."""
    rest = [Op(D), Op(D), Op(D)]
    verdict = diagnose(job({D: [0, 1, 2]}, {0: rest, 1: rest, 2: [Op(D), Op(D, elements=99), Op(D)]}))
    assert (verdict.hang, verdict.kind, accused(verdict), verdict.exit_status) == (False, "mismatch", [2], 0)
    assert verdict.outcome == "wrong"


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter_tensor_coalesced"])
def test_what_differs_is_what_is_shown(name: str) -> None:
    """Where two calls pass the same inputs and differ in their outputs, the sentence shows the outputs."""
    rest = [Op(D, name, out=64), Op(D)]
    verdict = diagnose(job({D: [0, 1, 2]}, {0: rest, 1: rest, 2: [Op(D, name, out=128), Op(D)]}))
    assert (verdict.kind, accused(verdict)) == ("mismatch", [2])
    assert "[128] Float for its output" in verdict.why[0].text
    assert "the rest [64] Float for its output" in verdict.why[0].text


def test_one_tensor_of_many_is_shown() -> None:
    """Of a batch whose first tensors agree, the one that does not is named by its place."""
    sizes = ((4,), (4,), (4,), (4,), (4,))
    one = replace(operation(), input_shapes=sizes, input_dtypes=("Float",) * 5)
    other = replace(one, input_shapes=(*sizes[:4], (9,)))
    assert shape_texts(one, other) == ("[4] Float as tensor 5", "[9] Float as tensor 5")
    mixed = replace(one, input_shapes=sizes[:2], input_dtypes=("Half", "Float"))
    turned = replace(mixed, input_dtypes=("Float", "Half"))
    assert shape_texts(mixed, turned) == ("[4] Half as tensor 1", "[4] Float as tensor 1")


def operation() -> Operation:
    return job({D: [0]}, {0: [Op(D, "all_reduce_coalesced")]}).ops[0]


def test_uneven_sizes_of_all_to_all_are_fine_when_they_add_up() -> None:
    """Mixture-of-experts sends different amounts per rank; only a sum that differs is a mismatch."""
    ranks = {
        0: [Op(D, "all_to_all", elements=10, out=30)],
        1: [Op(D, "all_to_all", elements=20, out=20)],
        2: [Op(D, "all_to_all", elements=30, out=10)],
    }
    verdict = diagnose(job({D: [0, 1, 2]}, ranks))
    assert (verdict.hang, verdict.kind) == (False, "none")


def test_gpu_that_never_starts_is_no_rank_that_never_launches() -> None:
    """Launched everywhere, started everywhere but on one rank: its GPU."""
    ranks = {r: [Op(D), Op(D, state="started")] for r in (0, 2, 3)} | {1: [Op(D), Op(D, state="scheduled")]}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks))
    assert (verdict.kind, accused(verdict)) == ("gpu", [1])


def test_without_timing_gpu_and_network_look_alike() -> None:
    """Everybody launched and nobody finished, and nothing says who started: honest ignorance, nobody accused."""
    ranks = {r: [Op(D), Op(D, state="scheduled")] for r in range(4)}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks, timing=False))
    assert (verdict.kind, accused(verdict), verdict.confidence, verdict.exit_status) == ("unknown", [], "low", 3)


def test_everybody_started_and_nobody_finished_is_network_with_nobody_accused() -> None:
    """Inside one collective with all GPUs started: the link is not determined."""
    ranks = {r: [Op(D), Op(D, state="started")] for r in range(4)}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks))
    assert (verdict.kind, accused(verdict), verdict.link) == ("network", [], None)
    assert "link not determined" in verdict.summary


def test_completion_error_names_the_link() -> None:
    """NCCL's own warning names reporter, HCA and peer."""
    event = TransportEvent(
        "completion_error",
        "NET/IB: Got completion … status 12",
        Source("nccl.log", "line 3"),
        rank=1,
        peer_rank=2,
        hca="mlx5_3",
        status=12,
    )
    ranks = {r: [Op(D), Op(D, state="started")] for r in range(4)}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks, facts=Facts(transport=(event,))))
    assert verdict.kind == "network"
    assert verdict.link is not None
    assert (verdict.link.sender.rank, verdict.link.receiver.rank) == (1, 2)
    assert verdict.confidence == "high"


def test_xid_of_a_member_turns_network_into_gpu() -> None:
    """A GPU error on one member while everybody is inside is the GPU, not the network."""
    message = KernelMessage("xid", "NVRM: Xid (PCI:0000:9b:00): 79", Source("messages.txt"), pid=42, code=79)
    ranks = {r: [Op(D), Op(D, state="started")] for r in range(4)}
    processes = {r: Process(r, pid=40 + r) for r in range(4)}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks, processes=processes, facts=Facts(kernel=(message,))))
    assert (verdict.kind, accused(verdict)) == ("gpu", [2])


def test_rank_without_any_sign_is_named_with_low_confidence() -> None:
    """Only its evidence is missing: named, but not sure."""
    ranks = {r: [Op(D), Op(D, state="started")] for r in (0, 1, 2)}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks))
    assert (accused(verdict), verdict.confidence) == ([3], "low")
    assert any(g.rank == 3 for g in verdict.gaps)


def test_missing_dump_is_no_accusation_while_a_known_cause_explains_the_hang() -> None:
    """Rank 3's dump is missing, but rank 2's own dump shows that it never launched: only 2 is accused."""
    ranks = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks))
    assert accused(verdict) == [2]


def test_evidence_of_one_rank_alone_names_nobody() -> None:
    """With one dump of four the others' were not collected: that is no accusation of three ranks."""
    verdict = diagnose(job({D: [0, 1, 2, 3]}, {0: [Op(D), Op(D, state="started")]}))
    assert (verdict.kind, accused(verdict), verdict.exit_status) == ("unknown", [], 3)


def test_log_line_clears_a_rank_whose_dump_is_missing() -> None:
    """A rank that reported the same timeout was waiting like its peers."""
    ranks = {r: [Op(D), Op(D, state="started")] for r in (0, 1)}
    reports = (
        *tuple(
            WatchdogReport(
                r,
                "timeout",
                Source(f"rank_{r}.log"),
                group_name="0",
                seq=2,
                operation="all_reduce",
                last_enqueued=2,
                last_completed=1,
            )
            for r in (0, 1, 2)
        ),
        WatchdogReport(3, "status", Source("rank_3.log"), group_name="0", last_enqueued=1, last_completed=1),
    )
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks, facts=Facts(watchdog=reports)))
    assert (verdict.kind, accused(verdict)) == ("absent", [3])
    assert verdict.confidence != "low"


def test_first_to_end_is_the_cause_and_the_rest_were_taken_down() -> None:
    """One rank exited with an error; the launcher's SIGTERM ended the others a moment later."""
    processes = {
        0: Process(0, exit_status=-15, ended_at_s=100.4),
        1: Process(1, exit_status=1, ended_at_s=100.0),
        2: Process(2, exit_status=-15, ended_at_s=100.5),
        3: Process(3, exit_status=-9, ended_at_s=131.0),
    }
    ranks = {r: [Op(D), Op(D, state="started")] for r in (0, 2, 3)}
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks, processes=processes))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("dead", [1], "high")


def test_job_that_was_killed_as_a_whole_had_no_dead_rank() -> None:
    """The same signal ended all processes within a second: whoever did that was not the cause of the hang."""
    processes = {r: Process(r, exit_status=-9, ended_at_s=100.0 + r / 10) for r in range(3)}
    ranks = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    verdict = diagnose(job({D: [0, 1, 2]}, ranks, processes=processes))
    assert (verdict.kind, accused(verdict)) == ("absent", [2])


def test_traceback_is_quoted_with_its_line() -> None:
    """The culprit's exception is in the verdict, with the line that raised it."""
    error = PythonError(
        1, "ValueError", "bad sample", (Frame("main", "/workspace/train.py", 75),), Source("rank_1.log", "line 8")
    )
    ranks = {r: [Op(D), Op(D, state="started")] for r in (0, 2)}
    verdict = diagnose(job({D: [0, 1, 2]}, ranks, facts=Facts(errors=(error,))))
    assert (verdict.kind, accused(verdict)) == ("dead", [1])
    assert "ValueError: bad sample" in verdict.headline
    assert any("train.py:75" in step for step in verdict.next_steps)


def test_clean_exits_at_the_end_of_a_healthy_job_accuse_nobody() -> None:
    """Ranks that finish some seconds apart with status 0 are no failure."""
    processes = {r: Process(r, exit_status=0, ended_at_s=100.0 + 4 * r) for r in range(3)}
    verdict = diagnose(job({D: [0, 1, 2]}, {r: done(D, 5) for r in range(3)}, processes=processes))
    assert (verdict.hang, verdict.kind, accused(verdict)) == (False, "none", [])


def left_behind(statuses: Mapping[int, int | None], signalled_by: int = 0) -> bool:
    """Whether a job hangs whose ranks ended without destroy_process_group(), and one of which signalled a timeout."""
    here = Source("rank.log", "line 1")
    signal = WatchdogReport(1, "status", here, signalled_by=signalled_by)
    facts = Facts(clean_exits=tuple((rank, here) for rank in range(3)), watchdog=(signal,))
    processes = {rank: Process(rank, exit_status=status) for rank, status in statuses.items()}
    ranks = {rank: [*done(D, 5), Op(D, state="started")] for rank in range(3)}
    return diagnose(job({D: [0, 1, 2]}, ranks, facts=facts, processes=processes)).hang


def test_a_timeout_signalled_at_a_clean_end_is_no_hang() -> None:
    """Torch 2.10 and later may signal one at an end without destroy_process_group(); but only if all came to theirs."""
    assert not left_behind({0: 0, 1: None, 2: 0})
    assert left_behind({0: 0, 1: 1, 2: 0})  # its status says that it did not end well
    assert left_behind({0: 0, 1: 0, 2: 0}, signalled_by=7)  # of whose end nothing is known


def test_beside_a_rank_that_was_killed_operations_in_flight_accuse_nobody() -> None:
    """A peer's kernel that has not started for a tenth of a second is no stuck GPU where somebody was just killed."""
    processes = {2: Process(2, exit_status=-9, ended_at_s=100.0), 3: Process(3, exit_status=-6, ended_at_s=100.1)}
    ranks = {
        0: [*done(A, 3), Op(A, state="started")],
        1: [*done(A, 3), Op(A, state="scheduled")],
        2: done("B", 3),
        3: done("B", 3),
    }
    groups = {A: [0, 1], "B": [2, 3]}
    young = diagnose(replace(job(groups, ranks, hung_s=-9.9, processes=processes), reason="rank-exit"))
    assert (young.kind, accused(young)) == ("dead", [2])
    old = diagnose(replace(job(groups, ranks, hung_s=20.0), reason="stall"))
    assert (old.kind, accused(old)) == ("gpu", [1])


def test_operations_in_flight_for_a_moment_are_not_a_hang() -> None:
    """A healthy job that is dumped in the middle of a step has unfinished operations, but young ones."""
    ranks = {0: [Op(D), Op(D, state="started")], 1: [Op(D)]}
    verdict = diagnose(job({D: [0, 1]}, ranks, hung_s=-9.5))
    assert (verdict.hang, accused(verdict)) == (False, [])


def test_receive_without_a_send_blames_the_sender() -> None:
    """The n-th receive waits for the n-th send, whatever the sequence numbers say."""
    ranks = {0: [send(A, 1), send(A, 1)], 1: [recv(A, 0), recv(A, 0), recv(A, 0, state="started")]}
    verdict = diagnose(job({A: [0, 1]}, ranks))
    assert (verdict.kind, accused(verdict)) == ("absent", [0])


def test_wrong_peer_is_a_mismatch() -> None:
    """Rank 1 receives from 2 while 0 sends to it and 2 has gone on: rank 1 named the wrong peer."""
    ranks = {
        0: [Op(D), send(D, 1, state="started")],
        1: [Op(D), recv(D, 2, state="started")],
        2: [Op(D), send(D, 3), Op(D, state="started")],
        3: [Op(D), recv(D, 2), Op(D, state="started")],
    }
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ranks))
    assert (verdict.kind, accused(verdict)) == ("mismatch", [1])


def test_pair_that_both_launched_is_a_link() -> None:
    """A send and its receive that both started and never finish name the connection."""
    ranks = {0: [send(A, 1, state="started")], 1: [recv(A, 0, state="started")]}
    verdict = diagnose(job({A: [0, 1]}, ranks))
    assert verdict.kind == "network"
    assert verdict.link is not None
    assert (verdict.link.sender.rank, verdict.link.receiver.rank) == (0, 1)


def test_dump_taken_before_its_peers_is_a_gap_and_no_accusation() -> None:
    """Peers finished an all_reduce that needs rank 2 and that its dump does not have: the dump is older."""
    ranks = {
        0: [*done(D, 6), Op(D, state="started")],
        1: [*done(D, 6), Op(D, state="started")],
        2: done(D, 2),
    }
    verdict = diagnose(job({D: [0, 1, 2]}, ranks))
    assert verdict.confidence == "low"
    assert any("before its peers" in g.why for g in verdict.gaps)


@pytest.mark.parametrize("hold", ["T", "D"])
def test_stopped_process_is_frozen(hold: str) -> None:
    """A process in state T or D is frozen, also when its last operation looks like an absent rank's."""
    processes = {2: Process(2, state=hold, alive_at_end=True)}
    ranks = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    verdict = diagnose(job({D: [0, 1, 2]}, ranks, processes=processes))
    assert (verdict.kind, accused(verdict)) == ("frozen", [2])
