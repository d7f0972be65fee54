"""`hangscope agent`: watches every PyTorch job of a node, each by a watcher of its own.

A watcher is `hangscope attach` as a process of its own, with the rights of the job's owner and no more: what it saves
is the owner's, what it runs is run as the owner, and a job that is sick, or hostile, keeps no other from being watched.
The agent finds the jobs, starts the watchers, starts them again where they end before their job, passes on what they
say, and ends them with itself. It writes nothing of a job's, and reads of theirs nothing but lines and metrics.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pwd
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.incident.layout import safe_name
from hangscope.processes import rights_helper, thread_activity
from hangscope.processes.isolated_python import hangscope_command
from hangscope.processes.thread_activity import Sample
from hangscope.recorder.agent import metrics_server
from hangscope.recorder.agent.metrics import escape
from hangscope.recorder.launch.node_jobs import Name, NodeJob, NodeJobs, is_alive
from hangscope.safeio.safe_files import make_one, read_file, remove_tree
from hangscope.text import duration

SCAN_S = 3.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
AFTER_KILL_S = 4.0
"""The longest pause where a watcher was killed, and did not give up by itself."""
LIVED_S = 30.0
"""A watcher that lived for so long was all right: the next one is started at once."""
END_S = 20.0
"""For the watchers to save what they are saving, when the agent ends."""
IDLE_S = 300.0
"""A job whose ranks have done nothing for so long, and that cannot be read, is worth a line."""
STATE = Path("/var/lib/hangscope")
"""Where root keeps the incidents of jobs in containers, whose own directories are not here."""
MOST_LINE = 4000
MOST_METRICS = 1 << 18
_PIECE = 1 << 16
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "HANGSCOPE_SYSFS")
_ROW = re.compile(r"^(hangscope_[a-z_]{1,60})\{([^\n]{0,2000})\} (-?[0-9.]{1,30})$")
_SYS_PTRACE, _SETUID, _SETGID, _KILL = 19, 7, 6, 5
_NEEDED = {_SYS_PTRACE: "CAP_SYS_PTRACE", _SETUID: "CAP_SETUID", _SETGID: "CAP_SETGID"}
_KEEP_CAPABILITIES, _DEATH_SIGNAL, _AMBIENT, _RAISE = 8, 1, 47, 2
_VERSION_3 = 0x20080522


@dataclass(frozen=True, slots=True)
class NodeWatchOptions:
    """`words` are options of `attach` for every job. `directory` holds a folder for each user; None means each job's
    own working directory."""

    words: tuple[str, ...] = ()
    directory: Path | None = None
    metrics_port: str | None = None
    metrics_directory: Path | None = None
    users: tuple[int, ...] = ()
    """Whose jobs alone are watched; empty for everybody's."""


def missing_capabilities() -> list[str]:
    """What we lack to watch the jobs of other users; empty for root and for whoever has it."""
    held = rights_helper.capabilities()
    return [name for number, name in _NEEDED.items() if not held >> number & 1]


@dataclass(slots=True)
class _Watcher:
    """The process that watches one job, and how often it had to be started."""

    job: NodeJob
    process: subprocess.Popen[bytes] | None = None
    begun: float = 0.0
    pause: float = FIRST_PAUSE_S
    next_start: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)
    metrics: Path | None = None
    starts: int = 0


