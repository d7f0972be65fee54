"""What is made of a captured incident once every node has saved its part: the manifest, the verdict, the page.

One node of the job does this, the one with the lowest rank that is alive. Each incident is diagnosed once; once more
where PyTorch's watchdog brought a second capture, and where the job went on by itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hangscope.incident.layout import VERDICT_JSON, VERDICT_PAGE, VERDICT_TEXT
from hangscope.incident.manifest import Manifest
from hangscope.recorder.agent import incident_manifest, on_hang
from hangscope.recorder.agent.diagnose_process import DiagnosisProcess, Verdict
from hangscope.recorder.agent.incidents import Incidents
from hangscope.recorder.agent.never_seen import never_seen, odd_addresses, still_starting
from hangscope.recorder.agent.node_status import StatusWriter
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import Recovery
from hangscope.recorder.alerts.send_alerts import Alerts
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.node_answers import NodeAnswers
from hangscope.recorder.rundir.reasons import MAY_RECOVER, Reason
from hangscope.recorder.rundir.run_directory import PeerAgent, RunFolders
from hangscope.recorder.rundir.silent_nodes import silent_nodes
from hangscope.text import duration
from hangscope.verdict_words import is_sent, still_runs

NODES_S = 12.0
"""For the other nodes to save their parts."""
LAST_OUTPUT_S = 5.0
"""When our command has ended, the others' end soon: so long their last output is waited for."""
GPUS_S = 8.0
"""For the other nodes to ask their GPUs, too."""


