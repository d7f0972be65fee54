"""What torch.distributed's Python knows is read from outside: groups, the rank, arguments of calls, stores, the GIL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hangscope.recorder.live.gil_watch import keeps_gil
from hangscope.recorder.live.thread_waits import find_wait, parse_stacks
from hangscope.sources import stacks
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.distributed_state import DistributedState, calls_of

PYTHONS = tuple(f"python3.{minor}" for minor in range(10, 15))
FORGED = """
import ctypes, sys, time, types
books = types.ModuleType("torch.distributed.distributed_c10d")
sys.modules[books.__name__] = books
Group = type("torch._C._distributed_c10d.ProcessGroup", (), {})
world, evens = Group(), Group()
books._pg_names = {world: "0", evens: "ëvens"}
books._pg_backend_config = {world: "cpu:gloo", evens: "cpu:gloo"}
books._pg_group_ranks = {world: {rank: rank for rank in range(300)}, -100: {}, evens: {4: 2, 2: 1, 0: 0}}
CALLS = '''
def recv(tensor, src=None, group=None, tag=0, group_src=None):
    print("ready", flush=True)
    time.sleep(1000)

def _new_group_with_tag(ranks, group_name):
    recv([1], 1 << 40, tag=-7)
'''
exec(compile(CALLS, "/x/torch/distributed/distributed_c10d.py", "exec"), globals())
WRONG

def user(secret="not to be told"):
    _new_group_with_tag([0, 2, 70000], "ëvens")

def other():
    recv([1], group=evens, group_src=2)

THEN()
"""
REAL = """
import ctypes, os, re, sys
import torch, torch.distributed as dist
from torch.distributed import HashStore

def ready():
    print("ready", flush=True)

def waits_for_key(store):
    ready()
    store.get("nobody sets this")

def recv():
    ready()
    dist.recv(torch.ones(2), group_src=1, tag=7, group=pair)

def gil():
    ready()
    ctypes.PyDLL(None).sleep(1000)

def loops():
    ready()
    while True:
        pass

def calls():
    ready()
    while True:
        sum(range(3_000))

def matches():
    ready()
    re.match("(a+)+$", "a" * 60 + "b")

dist.init_process_group("gloo", init_method=sys.argv[2], rank=int(os.environ["RANK"]), world_size=3)
pair = dist.new_group([2, 0], group_desc="a pair")
if dist.get_rank() == 0:
    waits_for_key(HashStore()) if sys.argv[1] == "store" else globals()[sys.argv[1]]()
sys.stdin.read()
"""


@contextmanager
def started(python: str, *words: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    words = (python, "-c", *words)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ or None) as process:
        try:
            yield process
        finally:
            process.kill()


def forged(python: str, then: str, wrong: str = "") -> Any:
    return started(python, FORGED.replace("THEN", then).replace("WRONG", wrong))


def ready(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process.pid


def works(python: str) -> bool:
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS])
def test_values_are_read_of_every_python(python: str) -> None:
    """Members of groups, numbers of any size and sign, names and lists, of CPython 3.10 to 3.14; nothing of users'."""
    if not works(python):
        pytest.skip(f"{python} is not here")
    with forged(python, "user") as process:
        pid = ready(process)
        with DistributedState(pid) as state:
            world, evens = state.groups()
            calls = state.calls()
    assert world == {"name": "0", "desc": "", "backend": "cpu:gloo", "ranks": list(range(300))}
    assert evens == {"name": "ëvens", "desc": "", "backend": "cpu:gloo", "ranks": [0, 2, 4]}
    recv, new_group = calls
    assert recv.items() >= {"function": "recv", "src": 1 << 40, "tag": -7, "group": "0", "main": True}.items()
    assert new_group.items() >= {"function": "new_group", "ranks": [0, 2, 70000], "group": "ëvens"}.items()
    assert "not to be told" not in str(calls)
    with forged(python, "other") as process:
        [call] = calls_of(ready(process))
    assert call.items() >= {"group": "ëvens", "group_src": 2, "src": 4}.items()
    assert "tag" in call


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS])
@pytest.mark.parametrize("at_exit", [False, True])
def test_a_main_thread_at_its_end_is_seen(python: str, at_exit: bool) -> None:
    """While a handler at exit runs; the same function called before is no end."""
    if not works(python):
        pytest.skip(f"{python} is not here")
    script = "import atexit, threading, time\ndef late():\n    print('ready', flush=True)\n    time.sleep(1000)\n"
    with started(python, script + ("atexit.register(late)" if at_exit else "late()")) as process:
        pid = ready(process)
        with DistributedState(pid) as state:
            assert state.ends is at_exit
            assert not state.finalizing


