"""The diagnosis of an incident, by a process of its own: nothing it does can touch the job or the agent.

It reads and judges the evidence once, and writes the verdict as JSON, as text and then as a page from that. The page of
a large job takes seconds more, so the verdict is taken as soon as it is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hangscope.incident.layout import VERDICT_JSON, VERDICT_PAGE, VERDICT_TEXT, as_bytes
from hangscope.processes.isolated_python import clean_environment, hangscope_command
from hangscope.safeio.safe_files import write_below

DEADLINE_S = 180.0
"""For the verdict, and as much again for the page."""
LOOK_S = 0.05
COMMAND = tuple(hangscope_command())
UNDISTURBED = ("/bin/sh", "-c", 'trap "" TERM INT USR1 USR2 ALRM; exec "$@"', "sh")
"""What a scheduler sends to all processes of a job is for the job: a diagnosis under way has its own deadline."""


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
        what = "wait" if self.value.get("outcome") == "wait" else self.value.get("kind")
        return what, tuple(culprit.get("rank") for culprit in culprits)


class DiagnosisProcess:
    """One diagnosis under way, to be used in a `with`: `verdict` waits for the one, `page` for the other."""

    def __init__(self, incident: Path, *, page: bool = True, gently: bool = False) -> None:
        """`gently`: with the lowest priority, for a job that runs."""
        self._incident = incident
        self._late = False
        self._folder = Path(tempfile.mkdtemp(prefix="hangscope-"))
        names = (VERDICT_JSON, VERDICT_TEXT, VERDICT_PAGE) if page else (VERDICT_JSON, VERDICT_TEXT)
        outputs = [word for name in names for word in ("-o", str(self._folder / name))]
        self._errors = self._folder / "stderr"
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [*UNDISTURBED, *COMMAND, "report", str(incident), *outputs],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=clean_environment(os.environ),
                    start_new_session=True,  # a Ctrl-C at the terminal is for the job; we end at our own time
                )
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        if gently:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    def __enter__(self) -> DiagnosisProcess:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """From another thread: nobody waits for it any more."""
        self._process.kill()

    def verdict(self, *, keep: bool = True) -> Verdict:
        """Wait for the verdict, and write verdict.json and verdict.txt into the incident; `keep` false: only say it."""
        files = [self._folder / name for name in (VERDICT_JSON, VERDICT_TEXT)]
        self._await(files)
        try:
            raw, text = (file.read_text(encoding="utf-8") for file in files)
            value = json.loads(raw)
        except (OSError, ValueError, RecursionError):
            return Verdict("", {}, self._problem())
        if keep:
            try:
                write_below(self._incident, VERDICT_JSON, as_bytes(raw), wary=True)
                write_below(self._incident, VERDICT_TEXT, as_bytes(text), wary=True)
            except OSError as error:
                return Verdict(text, value, f"{self._incident}: {error.strerror}")
        return Verdict(text, value)

    def page(self) -> Path | None:
        """Wait for verdict.html, and write it into the incident; None where that could not be done."""
        made = self._folder / VERDICT_PAGE
        self._await([made])
        try:
            write_below(self._incident, VERDICT_PAGE, made.read_bytes(), wary=True)
        except OSError:
            return None
        return self._incident / VERDICT_PAGE

    def _await(self, files: Sequence[Path]) -> None:
        """Until these files are there, each written at once; or the process has ended, or has had its time."""
        until = time.monotonic() + DEADLINE_S
        while not all(file.exists() for file in files) and self._process.poll() is None:
            if time.monotonic() > until:
                self._late = True
                self._process.kill()
                self._process.wait()
            else:
                time.sleep(LOOK_S)

    def _problem(self) -> str:
        if self._late:
            return f"no verdict within {DEADLINE_S:g} s"
        try:
            said = self._errors.read_text(errors="replace").strip()
        except OSError:
            said = ""
        return said or "the diagnosis printed nothing"


def diagnose(incident: Path, *, keep: bool = True) -> Verdict:
    """Diagnose `incident` without a page, and write the verdict into it; with `keep` false only say it."""
    with DiagnosisProcess(incident, page=False) as process:
        return process.verdict(keep=keep)
