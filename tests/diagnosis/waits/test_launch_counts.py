"""Who has launched less than the other members of a communicator, by the numbers in their black boxes."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.waits.launch_counts import behind_in_launches
from hangscope.model import BlackBox, BlackBoxComm, Facts, Frame, Source, ThreadStack
from kits.small_jobs import job

S = 1_000_000_000
READ_NS = 1_000 * S


def comm(hash_: str, rank: int, size: int, at_s: float = 900, **last: int) -> BlackBoxComm:
    calls = {func: (seq, int(at_s * S)) for func, seq in last.items()}
    return BlackBoxComm(int(hash_, 16), hash_, rank, size, 1, "", True, 0, 1, calls)


def box(rank: int, *comms: BlackBoxComm) -> BlackBox:
    alive = READ_NS - S // 10
    return BlackBox(Source(f"{rank}.ncclbb"), "a", 100 + rank, rank, "", 0, alive, alive, READ_NS, comms, (), (), ())


def four(*seqs: int, at_s: float = 900) -> list[BlackBox]:
    return [box(rank, comm("0xa", rank, 4, at_s, AllReduce=seq)) for rank, seq in enumerate(seqs)]


def test_the_one_that_is_behind_is_found() -> None:
    """With the first call that it lacks."""
    found = behind_in_launches(four(20, 20, 19, 23))
    assert found is not None
    assert (found.ranks, found.operation.seq, found.last, found.waiting) == ((2,), 20, 19, (0, 1, 3))


def test_nobody_is_behind_where_it_cannot_be_said() -> None:
    """All as far; the odd one ahead; a moment ago; a box that lost events."""
    assert behind_in_launches([]) is None
    assert behind_in_launches(four(20, 20, 20, 20)) is None
    assert behind_in_launches(four(21, 20, 20, 20)) is None
    assert behind_in_launches(four(20, 20, 19, 20, at_s=999.5)) is None
    assert behind_in_launches([replace(each, dropped=1) for each in four(20, 20, 19, 20)]) is None


def test_who_waits_elsewhere_is_not_the_one() -> None:
    """Rank 2 is missing in one communicator because it waits in another for rank 3: rank 3 it is."""
    boxes = [
        box(0, comm("0xa", 0, 3, AllReduce=9)),
        box(1, comm("0xa", 1, 3, AllReduce=9)),
        box(2, comm("0xa", 2, 3, AllReduce=8), comm("0xb", 0, 3, AllGather=4)),
        box(3, comm("0xb", 1, 3, AllGather=3)),
        box(4, comm("0xb", 2, 3, AllGather=4)),
    ]
    found = behind_in_launches(boxes)
    assert found is not None and found.ranks == (3,) and found.waiting == (2, 4)


def test_the_verdict_is_never_sure_and_less_so_without_a_stack() -> None:
    """It may wait in something that no box sees; a stack in its own code speaks against that."""
    stack = ThreadStack(2, None, "main", (Frame("load", "/workspace/serve.py", 7),), Source("stacks/2.txt"), main=True)
    for stacks, confidence in (((stack,), "medium"), ((), "low")):
        facts = Facts(blackboxes=tuple(four(20, 20, 19, 20)), stacks=stacks)
        found = diagnose(job({}, {}, world=range(4), facts=facts))
        assert (found.kind, [c.rank for c in found.culprits], found.confidence) == ("absent", [2], confidence)
        assert "never launched AllReduce #20" in found.headline
