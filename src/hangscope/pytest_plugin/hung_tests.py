"""Goes along with each test: says to the watcher when it should be over, and puts the verdict into its failure.

Where pytest-timeout ends the test, it ends it as always, once the capture is done. Nothing here waits while a test is
within its time: no thread runs, and the watcher is one process for all tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.junitxml import xml_key

from hangscope.processes import linux_process
from hangscope.processes.isolated_python import clean_environment, helper_command
from hangscope.pytest_plugin.test_folders import VERDICT, folder_name, without_rank
from hangscope.recorder.rundir import peer_files
from hangscope.safeio.walk import entries

CAPTURE_S = 75.0
"""So long a test that is over its time may go on, to be captured."""
POLL_S = 0.25
START_S = 20.0
ENDS_S = 3.0
TITLE = "hangscope: what hung"
_MOST = 1 << 20
_TIMEOUT = "timeout"
_KEEPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocessing.semaphore_tracker")
"""Processes that Python starts once for all tests."""


class _Limit(float):
    """pytest-timeout's number of seconds with the time for a capture in it; printed as the one that the user gave."""

    def __new__(cls, seconds: float, given: float) -> _Limit:
        made = super().__new__(cls, seconds)
        made.given = given
        return made

    given: float

    def __str__(self) -> str:
        return f"{self.given}"


