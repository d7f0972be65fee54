"""Files that other nodes wrote into the run's directory, read as what they are: input.

One strict schema a file. A field of another type counts as not said, text is cut and cleaned before anybody prints it,
numbers have bounds, and a file that is no such object costs that node's part, never the run.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope import engine_roles
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import read_below

STATUS_BYTES = 16 << 20
SMALL_BYTES = 1 << 20
MOST_RANKS = 4096
"""Ranks of one node, and groups of one rank, that are believed."""
MOST_TEXT = 1000
MOST_MADE = 8
NOT_KNOWN = "not known"
"""How a job ended whose launcher is nobody's child here, where the kernel does not tell its status."""
DETACHED = "detached"
"""The watch ended, and the job went on."""


@dataclass(frozen=True, slots=True)
class GroupCounter:
    recorder: str
    group: str
    enqueued: int
    completed: int
    still_s: float
    name: str = ""
    """What tells groups of one description apart; empty where the agent did not know."""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank as its node's agent described it."""

    rank: int
    pid: int = 0
    state: str = "?"
    exit_status: int | None = None
    last_poll_at: float | None = None
    waits: str = ""
    waits_s: float | None = None
    group: str = ""
    group_name: str = ""
    seq: int | None = None
    rate: float | None = None
    """Operations launched a second, lately."""
    meets_at: str = ""
    """Where it looks for the others, while it is in its start."""
    works: bool = False
    """Whether its agent saw it use the CPU, or read and write, during a stall."""
    prepares: bool = False
    """Whether it was last seen to compile or to import, and at work."""
    groups: tuple[GroupCounter, ...] = ()
    code: str = ""
    """``train.py:8 save``: the user's line at which it is, while it does not move."""
    role: str = ""
    """``Worker_TP3``: what its engine calls it."""


@dataclass(frozen=True, slots=True)
class VerdictNote:
    """What a verdict says in a line or two. `places` are the culprits' lines of code, `nodes` where they run."""

    outcome: str
    headline: str
    confidence: str
    places: tuple[str, ...] = ()
    kind: str = ""
    nodes: tuple[str, ...] = ()

    def in_a_line(self) -> str:
        """For the end of a log, which may be all of it that is kept: pods' statuses have 2 KiB."""
        where = f"; node {self.nodes[0]}" if len(self.nodes) == 1 else ""
        return f"the {self.outcome} ({self.kind}): {self.headline}{where}; confidence: {self.confidence}"


