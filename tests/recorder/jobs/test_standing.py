"""Where a rank stands, from frames and what the kernel counts, without any process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hangscope.recorder.agent.startup_report import StartupReport
from hangscope.recorder.live.companion_hook import isolating_flag
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.thread_waits import RankPosition, StackFrame, ThreadWait, threads, where
from hangscope.recorder.live.unrecorded_waits import UnrecordedWaits
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker
from hangscope.recorder.process.linux_process import ProcessHandle
from hangscope.recorder.process.thread_activity import Sample, works

TORCH = "/env/lib/python3.12/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"


def thread(*frames: tuple[str, int, str], main: bool = True, number: int = 7) -> dict[str, Any]:
    listed = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {"os_thread_id": number, "main": main, "frames": listed}


def stands(*given: dict[str, Any], line: str = "", counters: dict[str, Any] | None = None) -> ThreadWait | None:
    return where(threads({"threads": list(given)}), counters or {}, lambda _: line)


STORE_GET = {"pytorch.wait_counter.TCPStore__get": {"active_count": 1}}
IN_GROUP = thread((C10D, 9, "_store_based_barrier"), (C10D, 5, "new_group"), ("/job/train.py", 3, "<module>"))
IN_INIT = thread((C10D, 9, "_new_process_group_helper"), (C10D, 5, "init_process_group"), ("/job/train.py", 3, "main"))
SCHEDULE = f"{TORCH}/distributed/pipelining/schedules.py"
IN_PIPELINE = thread((SCHEDULE, 9, "_wait_batch_p2p"), (SCHEDULE, 5, "step"), ("/job/train.py", 3, "<module>"))
IN_USER_CODE = thread(("/job/train.py", 8, "exchange"), ("/job/train.py", 3, "<module>"))
IN_FORWARD = thread(("/job/model.py", 8, "forward"), (f"{TORCH}/distributed/fsdp/x.py", 5, "f"), ("/job/t.py", 3, "m"))


def test_a_backward_is_a_wait_only_where_nothing_counts_operations() -> None:
    """DDP waits inside autograd, below Python. Counters tell better, and a forward is none."""
    graph = f"{TORCH}/autograd/graph.py"
    given = threads([thread((graph, 9, "_engine_run_backward"), ("/job/train.py", 3, "step"))])
    assert where(given, {}, lambda _: "") is None
    found = where(given, {}, lambda _: "", counted=False)
    assert (found.call, str(found.at)) == ("backward", "train.py:3") if found is not None else False
    assert where(threads([IN_FORWARD]), {}, lambda _: "", counted=False) is None


@pytest.mark.parametrize(
    ("given", "line", "counters", "call"),
    [
        (IN_GROUP, "", {}, "new_group"),
        (IN_PIPELINE, "", {}, "step"),
        (IN_USER_CODE, "    for w in work: w.wait()", {}, "w.wait"),
        (IN_USER_CODE, "key = store.get('x')", STORE_GET, "store.get"),
    ],
)
def test_waits_of_torch_distributed_are_known(given: Any, line: str, counters: Any, call: str) -> None:
    """By the file that a thread is in, by the line that calls into C, or by PyTorch's own counter of open calls."""
    found = stands(given, line=line, counters=counters)
    assert found is not None
    assert (found.call, found.in_init, str(found.at)[:5]) == (call, False, "train")


def test_coming_together_is_told_from_waiting_later() -> None:
    """Ranks start minutes apart: init_process_group may take longer than anything after it."""
    found = stands(IN_INIT)
    assert found is not None
    assert (found.call, found.in_init) == ("init_process_group", True)
    store = (f"{TORCH}/distributed/rendezvous.py", 190, "_create_c10d_store")
    early = stands(thread(store, (C10D, 5, "init_process_group"), ("/job/train.py", 3, "main")))
    assert early is not None
    assert (early.call, early.in_init) == ("rendezvous", True)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (IN_USER_CODE, "batch = loader.get()"),
        (IN_USER_CODE, "time.sleep(600)"),
        (IN_FORWARD, "return self.linear(x)"),
        (thread(("/env/lib/python3.12/site-packages/datasets/x.py", 1, "download"), ("/job/t.py", 3, "m")), ""),
        (thread((f"{TORCH}/distributed/run.py", 1, "main"), ("/job/t.py", 3, "m")), ""),
    ],
)
def test_a_rank_elsewhere_waits_in_nothing(given: Any, line: str) -> None:
    """Data, downloads, compute inside FSDP's own frames and the launcher are no waits of torch.distributed."""
    assert stands(given, line=line) is None


def test_another_thread_counts_only_where_the_main_one_waits_for_it() -> None:
    """A helper's wait says nothing about a rank whose main thread works."""
    beside = thread((C10D, 5, "recv"), ("/job/train.py", 9, "loop"), main=False, number=8)
    queue = thread(("/env/lib/python3.12/threading.py", 1, "wait"), ("/job/train.py", 3, "<module>"))
    assert stands(IN_USER_CODE, beside, line="loss = model(x)") is None
    found = stands(queue, beside)
    assert found is not None
    assert found.thread == 8


