"""A node that is reached by a command: ssh, srun or kubectl in front of `sh -s`, with the script on its input."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from hangscope.errors import DamagedError
from hangscope.incident.collect import remote_script
from hangscope.incident.collect.fetch_sources import Deadline, Entry, Listing, Sink, Unreachable
from hangscope.safeio import limits
from hangscope.safeio.tar_stream import TarReader
from hangscope.safeio.walk import counted

_TAGS = {"G": "given", "D": "default", "I": "incident"}
_BATCH_FILES = 500
_BATCH_BYTES = 64 << 10
"""How much is asked for in one command line: every shell takes that much."""


class Node:
    """`command` runs a shell on the node that reads its commands from standard input, with `environ` or our own."""

    is_node = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        patterns: Sequence[str] = (),
        defaults: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.patterns = tuple(patterns)
        self.defaults = defaults
        self.environ = environ
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        for process in list(self._running):
            _end(process, threading.Event())

    def listing(self, deadline: Deadline) -> Listing:
        with self._run(remote_script.list_script(self.patterns, defaults=self.defaults), deadline) as answer:
            raw = answer.read(limits.NODE_LISTING_BYTES)
        lines = raw.decode("utf-8", "surrogateescape").split("\n")
        if remote_script.END not in lines:
            raise Unreachable("the list of its files broke off")
        return _listed(lines[: lines.index(remote_script.END)])

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:
        for batch in _batches(wanted):
            folders: dict[str, dict[str, Entry]] = {}
            for entry in batch:
                folder, _, name = entry.path.rpartition("/")
                folders.setdefault(folder, {})[name] = entry
            script = remote_script.fetch_script([(folder, list(names)) for folder, names in folders.items()])
            with self._run(script, deadline) as answer:
                try:
                    self._take(answer, list(folders.values()), sink)
                except DamagedError as error:
                    raise Unreachable(f"the transfer broke off: {error.reason}") from None

    def _take(self, answer: IO[bytes], folders: Sequence[dict[str, Entry]], sink: Sink) -> None:
        """What a node sends of each directory. Only what was asked for is taken, whatever else it sends, and once."""
        left = list(folders)
        while (number := _next_tar(answer, len(folders))) is not None:
            asked = left[number]
            left[number] = {}
            for member, content in TarReader(answer, file=self.name):
                entry = asked.get(member.name.removeprefix("./"))
                if entry is not None and member.kind == "file":
                    sink(entry, content, int(member.mtime) if 0 < member.mtime <= limits.LISTED_TIME else None)

    @contextmanager
    def _run(self, script: str, deadline: Deadline) -> Iterator[IO[bytes]]:
        """Run a script there; gives its output from the mark on. What the node says before that is its own greeting."""
        deadline.check()
        if self._stopped:
            raise Unreachable("interrupted")
        try:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=self.environ,
            )
        except OSError as error:
            raise Unreachable(f"{self.command[0]}: {error.strerror}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        complaints = _LastWords(process.stderr)
        self._running.add(process)
        late = threading.Event()
        timer = threading.Timer(deadline.left, _end, (process, late))
        timer.start()
        try:
            _say(process.stdin, script)
            if not _skip_greeting(process.stdout):
                _reap(process)
                raise Unreachable(_why(process, complaints, late, deadline))
            try:
                yield process.stdout
            except Unreachable as error:
                _reap(process)
                raise Unreachable(f"{error} ({_why(process, complaints, late, deadline)})") from None
            if late.is_set():
                raise Unreachable(_why(process, complaints, late, deadline))
        finally:
            timer.cancel()
            _end(process, threading.Event())
            process.stdout.close()
            process.wait()
            self._running.discard(process)


class _LastWords:
    """What a command complains about: read as it comes, whoever floods us with it, and the end of it kept."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), name="complaints", daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream, suppress(OSError, ValueError):
            while data := os.read(stream.fileno(), 1 << 16):
                self._kept = (self._kept + data)[-limits.NODE_STDERR_BYTES :]

    def text(self) -> str:
        self._thread.join(timeout=2)
        return self._kept.decode("utf-8", "replace")


