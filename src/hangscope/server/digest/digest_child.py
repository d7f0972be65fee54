"""The process that diagnoses what strangers pushed: started with `-I`, with limits on memory, CPU and files.

Its instructions come on stdin, what it makes goes into a folder of its own: the verdict, the page, and what the server
keeps of them in columns. Its environment is empty, so it knows no password of a database and no key of a cloud, and
before it reads the evidence it gives up what it does not need (`safeio/confine.py`): new privileges, other programs,
the network, signals, and all files but Python's own and its folder's. It ends with the server that started it.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.bundle.unpack import members
from hangscope.diagnosis import diagnose
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.errors import HangscopeError
from hangscope.model import Job
from hangscope.reader.load import load
from hangscope.report.export import to_dict, to_json
from hangscope.report.page.render_page import render_page
from hangscope.safeio import bounded_json
from hangscope.safeio.confine import confine, end_with_parent
from hangscope.safeio.safe_files import write_below
from hangscope.server.digest.kept_values import MOST_ACCUSED, MOST_EXPOSED
from hangscope.server.digest.named_entities import accused, fingerprint_of
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.entities import NODE, Entity, of_node
from hangscope.verdict_words import is_trouble

VERDICT = "verdict.json"
PAGE = "verdict.html"
KEPT = "digest.json"
PROBLEM = "problem.txt"
CONFINED = "confined.json"
_NODE_BYTES = 4 << 20
_MOST_NODES = 2000


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What one diagnosis may cost."""

    memory_bytes: int = 6 << 30
    cpu_s: int = 600
    file_bytes: int = 1 << 30
    deadline_s: float = 900.0


def main() -> None:
    order = json.loads(sys.stdin.read())
    out = Path(order["out"])
    _bound(ChildLimits(**order["limits"]))
    holds = confine([*_python_files(), out.parent / "in"], [out])
    write_below(out, CONFINED, json.dumps(holds).encode())
    try:
        _digest([Path(path) for path in order["paths"]], out)
    except HangscopeError as error:
        write_below(out, PROBLEM, str(error).encode("utf-8", "backslashreplace"))
    except MemoryError:
        write_below(out, PROBLEM, b"the diagnosis needs more memory than it may have")


def bare_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of a child: of the server's own only where libraries are, and that one thread is enough."""
    kept = {name: environ[name] for name in ("LD_LIBRARY_PATH", "TZ") if name in environ}
    # Threads of a library that start before we are confined would stay outside of it.
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    home = {"HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    return {**kept, **threads, **home, "PATH": "/usr/local/bin:/usr/bin:/bin"}


def _python_files() -> Iterator[Path]:
    """What Python may still load: its own modules and those of packages, their libraries, and what the kernel shows of
    this process."""
    yield from (Path(place) for place in dict.fromkeys(sys.path) if place)
    yield from (Path(place) for place in dict.fromkeys((sys.prefix, sys.base_prefix)))
    for place in (
        "/usr",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/proc/self",
        "/proc/sys",
        "/dev/urandom",
    ):
        yield Path(place)
    yield Path("/dev/null")


def _bound(limits: ChildLimits) -> None:
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _digest(paths: Sequence[Path], out: Path) -> None:
    job = load(paths)
    verdict = diagnose(job)
    nodes = dict(_node_files(paths))
    write_below(out, VERDICT, to_json(verdict).encode())
    write_below(out, KEPT, json.dumps(kept(verdict, job, nodes)).encode())
    write_below(out, PAGE, render_page(verdict, job).encode("utf-8", "backslashreplace"))


def kept(verdict: Diagnosis, job: Job, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the server keeps in columns. `nodes` are the node.json files of the incident, by node."""
    found = fingerprint_of(verdict, job)
    said = to_dict(verdict)
    exposed: dict[Entity, Any] = {Entity(NODE, plain.clean(node, 200)): () for node in job.nodes.values()}
    for name, node in nodes.items():
        exposed.update(of_node(name, node))
    return {
        "grouped": is_trouble(said["outcome"]),
        "fingerprint": {"value": found.value, "explanation": dict(found.explanation)},
        "outcome": said["outcome"],
        "kind": said["kind"],
        "confidence": said["confidence"],
        "headline": plain.clean(said["headline"] or "", 500),
        "summary": plain.clean(said["summary"] or "", 2000),
        "accused": [[entity.kind, entity.name, role] for entity, role in accused(verdict, nodes)][:MOST_ACCUSED],
        "exposed": [[*_place(entity), list(ranks)] for entity, ranks in exposed.items() if entity.name][:MOST_EXPOSED],
        "world_size": job.world_size,
        "waited_s": None if verdict.waiting_s is None else round(verdict.waiting_s, 3),
    }


def _place(entity: Entity) -> list[str]:
    above = entity.part_of
    return [entity.kind, entity.name, above.kind if above else "", above.name if above else ""]


def _node_files(paths: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node.json of the bundles, as far as they can be read."""
    left = _MOST_NODES
    for path in paths:
        try:
            for member, content in members(path):
                if not member.name.endswith("/node.json") or member.size > _NODE_BYTES or left <= 0:
                    continue
                left -= 1
                value = _json(b"".join(iter(content.read, b"")))
                if name := plain.text(value, "node"):
                    yield name, value
        except (HangscopeError, OSError):
            continue  # no bundle, or a broken one: what `load` made of it counts


def _json(raw: bytes) -> Mapping[str, Any]:
    try:
        value = bounded_json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
