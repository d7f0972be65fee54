"""The process beside pytest: it knows when the test that runs should be over, and has its job captured if it is not.

It is asked over a pipe and answers over another; it needs nothing of pytest's threads, so that a test that holds the
GIL is captured as well. It ends with pytest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.errors import HangscopeError
from hangscope.incident.layout import VERDICT_JSON, VERDICT_TEXT, write_json
from hangscope.processes import linux_process
from hangscope.processes.isolated_python import hangscope_command
from hangscope.processes.linux_process import ProcessHandle
from hangscope.pytest_plugin.test_folders import VERDICT, claim, folder_name
from hangscope.recorder.launch import find_job
from hangscope.recorder.rundir import peer_files
from hangscope.safeio.safe_files import read_below
from hangscope.sources import stacks
from hangscope.sources.cannot_read import CannotRead

CAPTURE_S = 60.0
REACTS_S = 15.0
"""Once the capture is done, pytest takes what was found; a test that does not let it do so is printed here."""
MOST_TEXT = 30_000
MOST_PROCESSES = 32
TITLE = "hangscope: what hung"


@dataclass(slots=True)
class _Test:
    number: int
    name: str
    folder: Path
    deadline: float
    ends: bool
    capture: threading.Thread | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    done_at: float | None = None
    printed: bool = False


class _Watch:
    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self.started = started
        self.handle = ProcessHandle(pid)
        self.test: _Test | None = None
        self.unread = b""
        self.wake_read, self.wake_write = os.pipe()

    def run(self) -> None:
        """Until pytest ends."""
        while self._lives():
            handles = [0, self.wake_read]
            if self.handle.fd is not None:
                handles.append(self.handle.fd)
            ready = select.select(handles, [], [], self._pause())[0]
            if self.wake_read in ready:
                os.read(self.wake_read, 64)
            if 0 in ready and not self._read():
                return
            self._turn()

    def _lives(self) -> bool:
        found = linux_process.stat(self.pid)
        return found is not None and found.alive and found.started_ticks == self.started

    def _pause(self) -> float:
        test = self.test
        if test is None:
            return 60.0
        if test.done_at is not None:
            return 60.0 if test.printed else max(0.05, test.done_at + REACTS_S - time.monotonic())
        return 1.0 if test.capture is not None else max(0.0, min(60.0, test.deadline - time.monotonic()))

    def _read(self) -> bool:
        """What pytest says; False once it says nothing more."""
        piece = os.read(0, 1 << 16)
        *lines, self.unread = (self.unread + piece).split(b"\n")
        for line in lines:
            words = json.loads(line)
            if "arm" in words:
                deadline = time.monotonic() + words["seconds"]
                self.test = _Test(words["arm"], words["name"], Path(words["folder"]), deadline, words["ends"])
            elif self.test is not None and words.get("disarm") == self.test.number:
                self.test = None
        return bool(piece)

    def _turn(self) -> None:
        test = self.test
        if test is None:
            return
        now = time.monotonic()
        if test.capture is None and now >= test.deadline:
            test.capture = threading.Thread(target=self._capture, args=(test,), daemon=True)
            test.capture.start()
        if test.done_at is not None and not test.printed and now >= test.done_at + REACTS_S:
            test.printed = True
            self._print(test)

    def _capture(self, test: _Test) -> None:
        try:
            test.answer = capture(self.pid, test.name, test.folder)
        except Exception as error:  # pytest waits for an answer
            test.answer = {"text": f"the capture failed: {type(error).__name__}: {error}"}
        test.done_at = time.monotonic()
        line = json.dumps({"number": test.number, **test.answer}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(1, line)
        os.write(self.wake_write, b"x")

    def _print(self, test: _Test) -> None:
        """The test does not come back to Python: what is printed here is all that anybody will see."""
        sys.stderr.write(f"\n{TITLE} in {test.name}, which does not respond\n{test.answer.get('text', '')}\n")
        sys.stderr.flush()
        if test.ends and self._lives():
            below = [pid for pid, _ in linux_process.descendants(self.pid)]
            for pid in (*below, self.pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


# ---- one capture -----------------------------------------------------------------------------------------------------


def capture(pid: int, name: str, base: Path) -> dict[str, Any]:
    """Capture the job of the test that pytest's process `pid` runs: its ranks below that process, or where pytest is a
    rank itself, the ranks beside it. The text for people and the properties for programs."""
    launcher = find_job.launcher_of(pid)
    label = folder_name(name)
    label = label if launcher == pid else f"{label}-{launcher}"
    folder, ours = claim(base, label, shared=launcher != pid)
    if not ours:
        return _of_another(folder)
    answer = {**_snapshot(pid, folder), "at": time.time()}
    write_json(folder / VERDICT, answer)
    return answer


def _of_another(folder: Path) -> dict[str, Any]:
    """What another rank of this job is finding out, or has found."""
    until = time.monotonic() + CAPTURE_S
    while time.monotonic() < until:
        found = peer_files.read_object(folder, VERDICT, 1 << 20)
        if found:
            return found
        time.sleep(0.2)
    return {"text": f"another rank has begun to capture this test in {folder}, and did not end"}


def _snapshot(pid: int, folder: Path) -> dict[str, Any]:
    incident = folder / "incident"
    words = hangscope_command("snapshot", str(pid), "--dir", str(incident))
    try:
        taken = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CAPTURE_S,
            cwd="/",
        )
        said = taken.stderr.strip()
    except subprocess.TimeoutExpired:
        said = f"not captured within {CAPTURE_S:g} s"
    value = peer_files.read_object(incident, VERDICT_JSON, 16 << 20)
    if value:
        text = read_below(incident, VERDICT_TEXT, 1 << 20).decode(errors="replace")
        where = f"\nall of it: hangscope diagnose {incident}\n"
        return {"text": text[:MOST_TEXT] + where, "properties": _properties(value, incident)}
    why = said.splitlines()[-1].removeprefix("hangscope: ") if said else "nothing was found"
    text = f"No distributed job was diagnosed: {why}\n\n{_processes(pid)}"[:MOST_TEXT]
    return {"text": text, "properties": {"outcome": "unknown"}}


def _properties(value: dict[str, Any], incident: Path) -> dict[str, str]:
    culprits = value.get("culprits")
    ranks = [each.get("rank") for each in culprits if isinstance(each, dict)] if isinstance(culprits, list) else []
    named = {
        "outcome": value.get("outcome"),
        "kind": value.get("kind"),
        "confidence": value.get("confidence"),
        "culprits": ",".join(str(rank) for rank in ranks if rank is not None),
        "summary": value.get("summary"),
        "incident": str(incident),
    }
    return {name: peer_files.text(said) if not isinstance(said, str) else said[:2000] for name, said in named.items()}


def _processes(pid: int) -> str:
    """The Python stacks of the test's processes, where none of them is a rank."""
    below = [each for each, _ in linux_process.descendants(pid)]
    parts = []
    for each in [pid, *below[:MOST_PROCESSES]]:
        try:
            parts.append(stacks.python_stacks(each))
        except (CannotRead, HangscopeError) as error:
            title = " ".join(linux_process.command_line(each))[:200]
            parts.append(f"Process {each}: {title}\n    {getattr(error, 'reason', error)}\n")
    if len(below) > MOST_PROCESSES:
        parts.append(f"… and {len(below) - MOST_PROCESSES} processes more")
    return "\n".join(parts)


def main() -> None:
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with pytest, and a Ctrl-C is for pytest
    first = b""
    while not first.endswith(b"\n"):  # one by one: what follows is for the loop
        piece = os.read(0, 1)
        if not piece:
            os._exit(0)
        first += piece
    words = json.loads(first)
    _Watch(words["pid"], words["started"]).run()
    os._exit(0)
