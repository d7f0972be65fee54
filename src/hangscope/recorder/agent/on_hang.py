"""What is done about a hang once its evidence is safe: a command of the user's runs, this node's ranks are ended.

The command runs in a session of its own, with a deadline; the ranks get SIGTERM, and SIGKILL after a grace period.
Only ranks are ended, never the launcher: it decides what comes next, a restart or the end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.errors import SettingsError
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process import linux_process

GRACE_S = 10.0
COMMAND_S = 60.0
AFTER_KILL_S = 5.0
_WORD = re.compile(r"[\w./+-]+")


@dataclass(frozen=True, slots=True)
class OnHang:
    """`--on-hang`: report always happens; `kill` ends the ranks, `commands` get the verdict."""

    kill: bool = False
    commands: tuple[str, ...] = ()
    grace_s: float = GRACE_S

    @classmethod
    def of(cls, words: Sequence[str], grace_s: float | None = None) -> OnHang:
        """From the user's own words. A single word that is no program is a slip, found now and not at the hang."""
        commands = tuple(word for word in words if word not in ("report", "kill"))
        for command in commands:
            if not command.strip():
                raise SettingsError("--on-hang: an empty command", hint="give report, kill or a shell command")
            if _WORD.fullmatch(command) and shutil.which(command) is None:
                raise SettingsError(
                    f"--on-hang {command}: neither report nor kill, and no program of that name",
                    hint="a command goes through sh, for example --on-hang 'curl … -d @-'",
                )
        grace = GRACE_S if grace_s is None else grace_s
        if not 0 <= grace < 86400:
            raise SettingsError("--grace must be a number of seconds, 0 or more")
        return cls("kill" in words, commands, grace)


# ---- telling ---------------------------------------------------------------------------------------------------------


def tell(command: str, incident: Path, verdict: Path | None, value: Mapping[str, Any]) -> str:
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
                return f"no end within {COMMAND_S:g} s"
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


# ---- ending ----------------------------------------------------------------------------------------------------------


def end(ranks: Sequence[WatchedRank], grace_s: float, still: Callable[[], bool]) -> list[int]:
    """SIGTERM to these ranks, SIGKILL to those left after `grace_s`. Returns the ranks that live on all the same.

    `still` is asked once more first: a job that moves again is left alone.
    """
    if not still():
        return []
    for rank in ranks:
        _send(rank, signal.SIGTERM)
    _await(ranks, grace_s)
    for rank in ranks:
        _send(rank, signal.SIGKILL)
    _await(ranks, AFTER_KILL_S)
    return [rank.number for rank in ranks if not rank.handle.ended()]


def _await(ranks: Sequence[WatchedRank], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not all(rank.handle.ended() for rank in ranks):
        time.sleep(0.05)


def _send(rank: WatchedRank, number: signal.Signals) -> None:
    """To that process and no other: its number may have been given to a new one."""
    handle = rank.handle
    try:
        if handle.ended():
            return
        if handle.fd is not None:
            signal.pidfd_send_signal(handle.fd, number)
        elif (stat := linux_process.stat(handle.pid)) is not None and stat.started_ticks == handle.started_ticks:
            os.kill(handle.pid, number)
    except OSError:
        pass  # it has just ended, or is somebody else's: `end` says who lives on
