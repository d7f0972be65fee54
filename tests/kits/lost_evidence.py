"""Ways to take evidence away from a recorded case: what people really have is seldom complete."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kits.older_dumps import repacked, unpacked
from kits.recorded import CASES, truth_of

Truth = dict[str, Any]


def _dumps(folder: Path) -> dict[int, Path]:
    return {int(m[1]): p for p in folder.rglob("*") if (m := re.fullmatch(r"nccl_trace_rank_(\d+)", p.name))}


def untouched(folder: Path, truth: Truth) -> None:
    """Everything is there."""


def culprit_dumps_removed(folder: Path, truth: Truth) -> None:
    """The dumps of the culprits are missing."""
    for rank in truth["culprits"]:
        for path in folder.rglob(f"nccl_trace_rank_{rank}*"):
            path.unlink()


def no_roster_no_ras(folder: Path, truth: Truth) -> None:
    """Neither the launcher's record nor RAS answers."""
    for name in ("roster.json", "ras.json", "ras.txt"):
        (folder / name).unlink(missing_ok=True)


def no_nccl_logs(folder: Path, truth: Truth) -> None:
    """NCCL's logs are missing."""
    for path in folder.rglob("nccl.*.log"):
        path.unlink()


def logs_only(folder: Path, truth: Truth) -> None:
    """Nothing but the ranks' own output."""
    no_roster_no_ras(folder, truth)
    no_nccl_logs(folder, truth)
    for path in folder.rglob("nccl_trace_rank_*"):
        path.unlink()
    for path in folder.rglob("stacks"):
        shutil.rmtree(path)


def dumps_only(folder: Path, truth: Truth) -> None:
    """Nothing but the dumps."""
    no_roster_no_ras(folder, truth)
    for path in list(folder.rglob("*.log")):
        path.unlink()
    for path in folder.rglob("stacks"):
        shutil.rmtree(path)


def renamed_and_shuffled(folder: Path, truth: Truth) -> None:
    """Files lie in one folder under other names, in another order."""
    shuffle = random.Random(7)
    flat = folder / "all"
    flat.mkdir()
    files = [p for p in folder.rglob("*") if p.is_file() and flat not in p.parents]
    shuffle.shuffle(files)
    for index, path in enumerate(files):
        dump = re.fullmatch(r"nccl_trace_rank_(\d+)", path.name)
        name = f"upload-{dump[1]}" if dump else f"{index:03d}x-{path.suffix.strip('.') or 'bin'}.txt"
        path.rename(flat / name)


def innocent_removed(folder: Path, truth: Truth) -> None:
    """The dump of one rank that did nothing wrong is missing."""
    rank = _innocent(folder, truth)
    if rank is not None:
        _dumps(folder)[rank].unlink()


def innocent_truncated(folder: Path, truth: Truth) -> None:
    """The dump of one rank that did nothing wrong breaks off after 40 %."""
    rank = _innocent(folder, truth)
    if rank is not None:
        path = _dumps(folder)[rank]
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.4)])


def _innocent(folder: Path, truth: Truth) -> int | None:
    accused = {*truth["culprits"], *(r for other in truth["accept"] for r in other)}
    there = sorted(set(_dumps(folder)) - accused)
    return there[0] if there else None


def timing_off(folder: Path, truth: Truth) -> None:
    """The recorder ran without timing: "started" is never seen."""
    for path in _dumps(folder).values():
        dump, as_json = unpacked(path.read_bytes())
        for entry in dump["entries"]:
            if entry["state"] == "started":
                entry["state"] = "scheduled"
            entry["time_discovered_started_ns"] = None
            entry.pop("duration_ms", None)
        for status in dump["pg_status"].values():
            status["last_started_collective"] = -1
        path.write_bytes(repacked(dump, as_json))
    for path in folder.rglob("nccl_trace_rank_*.json"):
        path.unlink()


PERTURBATIONS: tuple[Callable[[Path, Truth], None], ...] = (
    untouched,
    culprit_dumps_removed,
    no_roster_no_ras,
    no_nccl_logs,
    logs_only,
    dumps_only,
    renamed_and_shuffled,
    innocent_removed,
    innocent_truncated,
    timing_off,
)


def perturbed(case: str, perturbation: Callable[[Path, Truth], None], target: Path, suite: Path = CASES) -> Path:
    """A copy of a case with some evidence taken away; its truth.json is not in it."""
    folder = target / case
    shutil.copytree(suite / case, folder)
    (folder / "truth.json").unlink()
    perturbation(folder, truth_of(case, suite))
    return folder
