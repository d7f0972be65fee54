"""Calls that no recorder has, by what they were given: messages and groups on Gloo, and the roots of broadcasts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.diagnosis.evidence.groups_apart import Apart, groups_apart
from hangscope.model import CallArguments, ClaimedGroup, Facts, Frame, Process, Source, ThreadStack
from hangscope.sources.call_arguments import read as call_arguments
from kits.small_jobs import Op, job

D = "default_pg"
TORCH = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
DONE = [Op(D), Op(D)]
WAITS = [Op(D), Op(D), Op(D, state="started")]


def call(rank: int, function: str, **given: object) -> CallArguments:
    source = Source(f"stacks/rank_{rank}.1.calls.json", "calls[0]")
    return replace(CallArguments(rank, function, source), **given)  # type: ignore[arg-type]


def verdict(calls: list[CallArguments], ops: dict[int, list[Op]], saving: int | None = None) -> Diagnosis:
    """Of a job whose ranks in `calls` were seen to wait in them, and in which one rank may be elsewhere."""
    waits = {one.rank: one.function for one in calls}
    known = {r: Process(r, pid=r, waits_in=waits.get(r, "" if r == saving else None), stood_s=9.0) for r in ops}
    stacks = [
        ThreadStack(r, r, "t", (Frame(waits.get(r, "save"), TORCH, 1), Frame("step", "/w/train.py", 40 + r)),
                    Source(f"stacks/rank_{r}.1.txt"), main=True)
        for r in ops
    ]  # fmt: skip
    facts = Facts(calls=tuple(calls), stacks=tuple(stacks), processes=tuple(known.values()))
    made = job({D: sorted(ops)}, ops, facts=facts, processes=known)
    return diagnose(replace(made, reason="stall", captured_at_ns=None))


def accused(found: Diagnosis) -> tuple[str, list[int]]:
    return str(found.kind), [culprit.rank for culprit in found.culprits]


def test_ranks_that_receive_from_each_other_are_a_deadlock() -> None:
    """Two ranks that each receive first wait for each other; those who wait in the next collective are victims."""
    calls = [call(1, "recv", src=2, tag=0), call(2, "recv", src=1, tag=0)]
    found = verdict(calls, {0: WAITS, 1: DONE, 2: DONE, 3: WAITS})
    assert accused(found) == ("deadlock", [1, 2])
    assert found.confidence == "medium"
    assert {victim.rank: victim.operation for victim in found.victims} == {0: "all_reduce #3", 3: "all_reduce #3"}
    assert not any("NCCL" in step for step in found.next_steps)


def test_who_never_sends_is_absent() -> None:
    """A rank that is elsewhere holds up the one that receives from it, and is named with the send that is missing."""
    found = verdict([call(0, "recv", src=1, tag=0)], {0: DONE, 1: DONE, 2: WAITS}, saving=1)
    assert accused(found) == ("absent", [1])
    assert "send 1->0" in found.headline


@pytest.mark.parametrize(("tag", "waits"), [(4, True), (3, False)])
def test_a_message_needs_the_same_tag(tag: int, waits: bool) -> None:
    """A send and a receive of each other wait only where their tags differ; else somebody else is at fault."""
    calls = [call(0, "recv", src=1, tag=3), call(1, "send", dst=0, tag=tag)]
    found = verdict(calls, {0: DONE, 1: DONE, 2: WAITS})
    assert (accused(found) == ("deadlock", [0, 1])) is waits


def test_groups_made_in_another_order_name_the_odd_rank() -> None:
    """Of ranks that make groups of the same members, the one that counts another of its groups is accused."""
    calls = [call(r, "new_group", ranks=(0, 1, 2), group="2" if r == 2 else "1") for r in range(3)]
    found = verdict(calls, dict.fromkeys(range(3), DONE))
    assert accused(found) == ("deadlock", [2])


def test_who_makes_groups_one_after_the_other_is_one_side() -> None:
    """Three ranks are at different groups of one mesh, and one is past it: that one is odd, whatever it called."""
    calls = [call(r, "new_group", ranks=ranks, group=str(r)) for r, ranks in ((0, (0, 1)), (2, (2, 3)), (3, (1, 3)))]
    found = verdict(calls, {0: DONE, 1: WAITS, 2: DONE, 3: DONE})
    assert accused(found) == ("deadlock", [1])


def apart(*claims: tuple[str, tuple[int, ...], tuple[int, ...]], calls: tuple[CallArguments, ...] = ()) -> list[Apart]:
    claimed = tuple(ClaimedGroup(name, members, ranks, Source(f"rank_{ranks[0]}")) for name, members, ranks in claims)
    return groups_apart(replace(job({D: [0, 1]}, {0: DONE, 1: DONE}), facts=Facts(calls=calls, claimed_groups=claimed)))


def test_one_name_with_other_members_is_a_group_made_apart() -> None:
    """A number that is another group on a rank that both say is in it; also of a group that is being made."""
    (found,) = apart(("0", (0, 1, 2), (0, 1, 2)), ("1", (0, 1), (0, 1)), ("1", (0, 2), (2,)))
    assert (found.one.members, found.other.members) == ((0, 1), (0, 2))
    (found,) = apart(("2", (1,), (1,)), calls=(call(3, "new_group", ranks=(1, 3), group="2"),))
    assert (found.one.ranks, found.other.ranks) == ((1,), (3,))


def test_groups_that_share_a_name_and_no_rank_are_made_alike() -> None:
    """What is split off has one name in all parts; and the order in which members are listed means nothing."""
    assert apart(("1", (0, 1), (0, 1)), ("1", (2, 3), (2, 3))) == []
    assert apart(("1", (0, 1), (0,)), ("1", (1, 0), (1,))) == []


def test_groups_made_apart_are_told_with_what_to_do() -> None:
    """Whoever is accused of the hang, what each rank takes the group for comes first."""
    found = hung_with(ClaimedGroup("1", (0, 1), (0,), Source("a")), ClaimedGroup("1", (0, 2), (2,), Source("b")))
    assert found.why[0].text == "group 1 is made of ranks 0, 1 on rank 0 and made of ranks 0, 2 on rank 2"
    assert "same groups" in found.next_steps[0]


def hung_with(*claimed: ClaimedGroup) -> Diagnosis:
    calls = [call(0, "new_group", ranks=(0, 1), group="1")]
    made = job({D: [0, 1, 2]}, {0: DONE, 1: DONE, 2: WAITS}, facts=Facts(calls=tuple(calls), claimed_groups=claimed))
    return diagnose(replace(made, reason="stall"))


def test_a_group_waits_for_its_members_alone() -> None:
    """Who makes a group of others waits for these, and for nobody else."""
    calls = [call(r, "new_group", ranks=(0, 1, 2), group="1") for r in range(2)]
    found = verdict(calls, dict.fromkeys(range(4), DONE), saving=2)
    assert accused(found) == ("absent", [2])


def test_another_root_is_a_mismatch() -> None:
    """The rank whose broadcast expects another root than the others' is named, with both roots."""
    calls = [call(r, "broadcast", src=1 if r == 2 else 0) for r in range(4)]
    stuck = [Op(D), Op(D, "broadcast", state="started")]
    found = verdict(calls, dict.fromkeys(range(4), stuck))
    assert accused(found) == ("mismatch", [2])
    assert "src=1" in found.headline
    assert "src=0" in found.headline


