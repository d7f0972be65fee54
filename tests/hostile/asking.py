"""Asks one question in a process of its own, under limits that the kernel holds, and watches what it does."""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hangscope
from hangscope.cli.main import INTERNAL_ERROR
from hangscope.cli.main import main as command
from hangscope.recorder.capture import snapshot_job
from hostile.questions import STARTED, Question

PATIENCE_S = 130
MOST_CPU_S = 12
STARTED_S = 15
"""For an agent that may still have to notice that its job has ended."""
HERE = Path(__file__).parents[1]


class Watch:
    """Notes what running code from a file, or writing outside of a folder, would do.

    Audit hooks see it below Python's own functions. Verbs do some of what reading may never do (`STRICT`): they import
    a module where it is needed, compile a page's template, start py-spy.
    """

    CODE = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn")
    STRICT = (
        *CODE, "exec", "compile", "import", "os.fork", "subprocess.Popen", "socket.", "ctypes.", "marshal.", "code.",
        "os.rename", "os.remove", "os.mkdir", "shutil.",
    )  # fmt: skip

    def __init__(self, allowed: Path | None = None) -> None:
        self.seen: list[str] = []
        self.active = False
        self._suspicious = self.CODE if allowed else self.STRICT
        self._allowed = (os.path.realpath(allowed), "/dev", "/proc/self") if allowed else ()
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event.startswith(self._suspicious):
            self.seen.append(event)
        elif event == "open":
            self._see_open(*arguments)
        elif self._allowed and event in ("os.mkdir", "os.rename", "os.symlink", "os.link"):
            self._see_written(arguments[0] if event == "os.mkdir" else arguments[1])

    def _see_open(self, path: Any, mode: Any, flags: Any) -> None:
        writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not self._allowed:
            if writing or (isinstance(mode, str) and set(mode) & set("wax+")):
                self.seen.append(f"open {mode}")
            return
        if not writing or not isinstance(path, (str, bytes, os.PathLike)):
            return
        # A file without a name, to see whether a directory can be written, leaves nothing.
        if flags & os.O_TMPFILE != os.O_TMPFILE and not os.path.isdir(path):
            self._see_written(path)

    def _see_written(self, path: Any) -> None:
        text = os.fsdecode(path)
        # A name without a directory is below a handle, which was opened without following a link.
        if "/" in text and not os.path.realpath(os.path.dirname(text)).startswith(self._allowed):
            self.seen.append(f"wrote {text}")


@dataclass
class Ended:
    """How one question ended."""

    question: Question
    status: int
    spent_s: float
    megabytes: float
    out: bytes
    err: bytes
    left_over: bool
    seen: list[str] = field(default_factory=list)
    """What the watch noted."""


def preload() -> None:
    """All modules, so that a child starts at once; nothing else may run in this process, or it could not be forked."""
    for found in pkgutil.walk_packages(hangscope.__path__, "hangscope."):
        if not any(part in found.name for part in ("cluster", "companion", "__main__", "_decoder")):
            with suppress(ImportError):
                importlib.import_module(found.name)
    importlib.import_module("numpy.random")  # which numpy loads when it is first used
    quiet = io.StringIO()
    # What is loaded later, another user may not be able to read.
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(quiet), redirect_stderr(quiet):
        given = str(HERE / "cases" / "pair_absent")
        outputs = (word for end in ("html", "md", "json", "perfetto-trace") for word in ("-o", f"{folder}/r.{end}"))
        command(["report", given, *outputs])
        command(["bundle", given, "-o", f"{folder}/b.tar.gz", "--pseudonymise"])
    snapshot_job.AGENTS_S = 0.1  # a status that lies about living agents would be waited for
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of a child become ours, so that none is missed


def ask(asked: Question, base: Path, uid: int) -> Ended:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(asked, base, uid)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
            break
        time.sleep(0.002)
    return Ended(
        asked,
        os.waitstatus_to_exitcode(status),
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
        (base / "stdout").read_bytes(),
        (base / "stderr").read_bytes(),
        _children_left(child, STARTED_S if asked.verb in STARTED else 1),
        json.loads((base / "watch").read_bytes() or b"[]"),
    )


def _children_left(group: int, patience_s: float) -> bool:
    """Whether somebody whom the command started still runs so long after its end."""
    deadline = time.monotonic() + patience_s
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        return True
    return False


def _become(asked: Question, base: Path, uid: int) -> None:
    """In the child: ask, note what was seen, and end."""
    status = INTERNAL_ERROR
    notes = os.open(base / "watch", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.setsid()
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(base / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(base / "cwd")
        os.environ.update(TMPDIR=str(base / "tmp"), HOME=str(base / "home"), PYTHONDONTWRITEBYTECODE="1")
        os.environ.update(asked.environ)
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        watch = Watch(base)
        watch.active = True
        try:
            status = asked.ask()
        except Exception:
            traceback.print_exc()
        watch.active = False
        os.write(notes, json.dumps(watch.seen[:50]).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