def test_nobody_can_tell_whether_a_backward_waits() -> None:
    """DDP waits for its peers below Python: a rank in autograd is neither inside nor outside."""
    engine = (f"{TORCH}/autograd/graph.py", 9, "_engine_run_backward")
    for given, outside in ((thread(engine, ("/job/t.py", 3, "m")), False), (IN_USER_CODE, True)):
        position, found = RankPosition(), threads({"threads": [given]})
        position.take(found, where(found, {}, lambda _: "loss = model(x)"), quiet_since=1.0, now=2.0)
        assert (position.wait, position.outside) == (None, outside)


def test_a_rank_stands_from_its_last_sign_of_progress_and_moves_by_its_line() -> None:
    """The first look counts from when the counters stopped, the next only if nothing changed."""
    position, found = RankPosition(), threads({"threads": [IN_GROUP]})
    wait = where(found, {}, lambda _: "")
    position.take(found, wait, quiet_since=10.0, now=25.0)
    position.take(found, wait, quiet_since=10.0, now=30.0)
    assert (position.since, position.samples, position.moves) == (10.0, 2, 0)
    elsewhere = threads({"threads": [IN_PIPELINE]})
    position.take(elsewhere, where(elsewhere, {}, lambda _: ""), quiet_since=10.0, now=35.0)
    assert (position.since, position.samples, position.moves) == (35.0, 1, 1)


@pytest.mark.parametrize(
    ("cpu_s", "switches", "may_spin", "expected"),
    [
        (0.0, 0, False, False),
        (0.0, 40, False, True),
        (0.5, 0, False, True),
        (2.0, 0, False, True),
        (2.0, 1, True, False),
    ],
)
def test_work_is_told_from_waiting_by_the_kernel(cpu_s: float, switches: int, may_spin: bool, expected: bool) -> None:
    """CPU time or context switches are work; a wait that spins is none, where waits may spin."""
    assert works(Sample(0.0, 5.0, 100), Sample(2.0, 5.0 + cpu_s, 100 + switches), may_spin=may_spin) is expected


@pytest.mark.parametrize("value", [None, [], {"threads": 3}, {"threads": [{"frames": [3, {"filename": 4}]}, "x"]}])
def test_an_odd_answer_is_no_stack(value: Any) -> None:
    """Whatever a process answers, nobody is seen waiting in it."""
    assert where(threads(value), {}, lambda _: "") is None


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["python", "-uE", "train.py"], "-E"),
        (["python", "-X", "dev", "-S", "train.py"], "-S"),
        (["python", "-W", "ignore", "train.py", "-I"], None),
        (["python", "-m", "train", "-E"], None),
        (["python", "-c", "pass", "-S"], None),
        (["python"], None),
    ],
)
def test_pythons_own_flags_are_told_from_the_scripts(words: list[str], flag: str | None) -> None:
    """Only what stands before the script keeps the companion out."""
    assert isolating_flag(words) == flag


# ---- a wait that polls -----------------------------------------------------------------------------------------------

IN_COLLECTIVE = thread(
    (C10D, 9, "all_reduce"), (f"{TORCH}/distributed/c10d_logger.py", 8, "wrapper"), ("/t.py", 3, "m")
)
FUNCTIONAL = (f"{TORCH}/distributed/_functional_collectives.py", 9, "all_reduce")
IN_FUNCTIONAL = thread((f"{TORCH}/_ops.py", 7, "__call__"), FUNCTIONAL, ("/job/train.py", 3, "main"))
IN_COMPILED = thread((f"{TORCH}/_ops.py", 7, "__call__"), ("/tmp/torchinductor_me/x/cx.py", 90, "call"))
COMPILED_LINE = "    torch.ops._c10d_functional.all_gather_into_tensor_out.default(arg0, 2, '0', out=buf1)"


@pytest.mark.parametrize(
    ("given", "line", "polls"),
    [
        (IN_COLLECTIVE, "", True),
        (IN_FUNCTIONAL, "", True),
        (IN_COMPILED, COMPILED_LINE, True),
        (thread((C10D, 9, "_object_to_tensor"), (C10D, 5, "all_gather_object"), ("/job/t.py", 3, "m")), "", False),
        (thread((f"{TORCH}/distributed/checkpoint/filesystem.py", 9, "write"), ("/job/t.py", 3, "m")), "", False),
        (IN_USER_CODE, "w.wait()", False),
    ],
)
def test_only_inside_a_collective_is_a_busy_thread_a_waiting_one(given: Any, line: str, polls: bool) -> None:
    """NCCL polls while it connects; who pickles an object or writes a checkpoint is at work."""
    found = stands(given, line=line)
    assert found is not None
    assert found.polls is polls


