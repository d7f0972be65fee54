"""Starts the job of outside_job.py, and compares what is read from outside with torch's own dump, field by field."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.sources.flight_recorder import outside

SCRIPT = Path(__file__).with_name("outside_job.py")


@dataclass
class Job:
    place: Path
    ranks: list[subprocess.Popen[bytes]]
    asked: int = 0

    def dumps_of_torch(self, count: int | None = None) -> list[Any]:
        """torch's own dump of every rank, or of the first ones, made now."""
        (self.place / f"ask_{self.asked}").touch()
        paths = [self.place / f"torch_{rank}_{self.asked}" for rank in range(len(self.ranks))][:count]
        self.asked += 1
        _until(lambda: all(path.exists() for path in paths), self.ranks, 120)
        return [pickle.loads(path.read_bytes()) for path in paths]


@contextmanager
def job(place: Path, *words: str, ranks: int = 2, python: str = sys.executable, **settings: str) -> Iterator[Job]:
    """A job that has recorded all that it was asked to."""
    place.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), **settings}
    of_ranks = [{**environ, "RANK": str(rank)} for rank in range(ranks)]
    if "nccl" in words:
        of_ranks = [{**of_one, **one_gpu(of_one["RANK"])} for of_one in of_ranks]
    started = [
        subprocess.Popen([*python.split(), str(SCRIPT), "--dir", str(place), *words], env=of_one) for of_one in of_ranks
    ]
    try:
        _until(lambda: all((place / f"ready_{rank}").exists() for rank in range(ranks)), started, 120)
        yield Job(place, started)
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()


def one_gpu(rank: str) -> dict[str, str]:
    """Several ranks on one GPU: NCCL takes each for a node of its own."""
    sockets = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_NCHANNELS": "2"}
    return {**sockets, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_HOSTID": f"outside-{rank}"}


def _until(done: Any, ranks: list[subprocess.Popen[bytes]], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert all(each.poll() is None for each in ranks), "a rank has ended"
        assert time.monotonic() < until, "the job takes too long"
        time.sleep(0.05)


def differences(of_torch: Any, read: Any) -> list[str]:
    """Every field of a dump that another has not, or has with another value or type."""
    found = [
        f"{name}: {of_torch.get(name)!r} {read.get(name)!r}"
        for name in of_torch.keys() | read.keys()
        if name != "entries" and of_torch.get(name) != read.get(name)
    ]
    theirs, ours = of_torch.get("entries", []), read.get("entries", [])
    if len(theirs) != len(ours):
        found.append(f"{len(theirs)} entries, {len(ours)} read")
    for one, other in zip(theirs, ours, strict=False):
        found += differences_of_entries(one, other)
    return found


def differences_of_entries(of_torch: Any, read: Any) -> list[str]:
    found = []
    for name in of_torch.keys() | read.keys():
        a, b = of_torch.get(name, "absent"), read.get(name, "absent")
        same = a == b and (type(a) is type(b) or name == "process_group")
        found += [] if same else [f"entry {of_torch['record_id']}, {name}: {a!r} {b!r}"]
    return found


def read_from_outside(pid: int, backend: str = "gloo") -> Any:
    """As it would be saved, and read again."""
    with outside.open_process(pid) as process:
        return pickle.loads(outside.dump_bytes(process.dump(backend)))
