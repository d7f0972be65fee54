"""The diagnosis of an incident, by a process of its own: nothing it does can touch the job or the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.incident.layout import VERDICT_JSON, VERDICT_PAGE, VERDICT_TEXT, as_bytes
from hangscope.safeio.safe_files import folder_below, write_below

DEADLINE_S = 180.0
_START = (
    "import sys; sys.path[:] = [place for place in sys.path if place];"
    " import runpy; runpy.run_module('hangscope', None, '__main__')"
)
"""As `python -m hangscope`, but modules in the working directory, the job's own or a stranger's, are none of ours:
Python 3.10 has no PYTHONSAFEPATH yet."""
_JUDGED = (0, 1, 3)
"""Exit statuses of a diagnosis that came to an end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the diagnosis said. `value` is its JSON, {} where it could not say anything; `problem` says why."""

    text: str
    value: dict[str, Any]
    problem: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two verdicts the same to a reader."""
        culprits = self.value.get("culprits") or []
        return self.value.get("kind"), tuple(culprit.get("rank") for culprit in culprits)


def diagnose(incident: Path, *, keep: bool = True) -> Verdict:
    """Diagnose `incident`, once, and write verdict.json and verdict.txt into it; with `keep` false only say it."""
    with tempfile.TemporaryDirectory(prefix="hangscope-") as folder:
        made = [Path(folder) / name for name in (VERDICT_JSON, VERDICT_TEXT)]
        _, errors = _answer(_start("report", str(incident), *(word for path in made for word in ("-o", str(path)))))
        try:
            raw, text = (path.read_text(encoding="utf-8") for path in made)
            value = json.loads(raw)
        except (OSError, ValueError, RecursionError):
            return Verdict("", {}, errors.strip() or "the diagnosis said nothing")
    try:
        for name, content in ((VERDICT_JSON, raw), (VERDICT_TEXT, text)) if keep else ():
            write_below(incident, name, as_bytes(content), wary=True)
    except OSError as error:
        return Verdict(text, value, f"{incident}: {error.strerror}")
    return Verdict(text, value)


def draw(incident: Path) -> Path | None:
    """Write verdict.html into `incident`; None where that could not be done. Nobody waits for it."""
    page = incident / VERDICT_PAGE
    try:
        with folder_below(incident, [], wary=True):
            pass
    except OSError:
        return None
    process = _start("report", str(incident), "-o", str(page), "--force")
    _answer(process)
    return page if process.returncode in _JUDGED and page.exists() else None


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _START, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        text=True,
        start_new_session=True,  # a Ctrl-C at the terminal is for the job; we end at our own time
    )


def _answer(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote to stdout and stderr, within the deadline."""
    try:
        return process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "", f"no verdict within {DEADLINE_S:g} s"
