"""Black boxes of processes that run, as the agent reads them: written by the real plugin, cut and falsified."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.recorder.live.boxes import live_box
from hangscope.recorder.live.boxes.box_watch import TIMES_FIRST, BoxWatch
from hangscope.recorder.setup import blackbox_library
from hangscope.sources.black_box import schema as layout

PLAYER = Path(__file__).parents[3] / "live_scripts" / "plain_nccl.py"
LIBRARY = blackbox_library.library()
pytestmark = [pytest.mark.native, pytest.mark.skipif(LIBRARY is None, reason="the black box was not built here")]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The boxes of three ranks; two of them wait in operation 20 for the last, which sleeps."""
    folder = tmp_path_factory.mktemp("boxes")
    environ = {**os.environ, "NCCL_PROFILER_PLUGIN": str(LIBRARY), "HANGSCOPE_BLACKBOX_DIR": f"{folder}/"}
    process = subprocess.Popen(
        [sys.executable, PLAYER, "sleep", "--ranks", "3"], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "fault at" in process.stdout.readline()
    time.sleep(0.5)
    yield folder
    process.kill()
    process.wait()


def boxes(folder: Path) -> list[live_box.LiveBox]:
    found = [live_box.read(file.read_bytes()) for file in folder.glob("*.ncclbb")]
    return sorted((box for box in found if box is not None), key=lambda box: box.comms[0].rank)


def test_what_is_launched_and_what_is_pending_is_read(hung: Path) -> None:
    """Of each communicator the last number, and the transfer that waits; a rank that stays away has none pending."""
    found = boxes(hung)
    used = [next(comm for comm in box.comms if comm.hash == 0xC0FFEE0000000001) for box in found]
    assert [comm.rank for comm in used] == [0, 1, 2]
    assert [comm.last["AllReduce"].seq for comm in used] == [20, 20, 19]
    pending = [comm.pending for comm in used]
    assert pending[2] is None
    assert [(each.func, each.seq, each.first) for each in pending if each] == [("AllReduce", 20, False)] * 2
    assert all(comm.size == 3 and comm.calls == comm.last["AllReduce"].seq + 1 for comm in used)


def test_the_signature_stays_while_nothing_moves(hung: Path) -> None:
    """A heartbeat is no progress."""
    first = [box.signature() for box in boxes(hung)]
    time.sleep(0.7)
    assert [box.signature() for box in boxes(hung)] == first


def test_only_what_waits_is_unfinished(hung: Path) -> None:
    """The communicator that nobody uses, and the rank that waits in nothing, are idle however long."""
    watch = BoxWatch(hung)
    assert watch.look(0.0, 6.0)
    assert not watch.look(0.5, 6.0), "it looks again only after a while"
    waiting = {pid: [str(op.label) for op in ops] for pid, ops in watch.unfinished(6.0).items()}
    numbers = {box.pid: box.comms[0].rank for box in boxes(hung)}
    assert {numbers[pid]: ops for pid, ops in waiting.items()} == {0: ["AllReduce #20"], 1: ["AllReduce #20"], 2: []}
    assert all(0.3 < op.age_s(time.time_ns()) < 600 for ops in watch.unfinished(6.0).values() for op in ops)


def test_a_process_that_ended_is_not_watched(hung: Path, tmp_path: Path) -> None:
    """Its box stays, and nobody waits in it any more."""
    done = subprocess.Popen(["true"])
    done.wait()
    [file, *_] = hung.glob("*.ncclbb")
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 24, done.pid)
    (tmp_path / f"host.{done.pid}.ncclbb").write_bytes(data)
    watch = BoxWatch(tmp_path)
    watch.look(0.0, 6.0)
    assert not watch.boxes


def test_damaged_boxes_are_read_as_far_as_they_go(hung: Path) -> None:
    """Cut anywhere, with sizes that lie and bytes that are wrong: no error, and no endless work."""
    [file, *_] = hung.glob("*.ncclbb")
    whole = file.read_bytes()
    rng = random.Random(23)
    for _ in range(60):
        data = bytearray(whole[: rng.randrange(len(whole))])
        for _ in range(rng.randrange(40)):
            if len(data) > layout.LEAST_BYTES:
                data[rng.randrange(len(data))] = rng.randrange(256)
        begun = time.process_time()
        live_box.read(bytes(data))
        assert time.process_time() - begun < 1.0
    lying = bytearray(whole)
    for table in range(layout.TABLES):
        struct.pack_into("<4I", lying, layout.TABLES_AT + 16 * table, 0xFFFFFF00, 384, 0xFFFFFFFF, 0)
    box = live_box.read(bytes(lying))
    assert box is not None and box.comms == ()
    assert live_box.read(b"") is None and live_box.read(b"\x00" * 4096) is None


def test_the_first_operation_of_a_communicator_may_take_longer() -> None:
    """Ranks start at different times, and NCCL connects: four thresholds then."""
    assert TIMES_FIRST == 4.0