class Conclusions:
    """`ended` is set once the command has ended; with `diagnose` false the evidence is only saved. `interrupted` says
    whether Ctrl-C ended a job that was getting on: there is no verdict to give then."""

    def __init__(
        self,
        folders: RunFolders,
        ended: threading.Event,
        log: Incidents,
        recovery: Recovery,
        status: StatusWriter,
        *,
        on_hang: OnHang,
        diagnose: bool,
        say: Callable[[str], None],
        concluded: Callable[[Path], None] = lambda _: None,
        interrupted: Callable[[], bool] = lambda: False,
        answers: NodeAnswers | None = None,
    ) -> None:
        self.diagnoses = diagnose
        self._interrupted = interrupted
        self._folders = folders
        self._answers = answers if answers is not None else NodeAnswers(folders)
        self._ended = ended
        self._log = log
        self._recovery = recovery
        self._status = status
        self._on_hang = on_hang
        self._alerts = Alerts(on_hang.alerts, wandb=on_hang.wandb, say=say)
        self._say = say
        self._concluded = concluded
        """Called with an incident once all that is to be written about it is there."""
        self._parts: set[Path] = set()
        """Incidents of which it was said that only this node's part is here."""
        self._commanded: set[Path] = set()
        """Incidents that the user's commands have run for."""

    def is_only_a_part(self, incident: Path) -> bool:
        """Whether other nodes of the job keep theirs elsewhere: then nobody here gives a verdict."""
        return incident in self._parts

    def conclude(self, incident: Path, capture: NodeCapture) -> None:
        """Once every node has captured, or has had its time: the manifest, and the verdict where it is ours to give."""
        self._status.write()
        agents = self._await_others(incident)
        home = capture.node_dir.incident
        if capture.node_dir.moved:
            why = capture.node_dir.moved
            self._say(f"warning: {incident}: {why}; what this node saves goes to {home} instead")
            agents = [agent for agent in agents if agent.folder == self._folders.own]
        leader = run_directory.leader(agents)
        if leader is not None and leader != self._folders.own:
            return
        self._status.write()
        silent = silent_nodes(self._folders, incident, self._answers, time.monotonic() - capture.begun)
        try:
            incident_manifest.write(home, _manifest(capture, agents, silent))
        except OSError as error:
            self._say(f"{home}: {error.strerror or error}; the incident has no manifest")
        if capture.reason == Reason.RANK_EXIT and self._interrupted():
            return
        if not run_directory.sees_all(agents):
            self._report_part(incident, capture, agents)
        elif self.diagnoses:
            self._give_verdict(incident, capture)
        else:
            self._respond(home, capture, None)
        self._concluded(home)

    def _await_others(self, incident: Path) -> list[PeerAgent]:
        until = time.monotonic() + NODES_S
        last_output_until = time.monotonic() + LAST_OUTPUT_S
        while True:
            self._status.write()  # others' silence is measured against it
            agents = run_directory.peers(self._folders.root, self._folders.own)
            others = [agent for agent in agents if self._may_come(agent)]
            captured = all(time.monotonic() < until and run_directory.captured(incident, agent) for agent in others)
            ending = self._ended.is_set() and time.monotonic() <= last_output_until
            output_is_there = not ending or all(agent.ended for agent in others)
            if (captured and output_is_there) or time.monotonic() > until:
                return agents
            time.sleep(0.5)

    def _may_come(self, agent: PeerAgent) -> bool:
        """Whether another node's part is to be waited for: it has ranks, and its agent writes or has ended."""
        return agent.fresh and not agent.silent and bool(agent.ranks) and agent.folder != self._folders.own

    def _report_part(self, incident: Path, capture: NodeCapture, agents: Sequence[PeerAgent]) -> None:
        """Nodes of the job are not in this directory: nobody here can give a verdict. Said once."""
        if incident in self._parts:
            return
        self._parts.add(incident)
        home = capture.node_dir.incident
        here = {rank for agent in agents for rank in agent.ranks}
        nodes = max((agent.nodes or 0 for agent in agents), default=0)
        if nodes > len({agent.node for agent in agents if agent.ranks}):
            others = "the directory does not hold every node of the job"
        else:  # nobody said how many nodes there are
            others = "ranks of the job were not seen: they have not started, or are on nodes that write elsewhere"
        self._say(
            f"this node's part is in {home}; {others}"
            f" ({len(here)} of {_world_size(agents)} ranks are here{still_starting(agents)});"
            f" bring the parts of several nodes together with `{_collect_command(home, os.environ)}` and diagnose them"
        )
        self._respond(home, capture, None)

    # ---- the verdict -------------------------------------------------------------------------------------------------

    def _give_verdict(self, incident: Path, capture: NodeCapture) -> None:
        home = capture.node_dir.incident
        went_on_after = self.went_on_after(incident, capture.reason)
        if went_on_after is not None:
            self._note_pause(incident, home, went_on_after)
        with DiagnosisProcess(home) as process:
            verdict = process.verdict()
            if not verdict.value:
                self._say(f"no verdict on {home}: {verdict.problem}")
                self._respond(home, capture, None)
                return
            before = self._log.of(incident).give(verdict)
            incident_manifest.add_files(home, VERDICT_JSON, VERDICT_TEXT)
            is_new = before is None or before.key != verdict.key
            if went_on_after is not None:
                what = verdict.value.get("headline") or verdict.value.get("summary")
                self._say(f"PAUSE, not a hang: {what}; the evidence is in {home}")
            elif is_new:
                self._say(f"the verdict on {home}:\n{verdict.text.rstrip()}")
                self._respond(home, capture, verdict)
            page = process.page()
        incident_manifest.add_files(home, VERDICT_PAGE)
        if page is not None and is_new and went_on_after is None:
            self._say(f"HTML report: {page}")

    def _respond(self, home: Path, capture: NodeCapture, verdict: Verdict | None) -> None:
        """Alerts, which nobody waits for, and the user's commands, one after the other, unless all is well.

        Without a verdict once an incident: it is concluded again at the end of the command.
        """
        value = verdict.value if verdict is not None else {}
        if not is_sent(value.get("outcome")) or (verdict is None and home in self._commanded):
            return
        self._commanded.add(home)
        file = home / VERDICT_JSON if verdict is not None and (home / VERDICT_JSON).exists() else None
        about = {"job": capture.node.job, "attempt": capture.node.attempt}
        self._alerts.send(home, value, about, capture.ranks)
        # Who says what to do about a hang does not say it of a job that runs.
        for command in self._on_hang.commands if not still_runs(value.get("outcome")) else ():
            problem = on_hang.run_command(command, home, file, value)
            if problem:
                self._say(f"warning: --on-hang {command!r}: {problem}")

    # ---- a job that goes on ------------------------------------------------------------------------------------------

    def went_on_after(self, incident: Path, reason: str | None) -> float | None:
        """After how long the stall of an incident ended by itself; None where it did not, or was no stall."""
        return self._recovery.after(incident) if reason in MAY_RECOVER else None

    def note_recovery(self, incident: Path, home: Path, seconds: float) -> threading.Thread | None:
        """The stall of `incident` ended by itself: it was a pause, and what was written about it says so from now on.

        The verdict is corrected on a thread of its own, which is returned: what stalls next must be noticed meanwhile.
        """
        if self._log.of(incident).recovered:
            return None
        self._note_pause(incident, home, seconds)
        self._say(f"the job resumed after {duration(seconds)}: PAUSE, not a hang; the evidence is in {home}")
        if not self.diagnoses or self._log.of(incident).verdict is None:
            return None
        correcting = threading.Thread(target=self._correct, args=(incident, home), name="correct", daemon=True)
        correcting.start()
        return correcting

    def reconsider(self, incident: Path, capture: NodeCapture) -> threading.Thread | None:
        """What the GPUs run has come to the evidence: its verdict is given again, on a thread of its own."""
        if not self.diagnoses or self._log.of(incident).verdict is None:
            return None  # another node gives it, or nobody has yet
        work = threading.Thread(target=self._reconsider, args=(incident, capture), name="reconsider", daemon=True)
        work.start()
        return work

    def _reconsider(self, incident: Path, capture: NodeCapture) -> None:
        home = capture.node_dir.incident
        until = time.monotonic() + GPUS_S
        agents = run_directory.peers(self._folders.root, self._folders.own)
        others = [agent for agent in agents if self._may_come(agent)]
        while time.monotonic() < until and not all(
            run_directory.asked_gpus(incident, agent.folder) for agent in others
        ):
            time.sleep(0.2)
        before = self._headline(incident)
        incident_manifest.refresh(home)
        self._correct(incident, home)
        if self._headline(incident) != before:
            verdict = self._log.of(incident).verdict
            confidence = None if verdict is None else verdict.value.get("confidence")
            self._say(f"with what the GPUs run: {self._headline(incident)}; confidence: {confidence}")

    def _headline(self, incident: Path) -> Any:
        verdict = self._log.of(incident).verdict
        return None if verdict is None else verdict.value.get("headline")

    def _note_pause(self, incident: Path, home: Path, seconds: float) -> None:
        self._log.of(incident).recover()
        incident_manifest.note_recovery(home, seconds)

    def _correct(self, incident: Path, home: Path) -> None:
        try:
            with DiagnosisProcess(home) as process:
                verdict = process.verdict()
                if verdict.value:
                    self._log.of(incident).give(verdict)
                    process.page()
                    incident_manifest.add_files(home, VERDICT_JSON, VERDICT_TEXT, VERDICT_PAGE)
            self._concluded(home)
        except Exception as error:
            self._say(f"the verdict on {home} could not be updated: {type(error).__name__}: {error}")


