"""`hangscope run`: the settings, the command, the agent beside it, and the command's own exit status at the end."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.errors import LaunchError, SettingsError
from hangscope.processes import linux_process
from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.metrics import Metrics
from hangscope.recorder.agent.never_seen import one_rank_a_run
from hangscope.recorder.agent.node_agent import Agent, AgentOptions
from hangscope.recorder.capture.capture_node import SECRET
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.launch import gpu_core_folder, job_environment, rank_sockets, run_places
from hangscope.recorder.launch.finish_run import AFTER_SIGNAL_S, finish
from hangscope.recorder.launch.push_to_server import ServerOptions, ServerPush
from hangscope.recorder.launch.start_command import Command
from hangscope.recorder.launch.term_grace import grace_s
from hangscope.recorder.live.companion_hook import with_companion
from hangscope.recorder.rundir import tidy
from hangscope.recorder.rundir.job_identity import JobIdentity, identify
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.recorder.setup import blackbox_library, variables
from hangscope.safeio.safe_files import Patience, Refused
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.gpu_core import settings as gpu_core_settings
from hangscope.sources.process_memory import ProcessMemory

TRIED_ON = "x86_64"
AUTO, OUTSIDE, INSIDE = "auto", "outside", "inside"
LOOKS = (AUTO, OUTSIDE, INSIDE)
DRAIN_S = 10.0
LATE_DRAIN_S = 20.0
TIDY_S = 10.0
LOOK_S = 4.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user may set. None means the default, or what the environment says."""

    directory: Path | None = None
    job: str | None = None
    attempt: str | None = None
    node: str | None = None
    entries: int | None = None
    fix: bool = False
    timing: bool = False
    gpu_core: bool | None = None
    """Whether the GPUs can be asked what they run; None for what suits the rest."""
    keep: bool = False
    look: str = AUTO
    """How the ranks are looked at: `outside`, by reading their memory, or `inside`, by asking their companion. `auto`
    is `outside` where nothing is missed by it."""
    term_grace: float | None = None
    metrics_file: Path | None = None
    metrics_port: str | None = None
    server: ServerOptions | None = None
    agent: AgentOptions = field(default_factory=AgentOptions)


