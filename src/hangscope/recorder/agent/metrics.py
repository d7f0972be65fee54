"""The agent's numbers for Prometheus: in a file for node_exporter's textfile collector, or on a port. Off by default.

docs/run.md lists the names. Nothing here waits for a reader, and nothing that goes wrong here reaches the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.__about__ import __version__
from hangscope.incident.layout import safe_name, write_atomic
from hangscope.recorder.agent import metrics_server
from hangscope.recorder.rundir.reasons import Reason
from hangscope.safeio.safe_files import Patience, Refused, read_file

FILE_S = 4.0


@dataclass(slots=True)
class Numbers:
    """What the agent knows now. Times are seconds since the epoch, or of age; None means not known yet."""

    expected: int | None = None
    watched: int = 0
    ended: int = 0
    waiting: int = 0
    last_progress_at: float | None = None
    oldest_s: float = 0.0
    threshold_s: float = 0.0
    incidents: Mapping[str, int] = field(default_factory=dict)
    """By reason: stall, rank-exit, …"""
    verdicts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By outcome and kind."""
    pauses: int = 0
    job_ended: bool = False


def render(numbers: Numbers, labels: Mapping[str, str]) -> str:
    """The text format of Prometheus, one family after the other."""
    out: list[str] = []

    def family(name: str, kind: str, text: str, rows: Iterable[tuple[Mapping[str, str], float | None]]) -> None:
        out.append(f"# HELP hangscope_{name} {text}")
        out.append(f"# TYPE hangscope_{name} {kind}")
        for more, value in rows:
            if value is not None:
                out.append(f"hangscope_{name}{_labels({**labels, **more})} {_number(value)}")

    n = numbers
    family("info", "gauge", "The agent of this node; always 1.", [({"version": __version__}, 1)])
    family("ranks_expected", "gauge", "Ranks that the launcher announced for this node.", [({}, n.expected)])
    family("ranks_watched", "gauge", "Ranks of this node that run and are watched.", [({}, n.watched)])
    family("ranks_ended", "gauge", "Ranks of this node that have ended.", [({}, n.ended)])
    family("ranks_waiting", "gauge", "Ranks of this node inside an unfinished operation.", [({}, n.waiting)])
    family(
        "last_progress_timestamp_seconds",
        "gauge",
        "When an operation of this node was last seen to begin or end.",
        [({}, n.last_progress_at)],
    )
    family("oldest_operation_seconds", "gauge", "Age of the oldest unfinished operation.", [({}, n.oldest_s)])
    family("stall_threshold_seconds", "gauge", "An operation older than this is a stall.", [({}, n.threshold_s)])
    family("stalls_total", "counter", "Stalls that were captured.", [({}, n.incidents.get(Reason.STALL, 0))])
    family("pauses_total", "counter", "Stalls after which the job resumed by itself.", [({}, n.pauses)])
    family(
        "incidents_total",
        "counter",
        "Captures by what set them off.",
        [({"reason": reason}, count) for reason, count in sorted(n.incidents.items())],
    )
    family(
        "verdicts_total",
        "counter",
        "Verdicts that this node gave.",
        [({"outcome": o, "kind": k}, count) for (o, k), count in sorted(n.verdicts.items())],
    )
    family("job_ended", "gauge", "1 once the command has ended.", [({}, int(n.job_ended))])
    return "\n".join(out) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels.items()) + "}"


def escape(value: str) -> str:
    r"""A label's value: backslash, quote and line feed have escapes; bytes that were no UTF-8 become ``?``."""
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3f}"


class Metrics:
    """Keeps the newest text and hands it out. `file` may be a directory: the name is made from job and node then."""

    def __init__(self, labels: Mapping[str, str], *, file: Path | None = None, port: str | None = None) -> None:
        self._labels = dict(labels)
        self._text = render(Numbers(), self._labels).encode()
        self._patience = Patience(FILE_S)
        self._file = self._patience.ask(str(file), lambda: _place(file, labels)) if file is not None else None
        self._server = metrics_server.serve(port, lambda: self._text) if port is not None else None

    @property
    def address(self) -> tuple[str, int] | None:
        return self._server.server_address[:2] if self._server is not None else None  # type: ignore[return-value]

    def publish(self, numbers: Numbers) -> None:
        self._text = render(numbers, self._labels).encode()
        file = self._file
        if file is not None:
            text = self._text
            with suppress(OSError):
                self._patience.ask(str(file), lambda: _replace(file, text))

    def close(self) -> None:
        """A file that nobody brings up to date any more would look like a job that stands still: it goes."""
        file = self._file
        if file is not None:
            with suppress(OSError):
                self._patience.ask(f"{file}, to remove it", lambda: file.unlink() if _is_ours(file) else None)
        if self._server is not None:
            self._server.close()


def _place(file: Path, labels: Mapping[str, str]) -> Path:
    """The file; of a directory one in it, by job and node."""
    if file.is_dir():
        return file / f"hangscope-{safe_name('-'.join(labels.values()))}.prom"
    if not _is_ours(file):
        raise Refused("there is a file that holds no metrics of hangscope, and it is left alone", file)
    return file


def _is_ours(file: Path) -> bool:
    """Whether nothing but metrics of ours would be lost: a slip, or somebody else's settings, may name any file."""
    try:
        return read_file(file, 1 << 20).startswith((b"# HELP hangscope_", b"# TYPE hangscope_"))
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _replace(file: Path, text: bytes) -> None:
    if not _is_ours(file):
        raise Refused("it holds no metrics of hangscope", file)
    write_atomic(file, text, mode=0o644)
