"""The diagnosis of an incident, by a process of its own: nothing it does can touch the job or the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.incident.layout import VERDICT_JSON, VERDICT_TEXT, write_atomic

DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `hangscope diagnose` said. `value` is its JSON, {} where it could not say anything; `problem` says why."""

    text: str
    value: dict[str, Any]
    problem: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two verdicts the same to a reader."""
        culprits = self.value.get("culprits") or []
        return self.value.get("kind"), tuple(culprit.get("rank") for culprit in culprits)


def diagnose(incident: Path) -> Verdict:
    """Diagnose `incident` and write verdict.json and verdict.txt into it."""
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}  # the job's own modules in the working directory are not ours
    started = []
    for extra in (["--json"], []):
        command = [sys.executable, "-m", "hangscope", "diagnose", str(incident), *extra]
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                text=True,
            )
        )
    outputs = []
    for process in started:
        try:
            outputs.append((*process.communicate(timeout=DEADLINE_S), process.returncode))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            outputs.append(("", f"no verdict within {DEADLINE_S:g} s", 2))
    (raw, errors, _), (text, _, _) = outputs
    try:
        value = json.loads(raw)
    except ValueError:
        return Verdict("", {}, errors.strip() or "the diagnosis said nothing")
    try:
        write_atomic(incident / VERDICT_JSON, raw)
        write_atomic(incident / VERDICT_TEXT, text)
    except OSError as error:
        return Verdict(text, value, f"{incident}: {error.strerror}")
    return Verdict(text, value)