class Watcher:
    """The process beside pytest, as pytest sees it. Where it cannot be had, tests run as without it."""

    def __init__(self, stderr: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._stderr = stderr
        self._pid = 0
        self._to = -1
        self._from = -1
        self._number = 0
        self._unread = b""
        self._done: dict[int, dict[str, Any]] = {}

    def arm(self, name: str, folder: Path, seconds: float, *, ends: bool) -> int:
        """From now on the test `name` has `seconds`. `ends`: the watcher ends it where nobody else does."""
        self._number += 1
        if self._pid != os.getpid() and not self._start():
            return 0
        words = {"arm": self._number, "name": name, "folder": str(folder), "seconds": seconds, "ends": ends}
        return self._number if self._send(words) else 0

    def disarm(self, number: int) -> None:
        if number and self._pid == os.getpid():
            self._send({"disarm": number})

    def captured(self, number: int) -> dict[str, Any] | None:
        """What the capture of a test gave; None before it is done, and where there was none."""
        if not number or self._pid != os.getpid():
            return None
        while self._from >= 0 and select.select([self._from], [], [], 0)[0]:
            piece = os.read(self._from, 1 << 16)
            if not piece:
                os.close(self._from)
                self._from = -1
                self._done[number] = {}  # it was killed: nobody will say anything
            *lines, self._unread = (self._unread + piece).split(b"\n")
            for line in lines:
                value = json.loads(line)
                self._done[value["number"]] = value
        return self._done.get(number)

    def close(self) -> None:
        for end in (self._to, self._from):
            if end >= 0 and self._pid == os.getpid():
                os.close(end)
        self._to = self._from = -1
        self._pid = 0

    def _start(self) -> bool:
        inherited, self._to = os.pipe()
        self._from, answers = os.pipe()
        environ = without_rank(clean_environment(os.environ))
        try:
            started = subprocess.Popen(
                helper_command("hangscope.pytest_plugin.watcher"),
                stdin=inherited,
                stdout=answers,
                stderr=self._stderr,
                env=environ,
                cwd="/",
                start_new_session=True,
            )
            started.wait(START_S)  # it goes on as nobody's child: a test that counts its children sees none of ours
        except (OSError, subprocess.TimeoutExpired) as error:
            self._say(f"hangscope: tests that hang cannot be captured: {error}")
            return False
        finally:
            os.close(inherited)
            os.close(answers)
        self._pid = os.getpid()
        found = linux_process.stat(self._pid)
        return self._send({"pid": self._pid, "started": found.started_ticks if found is not None else 0})

    def _send(self, words: dict[str, Any]) -> bool:
        try:
            os.write(self._to, json.dumps(words).encode() + b"\n")
            return True
        except OSError:
            return False


class HungTests:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = folder_of(config)
        self._seconds = seconds_of(config)
        self._stderr = os.dup(2)  # the terminal's, before tests have theirs captured
        self._watcher = Watcher(self._stderr, self._complain)
        self._armed: dict[str, _Armed] = {}

    def _complain(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._stderr, f"{text}\n".encode(errors="replace"))

    def pytest_unconfigure(self) -> None:
        self._watcher.close()
        os.close(self._stderr)

    # ---- the time of a test ------------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Any:
        """pytest-timeout sets its timer for a test: its own comes later, by the time that a capture takes at most."""
        others = item.config.pluginmanager.subset_hook_caller("pytest_timeout_set_timer", [self])
        number = self._watcher.arm(item.nodeid, self._folder, settings.timeout, ends=False)
        if not number:
            return others(item=item, settings=settings)
        armed = self._armed[item.nodeid] = _Armed(number, settings.timeout)
        longer = _Limit(settings.timeout + CAPTURE_S, settings.timeout)
        made = others(item=item, settings=settings._replace(timeout=longer))
        by_signal = settings.method == "signal" and threading.current_thread() is threading.main_thread()
        if by_signal:
            self._poll_by_signal(armed, signal.getsignal(signal.SIGALRM))
        else:
            again = _Limit(0.01, settings.timeout)
            self._poll_by_thread(armed, item, lambda: others(item=item, settings=settings._replace(timeout=again)))
        return made

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        armed = self._armed.get(item.nodeid)
        if armed is not None:
            self._take(armed)
            armed.over.set()
            self._watcher.disarm(armed.number)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        if self._seconds is not None and not _has_timeout(item):
            self._arm_own(item, self._seconds)
        yield
        armed = self._armed.pop(item.nodeid, None)
        if armed is None:
            return
        self._take(armed)
        if armed.own:
            armed.over.set()
            if armed.by_signal:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._watcher.disarm(armed.number)
        if armed.captured:
            end_processes_since(armed.began)

    @pytest.hookimpl
    def pytest_enter_pdb(self) -> None:
        """Whoever is in a debugger is in no hurry."""
        for armed in self._armed.values():
            armed.over.set()
            self._watcher.disarm(armed.number)

    def _arm_own(self, item: pytest.Item, seconds: float) -> None:
        number = self._watcher.arm(item.nodeid, self._folder, seconds, ends=True)
        if not number:
            return
        armed = self._armed[item.nodeid] = _Armed(number, seconds, own=True)
        free = signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None)
        if free and threading.current_thread() is threading.main_thread():

            def fail(_: int, __: FrameType | None) -> None:
                __tracebackhide__ = True
                pytest.fail(f"Timeout (>{seconds:g}s) from --hangscope-timeout.")

            self._poll_by_signal(armed, fail)

    def _poll_by_signal(self, armed: _Armed, ending: Any) -> None:
        """When the time is over, SIGALRM comes again and again until the capture is done, and then goes to its
        owner."""
        armed.by_signal = True

        def alarm(number: int, frame: FrameType | None) -> None:
            __tracebackhide__ = True
            armed.late = True
            if armed.over.is_set():
                return
            self._take(armed)
            if armed.captured is None and time.monotonic() < armed.until:
                signal.setitimer(signal.ITIMER_REAL, POLL_S)
                return
            ending(number, frame)

        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, armed.seconds)

    def _poll_by_thread(self, armed: _Armed, item: pytest.Item, end: Callable[[], Any]) -> None:
        """pytest-timeout ends such a test by ending the whole process: what was found is printed before."""

        def wait() -> None:
            if armed.over.wait(armed.seconds):
                return
            armed.late = True
            while not armed.over.wait(POLL_S) and time.monotonic() < armed.until:
                self._take(armed)
                if armed.captured is None:
                    continue
                self._complain(f"\n{TITLE} in {item.nodeid}\n{armed.captured.get('text', '')}")
                if not armed.over.is_set():
                    cancel = getattr(item, "cancel_timeout", None)
                    if cancel is not None:
                        cancel()
                    end()
                return

        threading.Thread(target=wait, name="hangscope", daemon=True).start()

    def _take(self, armed: _Armed) -> None:
        if armed.captured is None:
            armed.captured = self._watcher.captured(armed.number)

    # ---- what is said ------------------------------------------------------------------------------------------------

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, None]:
        made = yield
        armed = self._armed.get(item.nodeid)
        if armed is None or not armed.late:
            return
        self._take(armed)
        report: pytest.TestReport = made.get_result()
        if report.when == "call" and report.passed:
            report.outcome = "failed"
            report.longrepr = f"Timeout (>{armed.seconds:g}s): it ended while it was being captured."
        if not report.failed or armed.captured is None or armed.said:
            return
        armed.said = True
        text = str(armed.captured.get("text") or "")
        if text:
            _add(report, text)
        for name, value in (armed.captured.get("properties") or {}).items():
            item.user_properties.append((f"hangscope_{name}", value))
        report.user_properties = list(item.user_properties)