def run(words: Sequence[str], options: RunOptions, *, environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run the command with the recorder on and return its exit status. Call it in the main thread: it hands on signals.

    Before the command starts, an error is the user's to mend and is raised; afterwards nothing of ours stops it.
    """
    _check(words, options, environ)
    ours = run_places.answering(environ, say)
    identity = identify(environ, job=options.job, attempt=options.attempt, node=options.node)
    with contextlib.ExitStack() as kept:
        folders, identity = run_places.claim(options.directory, identity, ours, say, kept)
        sockets = rank_sockets.make(ours)
        try:
            return _Run(options, identity, folders, sockets, environ, ours, say, kept).run(words)
        finally:
            with contextlib.suppress(OSError):  # by now even this place may not answer, and the command has ended
                Patience(LOOK_S).ask(str(sockets), lambda: rank_sockets.remove(sockets))


def _check(words: Sequence[str], options: RunOptions, environ: Mapping[str, str]) -> None:
    if not words:
        raise LaunchError("no command to run", hint="put it after `--`: hangscope run -- torchrun …")
    if shutil.which(words[0], path=environ.get("PATH")) is None:
        hint = "write the command as in the shell, after `--`"
        if environ.get("SLURM_EXPORT_ENV") == "NONE":
            hint = "the job was submitted with --export=NONE: give srun --export=ALL, after setting PATH"
        raise LaunchError(f"{words[0]}: command not found", hint=hint)
    check_times(options.agent)


def check_times(options: AgentOptions) -> None:
    """Raises SettingsError where a time is none."""
    stall_after = options.stall_after
    if stall_after is not None and not 0 < stall_after < math.inf:
        raise SettingsError("--stall-after must be a number of seconds above 0")
    look_every = options.look_every
    if look_every is not None and not 1 <= look_every <= 86400:
        raise SettingsError("--look-every must be a time from a second to a day")


@dataclass(frozen=True, slots=True)
class _Run:
    """`environ` is what the command inherits; `ours` is what we choose places of our own by."""

    options: RunOptions
    identity: JobIdentity
    folders: RunFolders
    sockets: Path
    environ: Mapping[str, str]
    ours: Mapping[str, str]
    say: Callable[[str], None]
    kept: contextlib.ExitStack

    def run(self, words: Sequence[str]) -> int:
        prepared = job_environment.with_recorder(
            words,
            self.identity,
            self.folders.own,
            self.ours,
            entries=self.options.entries,
            fix=self.options.fix,
            timing=self.options.timing,
            say=self.say,
        )
        if gpu_core_settings.wanted(self.options.gpu_core, kill=self.options.agent.on_hang.kill):
            prepared |= gpu_core_folder.variables(prepared, self.ours, self.kept, self.say)
        node = NodeFacts(self.identity.node, self.identity.job, self.identity.attempt, time.time())
        node.machine = self.identity.machine
        if blackbox_library.FOLDER in prepared:
            node.boxes = Path(prepared[blackbox_library.FOLDER])
        labels = {"job": node.job, "attempt": node.attempt, "node": node.name}
        metrics = open_metrics(self.options.metrics_file, self.options.metrics_port, labels, self.say)
        events = JobEvents()
        command = self._start_command(words, prepared, events)
        server = self._server(node)
        agent = self._start_agent(command, node, events, metrics, server)
        command.handle_signals(events.signalled, lambda: events.save_first(self._time_to_save()))
        if server is not None:
            server.start(lambda: agent.ranks)
        status = command.wait()
        self._finish(agent, command, status)
        if server is not None:
            server.finish(status)
        with contextlib.suppress(OSError):
            Patience(LOOK_S).ask("pipes", lambda: job_environment.remove_pipes(prepared, self.environ))
        if status == 0 and not self.options.keep and not agent.captured and command.over():
            with contextlib.suppress(OSError):
                Patience(TIDY_S).ask(f"tidy {self.folders.root}", lambda: tidy.remove(self.folders.root))
        return self._exit_status(agent, status)

    def _exit_status(self, agent: Agent, status: int) -> int:
        """The command's own, except where a hang was its end and the scheduler is to know that."""
        wanted = self.options.agent.on_hang.exit_status
        if status == 0 or wanted is None or not agent.hung:
            return status
        self.say(f"the command ended with status {status} because of the hang: exit status {wanted}")
        with contextlib.suppress(OSError):
            if said := Patience(LOOK_S).ask("verdict", lambda: agent.hang_in_a_line):
                self.say(said)
        return wanted

    def _after_signal(self, command: Command) -> float:
        """Who presses Ctrl-C does not want to wait; a scheduler's SIGTERM leaves time to say who held the job up."""
        return self._time_to_save() if command.ended_by == signal.SIGTERM else AFTER_SIGNAL_S

    def _time_to_save(self) -> float:
        """From SIGTERM on: half of what the scheduler gives, so that the command has the other half to end."""
        return grace_s(self.environ, self.options.term_grace) / 2

    def _start_command(self, words: Sequence[str], prepared: Mapping[str, str], events: JobEvents) -> Command:
        own = "RANK" if "RANK" in self.environ else "SLURM_PROCID" if one_rank_a_run(self.environ) else ""
        rank = linux_process.whole_number(self.environ.get(own, ""))
        given = {name: value for name, value in prepared.items() if name not in SECRET}
        return Command(
            words,
            environ={
                **with_companion(given, sockets=self.sockets, outside=self._looks_from_outside(given)),
                "HANGSCOPE_DIR": str(self.folders.root),
                **run_places.temporary_directories(self.environ),
            },
            logs=self.folders.own / "logs",
            rest="launcher.log" if rank is None else f"rank_{rank}.log",
            on_alarm=events.alarm,
        )

    def _looks_from_outside(self, prepared: Mapping[str, str]) -> bool:
        """Whether the ranks need not answer: each that can be read from outside is, by itself. `auto` asks them where
        only they can tell what is wanted."""
        if self.options.look == INSIDE:
            return False
        why = self._asks_from_inside(prepared)
        if why and self.options.look == OUTSIDE:
            self.say(f"warning: --look outside: {why}; the ranks are asked from inside")
        return not why

    def _asks_from_inside(self, prepared: Mapping[str, str]) -> str:
        if self.options.agent.on_hang.wandb:
            return "--on-hang wandb needs the ranks' own W&B run"
        if self.options.look == AUTO and variables.as_bool(prepared.get("TORCH_NCCL_ENABLE_TIMING", "")):
            return "when an operation started, NCCL's events tell in the rank alone"
        if self.options.look == AUTO and os.uname().machine != TRIED_ON:
            return f"reading ranks from outside was not tried on {os.uname().machine}"
        return reading_refused() or ""

    def _server(self, node: NodeFacts) -> ServerPush | None:
        return None if self.options.server is None else ServerPush(self.options.server, node, self.environ, self.say)

    def _start_agent(
        self,
        command: Command,
        node: NodeFacts,
        events: JobEvents,
        metrics: Metrics | None,
        server: ServerPush | None,
    ) -> Agent:
        agent = Agent(
            self.options.agent,
            folders=self.folders,
            node=node,
            sockets=self.sockets,
            command=command.pid,
            events=events,
            say=self.say,
            move_logs=command.move_logs,
            spare=functools.partial(run_places.make_spare, self.ours, self.folders.root.name),
            metrics=metrics,
            concluded=_nothing if server is None else server.incident,
        )
        agent.start()
        return agent

    def _finish(self, agent: Agent, command: Command, status: int) -> None:
        """The command has ended: its output first, then what is left to save."""
        drained = threading.Thread(target=command.drain, daemon=True)
        drained.start()
        drained.join(timeout=DRAIN_S)
        came = command.end_on_signals()
        finish(agent, status, self.folders.root, came, self.say, lambda: self._after_signal(command))
        drained.join(timeout=LATE_DRAIN_S)
        if command.problem:
            self.say(f"the copy of the output is not complete: {command.problem}")


def reading_refused() -> str | None:
    """Why we may not read the memory of a process below us; None where we may."""
    try:
        child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except OSError as error:
        return error.strerror or str(error)
    try:
        ProcessMemory(child.pid).close()
    except CannotRead as error:
        return error.reason
    finally:
        child.kill()
        child.wait()
    return None


def _nothing(_: Path) -> None:
    """Nobody is to know of an incident but who looks at the directory."""


def open_metrics(
    file: Path | None, port: str | None, labels: Mapping[str, str], say: Callable[[str], None]
) -> Metrics | None:
    """The metrics that are wanted, as far as they can be had: nothing about them keeps the training from starting."""
    if file is None and port is None:
        return None
    try:
        return Metrics(labels, file=file, port=port)
    except Refused as error:  # the file: a file system that hangs, or something that is none of ours
        say(f"warning: --metrics {file}: {error.strerror}; no metrics are written there")
        return open_metrics(None, port, labels, say)
    except OSError as error:  # another run of this node has the port
        say(f"warning: --metrics-port {port}: {error.strerror or error}; there are no metrics on it")
        return open_metrics(file, None, labels, say)