class NodeWatch:
    def __init__(self, options: NodeWatchOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._all_users = not missing_capabilities()
        if options.users and not self._all_users and set(options.users) != {os.geteuid()}:
            raise SettingsError(
                f"the jobs of other users cannot be watched: {', '.join(missing_capabilities())} missing",
                hint="start it as root, or with these capabilities",
            )
        users = options.users or (() if self._all_users else (os.geteuid(),))
        self._jobs = NodeJobs(frozenset(users) or None)
        self._watchers: dict[Name, _Watcher] = {}
        self._idle = IdleJobs()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._stopped = threading.Event()
        self._complained: set[str] = set()
        port = options.metrics_port
        self._server = metrics_server.serve(port, self.metrics) if port is not None else None

    def stop(self) -> None:
        """End the watch; the jobs go on."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def watch(self) -> None:
        """Until `stop`. Call it in the main thread: the watchers end with the thread that started them."""
        whose = "all users"
        if self._options.users:
            whose = ", ".join(map(_user_name, self._options.users))
        elif not self._all_users:
            whose = f"{_user_name(os.geteuid())} alone ({', '.join(missing_capabilities())} missing)"
        self._say(f"watching the PyTorch jobs of {whose} on this node")
        next_scan = 0.0
        try:
            while not self._stopped.is_set():
                now = time.monotonic()
                if now >= next_scan:
                    next_scan = now + SCAN_S
                    self._carefully("looking for jobs", self._scan)
                self._wait(max(0.05, min(next_scan - time.monotonic(), 1.0)))
        finally:
            self._end()

    # ---- jobs and watchers -------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        now = time.monotonic()
        jobs = {job.launcher: job for job in self._jobs.find()}
        for launcher, job in jobs.items():
            watcher = self._watchers.get(launcher)
            if watcher is None:
                watcher = _Watcher(job)
                self._watchers[launcher] = watcher
                self._say(f"{self._called(job)}: found, {len(job.ranks)} ranks here")
            watcher.job = job
            if job.unreadable:
                self._note_unreadable(job, now)
            elif watcher.process is None and now >= watcher.next_start:
                self._carefully(f"starting a watcher for {self._called(job)}", functools.partial(self._start, watcher))
        for launcher, watcher in list(self._watchers.items()):
            if launcher not in jobs and watcher.process is None:
                self._forget(watcher)
        self._idle.keep(job.launcher for job in jobs.values())

    def _note_unreadable(self, job: NodeJob, now: float) -> None:
        self._complain_once(
            f"{self._called(job)}: the memory of its ranks cannot be read ({job.unreadable}); whether they work is all"
            " that is known of it"
        )
        idle_s = self._idle.look(job, now)
        if idle_s is not None:
            self._say(
                f"{self._called(job)} looks hung (confidence: low): no main thread of its {len(job.ranks)} ranks here"
                f" has worked for {duration(idle_s)}, and before that they did. Look: `hangscope snapshot"
                f" {job.launcher[0]}`"
            )

    def _called(self, job: NodeJob) -> str:
        return f"job {job.job} (process {job.launcher[0]}, user {_user_name(job.user)})"

    def _start(self, watcher: _Watcher) -> None:
        job = watcher.job
        watcher.next_start = time.monotonic() + watcher.pause
        watcher.pause = min(LONGEST_PAUSE_S, 2 * watcher.pause)
        words = ["attach", str(job.launcher[0]), *self._options.words]
        folder = self._folder(job)
        if folder is not None:
            words += ["--dir", str(folder / _job_folder(job))]
        place = self._metrics_place(watcher)
        if place is not None:
            words += ["--metrics", str(place)]
        owner = _Owner.of(job.user)
        process = subprocess.Popen(
            hangscope_command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=owner.environ(),
            start_new_session=True,
            cwd="/",
            preexec_fn=_Become(owner, job.directory if folder is None else "/", os.getpid()),
        )
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        self._selector.register(process.stderr.fileno(), selectors.EVENT_READ, watcher)
        watcher.process = process
        watcher.begun = time.monotonic()
        watcher.buffer.clear()
        watcher.starts += 1

    def _folder(self, job: NodeJob) -> Path | None:
        """The owner's folder for the evidence, made by us where it lies in a directory of ours."""
        base = self._options.directory
        if base is None and job.contained and os.geteuid() == 0:
            base = STATE
        if base is None:
            return None
        folder = base / safe_name(_user_name(job.user))
        _make_owned(folder, job.user)
        return folder

    def _wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                os.read(self._wake_read, 64)
            else:
                self._read(key.data)
        for watcher in list(self._watchers.values()):
            if watcher.process is not None and watcher.process.poll() is not None:
                self._note_end(watcher)

    def _read(self, watcher: _Watcher) -> None:
        """What a watcher says, line by line. One that says too much is cut short."""
        process = watcher.process
        if process is None or process.stderr is None:
            return
        try:
            data = os.read(process.stderr.fileno(), _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(process.stderr.fileno())
            process.stderr.close()
            process.stderr = None
            return
        watcher.buffer += data
        *lines, rest = bytes(watcher.buffer).split(b"\n")
        watcher.buffer[:] = rest[-MOST_LINE:]
        for line in lines:
            text = line[:MOST_LINE].decode(errors="replace").removeprefix("hangscope:").removeprefix(" ")
            self._say(f"{_user_name(watcher.job.user)}, job {watcher.job.job}: {text}")

    def _note_end(self, watcher: _Watcher) -> None:
        """A watcher has ended: with its job, or before it, and then another one is started."""
        assert watcher.process is not None
        while watcher.process.stderr is not None:
            before = watcher.process.stderr
            self._read(watcher)
            if watcher.process.stderr is before:
                self._selector.unregister(before.fileno())
                before.close()
                break
        status = watcher.process.returncode
        watcher.process = None
        if time.monotonic() - watcher.begun >= LIVED_S:
            watcher.pause = FIRST_PAUSE_S
        if not is_alive(watcher.job.launcher) and not any(map(is_alive, watcher.job.ranks)):
            self._say(f"{self._called(watcher.job)}: ended")
            self._forget(watcher)
        elif not self._stopped.is_set():
            watcher.pause = min(watcher.pause, AFTER_KILL_S) if status < 0 else watcher.pause
            watcher.next_start = time.monotonic() + watcher.pause
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._say(f"{self._called(watcher.job)}: its watcher {how}; another one is started")

    def _forget(self, watcher: _Watcher) -> None:
        self._watchers.pop(watcher.job.launcher, None)
        if watcher.metrics is not None:
            remove_tree(watcher.metrics.parent)

    def _end(self) -> None:
        """End the watchers: each saves what it is saving."""
        processes = [watcher.process for watcher in self._watchers.values() if watcher.process is not None]
        for process in processes:
            process.terminate()
        until = time.monotonic() + END_S
        while any(process.poll() is None for process in processes) and time.monotonic() < until:
            self._wait(0.1)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for watcher in list(self._watchers.values()):
            self._forget(watcher)
        if self._server is not None:
            self._server.close()

    # ---- metrics -----------------------------------------------------------------------------------------------------

    def _metrics_place(self, watcher: _Watcher) -> Path | None:
        """Where a watcher writes its metrics: a folder of its job's owner, from which they are read as bounded text."""
        base = self._options.metrics_directory
        if base is None:
            return None
        if watcher.metrics is None:
            folder = base / f"{watcher.job.user}-{watcher.job.launcher[0]}"
            _make_owned(folder, watcher.job.user)
            watcher.metrics = folder / "job.prom"
        return watcher.metrics

    def metrics(self) -> bytes:
        """Of the agent itself, and of all jobs."""
        watchers = list(self._watchers.values())
        running = sum(watcher.process is not None for watcher in watchers)
        unreadable = sum(bool(watcher.job.unreadable) for watcher in watchers)
        families: dict[str, list[str]] = {}
        for watcher in watchers:
            for name, row in _rows(watcher):
                families.setdefault(name, []).append(row)
        out = [
            "# HELP hangscope_agent_jobs Jobs that were found on this node.",
            "# TYPE hangscope_agent_jobs gauge",
            f"hangscope_agent_jobs {len(watchers)}",
            "# HELP hangscope_agent_jobs_watched Those that a watcher runs for.",
            "# TYPE hangscope_agent_jobs_watched gauge",
            f"hangscope_agent_jobs_watched {running}",
            "# HELP hangscope_agent_jobs_unreadable Those whose memory cannot be read.",
            "# TYPE hangscope_agent_jobs_unreadable gauge",
            f"hangscope_agent_jobs_unreadable {unreadable}",
        ]
        for name, rows in sorted(families.items()):
            out += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", *rows]
        return ("\n".join(out) + "\n").encode()

    # ---- what goes wrong ---------------------------------------------------------------------------------------------

    def _carefully(self, what: str, act: Callable[[], None]) -> None:
        """Nothing that one job causes ends the watch over the others."""
        try:
            act()
        except Exception as error:
            self._complain_once(f"{what}: {type(error).__name__}: {error}")

    def _complain_once(self, text: str) -> None:
        if text not in self._complained and len(self._complained) < 1000:
            self._complained.add(text)
            self._say(text)


def _rows(watcher: _Watcher) -> list[tuple[str, str]]:
    """A job's metrics, as far as they look like such, each with whose job it is."""
    if watcher.metrics is None:
        return []
    try:
        text = read_file(watcher.metrics, MOST_METRICS, follow=False).decode(errors="replace")
    except OSError:
        return []
    user = escape(_user_name(watcher.job.user))
    found = []
    for line in text.splitlines():
        match = _ROW.match(line)
        if match is not None:
            name, labels, value = match.groups()
            found.append((name, f'{name}{{user="{user}",launcher="{watcher.job.launcher[0]}",{labels}}} {value}'))
    return found


def _job_folder(job: NodeJob) -> str:
    """A job's folder in its user's: by its name, and by its launcher where it has none."""
    named = not job.job.startswith("of process")
    return safe_name(job.job) if named else f"process-{job.launcher[0]}-{job.launcher[1]}"


def _make_owned(folder: Path, user: int) -> None:
    """A folder of mode 0700 for one user, below one of ours. One that is there must be that user's."""
    folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        make_one(folder, 0o700)
        if os.geteuid() != user:
            os.chown(folder, user, _group(user), follow_symlinks=False)
    found = os.lstat(folder)
    if found.st_uid != user or not os.path.isdir(folder) or os.path.islink(folder):
        raise PermissionError(f"{folder}: it is not user {user}'s")


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _group(user: int) -> int:
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:
        return user


# ---- with which rights a watcher runs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Owner:
    user: int
    group: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def of(cls, user: int) -> _Owner:
        try:
            known = pwd.getpwuid(user)
        except KeyError:
            return cls(user, user, (user,), "/")
        return cls(user, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)), known.pw_dir)

    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {**kept, "HOME": self.home}