def _listed(lines: Sequence[str]) -> Listing:
    """The files in a node's list. What it says is its own word: no more is taken than our own script would say."""
    entries: dict[str, Entry] = {}
    notes: list[tuple[str, str]] = []
    more = False
    for line in lines:
        tag, *fields = line.split(" ", 4)
        if tag == "S":
            notes.append(_skipped(line))
        if tag not in _TAGS or len(fields) != 4:
            continue
        size, mtime, checksum, path = fields
        if len(entries) >= limits.NODE_FILES and path not in entries:
            more = True
        elif problem := _problem(size, path):
            notes.append((path[: limits.SHOWN_NAME], problem))
        else:
            known = None if checksum == "-" else checksum[:100]
            entry = Entry(
                path, _number(size, limits.LISTED_BYTES), _number(mtime, limits.LISTED_TIME), known, _TAGS[tag]
            )
            entries.setdefault(path, entry)
    if more or len(entries) >= limits.NODE_FILES:
        notes.append(("more files", f"only the first {limits.NODE_FILES} were looked at"))
    return Listing(tuple(entries.values()), tuple(counted(notes)))


def _skipped(line: str) -> tuple[str, str]:
    """What the node says it saw and did not list: (what, why)."""
    what, _, why = line[2 : 2 * limits.SHOWN_NAME].partition(": ")
    return what[: limits.SHOWN_NAME], why[:200] or "not asked for"


def _problem(size: str, path: str) -> str:
    """Why a line of the list is not believed; empty where it is."""
    if size != "-" and _number(size, limits.LISTED_BYTES) is None:
        return f"it claims {size[:30]} bytes, which cannot be"
    if len(path) > limits.SHOWN_NAME or not path.startswith("/") or "\0" in path:
        return "no path that can be asked for"
    if path.count("/") > limits.TREE_LEVELS:
        return f"more than {limits.TREE_LEVELS} levels down"
    return ""


def _say(stream: IO[bytes], script: str) -> None:
    try:
        stream.write(script.encode("utf-8", "surrogateescape"))
        stream.close()
    except BrokenPipeError:
        pass  # it ended already; its own words say why


def _skip_greeting(stream: IO[bytes]) -> bool:
    left = limits.NODE_GREETING_BYTES
    while left > 0 and (line := stream.readline(left)):
        if line.rstrip(b"\r\n") == remote_script.BEGIN.encode():
            return True
        left -= len(line)
    return False


def _next_tar(stream: IO[bytes], most: int) -> int | None:
    """The number on the line in front of the next tar; behind the last one there is what fills its record."""
    left = limits.NODE_GREETING_BYTES
    while left > 0 and (line := stream.readline(left)):
        word, _, number = line.rstrip(b"\r\n").lstrip(b"\0").partition(b" ")
        if word == remote_script.TAR.encode():
            found = _number(number.decode("ascii", "replace"), most - 1)
            if found is None:
                raise Unreachable("it sends what was not asked for")
            return found
        left -= len(line)
    return None


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        pass


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    """End the command with everything it started, unless it has ended by itself."""
    if process.poll() is not None:
        return
    late.set()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _why(process: subprocess.Popen[bytes], complaints: _LastWords, late: threading.Event, deadline: Deadline) -> str:
    if late.is_set():
        return f"no answer within {deadline.seconds:g} s"
    lines = complaints.text().strip().splitlines()
    words = "; ".join(line.strip() for line in lines[-2:])
    status = process.returncode
    return words or (f"its command ended with status {status}" if status else "it said nothing")


def _batches(wanted: Sequence[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in wanted:
        if batch and (len(batch) >= _BATCH_FILES or size + len(entry.path) > _BATCH_BYTES):
            yield batch
            batch = []
            size = 0
        batch.append(entry)
        size += len(entry.path) + 3
    if batch:
        yield batch


def _number(text: str, most: int) -> int | None:
    """A number that a node said; none where it cannot be true."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most else None