def test_who_has_left_was_not_the_root() -> None:
    """Of two ranks that disagree, the one is wrong whose root has finished the broadcast and sent nothing."""
    calls = [call(0, "broadcast", src=0), call(2, "broadcast", src=1)]
    stuck = [Op(D), Op(D, "broadcast", state="started")]
    left = [Op(D), Op(D, "broadcast"), Op(D, state="started")]
    assert accused(verdict(calls, {0: stuck, 1: left, 2: stuck})) == ("mismatch", [2])


def test_roots_that_agree_accuse_nobody() -> None:
    """The same root on all ranks is no finding."""
    calls = [call(r, "broadcast", src=0) for r in range(3)]
    stuck = [Op(D), Op(D, "broadcast", state="started")]
    assert accused(verdict(calls, dict.fromkeys(range(3), stuck)))[0] != "mismatch"


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "hangscope.calls/2"},
        {"rank": -1},
        {"calls": None},
        {"calls": [7, {}, {"function": 3, "main": True}, {"function": "recv", "main": False, "src": 1}]},
    ],
)
def test_a_damaged_file_says_nothing(damage: dict[str, object]) -> None:
    """What does not say what it should is passed over, without a traceback."""
    whole = {"schema": "hangscope.calls/1", "rank": 1, "calls": [{"function": "recv", "main": True, "src": 2}]}
    assert call_arguments.read_object(json.loads(json.dumps(whole)), "f").calls[0].src == 2
    damaged = {**whole, **damage}
    assert not call_arguments.recognise_object(damaged) or not call_arguments.read_object(damaged, "f").calls


def test_values_that_cannot_be_ranks_are_not_read() -> None:
    """A number that is no rank, or a list that holds one, is not known."""
    row = {"function": "new_group", "main": True, "src": -1, "dst": 1 << 70, "tag": True, "ranks": [0, "x"]}
    value = {"schema": "hangscope.calls/1", "rank": 1, "calls": [row]}
    (found,) = call_arguments.read_object(value, "f").calls
    assert (found.src, found.dst, found.tag, found.ranks) == (None, None, None, None)