@pytest.mark.parametrize(("given", "found"), [(IN_COLLECTIVE, True), (IN_USER_CODE, False), (IN_PIPELINE, False)])
def test_a_rank_that_is_busy_inside_a_collective_is_noticed(given: Any, found: bool, tmp_path: Path) -> None:
    """A thread that takes all of a core and gives it away again and again, as NCCL's does while it waits for a peer."""
    code = "import time\nwhile True:\n    sum(range(300000)); time.sleep(0.001)"
    with subprocess.Popen([sys.executable, "-c", code]) as spins, socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(tmp_path / "s"))
            asked: dict[str, Any] = {"socket": str(tmp_path / "s"), "handlers": frozenset(("hangscope_stacks",))}
            rank, sense = (
                WatchedRank(RankProcess(spins.pid, 0, world_size=2, **asked), ProcessHandle(spins.pid)),
                UnrecordedWaits(),
            )
            began = time.monotonic()
            while time.monotonic() < began + 5.0:
                now = time.monotonic()
                sense.turn([rank], Asker(), 2.0, now)
                sense.take(rank, {"threads": [given]}, now)
                time.sleep(0.5)
            assert bool(sense.stuck([rank], (), 2.0, time.monotonic())) is found
        finally:
            spins.kill()


def test_ranks_that_all_connect_may_take_longer() -> None:
    """Nobody is missing while every rank is at work inside a collective; where one stands elsewhere, it is."""

    def busy(number: int, **stands: Any) -> WatchedRank:
        wait = ThreadWait("all_reduce", StackFrame("/job/train.py", 3, "main"), None, polls=True)
        position = RankPosition(since=0.0, samples=3, wait=wait, spins=True, **stands)
        return WatchedRank(
            RankProcess(os.getpid(), number, world_size=2),
            ProcessHandle(os.getpid()),
            position=position,
            quiet_since=0.0,
        )

    sense, elsewhere = UnrecordedWaits(), busy(1)
    assert sense.stuck([busy(0), busy(1)], (), 10.0, now=39.0) == []
    assert len(sense.stuck([busy(0), busy(1)], (), 10.0, now=41.0)) == 2
    elsewhere.position = RankPosition(since=0.0, samples=3, outside=True)
    assert [stood.rank.number for stood in sense.stuck([busy(0), elsewhere], (), 10.0, now=11.0)] == [0]


# ---- a start that sticks ---------------------------------------------------------------------------------------------


def in_init(number: int, since: float, *, world_size: int, call: str = "init_process_group") -> WatchedRank:
    wait = ThreadWait(call, StackFrame("/job/train.py", 3, "main"), None, in_init=call == "init_process_group")
    process = RankProcess(
        os.getpid(), number, world_size=world_size, restart=1, handlers=frozenset(("hangscope_progress",))
    )
    position = RankPosition(since=since, samples=2, wait=wait)
    return WatchedRank(process, ProcessHandle(os.getpid()), position=position, quiet_since=since, shares_store=True)


def test_a_start_in_which_everybody_waits_is_late_after_the_threshold() -> None:
    """Ranks start minutes apart: four times that while one has yet to come, or has only just come."""
    sense, both = UnrecordedWaits(), [in_init(0, 0.0, world_size=2), in_init(1, 5.0, world_size=2)]
    assert [stood.rank.number for stood in sense.stuck(both, (), 10.0, now=16.0)] == [0, 1]
    assert sense.stuck(both, (), 10.0, now=14.0) == []
    of_three = [in_init(0, 0.0, world_size=3), in_init(1, 0.0, world_size=3)]
    assert sense.stuck(of_three, (), 10.0, now=39.0) == []
    assert len(sense.stuck(of_three, (), 10.0, now=41.0)) == 2
    elsewhere = [in_init(0, 0.0, world_size=2), in_init(1, 0.0, world_size=2, call="new_group")]
    assert [stood.wait.call for stood in sense.stuck(elsewhere, (), 10.0, now=20.0)] == ["new_group"]


def test_a_rank_of_a_later_start_may_find_the_addresses_of_the_one_before() -> None:
    """Only over torchrun's shared store, and only until it has joined."""
    rank = in_init(0, 0.0, world_size=2)
    assert rank.may_find_the_dead
    rank.groups = [{"name": "0"}]
    assert not rank.may_find_the_dead
    first = in_init(0, 0.0, world_size=2)
    first.process = replace(first.process, restart=0)
    own = in_init(0, 0.0, world_size=2)
    own.shares_store = False
    assert not first.may_find_the_dead
    assert not own.may_find_the_dead


def test_a_companion_that_comes_late_is_taken_all_the_same(tmp_path: Path) -> None:
    """A rank whose import of torch took so long that it was watched from outside is asked from then on, and said."""
    polling, roll, me = Polling(tmp_path), StartupReport(environ_rank=False), os.getpid()
    polling._add(RankProcess(me, 0, world_size=1, local_world_size=1))
    assert (roll.line(list(polling), "", 0.0) or "").startswith("watching 0 of 1 ranks. not rank 0")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        registration = {"pid": me, "rank": 0, "world_size": 1, "local_world_size": 1, "socket": str(tmp_path / "s")}
        (tmp_path / f"{me}.json").write_text(json.dumps(registration))
        polling._discover(1.0, None)
        assert polling.ranks[0].process.registered
        assert roll.line(list(polling), "", 1.0) == "watching 1 of 1 ranks"
        assert roll.line(list(polling), "", 2.0) is None
    polling.close()
