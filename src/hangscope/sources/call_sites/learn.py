"""Where a rank calls its operations from, learnt while all is well.

A dump with stacks needs the rank's GIL, and in a hang the GIL is often held: victims fill their GPU's launch queue and
wait in it. So a rank that moves is asked for one now and then (`looks.py`), and what it calls from where is kept: a map
from (group, operation, sizes, the two calls before it) to lines. The first dump with stacks of a process imports
torch._inductor unless torch._dynamo is there already (some seconds, torch 2.11 to 2.13): no rank is asked before it is.
One that is read from outside needs neither, but its memory is gone once it has ended: it is read at the same times.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from hangscope.sources.call_sites.schema import SCHEMA

MOST_BYTES = 8 << 20
MOST_ENTRIES = 20_000
MOST_SITES = 1_000
_FRAMES = 64
_TEXT = 500
_BEFORE = 2

Call = tuple[str, str, str]
"""The group's name, the operation's as the recorder has it, the sizes."""
Key = tuple[Call, tuple[Call, ...]]
Stack = tuple[tuple[str, str, int], ...]


class Asked(Protocol):
    """A process, with what its debug server answers."""

    @property
    def handlers(self) -> frozenset[str]: ...


def questions(process: Asked) -> Iterator[tuple[str, str]]:
    """(backend, question) whose answer is a pickled dump with stacks."""
    if "dump_nccl_trace_pickle" in process.handlers:
        yield "nccl", "dump_nccl_trace_pickle"
    if "hangscope_sites" in process.handlers:
        yield "gloo", "hangscope_sites?backend=gloo"
        if "fr_dump_file" in process.handlers:
            yield "nccl2", "hangscope_sites?backend=nccl2"


class CallSites:
    """What one rank was seen to call. Answers are kept as they came, and read only where there is an incident."""

    def __init__(self) -> None:
        self._answers: dict[str, list[bytes]] = {}

    def take(self, backend: str, body: bytes) -> None:
        if 0 < len(body) <= MOST_BYTES:
            self._answers[backend] = [*self._answers.get(backend, ())[-1:], body]

    def file(self, rank: int) -> dict[str, Any] | None:
        """What goes into the incident; None where nothing was learnt. Newer answers win."""
        rows: list[dict[str, Any]] = []
        stacks: dict[Stack, int] = {}
        for backend, bodies in list(self._answers.items()):
            found: dict[Key, dict[str, Any]] = {}
            for body in bodies:
                found.update(_sites(_entries(body)))
            for row in list(found.values())[-MOST_SITES:]:
                number = stacks.setdefault(row.pop("frames"), len(stacks))
                rows.append({"backend": backend, **row, "stack": number})
        return {"schema": SCHEMA, "rank": rank, "stacks": list(stacks), "sites": rows} if rows else None


# In Python and not in C: there a pickle's own numbers decide how much memory is taken.
class _Plain(pickle._Unpickler):
    """Numbers, texts, lists and tables: a dump has nothing else, and nothing else is made."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a dump")


def _entries(body: bytes) -> list[Mapping[str, Any]]:
    try:
        value = _Plain(io.BytesIO(body)).load()
    except Exception:  # whatever a broken pickle raises: then nothing was learnt
        return []
    entries = value.get("entries") if isinstance(value, dict) else None
    return [
        entry for entry in (entries if isinstance(entries, list) else [])[-MOST_ENTRIES:] if isinstance(entry, dict)
    ]


def _sites(entries: list[Mapping[str, Any]]) -> dict[Key, dict[str, Any]]:
    """One row a place in the step. Where calls from several lines look the same, `lines` counts them."""
    found: dict[Key, dict[str, Any]] = {}
    before: tuple[Call, ...] = ()
    for entry in entries:
        call = (_group(entry), str(entry.get("profiling_name") or "")[:_TEXT], _sizes(entry))
        frames = _frames(entry)
        key = (call, before)
        before = (*before, call)[-_BEFORE:]
        if not frames:
            continue
        row = found.setdefault(key, {"call": call, "before": key[1], "frames": frames, "calls": 0, "lines": 1})
        row["calls"] += 1
        if row["frames"] != frames:
            row["frames"] = frames
            row["lines"] += 1
    return found


def _group(entry: Mapping[str, Any]) -> str:
    names = entry.get("process_group")
    return str(names[0])[:_TEXT] if isinstance(names, (list, tuple)) and names else ""


def _sizes(entry: Mapping[str, Any]) -> str:
    """``16x4,8``: the shapes of what goes in."""
    shapes = entry.get("input_sizes")
    shapes = [shape for shape in shapes if isinstance(shape, (list, tuple))] if isinstance(shapes, list) else []
    return ",".join("x".join(str(size) for size in shape[:8]) for shape in shapes[:64])[:_TEXT]


def _frames(entry: Mapping[str, Any]) -> Stack:
    """(function, file, line), innermost first."""
    frames = entry.get("frames")
    rows = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    return tuple(
        (str(f.get("name"))[:_TEXT], str(f.get("filename"))[-_TEXT:], _line(f.get("line"))) for f in rows[:_FRAMES]
    )


def _line(value: Any) -> int:
    return value if isinstance(value, int) else 0
