"""Incidents that `hangscope run` saved on an H200 of programs that communicate past the flight recorder.

`recorded_engines.tar.xz` holds what tests/live_scripts/run.py --engines left there (torch 2.11.0, NCCL 2.28.9, four
ranks on one GPU over loopback sockets), packed by tests/record/pack_live.py with black boxes and the truth: a replayed
CUDA graph, NCCL by ctypes, the weight sync of two programs, a server of three kinds of processes, kernels that wait for
a flag, a program in C; and two with what the GPUs said at last: a kernel that never ends, and a replay.
"""

from __future__ import annotations

import re
import shutil
from itertools import combinations
from pathlib import Path

import pytest

import hangscope
from frozen import files_of, injected
from hangscope.report.terminal import render_text

ARCHIVE = "recorded_engines.tar.xz"
NAMES = ("graph", "pynccl", "weights", "server", "spin", "program", "kernel-GPU-cores", "graph-GPU-cores")
SOURCES = ("blackbox", "stacks", "logs", "dumps", "node.json", "gpu")
LOST = [lost for count in (1, 2) for lost in combinations(SOURCES, count)]


def incident(name: str, target: Path, lost: tuple[str, ...] = ()) -> Path:
    for member, data in files_of(ARCHIVE, name).items():
        path = target / member
        if path.name != "truth.json":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    for each in lost:
        for path in (target / name).glob(f"nodes/*/{each}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return target / name


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_what_was_injected(name: str, tmp_path: Path) -> None:
    """Kind and culprit, and the function in which it stands in the first two lines, where there is one of Python."""
    truth = injected(ARCHIVE, name)
    found = hangscope.diagnose(hangscope.load(incident(name, tmp_path)))
    assert (found.outcome, found.kind, [c.rank for c in found.culprits]) == ("hang", truth["kind"], truth["culprits"])
    first = " ".join(render_text(found, width=200).splitlines()[:2])
    assert not truth["line"] or re.search(rf"\b{truth['line']}\b", first), first


@pytest.mark.parametrize("name", NAMES)
def test_without_some_kinds_of_evidence_no_innocent_is_named_for_sure(name: str, tmp_path: Path) -> None:
    """Boxes, stacks, logs, dumps, node.json gone, one or two of them: weaker, and never all well."""
    guilty = set(injected(ARCHIVE, name)["culprits"])
    for number, lost in enumerate(LOST):
        found = hangscope.diagnose(hangscope.load(incident(name, tmp_path / str(number), lost)))
        innocent = {c.rank for c in found.culprits} - guilty
        assert not innocent or found.confidence == "low", (lost, found.headline)
        assert found.outcome != "ok", (lost, found.headline)


def test_who_waits_in_a_replay_waits_in_no_numbered_call(tmp_path: Path) -> None:
    """The number that NCCL repeats is that of the call which was captured, and everybody has completed that one."""
    found = hangscope.diagnose(hangscope.load(incident("graph", tmp_path)))
    assert {victim.rank: victim.operation for victim in found.victims} == dict.fromkeys((0, 1, 3), "AllReduce")