@dataclass(frozen=True, slots=True)
class _Become:
    """In the child, before exec: the job's owner, for good, with the right to read where the kernel asks for it."""

    owner: _Owner
    directory: str
    parent: int

    def __call__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        other = self.owner.user != os.geteuid()
        if other:
            keep = _yama() > 0
            if keep:
                libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
            os.setgroups(self.owner.groups)
            os.setresgid(self.owner.group, self.owner.group, self.owner.group)
            os.setresuid(self.owner.user, self.owner.user, self.owner.user)
            bit = 1 << _SYS_PTRACE if keep else 0
            header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
            sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
            if libc.capset(header, sets) != 0:
                os._exit(126)
            if keep:
                libc.prctl(_AMBIENT, _RAISE, _SYS_PTRACE, 0, 0)
        libc.prctl(_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != self.parent:
            os._exit(126)  # the agent ended meanwhile
        with contextlib.suppress(OSError):
            os.chdir(self.directory)


def _yama() -> int:
    """Which processes the kernel lets others of their user read: all (0), those below (1), none (2 and 3)."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


# ---- jobs that cannot be read ----------------------------------------------------------------------------------------


class IdleJobs:
    """For how long no main thread of a job's ranks has worked, by what the kernel counts for everybody to see."""

    def __init__(self) -> None:
        self._samples: dict[Name, Sample] = {}
        self._worked_at: dict[Name, float] = {}
        self._said: set[Name] = set()

    def look(self, job: NodeJob, now: float) -> float | None:
        """Seconds, once they are worth a line; None before, after, and where the job was never seen to work."""
        works = False
        for rank in job.ranks:
            sample = thread_activity.sample(rank[0], None, now)
            before = self._samples.get(rank)
            if sample is None:
                continue
            if before is None:
                self._samples[rank] = sample
                continue
            worked = thread_activity.works(before, sample)
            if worked is not None:
                self._samples[rank] = sample
                works = works or worked
        if works:
            self._worked_at[job.launcher] = now
            self._said.discard(job.launcher)
        worked_at = self._worked_at.get(job.launcher)
        if worked_at is None or now - worked_at < IDLE_S or job.launcher in self._said:
            return None
        self._said.add(job.launcher)
        return now - worked_at

    def keep(self, launchers: Iterable[Name]) -> None:
        kept = set(launchers)
        for gone in self._worked_at.keys() - kept:
            del self._worked_at[gone]
        self._samples = {name: sample for name, sample in self._samples.items() if is_alive(name)}
