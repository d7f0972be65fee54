"""The node agent's loop: it polls this node's ranks, and has each part of the agent do its work in turn.

One thread runs it; a capture runs on a thread of its own, so that the end of a rank is noticed meanwhile. Nothing that
happens here reaches the job: every question has a deadline, and an error of ours is said and left behind.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.incident.layout import VERDICT_JSON
from hangscope.processes import linux_process
from hangscope.recorder.agent.captures import Captures
from hangscope.recorder.agent.conclusions import Conclusions
from hangscope.recorder.agent.desync.desync_watch import DesyncWatch
from hangscope.recorder.agent.dump_watch import DumpWatch
from hangscope.recorder.agent.end_ranks import RankEnder
from hangscope.recorder.agent.incidents import Incidents
from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.lingering_ranks import LingeringRanks
from hangscope.recorder.agent.metrics import Metrics
from hangscope.recorder.agent.never_seen import one_rank_a_run
from hangscope.recorder.agent.node_status import StatusWriter
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import RecoveredStalls, Recovery
from hangscope.recorder.agent.stall_watch import StallWatch
from hangscope.recorder.agent.startup_report import StartupReport
from hangscope.recorder.agent.watcher import Trouble, Watcher
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live.job_pace import JobPace
from hangscope.recorder.live.polling import POLL_S, Polling
from hangscope.recorder.live.rank_activity import RankActivity
from hangscope.recorder.live.two_samples import TwoSamples
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.node_answers import NodeAnswers
from hangscope.recorder.rundir.reasons import MAY_RECOVER, Reason
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.sources.net_counters import capture as net_counters
from hangscope.verdict_words import still_runs

STATUS_S = 2.0
SEES_S = 5.0
STILL_S = 3.0
"""For one look: after so long a rank stands, and its line is waited for until the end of the former."""
WITHOUT_HANDLE_S = 0.3
"""The longest sleep where the end of a rank does not wake us (Linux before 5.3)."""
MAX_INCIDENTS = 10
GIVES_UP = (Reason.WATCHDOG, Reason.DUMP_FILE)
"""Reasons that come from PyTorch itself: soon there will be nobody left to ask."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the user may set about the agent."""

    stall_after: float | None = None
    on_hang: OnHang = field(default_factory=OnHang)
    max_incidents: int = MAX_INCIDENTS
    diagnose: bool = True
    look_every: float | None = None
    """Seconds between two looks at the rings with stacks; None for ever longer pauses."""
    only_looks: bool = False
    """Nothing is captured: somebody wants to see now what the ranks do, and where those are that stand."""


