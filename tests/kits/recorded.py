"""The recorded jobs: where they lie, what was injected, what their dumps show, and what hangscope says of them.

A verdict on a folder as it was recorded is made once a process, however many tests look at it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import hangscope
from hangscope.model import Job
from kits.older_dumps import inside_a_batch, pending, unpacked

HERE = Path(__file__).parents[1]
CASES = HERE / "cases"
SUITES = {"nccl": CASES, "gloo": HERE / "cases_gloo", "incident": HERE / "incidents"}
DUMP = re.compile(r"(?:(?:nccl|comm_lib)_trace_rank_|nccl_rank_|last_rank_)(\d+)(?:\.json|\.pickle)?")
RANK_LOG = re.compile(r"rank_(\d+)\.log")


def truth_of(case: str, suite: Path = CASES) -> dict[str, Any]:
    """What was injected."""
    found: dict[str, Any] = json.loads((suite / case / "truth.json").read_text())
    return found


def all_cases(suite: Path = CASES) -> list[str]:
    return sorted(path.parent.name for path in suite.glob("*/truth.json"))


@cache
def job_of(folder: Path) -> Job:
    """What is read from it. It is shared: whoever wants another makes one by `replace`."""
    return hangscope.load([folder])


@cache
def verdict_of(folder: Path) -> hangscope.Diagnosis:
    return hangscope.diagnose(job_of(folder))


# ---- what the dumps show ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """A call that a rank is in: with whom, and which."""

    partners: frozenset[int]
    call: tuple[str, int, str]
    pair: bool
    """Whether it is between pairs of ranks, whose numbers differ from rank to rank."""


@dataclass
class Recorded:
    """One recorded job: its truth, its files and what each dump shows."""

    suite: str
    name: str
    folder: Path
    truth: dict[str, Any]
    dumps: dict[int, list[Path]] = field(default_factory=dict)
    logs: dict[int, Path] = field(default_factory=dict)
    waits: dict[int, list[Wait]] = field(default_factory=dict)
    calls: dict[int, set[tuple[str, int, str]]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.name}"

    @property
    def guilty(self) -> list[int]:
        return list(self.truth["culprits"])

    @property
    def honest(self) -> list[list[int]]:
        """The sets of ranks that are a right answer on full evidence."""
        return [self.guilty, *(self.truth.get("accept") or [])]

    @property
    def kinds(self) -> set[str]:
        return {self.truth["kind"], *(self.truth.get("accept_kinds") or [])}

    @property
    def ranks(self) -> set[int]:
        return set(range(self.truth.get("world_size") or 4)) | set(self.dumps)

    def by_node(self) -> dict[str, list[int]]:
        """Ranks with a dump, by the folder of their node."""
        found: dict[str, list[int]] = {}
        for rank, files in sorted(self.dumps.items()):
            place = files[0].relative_to(self.folder).parts
            found.setdefault(place[1] if place[0] == "nodes" else place[0], []).append(rank)
        return found


@cache
def recorded(suites: Iterable[str] = tuple(SUITES)) -> list[Recorded]:
    """Every recorded job that has dumps."""
    found = [read_case(suite, SUITES[suite] / case) for suite in suites for case in all_cases(SUITES[suite])]
    return [case for case in found if case.dumps]


def read_case(suite: str, folder: Path) -> Recorded:
    """One job with its truth, and what each of its dumps shows."""
    case = Recorded(suite, folder.name, folder, truth_of(folder.name, folder.parent))
    for path in sorted(folder.rglob("*")):
        if match := DUMP.fullmatch(path.name):
            case.dumps.setdefault(int(match[1]), []).append(path)
        elif match := RANK_LOG.fullmatch(path.name):
            case.logs[int(match[1])] = path
    for rank, files in case.dumps.items():
        _look(case, rank, max(files, key=lambda path: (not path.name.startswith("last_"), path.stat().st_size)))
    return case


def _look(case: Recorded, rank: int, path: Path) -> None:
    """What this rank's dump shows: every call that it made, and those that it is in."""
    dump, _ = unpacked(path.read_bytes())
    entries = dump.get("entries", [])
    inner = inside_a_batch(entries)
    case.calls[rank] = {_call(entry) for entry in entries}
    case.waits[rank] = []
    for at, entry in enumerate(entries):
        if at in inner or not pending(entry):
            continue
        line = dump["pg_config"].get(entry["process_group"][0], {})
        members = json.loads(line.get("ranks", "[]")) or sorted(case.ranks)
        batch = [e for i, e in enumerate(entries) if i in inner and _call(e)[:2] == _call(entry)[:2]] or [entry]
        peers = {
            members[int(local)]
            for e in batch
            for local in re.findall(r"(?:->|<-)(\d+)", e["profiling_name"])
            if int(local) < len(members)
        }
        case.waits[rank].append(Wait(frozenset(peers or members) - {rank}, _call(entry), bool(peers)))


def _call(entry: Mapping[str, Any]) -> tuple[str, int, str]:
    return (entry["process_group"][0], entry["collective_seq_id"], entry["profiling_name"])
