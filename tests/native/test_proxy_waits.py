"""The root of a hang from black boxes that the real plugin wrote, of jobs whose one fault is known."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from blackbox_build import COMPILER, build
from nccl_play import Fault, Operation, Play

from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits import proxy_waits
from hangscope.diagnosis.waits.proxy_waits import AbsentRank, NotKnown, SilentRank, StuckGpu, StuckLink, in_short, root
from hangscope.model import BlackBox, Source
from hangscope.sources.black_box import read as blackbox_file

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here to build the black box with"),
]
LATER_NS = 20_000_000_000


def boxes_of(play: Play, folder: Path, version: int = 5) -> list[BlackBox]:
    """What the plugin left of every rank, as if read twenty seconds later from processes that live, but the frozen."""
    built = build()
    running = {}
    for rank, script in play.run().items():
        place = folder / str(rank)
        place.mkdir(parents=True)
        env = {**os.environ, "HANGSCOPE_BLACKBOX_DIR": str(place), "RANK": str(rank)}
        running[rank] = subprocess.Popen(
            [built.drive, built.plugin, str(version), "script"], stdin=subprocess.PIPE, text=True, env=env
        )
        running[rank].stdin.write(script)
        running[rank].stdin.close()
    found = []
    for rank, process in running.items():
        assert process.wait(60) == 0
        (file,) = (folder / str(rank)).glob("*.ncclbb")
        box, gaps = blackbox_file.read_box(file.read_bytes(), Source(file.name))
        assert not gaps and not box.torn and not box.dropped
        now = max(box.alive_ns or 0, box.last_event_ns or 0) + LATER_NS
        alive = box.alive_ns if rank in play.frozen else now - 100_000_000
        found.append(replace(box, host=f"node{rank}", read_ns=now, alive_ns=alive))
    return found


def program(shape: str, world: int, rng: random.Random) -> list[Operation]:
    """A few operations before, the one that hangs, and some behind it, on one or two communicators."""
    everyone = list(range(world))
    half = everyone[: world // 2] if rng.random() < 0.5 else everyone[world // 2 :]
    steps = rng.choice([1, 3, 10])
    it = Operation(shape, everyone, channels=rng.choice([1, 2, 3]), steps=steps)
    before = replace(it, steps=2)
    behind = rng.choice([[], [Operation("ring", everyone, steps=1)], [Operation("ring", half, steps=2, comm=1)]])
    return [before, it, *behind]


SHAPES = ["ring", "chain", "tree", "alltoall", "pairs"]


@pytest.mark.parametrize("network", ["socket", "ib"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("world", [4, 8])
def test_a_stopped_link_is_named(shape: str, world: int, network: str, tmp_path: Path) -> None:
    """In rings, trees, batches and broadcasts, the link that stopped is named, with its operation, and no other."""
    named = 0
    for seed in range(4):
        rng = random.Random(f"{shape}{world}{network}{seed}")
        operations = program(shape, world, rng)
        healthy = Play(operations, Fault(), network, seed)
        healthy.run()
        edges = sorted({(w.sender, w.receiver) for w in healthy.shapes[1][0]})
        sender, receiver = rng.choice(edges)
        kind = rng.choice(["link", "link", "lost"])
        fault = Fault(kind, sender, receiver, operation=1, step=rng.randrange(operations[1].steps))
        play = Play(operations, fault, network, seed)
        found = root(boxes_of(play, tmp_path / str(seed)))
        if isinstance(found, NotKnown):
            continue
        assert in_short(found) == f"link {sender}>{receiver}", (fault, found)
        assert isinstance(found, StuckLink) and found.both_ran is Says.YES
        assert found.operation.func in ("AllReduce", "Broadcast", "Send", "Recv")
        named += 1
    assert named >= 3


@pytest.mark.parametrize("network", ["socket", "ib"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["gpu", "absent"])
def test_a_rank_is_not_taken_for_a_link(kind: str, shape: str, network: str, tmp_path: Path) -> None:
    """A GPU that never runs its kernel and a rank that never launches are named as such, or nobody is."""
    named = 0
    for seed in range(5):
        rng = random.Random(f"{shape}{kind}{network}{seed}")
        operations = program(shape, rng.choice([4, 6]), rng)
        victim = rng.choice(operations[0].members)
        play = Play(operations, Fault(kind, victim, operation=1), network, seed)
        found = root(boxes_of(play, tmp_path / str(seed)))
        if not isinstance(found, NotKnown):
            assert isinstance(found, StuckGpu if kind == "gpu" else AbsentRank), (victim, found)
            assert found.rank == victim
            assert victim not in found.waiting
            named += 1
    assert named >= (4 if shape == "ring" else 3)


@pytest.mark.parametrize("network", ["socket", "ib"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stopped_process_is_no_link(shape: str, network: str, tmp_path: Path) -> None:
    """A process that is stopped in the middle leaves its neighbours as a dead link would; its heartbeat tells."""
    for seed in range(4):
        rng = random.Random(f"{shape}{network}{seed}")
        operations = program(shape, 4, rng)
        victim = rng.randrange(4)
        play = Play(operations, Fault("frozen", victim, step=rng.randrange(6)), network, seed)
        found = root(boxes_of(play, tmp_path / str(seed)))
        if play.frozen:
            assert isinstance(found, SilentRank | NotKnown), found
            if isinstance(found, SilentRank):
                assert found.rank == victim
        else:
            assert isinstance(found, NotKnown)


def test_nothing_is_named_while_data_moves(tmp_path: Path) -> None:
    """Boxes read a moment after the last change may be of a healthy job: nothing is named."""
    play = Play(program("ring", 4, random.Random(1)), Fault("link", 1, 2, operation=1), "socket", 1)
    boxes = [replace(box, read_ns=(box.read_ns or 0) - LATER_NS) for box in boxes_of(play, tmp_path)]
    assert isinstance(root(boxes), NotKnown)


def test_a_missing_box_never_makes_another_link(tmp_path: Path) -> None:
    """With the box of any one rank missing, the link is named or nothing is, and never another link or rank."""
    for shape in SHAPES:
        play = Play(program(shape, 6, random.Random(3)), Fault("link", 2, 3, operation=1, step=0), "socket", 5)
        boxes = boxes_of(play, tmp_path / shape)
        if (2, 3) not in {(w.sender, w.receiver) for w in play.shapes[1][0]}:
            continue
        for gone in range(6):
            found = root([box for box in boxes if box.rank != gone])
            assert isinstance(found, NotKnown) or in_short(found) == "link 2>3", (shape, gone, found)


def test_two_stopped_links_are_both_candidates(tmp_path: Path) -> None:
    """Where two links stand still at once, neither is named alone."""
    operations = [Operation("alltoall", [0, 1, 2, 3], channels=1, steps=2)]
    one = Play(operations, Fault("link", 0, 1), "socket", 2)
    one._cut = lambda number, wire, step, kind: (
        kind == "link" and (wire.sender, wire.receiver) in {(0, 1), (2, 3)}  # type: ignore[method-assign]
    )
    found = root(boxes_of(one, tmp_path))
    assert isinstance(found, NotKnown)
    assert {in_short(c) for c in found.candidates} == {"link 0>1", "link 2>3"}


def test_an_operation_without_network_leaves_it_open(tmp_path: Path) -> None:
    """A rank that may wait inside NVLink, where the black box sees nothing, is a candidate and not the root."""
    for kind, type_ in (("gpu", StuckGpu), ("absent", AbsentRank)):
        operations = [Operation("ring", [0, 1, 2, 3], steps=2), Operation("ring", [0, 1, 2, 3], steps=2)]
        boxes = boxes_of(Play(operations, Fault(kind, 2, operation=1), "socket", 3), tmp_path / kind)
        assert in_short(root(boxes)) == f"{kind} 2"
        box = boxes[2]
        inside = replace(box.comms[0], serial=1, hash="0xee", size=2)
        unseen = replace(box.ops[0], serial=2, comm=1, proxies=0, proxies_done=0)
        boxes[2] = replace(box, comms=(*box.comms, inside), ops=(unseen, *box.ops))
        found = root(boxes)
        assert isinstance(found, NotKnown)
        assert [type(one) for one in found.candidates] == [type_]


def test_a_neighbours_proxy_sends_for_a_rank(tmp_path: Path) -> None:
    """With PXN the sends of rank 1 stand in the box of rank 0 on its node: the link is still rank 1's."""
    operations = [Operation("ring", [0, 1, 2, 3], channels=1, steps=2), Operation("ring", [0, 1, 2, 3], channels=1)]
    boxes = boxes_of(Play(operations, Fault("link", 1, 2, operation=1), "ib", 3), tmp_path)
    assert in_short(root(boxes)) == "link 1>2"
    moved = tuple(t for t in boxes[1].transfers if t.sends)
    boxes[1] = replace(boxes[1], host="node0", transfers=tuple(t for t in boxes[1].transfers if not t.sends), links=())
    boxes[0] = replace(boxes[0], transfers=(*boxes[0].transfers, *moved))
    found = root(boxes)
    assert in_short(found) == "link 1>2" or isinstance(found, NotKnown), found
    boxes[0] = replace(boxes[0], transfers=tuple(t for t in boxes[0].transfers if not t.sends or t in moved))
    assert in_short(root(boxes)) == "link 1>2"