@pytest.mark.parametrize(
    "wrong",
    [
        "books._pg_group_ranks[world] = {0: 0, 1: 7}",
        "books._pg_group_ranks[world] = {0: 0, 1: 0}",
        "books._pg_group_ranks[world] = {-1: 0}",
        "books._pg_group_ranks['x'] = {0: 0}",
        "books._pg_group_ranks[world] = {True: 0}",
        "books._pg_group_ranks[world] = {rank: rank for rank in range(200000)}",
        "books._pg_group_ranks[world] = 17",
        "books._pg_names[world] = 'x' * 100000",
    ],
)
def test_what_does_not_hang_together_is_refused(wrong: str) -> None:
    """A group of places that are not counted from 0, of another kind or of too many is nothing that is told."""
    with forged(sys.executable, "user", wrong) as process:
        pid = ready(process)
        with DistributedState(pid) as state, pytest.raises(CannotRead):
            state.groups()


def test_a_process_without_torch_says_so() -> None:
    """Nothing is known of a Python that has not imported torch.distributed."""
    with started(sys.executable, "print('ready', flush=True); input()") as process:
        pid = ready(process)
        with DistributedState(pid) as state, pytest.raises(CannotRead, match=r"torch\.distributed is not imported"):
            state.groups()


@contextmanager
def real(tmp_path: Path, then: str) -> Iterator[list[int]]:
    """Three ranks of torch, of which rank 0 is in what is asked for."""
    pytest.importorskip("torch")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", REAL, then, f"file://{tmp_path}/store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
        )
        for rank in range(3)
    ]
    try:
        ready(ranks[0])
        yield [rank.pid for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_a_real_rank_tells_its_groups_its_number_and_its_peer(tmp_path: Path) -> None:
    """As torch's own Python would: members by their place, the description, the global rank that it receives from."""
    with real(tmp_path, "recv") as pids, DistributedState(pids[0]) as state:
        groups = state.groups()
        own = state.own_rank()
        calls = state.calls()
        arguments = state.init_arguments()
    assert [(group["desc"], group["ranks"]) for group in groups] == [("default_pg", [0, 1, 2]), ("a pair", [0, 2])]
    assert own == (0, 3)
    assert arguments is None
    [call] = [call for call in calls if call["function"] == "recv"]
    assert call.items() >= {"src": 2, "tag": 7, "group": groups[1]["name"], "main": True}.items()


@pytest.mark.parametrize(
    ("then", "kept", "wait"),
    [
        ("store", False, "store.get"),
        ("gil", True, None),
        ("matches", True, None),
        ("loops", False, None),
        ("calls", False, None),
    ],
)
def test_a_wait_for_a_store_and_a_kept_gil_are_seen(tmp_path: Path, then: str, kept: bool, wait: str | None) -> None:
    """A thread with a store in hand waits in it; code in C that keeps the GIL is told from a loop in Python, also
    from one that makes the same call of C again and again."""
    with real(tmp_path, then) as pids:
        with DistributedState(pids[0]) as state:
            threads = state.open_stores()
        rows = [{**row, "store": row["os_thread_id"] in threads} for row in stacks.as_json(pids[0])]
        found = find_wait(parse_stacks(rows), {}, lambda _: 'store.get("nobody sets this")' if wait else "pass")
        assert (str(found).split(" (")[0] if found else None) == wait
        assert keeps_gil(pids[0], threading.Event(), 0.5) is kept
