"""The job's output on its way out: passed on byte by byte, with a copy in the incident, from a process of its own.

The job writes into a pipe (or a pseudo terminal) whose other end is here. This process lives in its own session and
outlives `hangscope run`: if that is killed, the job goes on writing as before, to the same terminal, file or pipe. When
nobody reads that any more, the output is still drained, so the job is never stopped by a broken pipe. The copy is
written by a thread of its own behind a bounded queue: a file system that hangs or is full costs the copy, not the job.

A relay has two standbys, the same script, which hold the reading ends and wait for a lock that the relay has. When a
relay is killed, `run` starts another; where `run` is gone too, the kernel gives the lock to a standby, which goes on
and starts the missing one. So whoever is killed, and whoever next, the job has a pipe that somebody reads.

Some schedulers signal every process below the one that they started (Slurm's proctrack/linuxproc). The relay is one of
them, ignores the signal and tells `run` that it came: then the job has it too, and must not get it twice.

Run as a script, with hangscope's own interpreter: `relay.py SETTINGS`, where SETTINGS is a JSON object.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import json
import os
import queue
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import IO, Any

QUEUE_BYTES = 64 << 20
LOG_BYTES = 64 << 20
"""A log that grows past this is renamed to <name>.1, so a node keeps at most two of these for each."""

MOVE = -1
"""In place of a stream's number in the queue: what stands beside it is where the logs go from now on."""
LINE_BYTES = 64 << 10
MOST_LOGS = 500
HALF_LINE_S = 0.5
STANDBYS = 2
SLOTS = 4
PATIENCE_S = 1.0
"""So long a standby that has got the lock leaves it to the relay that a living `run` is about to start."""

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTTOU)
REPORTED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""What schedulers send, and `run` hands on."""

_RANK = re.compile(rb"\[rank(\d{1,7})\]:")
ALARMS = (
    b"Watchdog caught collective operation timeout",
    b"failure detected by watchdog",
    b"watchdog got stuck for",
    b"Received a dump signal",
    b"Aborting process on rank",
)
"""What PyTorch's watchdogs print when they fire: ProcessGroupNCCL 2.1 to 2.15, and nccl2 (2.15)."""


class RankLogs:
    """Sorts the output by line: one that names its rank goes into that rank's file, the others into `rest`.

    Lines are written whole, because two streams share a file; `flush` writes what has waited long enough for its end.
    """

    def __init__(self, directory: Path, rest: str) -> None:
        self._directory = directory
        self._rest = rest
        self._files: dict[str, IO[bytes]] = {}
        self._begun: dict[int, bytes] = {}
        self._owner: dict[int, str] = {}
        self.problem = ""

    def add(self, stream: int, data: bytes) -> None:
        batches: dict[str, list[bytes]] = {}
        for line in _lines(self._begun.pop(stream, b"") + data):
            if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                self._begun[stream] = line
                break
            batches.setdefault(self._name(stream, line), []).append(line)
        for name, lines in batches.items():
            self._write(name, b"".join(lines))

    def move(self, directory: Path) -> None:
        """Another attempt of the job begins: what comes now belongs there."""
        self.flush()
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._directory = directory

    def flush(self) -> None:
        for stream, line in self._begun.items():
            self._write(self._name(stream, line), line)
        self._begun.clear()

    @property
    def waits(self) -> bool:
        return bool(self._begun)

    def _name(self, stream: int, line: bytes) -> str:
        match = _RANK.match(line)
        name = self._owner.pop(stream, "") or (f"rank_{int(match[1])}.log" if match else self._rest)
        if name not in self._files and len(self._files) >= MOST_LOGS:
            name = self._rest  # a job that prints any number there is: no more files than a process may have open
        if not line.endswith(b"\n"):
            self._owner[stream] = name  # the rest of this line belongs to the same file
        return name

    def _open(self, name: str) -> IO[bytes]:
        """Below the run's directory without following a link: others may be able to write there too."""
        root = self._directory.parent
        if root.parent.name == "nodes":
            root = root.parents[1]
        _safe_files().make_folder(root)
        opened: IO[bytes] = _safe_files().append_below(root, f"{self._directory.relative_to(root).as_posix()}/{name}")
        return opened

    def _write(self, name: str, data: bytes) -> None:
        try:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = self._open(name)
            file.write(data)
            if file.tell() > LOG_BYTES:
                self._files.pop(name).close()
                _safe_files().rename_below(self._directory, name, f"{name}.1")
        except OSError as error:
            self.problem = f"{name}: {error.strerror or error}"


