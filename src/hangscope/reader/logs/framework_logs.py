"""What DeepSpeed, Lightning, torch.multiprocessing, Horovod, Ray, vLLM and Kubernetes log of processes that ended.

One line each, mostly without a traceback and without a rank: they know a process by its pid, its node, its index.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from hangscope.model import CONTAINER, UNKNOWN, FailureKind, Process, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.process_ends import SIGNAL_NAMES, kind_of_end, plain_status
from hangscope.model.statements import Statement, Trust
from hangscope.model.values import host_name
from hangscope.reader.logs.failure_line import FailureLine, make_failure
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.quoted_words import is_quoted

_DEEPSPEED = re.compile(r"exits with return code = (?P<exit>-?\d+)")
_KILLING = re.compile(r"sigkill_handler\] Killing subprocess (?P<pid>\d+)")
_ASKED_TO_STOP = re.compile(r"[Rr]eceived (?:SIGTERM|SIGINT|signal 15)\b")
_BATCH_LIMIT = re.compile(r"\bTERM_(?P<lsf>MEMLIMIT|RUNLIMIT|OWNER|ADMIN)\b|PBS: job killed: (?P<pbs>\w+)")
_LOCAL_RANK = re.compile(r"--local[-_]rank[= ]'?,? ?'?(?P<local>\d+)")
_LIGHTNING = re.compile(r"Child process with PID (?P<pid>\d+) terminated with code (?P<exit>-?\d+)")
_SPAWN = re.compile(
    r"[Pp]rocess (?P<index>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<exit>-?\d+))"
)
_HOROVOD = re.compile(r"Process (?P<index>\d+) exit with status code (?P<exit>-?\d+)")
_SUBPROCESS = re.compile(
    r"CalledProcessError: Command .{0,4000}? (?:died with <Signals\.\w+: (?P<signal>\d+)>"
    r"|returned non-zero exit status (?P<exit>\d+))"
)
_LOADER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+)[\d, ]*\) "
    r"(?:is killed by signal: (?P<how>[\w ]+?)\.|exited unexpectedly)"
)
_SHM = re.compile(r"Unexpected bus error encountered in worker")
_RAYLET = re.compile(
    r"A worker died or was killed.{0,600}?Worker IP address: (?P<node>\S+).{0,80}?Worker PID: (?P<pid>\d+)"
)
_ACTOR = re.compile(r"(?:ActorDiedError|RayActorError|ActorUnavailableError)\)?: .{0,80}(?:actor|Actor)")
_ACTOR_ROW = re.compile(r"^\s+(?P<key>class_name|actor_id|pid|ip|name|namespace|repr|label): (?P<value>\S.*?)\s*$")
_ACTOR_END = re.compile(r"^\s*The actor (?:is dead|died) because|^\s*$|^Traceback")
_ACTOR_NODE = re.compile(r"because (?:its|the) node has died|[Nn]ode has crashed|node was (?:terminated|lost)")
_OWNER_IP = re.compile(r"Owner Ip address: (?P<node>[\w.:-]+)")
_ENDED_ON_PURPOSE = re.compile(r"because (?:it was killed by `?ray\.kill|all references|it (?:exited|was) intended)")
_RAY_OOM = re.compile(r"killed due to (?:memory pressure|the node running low on memory)")
_RAY_IP = re.compile(r"(?:\b(?:ip|IP)[=:] ?|address: )(?P<node>\d+\.\d+\.\d+\.\d+)")
_RAY_MEMORY = re.compile(r"Memory on the node \(IP: (?P<node>[\w.:-]+)")
_RAY_PID = re.compile(r"\bpid=(?P<pid>\d+)")
_RAY_NODE = re.compile(
    r"node with node id: \S+ and address: (?P<node>[\w.:-]+) .{0,40}has been marked dead"
    r"|The node (?:at|with IP) (?P<node2>[\w.:-]+) .{0,40}(?:died|was (?:lost|terminated))"
)
_VLLM = re.compile(r"(?:Worker proc \w*?-?|RayWorkerProc rank=\[?)(?P<index>\d+)\]? died unexpectedly")
_ENGINE = re.compile(r"EngineDeadError|EngineCore encountered (?:a fatal error|an issue)")
_POD_EXIT = re.compile(r"Pod: (?:[\w-]+\.)?(?P<pod>[\w.-]+?) exited with code (?P<exit>\d+)")
_POD_ROW = re.compile(
    r"^(?P<pod>[a-z0-9][\w.-]*)\s+\d+/\d+\s+(?P<status>OOMKilled|Evicted|Error|CrashLoopBackOff|NodeLost|Unknown)\b"
)
_POD_OOM = re.compile(r"(?:[Rr]eason\"?[:=]\s*\"?OOMKilled|OOMKilled)")
_POD_EVICTED = re.compile(
    r"The node was low on resource: (?P<what>[\w-]+)|\bpod (?P<pod>\S+) (?:was )?evicted"
    r"|ephemeral local storage usage exceeds|exceed(?:ed|s) its local ephemeral storage limit"
    r"|Usage of EmptyDir volume .{0,80}exceeds the limit|^\s*Reason:\s+(?:Evicted|Preempt\w+)\b"
)
_EVENT = re.compile(
    r"(?:^|\s)(?:Warning|Normal)\s+(?P<reason>Evicted|Preempt(?:ed|ing|ion\w*)|TaintManagerEviction|NodeNotReady|NodeLost"
    r"|NodeUnreachable|NodeShutdown|Shutdown|SystemOOM|OOMKilling)\s+(?P<rest>\S.*)"
)
_EVENT_OBJECT = re.compile(r"\b(?:pod|node)/(?P<name>[\w.-]+)")
_EVENT_KINDS = {"SystemOOM": FailureKind.HOST_OOM, "OOMKilling": FailureKind.HOST_OOM} | dict.fromkeys(
    ("NodeNotReady", "NodeLost", "NodeUnreachable", "NodeShutdown", "Shutdown"), FailureKind.NODE_LOST
)
_CONTAINER_EXIT = re.compile(r"^\s*Exit Code:\s+(?P<exit>\d{1,3})\s*$")
_NODE_LOST = re.compile(
    r"[Nn]ode (?P<node>[\w.-]+) (?:status is now: NodeNotReady|is not ready|became unreachable|not responding)"
)
_SIGNAL_BLOCK = re.compile(r"^\[(?P<node>[\w.-]+):(?P<pid>\d+)\] Signal: [\w ]+ \((?P<signal>\d+)\)")
_SEGFAULT = re.compile(r"!!!!!!! Segfault encountered !!!!!!!|\*\*\* SIG(?P<name>\w+) (?:received|\(@)")

WORDS = (
    "exits with return code",
    "Killing subprocess",
    "eceived SIG",
    "eceived signal 15",
    "TERM_",
    "PBS: job killed",
    "terminated with",
    "exit with status code",
    "CalledProcessError",
    "DataLoader worker",
    "bus error",
    "worker died or was killed",
    "ActorDiedError",
    "ActorError",
    "killed due to",
    "Memory on the node",
    "marked dead",
    "died unexpectedly",
    "EngineDeadError",
    "EngineCore encountered",
    "exited with code",
    "OOMKilled",
    "victed",
    "low on resource",
    "Preempt",
    "NodeLost",
    "NodeShutdown",
    "TaintManager",
    "OOMKilling",
    "SystemOOM",
    "ephemeral",
    "EmptyDir",
    "Exit Code: ",
    "NodeNotReady",
    "Signal: ",
    "Segfault encountered",
)
_ANY = re.compile(
    "|".join(map(re.escape, WORDS)) + r"|\*\*\* SIG| \d+/\d+ +(?:Error|CrashLoop|NodeLost)|not responding"
)


@dataclass
class _Actor:
    """An actor of Ray's that died, while the block about it is read."""

    line: Line
    rows: dict[str, str] = field(default_factory=dict)
    beside: list[Source] = field(default_factory=list)
    reason: str = ""


