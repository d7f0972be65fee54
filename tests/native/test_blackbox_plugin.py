"""The black box's plugin, played to by a driver that makes NCCL's calls through every version of the interface."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from blackbox_build import COMPILER, build, compiles

from hangscope.model import BlackBox, Source
from hangscope.sources.black_box import read as blackbox_file

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here to build the black box with"),
]
VERSIONS = (3, 4, 5, 6)
NUMBERS = {name: number for number, name in blackbox_file.STATES.items()}


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HANGSCOPE_BLACKBOX_DIR": str(folder), "RANK": "3", "WORLD_SIZE": "8", **more}


def drive(
    folder: Path, version: int, *how: str, flags: tuple[str, ...] = (), before: tuple[str, ...] = (), **more: str
):
    """A finished run of the driver."""
    built = build(*flags)
    command = [*before, str(built.drive), str(built.plugin), str(version), *how]
    return subprocess.run(
        command, env=environment(folder, **more), capture_output=True, text=True, check=False, timeout=300
    )


def the_box(folder: Path) -> BlackBox:
    (file,) = folder.glob("*.ncclbb")
    return blackbox_file.read_box(file.read_bytes(), Source(file.name))[0]


def live(box: BlackBox) -> list[str]:
    """The live transfers in the driver's own words."""
    comms = {comm.serial: int(comm.hash, 16) for comm in box.comms}
    return sorted(
        f"{comms[t.comm]:x} {t.peer} {t.channel} {int(t.sends)} {t.steps} {t.steps_started} {t.steps_done}"
        + "".join(f" {step.step}:{NUMBERS[step.state]}" for step in t.live)
        for t in box.transfers
        if t.state == "live"
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_reader_finds_the_exact_live_state(version: int, seed: int, tmp_path: Path) -> None:
    """After random events of six threads, the file shows exactly the transfers and steps that are under way."""
    done = drive(tmp_path, version, "random", "6", "20000", str(seed))
    assert done.returncode == 0, done.stderr
    expected = done.stdout.splitlines()
    assert expected.pop() == "end"
    box = the_box(tmp_path)
    assert live(box) == sorted(expected) != []
    assert (box.rank, box.torn, box.dropped) == (3, 0, 0)


def test_threads_that_wait_for_a_core_leave_nothing_out(tmp_path: Path) -> None:
    """Where 300 threads share the cores, a thread that stands in the middle of a write costs the others no event and
    no count: they take another slot."""
    built, running = build(), []
    for seed in range(50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        command = [built.drive, built.plugin, str(VERSIONS[seed % 4]), "random", "6", "20000", str(seed)]
        running.append((folder, subprocess.Popen(command, env=environment(folder), stdout=subprocess.PIPE, text=True)))
    for folder, process in running:
        *expected, end = process.communicate(timeout=300)[0].splitlines()
        box = the_box(folder)
        assert (end, live(box), box.torn, box.dropped) == ("end", sorted(expected), 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_operations_keep_what_nccl_said_of_them(version: int, tmp_path: Path) -> None:
    """Function, sequence, count, type, algorithm and the communicator of an operation come through every version."""
    script = """comm 0 beef 2 4 1
coll 0 0 0 AllReduce 7 4096 2 R
enqueued 0
p2p 1 0 1 Send 100 3
proxy 0 0 0 1 2 5 1
progress 0
step 0 0
state 0 0 8 0
"""
    built = build()
    subprocess.run(
        [built.drive, built.plugin, str(version), "script"],
        input=script,
        text=True,
        check=True,
        env=environment(tmp_path),
    )
    box = the_box(tmp_path)
    (comm,) = box.comms
    coll, p2p = box.ops
    assert (comm.hash, comm.name, comm.live) == ("0xbeef", "name", True)
    if version > 3:  # v3 does not say them
        assert (comm.rank, comm.size, comm.nodes) == (1, 4, 2)
    assert (coll.kind, coll.func, coll.seq, coll.count, coll.datatype) == (
        "collective",
        "AllReduce",
        7,
        4096,
        "Float32",
    )
    assert (coll.algorithm, coll.protocol, coll.channels) == ("RING", "SIMPLE", 2)
    assert coll.enqueued_ns is not None and coll.enqueued_ns >= coll.started_ns
    assert (p2p.kind, p2p.func, p2p.count, p2p.peer, p2p.enqueued_ns) == ("p2p", "Send", 100, 3, None)
    assert coll.group and p2p.group and coll.group != p2p.group
    (transfer,) = box.transfers
    assert (transfer.func, transfer.seq, transfer.op) == ("AllReduce", 7, coll.serial)
    assert (transfer.channel, transfer.peer, transfer.sends, transfer.steps) == (1, 2, True, 5)
    assert [(step.step, step.state) for step in transfer.live] == [(0, "SendGPUWait")]
    assert coll.proxies == 1 and coll.proxies_done == 0
    assert abs(time.time_ns() - coll.started_ns) < 60e9


def test_a_killed_process_leaves_a_readable_file(tmp_path: Path) -> None:
    """SIGKILL at any moment, in the middle of events from four threads, leaves a file of which at most a slot a thread
    is torn."""
    built = build()
    for turn in range(6):
        folder = tmp_path / str(turn)
        folder.mkdir()
        process = subprocess.Popen(
            [built.drive, built.plugin, "5", "forever", "4", str(turn)], env=environment(folder), stdout=subprocess.PIPE
        )
        time.sleep(0.15 + 0.03 * turn)
        process.send_signal(signal.SIGKILL)
        process.wait()
        box = the_box(folder)
        assert box.torn <= 4
        assert len(box.comms) >= 3 and box.transfers and box.ops
        for transfer in box.transfers:
            assert 0 <= transfer.steps_done <= transfer.steps_started <= transfer.steps <= 40
            assert all(transfer.steps_done <= step.step < transfer.steps_started for step in transfer.live)


def test_a_running_process_is_read_while_it_writes(tmp_path: Path) -> None:
    """Whoever reads while four threads write gets whole slots: each live step lies between done and started."""
    built = build()
    process = subprocess.Popen(
        [built.drive, built.plugin, "6", "forever", "4", "9"], env=environment(tmp_path), stdout=subprocess.PIPE
    )
    try:
        time.sleep(0.3)
        (file,) = tmp_path.glob("*.ncclbb")
        kept = 0
        for _ in range(30):
            data, later = file.read_bytes(), file.read_bytes()
            box, gaps = blackbox_file.read_box(data, Source(file.name), later)
            assert not gaps
            for transfer in box.transfers:
                kept += 1
                assert 0 <= transfer.steps_done <= transfer.steps_started <= transfer.steps <= 40
                assert all(transfer.steps_done <= step.step < transfer.steps_started for step in transfer.live)
        assert kept > 30
    finally:
        process.kill()
        process.wait()


def test_full_tables_drop_and_count(tmp_path: Path) -> None:
    """More transfers than the smallest file has room for are dropped and counted, and those inside stay right."""
    lines = ["comm 0 1 1 2 0", "coll 0 0 0 AllReduce 0 1 1 R"]
    lines += [f"proxy {n} 0 0 {n % 60} {n % 1000} 4 {n % 2}" for n in range(3000)]
    built = build()
    subprocess.run(
        [built.drive, built.plugin, "5", "script"],
        input="\n".join(lines) + "\n",
        text=True,
        check=True,
        env=environment(tmp_path, HANGSCOPE_BLACKBOX_BYTES="131072"),
    )
    box = the_box(tmp_path)
    assert box.dropped > 1000
    assert 50 < len(box.transfers) < 3000
    assert {t.state for t in box.transfers} == {"live"}
    assert next(tmp_path.glob("*.ncclbb")).stat().st_size <= 131072 + 4096


def test_a_launch_of_more_operations_than_slots_keeps_its_kind(tmp_path: Path) -> None:
    """Transfers of an all_to_all over a thousand ranks know that they are sends or receives, and their launch."""
    lines = ["comm 0 1 1 1000 0", "p2p 0 0 0 Send 5 7", "p2p 1 0 1 Send 5 7"]
    lines += [f"p2p {n} 0 2 {'Send' if n % 2 else 'Recv'} 5 {n // 2}" for n in range(2, 2000)]
    lines += [f"proxy {n} 0 {n} 0 {n // 2} 4 {n % 2}" for n in range(2, 600)]
    built = build()
    subprocess.run(
        [built.drive, built.plugin, "5", "script"],
        input="\n".join(lines) + "\n",
        text=True,
        check=True,
        env=environment(tmp_path),
    )
    box = the_box(tmp_path)
    assert len(box.transfers) == 598 and not box.dropped
    assert all(t.func == ("Send" if t.sends else "Recv") for t in box.transfers)
    (group,) = {t.group for t in box.transfers}
    assert group == box.ops[-1].group


def test_a_destroyed_communicator_keeps_what_was_under_way(tmp_path: Path) -> None:
    """Aborting a communicator does not wipe what its transfers waited for; it marks them as cut off."""
    script = "comm 0 1 1 2 0\ncoll 0 0 0 AllReduce 0 1 1 R\nproxy 0 0 0 0 1 4 1\nstep 0 0\nstate 0 0 9 64\ndestroy 0\n"
    built = build()
    subprocess.run(
        [built.drive, built.plugin, "5", "script"], input=script, text=True, check=True, env=environment(tmp_path)
    )
    box = the_box(tmp_path)
    assert [(t.state, t.live[0].state) for t in box.transfers] == [("cut off", "SendWait")]
    assert not box.comms[0].live


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/x"])
def test_without_a_place_for_its_file_the_job_runs_on(place: str, tmp_path: Path) -> None:
    """Where the file cannot be made, every call still succeeds and nothing is recorded."""
    done = drive(tmp_path, 5, "random", "2", "1000", "1", HANGSCOPE_BLACKBOX_DIR=place)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread",),
}


@pytest.mark.parametrize("name", SANITIZERS)
@pytest.mark.parametrize("version", [4, 6])
def test_clean_under_sanitizers(name: str, version: int, tmp_path: Path) -> None:
    """Random events of eight threads run clean under AddressSanitizer and ThreadSanitizer."""
    flags = SANITIZERS[name]
    if not compiles(*flags):
        pytest.skip(f"the compiler has no {name} sanitizer here")
    done = drive(tmp_path, version, "random", "8", "20000", "7", flags=flags, ASAN_OPTIONS="detect_leaks=0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ERROR" not in done.stderr and "WARNING" not in done.stderr and "runtime error" not in done.stderr
    expected = done.stdout.splitlines()
    assert expected.pop() == "end"
    assert live(the_box(tmp_path)) == sorted(expected)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_clean_under_valgrind(tmp_path: Path) -> None:
    """valgrind finds no invalid access and no use of uninitialised memory."""
    done = drive(tmp_path, 5, "random", "3", "3000", "7", before=("valgrind", "-q", "--error-exitcode=9"))
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_event_costs_less_than_150_ns(tmp_path: Path) -> None:
    """The median event of the black box costs under 150 ns more than one of a plugin that does nothing."""
    built = build()
    for _ in range(3):  # the machine is shared: the best of three is the plugin's own
        done = drive(tmp_path, 5, "bench", "100000", str(built.empty))
        cost = json.loads(done.stdout)
        if cost["event_ns"] - cost["empty_event_ns"] < 150:
            break
    print(cost)
    assert cost["event_ns"] - cost["empty_event_ns"] < 150