class Agent:
    """`command` is the pid of what was started, `events` what happens to it. `move_logs` sends the copy of its output
    elsewhere, `spare` makes a directory for what the run's own takes no more. `environ` says whether the command is a
    rank itself. `attached`: the job was running before, and nothing about it was prepared. `patient`: its ranks may
    start much later."""

    def __init__(
        self,
        options: AgentOptions,
        *,
        folders: RunFolders,
        node: NodeFacts,
        sockets: Path,
        command: int,
        events: JobEvents,
        say: Callable[[str], None],
        move_logs: Callable[[Path], None],
        spare: Callable[[], Path] | None = None,
        metrics: Metrics | None = None,
        concluded: Callable[[Path], None] = lambda _: None,
        environ: Mapping[str, str] = os.environ,
        attached: bool = False,
        patient: bool = False,
    ) -> None:
        self._folders = folders
        self._node = node
        node.command = command
        self._command = command
        self._events = events
        self._attached = attached
        self._say = say
        self._move_logs = move_logs
        self._max_incidents = 0 if options.only_looks else options.max_incidents
        polling = Polling(sockets, options.stall_after, node.boxes, options.look_every, tasks_are_ranks=attached)
        log = Incidents()
        recovery = Recovery(polling)
        recovered = RecoveredStalls()
        activity = RankActivity()
        self._polling = polling
        self._log = log
        self._recovery = recovery
        self._recovered = recovered
        self._activity = activity
        self._status = StatusWriter(
            folders, node, command, polling=polling, activity=activity, events=events, log=log, metrics=metrics
        )
        self._answers = NodeAnswers(folders)
        conclusions = self._conclusions(options, concluded)
        self._captures = Captures(
            folders, node, events.ended, log, conclusions, lambda: events.asked_at, say=say, spare=spare
        )
        self._stalls = StallWatch(polling, folders, recovered, say)
        self._pace = JobPace()
        self._watcher = Watcher(polling, events, self._stalls, DumpWatch(folders.own, node.started_at), self._pace)
        self._ender = self._rank_ender(options)
        self._desync = DesyncWatch(polling, folders, node, events.ended) if options.diagnose else None
        self._startup = _startup_report(environ, attached=attached, patient=patient)
        self._lingering = LingeringRanks()
        self._samples: TwoSamples | None = None
        self._only_looks = options.only_looks
        self._refused = options.only_looks
        self._begun = time.monotonic()
        if options.only_looks:
            polling.unrecorded_waits.sample_closely(self._begun + SEES_S)
        self._complained = False
        self.reported = False
        """Whether a status with ranks in it has been written."""
        self._polled_at = 0.0
        self._next_status = 0.0
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    def _rank_ender(self, options: AgentOptions) -> RankEnder:
        return RankEnder(
            options.on_hang,
            self._polling,
            self._recovery,
            self._recovered,
            self._activity,
            self._say,
            self._works_elsewhere,
            lambda: self._captures.ask_gpus(self._command),
        )

    def _conclusions(self, options: AgentOptions, concluded: Callable[[Path], None]) -> Conclusions:
        return Conclusions(
            self._folders,
            self._events.ended,
            self._log,
            self._recovery,
            self._status,
            on_hang=options.on_hang,
            diagnose=options.diagnose,
            say=self._say,
            concluded=concluded,
            interrupted=lambda: self.interrupted,
            answers=self._answers,
        )

    # ---- what `run` calls --------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._take_inventory, name="inventory", daemon=True).start()
        self._thread.start()

    def finish(self, status: int | None) -> None:
        """The command has ended with `status`, and its output is all there: save what is left to save. None where the
        status is not known, or the watch ends before the job."""
        self._events.end(status)
        self._thread.join(timeout=10)
        try:
            self._polling.note_ends()
            if not status:
                self._recovery.note_clean_end()
            self._pace.look(self._polling, self._polling.interval, time.monotonic())
            self._captures.finish(list(self._polling), self._last_trouble(status))
            if self.interrupted and not self.captured and not self._attached:
                self._say(
                    f"interrupted while the job was moving: no verdict; its output is in {self._folders.own}/logs"
                )
        except Exception as error:
            self._say(f"the last part of the capture failed: {type(error).__name__}: {error}")
        if self._desync is not None:
            self._desync.close()
        self._status.write()
        self._status.close()
        self._polling.close()

    @property
    def captured(self) -> bool:
        """Whether anything was saved that somebody may want."""
        return bool(self._log.captures)

    @property
    def any_rank_lives(self) -> bool:
        """Whether a rank that was seen has not ended."""
        return any(not rank.handle.ended() for rank in self._polling.living)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended a job that was moving."""
        return self._watcher.interrupted()

    @property
    def ranks(self) -> tuple[list[int], int | None]:
        """The ranks that were seen on this node, and how many the job has, where one of them says so."""
        seen = list(self._polling)
        known = {rank.process.rank for rank in seen if rank.process.rank is not None}
        return sorted(known), seen[0].process.world_size if seen else None

    @property
    def hung(self) -> bool:
        """Whether a hang was the job's end: captured, not over, and nobody outside had ended the job before."""
        hang = self._captures.hang
        if self._events.asked_to_end:
            return False
        if self._ender.pids:
            return True  # also where a rank moved once more, because its peer was ended before it
        if self._captures.reason(hang) not in MAY_RECOVER:
            return False
        return not still_runs(self._captures.verdict(hang).get("outcome"))

    @property
    def hang_in_a_line(self) -> str:
        """What the verdict on the last hang says, by whichever node gave it; empty where there is none."""
        note = peer_files.verdict_note(self._captures.home(self._captures.hang), VERDICT_JSON)
        return "" if note is None else note.in_a_line()

    def _last_trouble(self, status: int | None) -> Trouble | None:
        """How the job failed by itself, or that it stood still when it was ended; None where it did neither."""
        if status == 0 or self._events.detached or not len(self._polling):
            return None
        if self.interrupted:
            return None
        if self._captures.reason(self._captures.hang) is None and self._too_many():
            return None
        if self._captures.gpus_asked():
            self._say("the job failed because `snapshot --gpu` had asked its GPUs what they run")
            return None
        if self._events.asked_to_end:
            return self._standstill() if self._events.save_wanted.is_set() else None
        failure = self._watcher.bad_end(self._ender.pids)
        if failure is None and status is None:
            return None  # how it ended is not known, and no rank is known to have failed
        return Trouble(Reason.RANK_EXIT, failure or f"the command ended with status {status}")

    def _standstill(self) -> Trouble | None:
        waits = self._stalls.standstill()
        return None if waits is None else Trouble(Reason.STALL, f"{waits} when SIGTERM came")

    def _take_inventory(self) -> None:
        """Once, beside the start of the job: it must not wait for nvidia-smi. The counters first: they move."""
        with contextlib.suppress(OSError):
            self._folders.write("counters/start.json", net_counters.snapshot())
        self._node.look_up()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._events.ended.is_set():
            try:
                self._sleep()
                self._turn()
            except Exception as error:
                # A full disk or a mistake of ours must not end the watch. Said once: it may come every second.
                if not self._complained:
                    self._say(f"the agent hit a problem and continues: {type(error).__name__}: {error}")
                self._complained = True
                time.sleep(POLL_S)

    def _sleep(self) -> None:
        """Until the next poll is due, a rank ends, or something happens to the command."""
        handles = [rank.handle.fd for rank in self._polling.living]
        longest = self._polled_at + self._polling.interval - time.monotonic()
        if None in handles:
            longest = min(longest, WITHOUT_HANDLE_S)
        self._events.sleep(longest, [handle for handle in handles if handle is not None])

    def _turn(self) -> None:
        self._polling.note_ends()
        now = time.monotonic()
        if now >= self._polled_at + self._polling.interval and not self._events.ended.is_set():
            self._polling.turn(self._command)
            self._polled_at = now
            if self._polling.ranks.take_restart():
                self._begin_attempt()
        self._pace.look(self._polling, self._polling.interval, now)
        self._report(now)
        if self._desync is not None:
            self._desync.turn(now)
        self._note_recovery()
        if self._events.save_wanted.is_set() and not self._events.saved.is_set():
            self._save_before_end()
        if not self._captures.working:
            self._capture_if_needed()
        if not self._events.ended.is_set():
            if self._recovery.stalled:
                self._activity.look(self._polling.living, now)
            self._ender.turn(self._captures)
        if now >= self._next_status or (self._only_looks and not self.reported):
            self._status.write()
            self.reported = self.reported or (bool(len(self._polling)) and self._has_seen(now))
            self._answers.look()
            self._next_status = now + STATUS_S + len(self._polling) / 50

    def _has_seen(self, now: float) -> bool:
        """Whether it is known where those ranks are that stand, where that is what is wanted."""
        if not self._only_looks or now - self._begun > SEES_S:
            return True
        still = (rank for rank in self._polling.living if rank.stood_s(now) > STILL_S)
        return all(rank.position.samples for rank in still)

    def _works_elsewhere(self) -> set[int]:
        """Ranks of other nodes that their agents see working."""
        nodes = run_directory.statuses(self._folders.root, self._folders.own)
        return {row.rank for _, status in nodes for row in status.live if row.works}

    def _begin_attempt(self) -> None:
        """The launcher has started the ranks anew: nothing of those before is theirs."""
        self._node.begin_attempt(self._polling.ranks.earlier)
        self._watcher.forget_attempt()
        self._pace.restart()
        self._recovery.forget()
        if self._desync is not None:
            self._desync.forget()
        self._ender.pids.clear()
        self._startup.restart()
        logs = self._captures.next_attempt()
        if logs is not None:
            self._move_logs(logs)

    def _report(self, now: float) -> None:
        """Which ranks are watched, and which have stayed behind: a line each, when there is one."""
        ranks = list(self._polling)
        started = self._startup.line(ranks, self._polling.unrecorded_waits.refused, now, self._command)
        stays = self._lingering.line(ranks, self._polling.threshold())
        strangers = self._startup.strangers(self._polling.ranks.strangers(now))
        for line in (started, stays, strangers):
            if line is not None:
                self._say(line)

    def _note_recovery(self) -> None:
        """A stall that went on by itself is over, and the next one is another incident. What moves once the job is to
        end does so because of that: a peer was ended before it, or we asked for its stack."""
        if self._events.save_wanted.is_set() or self._events.asked_to_end:
            return
        seconds = self._recovery.update()
        if seconds is None or self._captures.working:
            return
        hang = self._captures.hang
        sites = self._recovery.forget()
        if self._captures.reason(hang) in MAY_RECOVER:
            self._recovered.add(sites, seconds)
            self._captures.note_recovery(hang, seconds)
            self._captures.next_hang()

    # ---- what to capture ---------------------------------------------------------------------------------------------

    def _capture_if_needed(self) -> None:
        hang = self._captures.hang
        asked = self._asked_for(hang)
        if asked is not None:
            self._capture_hang(asked)
            return
        snapshot = self._captures.snapshot
        asked = self._asked_for(snapshot)
        if asked is not None and self._sampled_twice():
            self._captures.capture(snapshot, asked, list(self._polling))
            return
        captured_as = self._captures.reason(hang)
        trouble = self._watcher.trouble(
            captured=captured_as is not None,
            known_stalled=self._recovery.stalled,
            ended_by_us=self._ender.pids,
        )
        if trouble is not None and self._captures.gpus_asked():
            return  # whatever fails now was made to fail
        if trouble is not None and self._is_worth_a_capture(trouble, captured_as):
            self._capture_hang(trouble)
        elif self._log.times(hang) == 1 and self._ender.stopped_working(self._captures):
            self._capture_hang(Trouble(Reason.STALL, "the rank that the others wait for works no longer"))
        elif trouble is None and self._desync is not None:
            self._keep_desync(self._desync)

    def _keep_desync(self, watch: DesyncWatch) -> None:
        """The rings of the last look, where two have shown that the ranks have come apart, here or by another node."""
        incident = self._captures.desync
        found = watch.take()
        if found is not None:
            trouble, look = found
            self._captures.capture(incident, trouble, list(self._polling), look)
            return
        asked = self._asked_for(incident)
        last = self._polling.looks.last
        if asked is not None and last is not None:
            self._captures.capture(incident, asked, list(self._polling), last)

    def _save_before_end(self) -> None:
        """SIGTERM waits until what a job that stands still is doing has been saved; no longer than its grace allows."""
        hang = self._captures.hang
        if self._captures.reason(hang) is None and not self._captures.working:
            trouble = None if self._too_many() else self._standstill()
            if trouble is None:
                self._events.saved.set()
            else:
                self._capture_hang(trouble)
        elif self._captures.is_saved(hang):
            self._events.saved.set()

    def _asked_for(self, incident: Path) -> Trouble | None:
        """What another node's agent, or `hangscope snapshot`, asks us to capture, if we have not."""
        request = run_directory.marked(incident)
        if request is None or self._captures.reason(incident) is not None:
            return None
        return Trouble(request.reason or Reason.STALL, request.detail)

    def _is_worth_a_capture(self, trouble: Trouble, captured_as: str | None) -> bool:
        """A hang is captured once. Once more when PyTorch itself gives up: soon there will be nobody left to ask."""
        if self._ender.pids:
            return False  # what is seen now comes from our own signals
        if captured_as is None:
            return not self._too_many()
        gives_up = trouble.reason in GIVES_UP and captured_as not in GIVES_UP
        return gives_up and self._log.times(self._captures.hang) < 2

    def _capture_hang(self, trouble: Trouble) -> None:
        self._recovery.begin(self._captures.hang)
        self._captures.capture(self._captures.hang, trouble, list(self._polling))

    def _sampled_twice(self) -> bool:
        """For a snapshot: whether the second sample is taken. The first is, once somebody asks."""
        now = time.monotonic()
        if self._samples is None:
            self._samples = TwoSamples(self._polling, now)
        if not self._samples.done(now):
            return False
        self._samples = None
        return True

    def _too_many(self) -> bool:
        """Whether `--max-incidents` are kept already. Said once: the watch itself goes on."""
        kept = self._log.hangs
        if kept < self._max_incidents:
            return False
        if not self._refused:
            self._say(f"another incident, but --max-incidents ({kept}) are already saved: no more are saved")
        self._refused = True
        return True


def _startup_report(environ: Mapping[str, str], *, attached: bool, patient: bool) -> StartupReport:
    return StartupReport(
        environ_rank=one_rank_a_run(environ) and not attached,
        patient=patient,
        tasks=linux_process.whole_number(environ.get("SLURM_STEP_NUM_TASKS", "")),
        first=(environ.get("RANK") or environ.get("SLURM_PROCID") or "0") == "0",
    )