class FrameworkLog:
    """Reads what frameworks say in one file about processes that ended."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.statements: list[Statement] = []
        self.failures: list[FailureLine] = []
        self._actor: dict[str, _Actor] = {}

    @cached_property
    def _rules(self) -> tuple[tuple[re.Pattern[str], Callable[[Line, re.Match[str]], None]], ...]:
        """Made where a line asks for them: of a hundred thousand logs most hold none."""
        return (
            (_DEEPSPEED, self._deepspeed),
            (_KILLING, lambda line, m: self._add(line, FailureKind.LAUNCHER_KILL, pid=integer(m["pid"]), effect=True)),
            (_ASKED_TO_STOP, lambda line, _: self._add(line, FailureKind.LAUNCHER_KILL, of_writer=True, effect=True)),
            (_BATCH_LIMIT, self._batch_limit),
            (_LIGHTNING, self._lightning),
            (_SPAWN, self._index),
            (_HOROVOD, self._index),
            (_SUBPROCESS, self._subprocess),
            (_LOADER, self._loader),
            (
                _SHM,
                lambda line, _: self._add(
                    line, FailureKind.SIGNAL, of_writer=True, code=-7, detail="DataLoader worker"
                ),
            ),
            (_RAYLET, self._raylet),
            (_RAY_OOM, self._ray_oom),
            (_RAY_MEMORY, self._ray_memory),
            (_RAY_NODE, lambda line, m: self._add(line, FailureKind.NODE_LOST, node=m["node"] or m["node2"])),
            (_VLLM, self._vllm),
            (_ENGINE, self._engine),
            (_POD_EXIT, self._pod),
            (_POD_ROW, self._pod_row),
            (_EVENT, self._event),
            (
                _POD_EVICTED,
                lambda line, m: self._add(line, FailureKind.EVICTED, node=m["pod"], detail=line.text.strip()),
            ),
            (_CONTAINER_EXIT, self._container_exit),
            (_NODE_LOST, lambda line, m: self._add(line, FailureKind.NODE_LOST, node=m["node"])),
            (_SIGNAL_BLOCK, self._signal_block),
            (_SEGFAULT, self._segfault),
            (_POD_OOM, lambda line, _: self._add(line, FailureKind.HOST_OOM, code=-9, detail="OOMKilled")),
        )

    def feed(self, line: Line) -> bool:
        """Take one line. True where it says that a process ended."""
        text = line.text
        if line.stream in self._actor:
            self._actor_row(line)
        if _ANY.search(text) is None:
            return False
        if _ACTOR.search(text):
            self._actor[line.stream] = _Actor(line)
            return True
        for pattern, use in self._rules:
            if match := pattern.search(text):
                use(line, match)
                return True
        return False

    @property
    def waiting(self) -> bool:
        """Whether a message of several lines is open."""
        return bool(self._actor)

    def finish(self) -> None:
        for stream in list(self._actor):
            self._end_actor(stream)

    def _add(
        self, line: Line, kind: FailureKind, *, of_writer: bool = False, tasks: tuple[int, ...] = (), **values: object
    ) -> None:
        failure = make_failure(self.file, line, kind, **values)
        self.failures.append(FailureLine(failure, line, line.at_ns, of_writer=of_writer, tasks=tasks))

    def _ended(self, line: Line, process: Process, tasks: tuple[int, ...] = (), detail: str | None = None) -> None:
        status = process.exit_status or 0
        process = replace(process, alive_at_end=False, source=Source(self.file, f"line {line.number}"))
        self.statements.append(Statement(Trust.LAUNCHER, process, tasks[0] if tasks else None))
        rank = None if process.rank == UNKNOWN else process.rank
        self._add(
            line,
            kind_of_end(status),
            tasks=tasks,
            rank=rank,
            node=process.node,
            local_rank=process.local_rank,
            pid=process.pid,
            code=status,
            detail=detail,
            effect=status == -15,
        )

    def _deepspeed(self, line: Line, match: re.Match[str]) -> None:
        status = integer(match["exit"])
        local = _LOCAL_RANK.search(line.text)
        if status:
            number = integer(local["local"]) if local else None
            self._ended(line, Process(UNKNOWN, local_rank=number, exit_status=status))

    def _batch_limit(self, line: Line, match: re.Match[str]) -> None:
        """LSF and PBS end a job that asked for too little."""
        memory = match["lsf"] == "MEMLIMIT" or (match["pbs"] or "").lower() in {"mem", "vmem", "memory"}
        self._add(
            line,
            FailureKind.HOST_OOM if memory else FailureKind.LAUNCHER_KILL,
            code=-9 if memory else None,
            effect=not memory,
        )

    def _lightning(self, line: Line, match: re.Match[str]) -> None:
        rank = UNKNOWN if line.tag is None else line.tag
        self._ended(line, Process(rank, pid=integer(match["pid"]), exit_status=integer(match["exit"])))

    def _index(self, line: Line, match: re.Match[str]) -> None:
        """torch.multiprocessing counts the processes that it started, Horovod the ranks."""
        index = integer(match["index"])
        name = match.groupdict().get("signal")
        status = -SIGNAL_NAMES.get(name, 9) if name else plain_status(integer(match["exit"]))
        if not status:
            return
        if match.re is _HOROVOD:
            self._ended(line, Process(UNKNOWN, exit_status=status), tasks=(index,))
        else:
            self._ended(line, Process(UNKNOWN, local_rank=index, exit_status=status))

    def _subprocess(self, line: Line, match: re.Match[str]) -> None:
        status = -integer(match["signal"]) if match["signal"] else plain_status(integer(match["exit"]))
        self._add(line, kind_of_end(status), code=status, effect=status in {-15, 1}, detail="launcher")

    def _loader(self, line: Line, match: re.Match[str]) -> None:
        how = (match["how"] or "").strip()
        code = {"Killed": -9, "Bus error": -7, "Segmentation fault": -11, "Aborted": -6, "Terminated": -15}.get(how)
        self._add(line, FailureKind.SIGNAL, of_writer=True, code=code, detail=f"DataLoader worker {match['pid']}")

    def _raylet(self, line: Line, match: re.Match[str]) -> None:
        pid = integer(match["pid"])
        node = host_name(match["node"])
        source = Source(self.file, f"line {line.number}")
        self.statements.append(
            Statement(Trust.LAUNCHER, Process(UNKNOWN, node=node, pid=pid, alive_at_end=False, source=source))
        )
        self._add(line, FailureKind.PROCESS_DIED, node=node, pid=pid, detail="a Ray worker exited without a message")

    def _ray_oom(self, line: Line, _: re.Match[str]) -> None:
        node = _RAY_IP.search(line.text)
        self._add(line, FailureKind.HOST_OOM, node=node["node"] if node else None, detail="Ray")

    def _ray_memory(self, line: Line, match: re.Match[str]) -> None:
        """Which node was full, below the line that says that a task was killed for it."""
        found = _RAY_PID.search(line.text)
        pid = integer(found["pid"]) if found else None
        said = self.failures[-1] if self.failures else None
        if said is not None and said.failure.kind == FailureKind.HOST_OOM and line.number - said.line.number <= 2:
            beside = (Source(self.file, f"line {line.number}"),)
            self.failures[-1] = said._replace(failure=replace(said.failure, beside=beside, node=match["node"], pid=pid))
        else:
            self._add(line, FailureKind.HOST_OOM, detail="Ray", node=match["node"], pid=pid)

    def _actor_row(self, line: Line) -> None:
        actor = self._actor[line.stream]
        row = _ACTOR_ROW.match(line.text)
        if row is not None:
            actor.rows[row["key"]] = row["value"]
            if row["key"] in {"class_name", "name"}:
                actor.beside.append(Source(self.file, f"line {line.number}"))
        elif _ACTOR_END.match(line.text):
            if "actor" in line.text:
                actor.reason = line.text
                actor.beside.append(Source(self.file, f"line {line.number}"))
            self._end_actor(line.stream)

    def _end_actor(self, stream: str) -> None:
        actor = self._actor.pop(stream)
        rows = actor.rows
        pid = integer(rows["pid"]) if is_number(rows.get("pid")) else None
        name = rows.get("name") or rows.get("class_name")
        beside = tuple(actor.beside)
        effect = _ENDED_ON_PURPOSE.search(actor.reason) is not None
        if _ACTOR_NODE.search(actor.reason):
            owner = _OWNER_IP.search(actor.reason)
            self._add(actor.line, FailureKind.NODE_LOST, node=owner["node"] if owner else rows.get("ip"), beside=beside)
            return
        kind = FailureKind.PROCESS_DIED if name is None else FailureKind.ACTOR_DIED
        self._add(actor.line, kind, node=rows.get("ip"), pid=pid, detail=name, beside=beside, effect=effect)

    def _engine(self, line: Line, match: re.Match[str]) -> None:
        """That an engine is dead follows from what its workers or their silence did to it."""
        if not is_quoted(line.text, match.start()):
            self._add(line, FailureKind.EXCEPTION, effect=True, detail="the engine")

    def _vllm(self, line: Line, match: re.Match[str]) -> None:
        if is_quoted(line.text, match.start()):
            return
        self._add(line, FailureKind.PROCESS_DIED, tasks=(integer(match["index"]),), detail="a vLLM worker")

    def _pod(self, line: Line, match: re.Match[str]) -> None:
        status = plain_status(integer(match["exit"]))
        if status:
            self._add(line, kind_of_end(status), node=match["pod"], code=status)

    def _event(self, line: Line, match: re.Match[str]) -> None:
        """A row of ``kubectl describe`` or ``kubectl get events``."""
        named = _EVENT_OBJECT.search(match["rest"])
        kind = _EVENT_KINDS.get(match["reason"], FailureKind.EVICTED)
        code = -9 if kind == FailureKind.HOST_OOM else None
        message = re.split(r"\s{2,}|\t", match["rest"])[-1].strip()
        self._add(line, kind, node=named["name"] if named else None, code=code, detail=message)

    def _container_exit(self, line: Line, match: re.Match[str]) -> None:
        """How a container ended, as ``kubectl describe`` has it, below the reason for that."""
        status = plain_status(integer(match["exit"]))
        said = self.failures[-1] if self.failures else None
        if said is not None and said.failure.kind == FailureKind.HOST_OOM and line.number - said.line.number <= 2:
            beside = (Source(self.file, f"line {line.number}"),)
            self.failures[-1] = said._replace(failure=replace(said.failure, beside=beside))
        elif status:
            self._add(line, kind_of_end(status), code=status, effect=status == -15, detail=CONTAINER)

    def _pod_row(self, line: Line, match: re.Match[str]) -> None:
        status = match["status"]
        kind = {
            "OOMKilled": FailureKind.HOST_OOM,
            "Evicted": FailureKind.EVICTED,
            "NodeLost": FailureKind.NODE_LOST,
            "Unknown": FailureKind.NODE_LOST,
        }
        code = -9 if status == "OOMKilled" else None
        self._add(line, kind.get(status, FailureKind.EXIT), node=match["pod"], code=code, detail=status)

    def _signal_block(self, line: Line, match: re.Match[str]) -> None:
        process = Process(UNKNOWN, node=match["node"], pid=integer(match["pid"]), exit_status=-integer(match["signal"]))
        self._ended(line, process)

    def _segfault(self, line: Line, match: re.Match[str]) -> None:
        number = SIGNAL_NAMES.get(f"SIG{match['name']}", 11) if match["name"] else 11
        self._add(line, FailureKind.SIGNAL, of_writer=True, code=-number, effect=number == 15)