class CrashedWorkers:
    """In the process that xdist's workers report to: of a test that took its worker with it, what was found before."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = folder_of(config)
        self._since = time.time()

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        name = folder_name(crashitem)
        found: list[tuple[float, dict[str, Any]]] = []
        for each in _names(self._folder):
            if each.startswith(name):
                written = peer_files.time_in(self._folder / each, VERDICT)
                value = peer_files.read_object(self._folder / each, VERDICT, _MOST)
                found += [(written, value)] if written is not None and written >= self._since and value else []
        if found:
            self._tell(report, max(found, key=lambda each: each[0])[1])

    def _tell(self, report: Any, value: dict[str, Any]) -> None:
        _add(report, str(value.get("text") or ""))
        properties = value.get("properties")
        named = [(f"hangscope_{name}", str(said)) for name, said in (properties or {}).items()]
        report.user_properties = [*getattr(report, "user_properties", []), *named]
        junit = self._config.stash.get(xml_key, None)
        if junit is None:
            return
        for name, said in named:  # it takes them at a test's end, which never comes
            junit.node_reporter(report).add_property(name, said)


def _names(folder: Path) -> list[str]:
    try:
        return entries(folder)
    except OSError:
        return []


class _Armed:
    """One test that runs, and what is known of it."""

    def __init__(self, number: int, seconds: float, *, own: bool = False) -> None:
        self.number = number
        self.seconds = seconds
        self.own = own
        self.by_signal = False
        self.began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.until = time.monotonic() + seconds + CAPTURE_S
        self.late = False
        self.over = threading.Event()
        self.captured: dict[str, Any] | None = None
        self.said = False


def folder_of(config: pytest.Config) -> Path:
    given = config.getoption("--hangscope-dir") or config.getini("hangscope_dir")
    return Path(config.rootpath, given or "hangscope")


def seconds_of(config: pytest.Config) -> float | None:
    given: float | None = config.getoption("--hangscope-timeout")
    if given is None:
        written = str(config.getini("hangscope_timeout") or "").strip()
        try:
            given = float(written) if written else None
        except ValueError:
            raise pytest.UsageError(f"hangscope_timeout = {written}: not a number of seconds") from None
    if given is not None and not 0 < given < 1e6:
        raise pytest.UsageError("--hangscope-timeout must be a number of seconds above 0")
    return given


def _has_timeout(item: pytest.Item) -> bool:
    """Whether pytest-timeout will end this test."""
    if not item.config.pluginmanager.hasplugin(_TIMEOUT):
        return False
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return bool(marker.args[0] if marker.args else marker.kwargs.get("timeout"))
    return bool(getattr(item.config, "_env_timeout", None))


def _add(report: Any, text: str) -> None:
    """Into the failure itself, so that it is wherever the failure is shown."""
    longrepr = report.longrepr
    if hasattr(longrepr, "addsection"):
        longrepr.addsection(TITLE, text)
    else:
        report.longrepr = f"{longrepr}\n\n{TITLE}\n{text}"


def end_processes_since(began: float) -> None:
    """End what a hung test has started and left: ranks that nobody ends keep the next test, and pytest's own end,
    waiting. `began` is of the clock that the kernel counts processes by."""
    own = os.getpid()
    left = []
    for pid, _ in linux_process.descendants(own):
        found = linux_process.stat(pid)
        words = " ".join(linux_process.command_line(pid))
        if found is None or any(word in words for word in _KEEPERS):
            continue
        if found.started_ticks / linux_process.TICKS_PER_SECOND >= began - 0.02:
            left.append((pid, found.started_ticks))
    for number, seconds in ((signal.SIGTERM, ENDS_S), (signal.SIGKILL, ENDS_S)):
        until = time.monotonic() + seconds
        living = [pid for pid, ticks in left if _lives(pid, ticks)]
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while any(_lives(pid, ticks) for pid, ticks in left) and time.monotonic() < until:
            time.sleep(0.05)


def _lives(pid: int, ticks: int) -> bool:
    found = linux_process.stat(pid)
    return found is not None and found.started_ticks == ticks and found.alive