def test_the_versions_say_the_same(tmp_path: Path) -> None:
    """v4, v5 and v6 of NCCL's interface lead to the same answer for the same events."""
    for version in (4, 5, 6):
        play = Play(program("tree", 6, random.Random(5)), Fault("link", 1, 3, operation=1), "ib", 7)
        found = root(boxes_of(play, tmp_path / str(version), version))
        assert in_short(found) == "link 1>3"
    assert proxy_waits.root([]) == NotKnown(
        "no transfer over the network is under way on any rank that has a black box"
    )


def as_replayed(box: BlackBox, *, named: bool) -> BlackBox:
    """As NCCL reports a graph's replays: the number of the captured call again and again, or no call at all."""
    comms = [replace(comm, last={func: (3, at_ns) for func, (_, at_ns) in comm.last.items()}) for comm in box.comms]
    transfers = [replace(op, seq=3, func=op.func if named else "") for op in box.transfers]
    ops = [replace(op, seq=3) for op in box.ops] if named else []
    return replace(box, comms=tuple(comms), transfers=tuple(transfers), ops=tuple(ops))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("victim", range(4))
def test_a_rank_that_did_not_replay_its_graph_is_found_by_counting(victim: int, named: bool, tmp_path: Path) -> None:
    """Replays have no numbers of their own; so the transfers on each connection are counted, whichever rank it is."""
    operations = [Operation("ring", [0, 1, 2, 3], steps=2) for _ in range(3)]
    play = Play(operations, Fault("absent", victim, operation=2), "socket", 1)
    found = root([as_replayed(box, named=named) for box in boxes_of(play, tmp_path)])
    assert isinstance(found, AbsentRank), found
    assert (found.rank, found.replayed, found.operation.seq) == (victim, True, None)


def test_a_rank_that_replayed_its_graph_is_not_called_absent(tmp_path: Path) -> None:
    """Its GPU does not get on, or a link is down; but it came."""
    operations = [Operation("ring", [0, 1, 2, 3], steps=2) for _ in range(3)]
    play = Play(operations, Fault("gpu", 2, operation=2), "socket", 1)
    found = root([as_replayed(box, named=True) for box in boxes_of(play, tmp_path)])
    assert not isinstance(found, AbsentRank), found


def test_all_waits_lead_to_the_rank_that_did_not_come(tmp_path: Path) -> None:
    """Each rank's own wait names the next one round the ring, so that a verdict can list who waits for whom."""
    operations = [Operation("ring", [0, 1, 2, 3], steps=2) for _ in range(2)]
    play = Play(operations, Fault("absent", 2, operation=1), "socket", 1)
    waits = proxy_waits.waiting_ranks(boxes_of(play, tmp_path))
    assert 2 not in waits and waits[3].peers == (2,)
    assert all(wait.operation.func == "AllReduce" for wait in waits.values())
