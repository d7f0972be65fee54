"""The node agent: watches this node's ranks, notices that they stall, and has the evidence saved.

One thread polls; a capture runs on a thread of its own, so that the end of a rank is noticed meanwhile. Nothing that
happens here reaches the job: every question has a deadline, and an error of ours is said and left behind.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hangscope.incident.layout import as_bytes, as_json
from hangscope.recorder.agent import announced_pauses, status_file
from hangscope.recorder.agent.announced_pauses import Pause
from hangscope.recorder.agent.diagnose_process import Verdict
from hangscope.recorder.agent.incidents import MAY_RECOVER, QUIET, Incidents
from hangscope.recorder.agent.lingering_ranks import LingeringRanks
from hangscope.recorder.agent.metric_values import numbers
from hangscope.recorder.agent.metrics import Metrics
from hangscope.recorder.agent.never_seen import nodes_announced
from hangscope.recorder.agent.on_hang import OnHang, end
from hangscope.recorder.agent.recovered_stalls import Site, Sites, Stall, sites_of
from hangscope.recorder.agent.startup_report import StartupReport
from hangscope.recorder.capture import output_files, sys_counters
from hangscope.recorder.capture.capture_node import NodeFacts
from hangscope.recorder.live.polling import POLL_S, Polling
from hangscope.recorder.live.two_samples import TwoSamples
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process import linux_process
from hangscope.recorder.rundir import run_directory
from hangscope.safeio.safe_files import Patience, write_below

STATUS_S = 2.0
MOVES_S = 1.5
MAX_INCIDENTS = 10
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Agent:
    def __init__(
        self,
        *,
        root: Path,
        folder: Path,
        node: NodeFacts,
        sockets: Path,
        stall_after: float | None = None,
        say: Callable[[str], None],
        diagnose: Callable[[Path], Verdict] | None,
        move_logs: Callable[[Path], None] = lambda _: None,
        on_hang: OnHang | None = None,
        max_incidents: int = MAX_INCIDENTS,
        spare: Callable[[], Path] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._move_logs = move_logs
        self._roll = StartupReport(environ_rank=os.environ.get("RANK", "").isdigit())
        self._leaving = LingeringRanks()
        self._root = root
        self._folder = folder
        self._patience = Patience(5.0)
        self._node = node
        self._say = say
        self._polling = Polling(sockets, stall_after)
        self._ended = threading.Event()
        self._incidents = Incidents(
            root=root,
            folder=folder,
            node=node,
            ended=self._ended,
            publish=self.write_status,
            say=say,
            diagnose=diagnose,
            on_hang=on_hang,
            spare=spare,
            paused_for=lambda: self._went_on_after,
        )
        self._on_hang = on_hang or OnHang()
        self._max_incidents = max_incidents
        self._refused = 0
        self._metrics = metrics
        self._sites = Sites()
        self._rates = status_file.Rates()
        self._stall = Stall()
        self._ending: set[int] = set()
        """Processes that we ended ourselves, or are about to: their end is no news."""
        self._command: int | None = None
        self._exit: int | None = None
        self._signalled = False
        self._alarms: list[str] = []
        self._stalled: dict[int, tuple[Any, ...]] = {}
        self._went_on_after: float | None = None
        self._moves_since: tuple[float, float] | None = None
        self._dumps_seen: set[Path] = set()
        self._dump_prefixes: set[str] | None = None
        self._folder_owner = os.geteuid()
        self._polled_at = 0.0
        self._next_status = 0.0
        self._complained = False
        self._samples: TwoSamples | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    # ---- what `run` calls --------------------------------------------------------------------------------------------

    def start(self, command: int) -> None:
        self._command = command
        threading.Thread(target=self._look_around, name="inventory", daemon=True).start()
        self._thread.start()

    def alarm(self, text: str) -> None:
        """A watchdog of PyTorch has printed that it gives up."""
        self._alarms.append(text)
        self._wake()

    def signalled(self, number: int) -> None:
        """A signal is being handed on: ranks that end now were told to."""
        self._signalled = self._signalled or number in _ENDING

    def finish(self, status: int) -> None:
        """The command has ended with `status`, and its output is all there: save what is left to save."""
        self._exit = status
        self._ended.set()
        self._wake()
        self._thread.join(timeout=10)
        try:
            self._polling.note_ends()
            self._incidents.finish(list(self._polling), self._failure(status))
        except Exception as error:
            self._say(f"the last part of the capture failed: {type(error).__name__}: {error}")
        self.write_status()
        if self._metrics is not None:
            self._metrics.close()
        self._polling.close()

    @property
    def captured(self) -> bool:
        """Whether anything was saved that somebody may want."""
        return bool(self._incidents.log)

    def _failure(self, status: int) -> str | None:
        """How the job failed by itself, None where it did not."""
        if status == 0 or self._signalled or not self._polling.ranks:
            return None
        if self._incidents.reason(self._incidents.hang) is None and self._too_many():
            return None
        return self._bad_end() or f"the command ended with status {status}"

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _look_around(self) -> None:
        """Once, beside the start of the job: it must not wait for nvidia-smi. The counters first: they move."""
        with contextlib.suppress(OSError):
            self._write("counters/start.json", sys_counters.snapshot())
        self._node.look_up()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._sleep()
                self._turn()
            except Exception as error:
                # A full disk or a mistake of ours must not end the watch. Said once: it may come every second.
                if not self._complained:
                    self._say(f"the agent has a problem and goes on: {type(error).__name__}: {error}")
                self._complained = True
                time.sleep(POLL_S)

    def _sleep(self) -> None:
        """Until the next poll is due, a rank ends, or somebody wakes us."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        longest = self._polled_at + self._polling.interval - time.monotonic()
        for rank in self._polling:
            if not rank.ended and rank.handle.fd is not None:
                poller.register(rank.handle.fd, select.POLLIN)
            elif not rank.ended:
                longest = min(longest, 0.3)
        for fd, _ in poller.poll(max(0.0, longest) * 1000):
            if fd == self._wake_read:
                os.read(self._wake_read, 64)

    def _turn(self) -> None:
        self._polling.note_ends()
        now = time.monotonic()
        if now >= self._polled_at + self._polling.interval and not self._ended.is_set():
            self._polling.turn(self._command)
            self._polled_at = now
            if self._polling.restarted:
                self._polling.restarted = False
                self._node.begin_attempt(self._polling.earlier)
                self._fresh_dumps()  # of the attempt before, as are the alarms
                self._alarms.clear()
                self._stalled.clear()
                self._ending.clear()
                self._roll.again()
                place = self._incidents.next_attempt()
                if place is not None:
                    self._move_logs(place)
        line = self._roll.line(list(self._polling), self._polling.unrecorded_waits.refused, now, self._command)
        for each in (line, self._leaving.line(list(self._polling), self._polling.threshold())):
            if each is not None:
                self._say(each)
        self._judge()
        self._end_the_job()
        if now >= self._next_status:
            self.write_status()
            self._next_status = now + STATUS_S + len(self._polling.ranks) / 50

    # ---- judgement ---------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._note_recovery()
        incidents = self._incidents
        if incidents.working:
            return
        for path in (incidents.hang, incidents.snapshot):
            asked = run_directory.marked(path)
            if asked is None or incidents.reason(path) is not None:
                continue
            if path == incidents.hang or self._looked_twice():
                self._capture(path, asked.reason or "stall", asked.detail)
                return
        trouble = self._trouble()
        if trouble is None:
            return
        reason, detail = trouble
        before = incidents.reason(incidents.hang)
        # Captured once. Once more when PyTorch itself gives up: soon there will be nobody left to ask.
        gives_up = reason in ("watchdog", "dump-file") and before not in ("watchdog", "dump-file")
        if self._ending:
            return  # what is seen now comes from our own signals
        if before is None and self._too_many():
            return
        if before is None or (gives_up and not incidents.captured_twice(incidents.hang)):
            self._capture(incidents.hang, reason, detail)

    def _looked_twice(self) -> bool:
        """For a snapshot: whether the second look is taken. The first is, once somebody asks."""
        now = time.monotonic()
        if self._samples is None:
            self._samples = TwoSamples(self._polling, now)
        if not self._samples.done(now):
            return False
        self._samples = None
        return True

    def _too_many(self) -> bool:
        """Whether `--max-incidents` are kept already. Said once: the watch itself goes on."""
        kept = len({each["incident"] for each in self._incidents.log if each["reason"] != "snapshot"})
        if kept < self._max_incidents:
            return False
        if not self._refused:
            self._say(f"trouble again, but --max-incidents ({kept}) are kept already: no more are saved")
        self._refused += 1
        return True

    def _capture(self, path: Path, reason: str, detail: str) -> None:
        if path == self._incidents.hang:
            self._stalled = {rank.number: self._trace(rank) for rank in self._polling if not rank.ended}
            self._polling.known_stalled = set(self._stalled)
            self._stall = Stall.of(self._polling)
            self._went_on_after, self._moves_since = None, None
        self._incidents.capture(path, reason, detail, list(self._polling))

    def _trouble(self) -> tuple[str, str] | None:
        """(reason, detail) of what is wrong now, the most certain first."""
        bad = None if self._signalled else self._bad_end()
        if bad is not None and self._incidents.reason(self._incidents.hang) is None:
            return "rank-exit", bad
        stuck = self._oldest() or self._init_frame() or self._standing()
        now = time.monotonic()
        if stuck is not None and not any(rank.leaves(now) for rank in self._polling):
            return "stall", stuck
        if self._alarms:
            text, self._alarms = self._alarms[0], []
            return "watchdog", text
        fresh = self._fresh_dumps()
        if fresh:
            return "dump-file", f"PyTorch wrote {fresh[0].name}"
        return None

    def _bad_end(self) -> str | None:
        """The rank that ended badly first, in words."""
        ended = [rank for rank in self._polling if self._ended_badly(rank)]
        first = min(ended, key=lambda rank: rank.ended_at or 0.0, default=None)
        if first is None:
            return None
        return f"rank {first.number} (pid {first.process.pid}) {how_ended(first.exit_status)}"

    def _ended_badly(self, rank: WatchedRank) -> bool:
        if not rank.ended or rank.exit_status in (0, None) or rank.process.pid in self._ending:
            return False
        # Ray ends an actor with 1, also after training: that is a failure where it cut something short.
        return not rank.ended_by_ray or any(each.progress.oldest() for each in self._polling)

    def _oldest(self) -> str | None:
        """The oldest unfinished operation of all ranks, in words, if it is older than the threshold."""
        now_ns, usual = time.time_ns(), self._polling.threshold()
        waiting = [
            (oldest.age_s(now_ns), rank.number, oldest)
            for rank in self._polling
            if not rank.ended and rank.number not in self._stalled and (oldest := rank.progress.oldest()) is not None
        ]
        late = [(age, number, each) for age, number, each in waiting if age > usual]
        pause = self._pause() if late else None
        if pause is not None and pause.ago_s <= usual:
            return None
        for age, number, each in sorted(late, key=lambda found: found[:2], reverse=True):
            sites, what = [(each.group, each.name)], f"rank {number}: {each.label} unfinished"
            if age > self._sites.threshold(sites, usual):
                overdue = f"; the pause for {pause.reason} is over its bound" if pause and pause.overdue else ""
                return f"{what} for {age:.1f} s{overdue}"
            self._say_that_it_may_go_on(sites, what, age, usual)
        return None

    def _say_that_it_may_go_on(self, sites: Iterable[Site], what: str, age_s: float, usual_s: float) -> None:
        line = self._sites.line(sites, what, age_s, usual_s)
        if line is not None:
            self._say(line)

    def _pause(self) -> Pause | None:
        """A pause that training code announced on any node: the one that holds or ended last."""
        own = announced_pauses.newest(
            self._polling.sockets, [rank.process.pid for rank in self._polling if not rank.ended]
        )
        others = [state.pause_ago_s for _, state in run_directory.statuses(self._root, self._folder) if not state.ended]
        found = [own] if own is not None else []
        found += [Pause(max(0.0, ago)) for ago in others if ago is not None]
        return min(found, key=lambda pause: pause.ago_s, default=None)

    def _init_frame(self) -> str | None:
        """A rank that never gets out of init_process_group, in words."""
        now = time.monotonic()
        for rank in self._polling:
            since = None if rank.ended or rank.number in self._stalled else rank.init_since
            if since is not None and now - since > self._polling.init_threshold():
                return f"rank {rank.number}: init_process_group unfinished for {now - since:.1f} s"
        return None

    def _standing(self) -> str | None:
        """A rank that stands still in a wait which no recorder counts, in words."""
        polling, usual = self._polling, self._polling.threshold()
        late = polling.unrecorded_waits.stuck(polling, self._stalled, usual, time.monotonic())
        pause = self._pause() if late else None
        if pause is not None and pause.ago_s <= usual:
            return None
        for stood in late:
            sites = sites_of(stood.rank)
            if stood.seconds > self._sites.threshold(sites, usual):
                return f"{stood} for {stood.seconds:.1f} s, and nothing of it moves"
            self._say_that_it_may_go_on(sites, str(stood), stood.seconds, usual)
        return None

    def _trace(self, rank: WatchedRank) -> tuple[Any, ...]:
        """Changes whenever the rank gets anywhere: by its counters, else by where it stands."""
        signature = rank.progress.signature()
        return signature if any(signature) and rank.progress.oldest() else (*signature, rank.position.moves)

    def _fresh_dumps(self) -> list[Path]:
        """Dumps that PyTorch has written by itself since we last looked."""
        found = []
        for prefix in self._prefixes():
            folder, start = os.path.split(prefix)
            with contextlib.suppress(OSError), os.scandir(folder) as listing:
                for entry in listing:
                    path = Path(entry.path)
                    # A directory like /tmp holds what others write: theirs is no word of our ranks.
                    if not entry.name.startswith(start) or path in self._dumps_seen or _is_ours(entry.name):
                        continue
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    self._dumps_seen.add(path)
                    told = entry.stat(follow_symlinks=False)
                    if told.st_mtime >= self._node.started_at - 1 and told.st_uid in (os.geteuid(), self._folder_owner):
                        found.append(path)
        return found

    def _prefixes(self) -> set[str]:
        """What PyTorch's dumps are called: anything in our own folder, or as the user's settings say."""
        own = f"{self._folder / 'dumps'}/"
        if self._dump_prefixes is None:
            first: WatchedRank | None = next((rank for rank in self._polling if not rank.ended), None)
            environ = linux_process.environment(first.process.pid) if first is not None else {}
            if not environ:
                return {own}
            self._dump_prefixes = {own, *(environ[name] for name in output_files.DUMP_VARIABLES if environ.get(name))}
            with contextlib.suppress(OSError):
                self._folder_owner = os.stat(self._folder).st_uid  # as the file system has us: another on some NFS
        return self._dump_prefixes

    def _note_recovery(self) -> None:
        """A stall that went on by itself is over, and the next one is another incident."""
        if not self._stalled:
            return
        if self._went_on_after is None:
            self._went_on_after = self._goes_on()
        if self._went_on_after is None or self._incidents.working:
            return
        path, seconds = self._incidents.hang, self._went_on_after
        self._stalled, self._went_on_after, self._moves_since = {}, None, None
        self._polling.known_stalled = set()
        if self._incidents.reason(path) in MAY_RECOVER:
            self._sites.went_on(self._stall.sites, seconds)
            self._incidents.recovered(path, seconds)
            self._incidents.next_hang()

    def _goes_on(self) -> float | None:
        """After how many seconds the stall ended, once that holds: a rank whose peer was ended moves too, and dies."""
        if not self._moved():
            self._moves_since = None
            return None
        if self._moves_since is None:
            self._moves_since = time.monotonic(), self._stall.seconds()
        since, seconds = self._moves_since
        return seconds if time.monotonic() - since >= MOVES_S else None

    def _moved(self) -> bool:
        """Whether every rank that stood still has got somewhere since."""
        ranks = [(self._polling.ranks.get(number), before) for number, before in self._stalled.items()]
        return all(rank is not None and not rank.ended and self._trace(rank) != before for rank, before in ranks)

    # ---- ending it ---------------------------------------------------------------------------------------------------

    def _end_the_job(self) -> None:
        """`--on-hang kill`: end this node's ranks once the evidence is safe, if they still stand still by our own eyes.

        Nobody else's word is needed for that, and nobody else's word is enough: a directory may be shared with others.
        """
        path = self._incidents.hang
        if not self._on_hang.kill or self._ending or self._ended.is_set() or not self._incidents.safe(path):
            return
        if self._incidents.outcome(path) in QUIET or not self._stands_still():
            return
        ranks = [rank for rank in self._polling if not rank.ended]
        self._ending = {rank.process.pid for rank in ranks}
        threading.Thread(target=self._end, args=(ranks,), name="end", daemon=True).start()

    def _end(self, ranks: list[WatchedRank]) -> None:
        names = ", ".join(str(rank.number) for rank in ranks[:16]) + (" …" if len(ranks) > 16 else "")
        grace = self._on_hang.grace_s
        self._say(f"--on-hang kill: ranks {names} get SIGTERM, and SIGKILL after {grace:g} s")
        left = end(ranks, grace, self._stands_still)
        if left:
            self._say(f"warning: ranks {', '.join(map(str, left))} live on after SIGKILL: uninterruptible, or not ours")

    def _stands_still(self) -> bool:
        """Whether ranks of this node are stuck now: as they were when it was captured, or in something too old."""
        now_ns, usual = time.time_ns(), self._polling.threshold()
        for rank in self._polling:
            if rank.ended:
                continue
            oldest = rank.progress.oldest()
            if oldest is not None and oldest.age_s(now_ns) > usual:
                return True
            if self._stalled.get(rank.number) == self._trace(rank):
                return True
        return False

    # ---- status ------------------------------------------------------------------------------------------------------

    def write_status(self) -> None:
        first = next(iter(self._polling), None)
        value = {
            "schema": status_file.SCHEMA,
            "node": self._node.name,
            "job": self._node.job,
            "attempt": self._node.attempt,
            "at": time.time(),
            "agent_pid": os.getpid(),
            "command_pid": self._command,
            "sockets": str(self._polling.sockets),
            "world_size": first.process.world_size if first is not None else None,
            "local_world_size": first.process.local_world_size if first is not None else None,
            "nodes": nodes_announced(self._polling),
            "threshold_s": self._polling.threshold(),
            "poll_s": round(self._polling.interval, 3),
            "ended": self._exit,
            "pause_ago_s": self._own_pause_ago(),
            "captures": self._incidents.log,
            "live": status_file.rows(self._polling, self._rates),
        }
        with contextlib.suppress(OSError):
            self._patience.ask("status", lambda: self._write(run_directory.STATUS, value))
        if self._metrics is not None:
            self._metrics.publish(numbers(self._polling, self._incidents, ended=self._exit is not None))

    def _own_pause_ago(self) -> float | None:
        pause = announced_pauses.newest(
            self._polling.sockets, [rank.process.pid for rank in self._polling if not rank.ended]
        )
        return None if pause is None else round(pause.ago_s, 1)

    def _write(self, name: str, value: Any) -> None:
        """Into this node's folder, without following a link that somebody put there."""
        inside = self._folder.relative_to(self._root).as_posix()
        write_below(self._root, f"{inside}/{name}", as_bytes(as_json(value)), wary=True)


def _is_ours(name: str) -> bool:
    return name.startswith((".", "last_rank_")) or name.endswith((".json", ".pickle", ".pipe", ".part"))


def how_ended(code: int | None) -> str:
    """In words: "was killed by SIGKILL", "ended with status 1"."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