@dataclass(frozen=True, slots=True)
class CaptureNote:
    incident: str
    reason: str
    detail: str
    at: float


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """status.json of one node."""

    node: str
    job: str
    attempt: str
    world_size: int | None = None
    local_world_size: int = 0
    nodes: int | None = None
    """On how many nodes the job runs, as far as its ranks tell."""
    command_pid: int | None = None
    agent_pid: int | None = None
    sockets: str = ""
    ended: bool = False
    ended_well: bool = False
    threshold_s: float | None = None
    at: float | None = None
    """When it was written, by the node's own clock."""
    pause_ago_s: float | None = None
    """How long ago a pause that its ranks announced has ended, 0 while it lasts; None where there was none."""
    live: tuple[RankRow, ...] = ()
    captures: tuple[CaptureNote, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """stall.json: who asks all agents to capture, and why."""

    by: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class RunFile:
    """run.json: which attempt of which job a directory belongs to."""

    job: str
    attempt: str
    made: int = 0
    """How many directories, this one and those above it, were made for the run."""
    session: str = ""
    """Which of several snapshots of one job it is; empty for a run."""


def status(root: Path, name: str, owner: int | None = None) -> NodeStatus | None:
    """A node's status; None where there is none, or none that can be read as one, or not of user `owner`'s."""
    value = read_object(root, name, STATUS_BYTES, owner)
    if not value:
        return None
    live = tuple(row for item in _list(value.get("live")) if (row := _row(item)) is not None)
    notes = tuple(_capture(item) for item in _list(value.get("captures"))[:1000] if isinstance(item, dict))
    return NodeStatus(
        node=text(value.get("node")) or name.split("/")[-2],
        job=text(value.get("job")),
        attempt=text(value.get("attempt")),
        world_size=_between(value.get("world_size"), 1, 1 << 22),
        local_world_size=_between(value.get("local_world_size"), 0, MOST_RANKS) or 0,
        nodes=_between(value.get("nodes"), 1, 1 << 22),
        command_pid=_between(value.get("command_pid"), 2, 1 << 30),
        agent_pid=_between(value.get("agent_pid"), 2, 1 << 30),
        sockets=text(value.get("sockets")),
        ended=value.get("ended") is not None,
        ended_well=value.get("ended") in (0, DETACHED, NOT_KNOWN) and value.get("ended") is not False,
        threshold_s=finite(value.get("threshold_s")),
        at=finite(value.get("at")),
        pause_ago_s=finite(value.get("pause_ago_s")),
        live=live,
        captures=notes,
    )


def agent_address(root: Path, name: str, owner: int | None = None) -> str:
    """The address that an agent gave in its agent.json; empty where it is none that another machine can have."""
    try:
        address = ipaddress.ip_address(text(read_object(root, name, SMALL_BYTES, owner).get("address")))
    except ValueError:
        return ""
    usable = not (address.is_loopback or address.is_multicast or address.is_unspecified)
    return str(address) if usable else ""


def agent_node(root: Path, name: str, owner: int | None = None) -> str:
    """The machine that an agent runs on, by its agent.json; empty where it does not say."""
    return text(read_object(root, name, SMALL_BYTES, owner).get("node"))


def capture_request(incident: Path, name: str) -> CaptureRequest | None:
    value = read_object(incident, name, SMALL_BYTES)
    if not value:
        return None
    return CaptureRequest(text(value.get("by")), text(value.get("reason")), text(value.get("detail")))


def run_file(root: Path, name: str) -> RunFile | None:
    value = read_object(root, name, SMALL_BYTES)
    made = _between(value.get("made"), 0, MOST_MADE) or 0
    if not value:
        return None
    return RunFile(text(value.get("job")), text(value.get("attempt")), made, text(value.get("session")))


def time_in(folder: Path, name: str) -> float | None:
    """The time by the clock that a file gives as `at`."""
    return finite(read_object(folder, name, SMALL_BYTES).get("at"))


def complete(incident: Path, name: str) -> bool:
    """Whether a node says in its node.json that its part is all there."""
    return read_object(incident, name, STATUS_BYTES).get("complete") is True


def gpus_asked(incident: Path, name: str) -> dict[str, Any] | None:
    """What whoever asked a node's GPUs noted; None where nobody did."""
    value = read_object(incident, name, STATUS_BYTES).get("gpu_cores")
    return value if isinstance(value, dict) else None


def has_ranks(incident: Path, name: str) -> bool:
    """Whether a node.json lists any rank."""
    return bool(_list(read_object(incident, name, STATUS_BYTES).get("ranks")))


def verdict(incident: Path, name: str) -> dict[str, Any]:
    """The verdict that another node wrote; empty where there is none."""
    return read_object(incident, name, STATUS_BYTES)


def verdict_note(incident: Path, name: str) -> VerdictNote | None:
    """The same, for people to look at."""
    value = verdict(incident, name)
    headline = text(value.get("headline")) or text(value.get("summary"))
    if not headline:
        return None
    culprits = [each for each in _list(value.get("culprits"))[:MOST_MADE] if isinstance(each, dict)]
    places = tuple(place for culprit in culprits if (place := _culprit_place(culprit)))
    nodes = tuple(dict.fromkeys(node for culprit in culprits if (node := text(culprit.get("node")))))
    outcome = text(value.get("outcome"))
    return VerdictNote(outcome, headline, text(value.get("confidence")), places, text(value.get("kind")), nodes)


def _culprit_place(culprit: dict[str, Any]) -> str:
    where = culprit.get("where")
    place = code_place(where) if isinstance(where, dict) else ""
    code = text(where.get("code")) if isinstance(where, dict) else ""
    return f"rank {text(culprit.get('rank'))} at {place}{f': {code}' if code else ''}" if place else ""


def code_place(where: dict[str, Any]) -> str:
    """``train.py:8 save``; empty where no file is named."""
    file = text(where.get("file")).replace("\\", "/").rpartition("/")[2]
    return f"{file}:{text(where.get('line'))} {text(where.get('function'))}".strip() if file else ""


def read_object(root: Path, name: str, limit: int, owner: int | None = None) -> dict[str, Any]:
    """A JSON object below `root`; empty where there is none, whatever else lies there."""
    try:
        value = bounded_json.loads(read_below(root, name, limit, owner=owner))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """A stranger's word, fit to be printed: one line, no control characters, not endless."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    shown = str(value)[:MOST_TEXT]
    return "".join(char if char.isprintable() else "?" for char in shown)


def _row(item: object) -> RankRow | None:
    if not isinstance(item, dict):
        return None
    rank = _between(item.get("rank"), 0, 1 << 22)
    if rank is None:
        return None
    waiting = item.get("waiting")
    waiting = waiting if isinstance(waiting, dict) else {}
    code = item.get("code")
    groups = [_group(each) for each in _list(item.get("groups"))]
    return RankRow(
        rank=rank,
        pid=_between(item.get("pid"), 0, 1 << 30) or 0,
        state=text(item.get("state"))[:20] or "?",
        exit_status=_between(item.get("exit_status"), -256, 256),
        last_poll_at=finite(item.get("last_poll_at")),
        waits=text(waiting.get("operation")),
        waits_s=finite(waiting.get("for_s")),
        group=text(waiting.get("group")),
        group_name=text(waiting.get("name")),
        seq=_between(waiting.get("seq"), 0, 1 << 62),
        rate=finite(item.get("rate")),
        meets_at=text(item.get("meets_at")),
        works=item.get("works") is True,
        prepares=item.get("prepares") is True,
        groups=tuple(each for each in groups if each is not None),
        code=code_place(code) if isinstance(code, dict) else "",
        role=role.label if (role := engine_roles.from_value(item.get("role"))) is not None else "",
    )


def _group(item: object) -> GroupCounter | None:
    if not isinstance(item, dict):
        return None
    counted = [_between(item.get(name), -1, 1 << 62) for name in ("enqueued", "completed")]
    still = finite(item.get("still_s"))
    if counted[0] is None or counted[1] is None or still is None:
        return None
    return GroupCounter(
        text(item.get("recorder")),
        text(item.get("group")),
        counted[0],
        counted[1],
        still,
        text(item.get("name")),
        _between(item.get("size"), 1, 1 << 22),
    )


def _capture(item: dict[str, Any]) -> CaptureNote:
    at = finite(item.get("at")) or 0.0
    return CaptureNote(text(item.get("incident")), text(item.get("reason")), text(item.get("detail")), at)


def _list(value: object) -> list[Any]:
    return value[:MOST_RANKS] if isinstance(value, list) else []


def _between(value: object, low: int, high: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None


def finite(value: object) -> float | None:
    """A stranger's number of seconds, since the epoch or of age; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and abs(value) < 1e12 else None
