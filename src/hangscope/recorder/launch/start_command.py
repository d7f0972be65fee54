"""Starting the command so that it runs as it would without hangscope, whatever happens to hangscope.

Its own process group; the caller's standard input; output through `relay`, a process that outlives this one; signals
handed on; and the exit status that a shell would report.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hangscope.errors import LaunchError
from hangscope.processes import linux_process
from hangscope.safeio.held import handed_over

_TO_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""What a terminal sends to a whole process group."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TO_COMMAND = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""What schedulers send to the one process that they started, and launchers hand on to their ranks themselves."""
SENT_TO_ALL_S = 0.3
KNOWN_TO_ALL_S = 2.0
"""So long after a signal the relay may say that it got the same one: then the command has it from the sender. Longer
where the sender is known to signal all."""


class _Stream:
    """One of the command's outputs: the end the command gets, the end the relay reads, and where it passes it on."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.terminal = os.isatty(target)
        if self.terminal:
            # What is line-buffered or coloured on a terminal stays so. Raw: the bytes go out as they came in.
            self.source, self.sink = pty.openpty()
            tty.setraw(self.sink, termios.TCSANOW)
            self.resize()
        else:
            self.source, self.sink = os.pipe()

    def resize(self) -> None:
        if self.terminal:
            try:
                termios.tcsetwinsize(self.source, termios.tcgetwinsize(self.target))  # type: ignore[attr-defined, unused-ignore]
            except (AttributeError, OSError, termios.error):
                pass  # Python 3.10


class Command:
    """A started command. `on_alarm` gets the line in which a watchdog of PyTorch gives up, when the output has one."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environ: Mapping[str, str],
        logs: Path,
        rest: str,
        on_alarm: Callable[[str], None],
    ) -> None:
        program = shutil.which(words[0], path=environ.get("PATH", os.defpath))
        if program is None:
            raise LaunchError(
                f"{words[0]}: command not found", hint="write the launch command after `--`, as in the shell"
            )
        self._logs = logs
        self._rest = rest
        self._on_alarm = on_alarm
        self._drained = threading.Event()
        self._over = threading.Event()
        self._ignored: set[int] = set()
        self._reached_all: dict[int, float] = {}
        """Signal → when (monotonic) the relay was sent it too."""
        self.problem = ""
        self.ended_by: int | None = None
        """The last signal that came after the command's end, and was to end us."""
        both = _same_terminal(1, 2)
        self._streams = [_Stream(1)] if both else [_Stream(1), _Stream(2)]
        # Its other end is ours alone: whoever holds this one sees that we are gone.
        self._alive, self._open = os.pipe()
        self._line = os.memfd_create("relays")
        self._relay = self._start_relay()
        self._foreground = _foreground()
        try:
            self._process = subprocess.Popen(
                words,
                executable=program,
                env=dict(environ),
                stdout=self._streams[0].sink,
                stderr=self._streams[-1].sink,
                preexec_fn=self._in_child,
            )
        except OSError as error:
            raise LaunchError(f"{words[0]}: {error.strerror or error}") from None
        finally:
            for stream in self._streams:
                os.close(stream.sink)
        self.pid = self._process.pid
        threading.Thread(target=self._watch_relay, name="relay", daemon=True).start()

    def _in_child(self) -> None:
        os.setpgid(0, 0)
        if self._foreground is not None:
            _take_terminal(os.getpgrp())

    # ---- output ------------------------------------------------------------------------------------------------------

    def _start_relay(self) -> subprocess.Popen[bytes]:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed = handed_over()
        settings = {
            "control": theirs.fileno(),
            "streams": [[stream.source, stream.target] for stream in self._streams],
            "directory": str(self._logs),
            "rest": self._rest,
            "run": self._alive,
            "line": self._line,
            "held": handed,
        }
        ends = [end for stream in self._streams for end in (stream.source, stream.target)]
        keep = [theirs.fileno(), self._alive, self._line, *ends, *(handle for _, handle in handed)]
        script = str(Path(__file__).with_name("relay.py"))
        relay = subprocess.Popen(
            [sys.executable, "-I", "-S", script, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            pass_fds=keep,
            start_new_session=True,
        )
        theirs.close()
        return relay

    def _watch_relay(self) -> None:
        """Read what the relay reports. We hold the reading ends too: should it die, a new one takes over unnoticed."""
        while True:
            try:
                message = self._control.recv(4096)
            except OSError:
                message = b""
            if message:
                kind, text = json.loads(message)
                if kind == "alarm":
                    self._on_alarm(text)
                    continue
                if kind == "signal":
                    self._reached_all[int(text)] = time.monotonic()
                    continue
                self.problem = text or self.problem
                self._drained.set()
                if kind == "end":
                    self._over.set()
                    return
                continue
            self._relay.wait()
            if self._drained.is_set():
                return
            self._relay = self._start_relay()

    def move_logs(self, directory: Path) -> None:
        """From now on the copy of the output goes to `directory`: the launcher has begun another attempt."""
        self._logs = directory
        with contextlib.suppress(OSError):
            self._control.send(b"logs:" + os.fsencode(directory))

    def drain(self, patience_s: float | None = None) -> None:
        """Wait until all that the command wrote has been passed on. A process it left behind may write on."""
        try:
            self._control.send(b"ended")
        except OSError:
            pass
        self._drained.wait(patience_s)

    def over(self) -> bool:
        """Whether nobody is left who could write: a process that the command left behind may do so for ever."""
        return self._over.wait(1.0)

    # ---- signals and status ------------------------------------------------------------------------------------------

    def handle_signals(self, passed_on: Callable[[int], None], before_end: Callable[[], None] = lambda: None) -> None:
        """Hand signals on from now on; `passed_on` is called with each. Must be called in the main thread.

        `before_end` may take its time before a SIGTERM goes on to the command, once: who sends it again is in a hurry.
        """
        held: set[int] = set()

        def hand_on(number: int, _: FrameType | None) -> None:
            if not linux_process.ignores(self.pid, number):
                passed_on(number)
            if number in _TO_GROUP:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
                return
            first = number == signal.SIGTERM and number not in held
            held.add(number)
            wait = before_end if first else lambda: None
            came = time.monotonic()
            threading.Thread(target=self._hand_on_later, args=(number, came, wait), daemon=True).start()

        def resize(_: int, __: FrameType | None) -> None:
            for stream in self._streams:
                stream.resize()

        # Also what we were started to ignore (`nohup`, a script's `&`): the command was started before this and ignores
        # it as well, unless it chose to handle it, and then it must get it.
        for number in (*_TO_GROUP, *_TO_COMMAND):
            if signal.getsignal(number) is signal.SIG_IGN:
                self._ignored.add(number)
            signal.signal(number, hand_on)
        signal.signal(signal.SIGWINCH, resize)

    def _hand_on_later(self, number: int, came: float, wait: Callable[[], None]) -> None:
        """To the command alone, unless whoever sent it has sent it to every process below us."""
        wait()
        until = came + (KNOWN_TO_ALL_S if self._reached_all else SENT_TO_ALL_S)
        while not self._reached_all_since(number, came) and time.monotonic() < until:
            time.sleep(0.01)
        if self._reached_all_since(number, came) or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _reached_all_since(self, number: int, came: float) -> bool:
        return self._reached_all.get(number, -math.inf) >= came - SENT_TO_ALL_S

    def end_on_signals(self) -> threading.Event:
        """The command has ended: from now on a signal that would end it is for us. The event says that one came."""
        came = threading.Event()

        def note(number: int, _: FrameType | None) -> None:
            self.ended_by = number
            came.set()

        for number in (*_TO_GROUP, *_TO_COMMAND):
            if number in self._ignored:
                signal.signal(number, signal.SIG_IGN)
            elif number in _ENDING:
                signal.signal(number, note)
        return came

    def wait(self) -> int:
        """The exit status as a shell gives it: 128 + n for signal n. Gives the terminal back."""
        status = self._wait()
        if self._foreground is not None:
            _take_terminal(os.getpgrp())
        return os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 128 + os.WTERMSIG(status)

    def _wait(self) -> int:
        options = os.WUNTRACED if self._foreground is not None else 0
        while True:
            _, status = os.waitpid(self.pid, options)
            if not os.WIFSTOPPED(status):
                self._process.returncode = os.waitstatus_to_exitcode(status)
                return status
            if os.WSTOPSIG(status) in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
                # Ctrl-Z reached the command alone: stop as well, so that the shell notices, and go on together.
                _take_terminal(os.getpgrp())
                os.kill(os.getpid(), signal.SIGSTOP)
                _take_terminal(self.pid)
                os.killpg(self.pid, signal.SIGCONT)


def _same_terminal(first: int, second: int) -> bool:
    try:
        return os.isatty(first) and os.isatty(second) and os.fstat(first).st_rdev == os.fstat(second).st_rdev
    except OSError:
        return False


def _foreground() -> int | None:
    """Our process group where it is the one that a terminal on standard input listens to, else None."""
    try:
        return os.getpgrp() if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp() else None
    except OSError:
        return None


def _take_terminal(group: int) -> None:
    """Make `group` the one that reads the terminal and gets Ctrl-C, as a shell does for its jobs."""
    before: Any = signal.getsignal(signal.SIGTTOU)
    try:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, group)
    except (OSError, ValueError):
        pass
    finally:
        try:
            signal.signal(signal.SIGTTOU, before)
        except (TypeError, ValueError):
            pass