def _manifest(capture: NodeCapture, agents: Sequence[PeerAgent], silent: Mapping[str, Any]) -> Manifest:
    """What there is to say of the incident as a whole, without the list of its files."""
    sees_all = run_directory.sees_all(agents)
    world_size = _world_size(agents)
    here = {rank for agent in agents for rank in agent.ranks}
    missing = never_seen(capture.ranks, here, world_size) if sees_all else {}
    return Manifest(
        job=capture.node.job,
        attempt=capture.node.attempt,
        reason=capture.reason,
        detail=capture.detail,
        captured_at=capture.captured_at,
        nodes_expected=tuple(sorted({agent.node for agent in agents if agent.ranks})) if sees_all else None,
        world_size=world_size,
        extra=_notes(capture.node.name, never_seen=missing, elsewhere=odd_addresses(agents), silent_nodes=silent),
    )


def _collect_command(home: Path, environ: Mapping[str, str]) -> str:
    """The whole command, where Slurm says which job it is: srun reaches its nodes while it runs. The first task of an
    array has the array's own number, which stands for all of its tasks."""
    job = environ.get("SLURM_JOB_ID", "")
    array = environ.get("SLURM_ARRAY_JOB_ID", "")
    task = environ.get("SLURM_ARRAY_TASK_ID", "")
    if job.isdigit() and array.isdigit() and task.isdigit():
        return f"hangscope collect --slurm {array}_{task} --path {home} -o DIR"
    return f"hangscope collect --slurm {job} --path {home} -o DIR" if job.isdigit() else "hangscope collect"


def _world_size(agents: Sequence[PeerAgent]) -> int | None:
    return max((agent.world_size for agent in agents if agent.world_size), default=None)


def _notes(by: str, **found: Mapping[str, Any]) -> dict[str, Any]:
    """What this node has to say of ranks that did not come together, and of nodes that are lost, for the manifest."""
    return {name: {**said, "by": by} for name, said in found.items() if said}