@functools.cache
def _safe_files() -> Any:
    """How files are opened. This script runs without anybody's packages: its own are found by its place."""
    packages = str(Path(__file__).parents[3])
    if packages not in sys.path:
        sys.path.append(packages)
    return importlib.import_module("hangscope.safeio.safe_files")


def _adopt(handed_over: list[Any]) -> None:
    """Go on from the handles of the run's directories that `run` holds: their names may lead elsewhere by now."""
    _safe_files()
    held = importlib.import_module("hangscope.safeio.held")
    for names, handle in handed_over:
        held.adopt([(name, own) for name, own in names], handle)


def _lines(data: bytes) -> list[bytes]:
    """Lines end with a line feed alone: a progress bar's carriage returns do not cut."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


class Relay:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        control = settings.get("control")
        self.control = socket.socket(fileno=int(control)) if control is not None else None
        self.line = RelayLock(int(settings["line"]))
        self.over = threading.Event()
        self.streams = [(int(r), int(w)) for r, w in settings["streams"]]
        _adopt(settings.get("held", []))
        self.log = RankLogs(Path(str(settings["directory"])), str(settings["rest"]))
        self.queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self.waiting = 0
        self.dropped = 0
        self.busy = [False] * len(self.streams)
        self.alarms = 0

    def run(self) -> None:
        for number in REPORTED:
            signal.signal(number, lambda came, _: self.report("signal", str(came)))
        pumps = [threading.Thread(target=self.pump, args=(index,)) for index in range(len(self.streams))]
        # A file system that hangs keeps this thread for ever, and must not keep the output open with it.
        writer = threading.Thread(target=self.write_copies, daemon=True)
        for thread in (*pumps, writer):
            thread.start()
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.keep_standbys, daemon=True).start()
        for thread in pumps:
            thread.join()
        self.over.set()
        self.line.finish()
        self.queue.put(None)
        writer.join(timeout=5)
        self.report("end", self.problem())

    def keep_standbys(self) -> None:
        """Have two standbys at all times. `Line` knows those that an earlier relay has started."""
        own: list[subprocess.Popen[bytes]] = []
        while not self.over.is_set():
            own = [each for each in own if each.poll() is None]  # reaps those that ended
            alive = self.line.alive()
            if len(alive) < STANDBYS:
                settings = {**self.settings, "control": None, "standby": True}
                keep = [end for pair in self.streams for end in pair] + [settings["run"], settings["line"]]
                keep += [handle for _, handle in settings.get("held", ())]
                try:
                    started = subprocess.Popen(
                        [sys.executable, "-I", "-S", __file__, json.dumps(settings)],
                        stdin=subprocess.DEVNULL,
                        pass_fds=keep,
                        start_new_session=True,
                    )
                except OSError:
                    return  # no process to be had: we go on alone
                own.append(started)
                self.line.note([*alive, started.pid])
                continue
            _await_end(alive, self.over)

    def pump(self, index: int) -> None:
        """Pass on what one stream brings, until every process that could write to it is gone."""
        source, target = self.streams[index]
        open_target: int | None = target
        while True:
            self.busy[index] = False
            try:
                data = os.read(source, 1 << 16)
            except OSError:
                data = b""  # EIO: a pseudo terminal with nobody on the other side
            if not data:
                return
            self.busy[index] = True
            if open_target is not None and not _write_all(open_target, data):
                open_target = None
            if self.waiting + len(data) > QUEUE_BYTES:
                self.dropped += len(data)
            else:
                self.waiting += len(data)
                self.queue.put((index, data))

    def write_copies(self) -> None:
        while True:
            try:
                item = self.queue.get(timeout=HALF_LINE_S if self.log.waits else None)
            except queue.Empty:
                self.log.flush()
                continue
            if item is None:
                self.log.flush()
                return
            index, data = item
            if index == MOVE:
                self.log.move(Path(os.fsdecode(data)))
                continue
            self.log.add(index, data)
            self.waiting -= len(data)
            if self.alarms < 100 and any(alarm in data for alarm in ALARMS):
                self.alarms += 1
                line = next(line for line in data.split(b"\n") if any(alarm in line for alarm in ALARMS))
                self.report("alarm", line[:500].decode(errors="replace"))

    def listen(self) -> None:
        """`run` says when the command has ended; the answer comes once all that it wrote has gone out."""
        if self.control is None:
            return
        with contextlib.suppress(OSError):
            while message := self.control.recv(8192):
                if message.startswith(b"logs:"):
                    self.queue.put((MOVE, message[5:]))
                if b"ended" in message:
                    quiet = 0
                    while quiet < 3:  # more than once: a pump may stand between its read and its flag
                        time.sleep(0.005)
                        idle = not any(self.busy) and not any(_unread(source) for source, _ in self.streams)
                        quiet = quiet + 1 if idle else 0
                    patience = time.monotonic() + 2
                    while (self.waiting > 0 or self.log.waits) and time.monotonic() < patience:
                        time.sleep(0.005)
                    self.report("drained", self.problem())

    def problem(self) -> str:
        """What the copy lacks, empty where it lacks nothing."""
        return self.log.problem or (f"{self.dropped} bytes were not kept in time" if self.dropped else "")

    def report(self, kind: str, text: str = "") -> None:
        with contextlib.suppress(OSError):  # hangscope is gone: nobody to report to
            if self.control is not None:
                self.control.send(json.dumps([kind, text]).encode())


class RelayLock:
    """A small file in memory that all relays of one run share: a lock, whether all is read, and who stands by.

    The kernel takes the lock from a process that ends, however it ends. Only who has it writes the rest.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def wait(self) -> None:
        fcntl.lockf(self._handle, fcntl.LOCK_EX)

    def leave(self) -> None:
        fcntl.lockf(self._handle, fcntl.LOCK_UN)

    def finish(self) -> None:
        """Everything is read: whoever gets the lock now may go."""
        os.pwrite(self._handle, b"\1", 0)

    def finished(self) -> bool:
        return os.pread(self._handle, 1, 0) == b"\1"

    def note(self, pids: list[int]) -> None:
        os.pwrite(self._handle, struct.pack(f"<B{SLOTS}i", 0, *pids[:SLOTS], *[0] * (SLOTS - len(pids[:SLOTS]))), 0)

    def alive(self) -> list[int]:
        """The standbys that were noted and live, without ourselves, who may have been one."""
        raw = os.pread(self._handle, struct.calcsize(f"<B{SLOTS}i"), 0)
        noted = struct.unpack(f"<B{SLOTS}i", raw)[1:] if len(raw) == struct.calcsize(f"<B{SLOTS}i") else ()
        return [pid for pid in noted if pid > 0 and pid != os.getpid() and _alive(pid)]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            state = stream.read(4096).rpartition(b")")[2].split()[0]
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return state not in (b"Z", b"X") and b"relay.py" in stream.read(65536)
    except (OSError, IndexError):
        return False


def _await_end(pids: list[int], over: threading.Event) -> None:
    """Until one of them ends, or all is read."""
    handles: list[int] = []
    try:
        for pid in pids:
            handles.append(os.pidfd_open(pid))
    except (OSError, AttributeError):  # it has just ended, or Linux before 5.3
        over.wait(0.1)
    try:
        while len(handles) == len(pids) and not over.is_set() and not select.select(handles, [], [], 0.5)[0]:
            pass
    finally:
        for handle in handles:
            os.close(handle)


def _write_all(target: int, data: bytes) -> bool:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            select.select([], [target], [])
        except OSError:
            return False
    return True


def _unread(source: int) -> int:
    try:
        buffer = fcntl.ioctl(source, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return 0
    return int(struct.unpack("i", buffer)[0])


def main(argument: str) -> None:
    for number in (*IGNORED, *REPORTED):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(argument)
    line = RelayLock(int(settings["line"]))
    while True:
        line.wait()
        if line.finished():
            return
        run_is_gone = bool(select.select([int(settings["run"])], [], [], 0)[0])
        if run_is_gone or not settings.get("standby"):
            break
        line.leave()
        time.sleep(PATIENCE_S)
    Relay(settings).run()


if __name__ == "__main__":
    main(sys.argv[1])
