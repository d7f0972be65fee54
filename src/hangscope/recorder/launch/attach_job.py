"""`hangscope attach`: a job that runs already, watched from now on as `run` watches the one that it started.

Nothing is put into the job: its ranks' recorders are read from outside. We are not its parent: how its launcher and its
ranks end is known where the kernel tells it, and not known otherwise. The watch ends with the job, or when it is asked
to; the job goes on then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from hangscope.processes.linux_process import ProcessHandle
from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.metrics import Metrics
from hangscope.recorder.agent.node_agent import Agent, AgentOptions
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.capture.snapshot_job import started_at
from hangscope.recorder.capture.snapshot_target import claim_directory
from hangscope.recorder.launch import run_places
from hangscope.recorder.launch.find_job import RunningJob
from hangscope.recorder.launch.finish_run import AFTER_SIGNAL_S, finish
from hangscope.recorder.launch.push_to_server import ServerOptions, ServerPush
from hangscope.recorder.launch.run_job import check_times, open_metrics
from hangscope.recorder.rundir import run_directory, tidy
from hangscope.recorder.rundir.job_identity import JobIdentity, identify
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.safeio.safe_files import Patience

LOOK_S = 0.5
TIDY_S = 10.0
WITHOUT_STATUS_S = 0.5
"""The status of a process that was just reaped may take the kernel a moment."""


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """What the user may set. None means the default, or what the job's environment says."""

    directory: Path | None = None
    job: str | None = None
    attempt: str | None = None
    node: str | None = None
    keep: bool = False
    metrics_file: Path | None = None
    metrics_port: str | None = None
    server: ServerOptions | None = None
    agent: AgentOptions = field(default_factory=AgentOptions)


class AttachedJob:
    """The watch over one running job. `environ` is our own; what the job says of itself comes from its own. `later`:
    its ranks may start at any time, and that there are none so far is no news."""

    def __init__(
        self,
        job: RunningJob,
        options: AttachOptions,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        *,
        later: bool = False,
    ) -> None:
        check_times(options.agent)
        self._job = job
        self._options = options
        self._environ = environ
        self._say = say
        self._later = later
        self._kept = ExitStack()
        self._handle = ProcessHandle(job.launcher)
        self._stop_read, self._stop_write = os.pipe()
        os.set_blocking(self._stop_write, False)
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._agent: Agent | None = None
        identity = identify(job.environ, job=options.job, attempt=options.attempt, node=options.node)
        if identity.made:  # whoever attaches to this job, now or later, makes the same name
            begun = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_at(job.launcher)))
            identity = replace(identity, job=f"{begun}-{job.launcher}")
        self.folders, self._identity = self._claim(identity)

    def _claim(self, identity: JobIdentity) -> tuple[RunFolders, JobIdentity]:
        ours = run_places.answering(self._environ, self._say)
        if not self._job.rights.foreign:
            return run_places.claim(self._options.directory, identity, ours, self._say, self._kept)
        # Another user's evidence is for whoever takes it.
        root, identity = claim_directory(self._options.directory, identity, self._job.rights, self._kept)
        return RunFolders(root, run_directory.claim_node(root, identity.node)), identity

    @property
    def launcher(self) -> int:
        """The process above the ranks."""
        return self._job.launcher

    @property
    def has_looked(self) -> bool:
        """Whether the ranks were looked at, and what was seen can be read in the directory."""
        return self._agent is not None and self._agent.reported

    def stop(self) -> None:
        """End the watch; the job goes on. A second time: what is being saved has a few seconds."""
        if self._stopped.is_set():
            self._hurry.set()
        self._stopped.set()
        with contextlib.suppress(OSError):
            os.write(self._stop_write, b"x")

    def watch(self) -> int:
        """Until the job ends, or `stop`. The exit status: 0, or `--exit-on-hang`'s where a hang was the job's end."""
        with self._kept:
            return self._watch()

    def _watch(self) -> int:
        options = self._options
        identity = self._identity
        node = NodeFacts(identity.node, identity.job, identity.attempt, started_at(self._job.launcher))
        node.machine = identity.machine
        node.boxes = self._job.boxes
        events = JobEvents()
        labels = {"job": identity.job, "attempt": identity.attempt, "node": identity.node}
        metrics: Metrics | None = open_metrics(options.metrics_file, options.metrics_port, labels, self._say)
        server = ServerPush(options.server, node, self._job.environ, self._say) if options.server is not None else None
        agent = Agent(
            options.agent,
            folders=self.folders,
            node=node,
            sockets=self._job.sockets,
            command=self._job.launcher,
            events=events,
            say=self._say,
            move_logs=lambda _: None,
            spare=functools.partial(run_places.make_spare, self._environ, self.folders.root.name),
            metrics=metrics,
            concluded=server.incident if server is not None else lambda _: None,
            environ=self._job.environ,
            attached=True,
            patient=self._later,
        )
        agent.start()
        self._agent = agent
        if server is not None:
            server.start(lambda: agent.ranks)
        self._await_end(agent)
        events.detached = self._stopped.is_set()
        status = None if events.detached else self._status()
        if events.detached:
            self._say("the watch ends here; the job goes on")
        finish(agent, status, self.folders.root, self._hurry, self._say, lambda: AFTER_SIGNAL_S)
        if server is not None:
            server.finish(status, ended=not events.detached)
        if not options.keep and not agent.captured:
            with contextlib.suppress(OSError):
                Patience(TIDY_S).ask(f"tidy {self.folders.root}", lambda: tidy.remove(self.folders.root))
        wanted = options.agent.on_hang.exit_status
        return wanted if wanted is not None and not events.detached and agent.hung else 0

    def _await_end(self, agent: Agent) -> None:
        """Until the launcher has ended, and the ranks that it leaves behind with it; or until `stop`."""
        poller = select.poll()
        poller.register(self._stop_read, select.POLLIN)
        if self._handle.fd is not None:
            poller.register(self._handle.fd, select.POLLIN)
        while not self._stopped.is_set() and not self._handle.ended():
            poller.poll(LOOK_S * 1000)
        while not self._stopped.is_set() and agent.any_rank_lives:
            self._stopped.wait(LOOK_S)

    def _status(self) -> int | None:
        """How the launcher ended, as a shell says it; None where the kernel does not tell."""
        until = time.monotonic() + WITHOUT_STATUS_S
        while (status := self._handle.status()) is None and time.monotonic() < until:
            time.sleep(0.05)
        return status if status is None or status >= 0 else 128 - status
