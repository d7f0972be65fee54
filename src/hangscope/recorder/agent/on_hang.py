"""`--on-hang`: what is done about a hang once its evidence is safe, and the user's own command with the verdict.

The command runs in a session of its own, with a deadline.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.errors import SettingsError
from hangscope.recorder.alerts.alert_targets import WANDB, AlertTarget, alert_target

GRACE_S = 10.0
KILL_AFTER_S = 300.0
COMMAND_S = 60.0
EXIT_STATUS = 75
"""Of a job that `kill` ended: EX_TEMPFAIL of sysexits.h, which says that another try may go well. PyTorch, Slurm and
shells use it for nothing else."""
WORDS = ("report", "kill", WANDB)
_WORD = re.compile(r"[\w./+-]+")


@dataclass(frozen=True, slots=True)
class OnHang:
    """`--on-hang`: report always happens; `kill` ends the ranks, `commands` get the verdict, `alerts` and `wandb` tell.

    `kill_after_s`: so long a job must have stood still before it is ended. `kill_working`: it is ended also while the
    rank that the others wait for is seen to work.
    """

    kill: bool = False
    commands: tuple[str, ...] = ()
    grace_s: float = GRACE_S
    kill_after_s: float = KILL_AFTER_S
    kill_working: bool = False
    exit_status: int | None = None
    """What `run` ends with where a hang was the job's end; None for the command's own status."""
    alerts: tuple[AlertTarget, ...] = ()
    wandb: bool = False

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        grace_s: float | None = None,
        kill_after_s: float | None = None,
        *,
        kill_working: bool = False,
        exit_status: int | None = None,
    ) -> OnHang:
        """From the user's own words. A single word that is no program is a slip, found now and not at the hang."""
        alerts = {word: target for word in words if (target := alert_target(word, os.environ)) is not None}
        commands = tuple(word for word in words if word not in (*WORDS, *alerts))
        for command in commands:
            _check_command(command)
        grace = GRACE_S if grace_s is None else grace_s
        if not 0 <= grace < 86400:
            raise SettingsError("--grace must be a number of seconds, 0 or more")
        kill_after = KILL_AFTER_S if kill_after_s is None else kill_after_s
        if not 0 <= kill_after < 86400 * 30:
            raise SettingsError("--kill-after must be a time, 0 or more")
        kill = "kill" in words
        return cls(
            kill,
            commands,
            grace,
            kill_after,
            kill_working,
            exit_status=EXIT_STATUS if exit_status is None and kill else exit_status,
            alerts=tuple(alerts.values()),
            wandb=WANDB in words,
        )


def _check_command(command: str) -> None:
    if not command.strip():
        raise SettingsError("--on-hang: an empty command", hint="give report, kill or a shell command")
    if _WORD.fullmatch(command) and shutil.which(command) is None:
        raise SettingsError(
            f"--on-hang {command}: neither report nor kill, and no program of that name",
            hint="a command goes through sh, for example --on-hang 'curl … -d @-'",
        )


def run_command(command: str, incident: Path, verdict: Path | None, value: Mapping[str, Any]) -> str:
    """Run the user's command with the verdict in its environment and on stdin. Returns the problem, empty for none."""
    environ = {**os.environ, **_variables(incident, verdict, value)}
    try:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
            given.write((json.dumps(value) + "\n").encode())
            given.seek(0)
            started = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=given,
                stdout=said,
                stderr=said,
                env=environ,
                start_new_session=True,
            )
            try:
                status = started.wait(COMMAND_S)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
                return f"not finished within {COMMAND_S:g} s"
            if status == 0:
                return ""
            said.seek(max(0, said.seek(0, os.SEEK_END) - 2000))
            last = said.read(2000).decode(errors="replace").strip().splitlines()[-1:]
            return f"ended with status {status}{': ' + last[0] if last else ''}"
    except OSError as error:
        return error.strerror or str(error)


def _variables(incident: Path, verdict: Path | None, value: Mapping[str, Any]) -> dict[str, str]:
    culprits = value.get("culprits")
    ranks = [each.get("rank") for each in culprits if isinstance(each, dict)] if isinstance(culprits, list) else []
    ranks = [rank for rank in ranks if rank is not None]
    named = {
        "HANGSCOPE_INCIDENT": str(incident),
        "HANGSCOPE_VERDICT": str(verdict or ""),
        "HANGSCOPE_OUTCOME": str(value.get("outcome") or "unknown"),
        "HANGSCOPE_KIND": str(value.get("kind") or "unknown"),
        "HANGSCOPE_CULPRITS": ",".join(map(str, ranks)),
        "HANGSCOPE_SUMMARY": str(value.get("summary") or ""),
    }
    # A NUL from evidence cannot be in an environment, and would keep the command from starting.
    return {name: text.replace("\0", "?")[:10_000] for name, text in named.items()}
