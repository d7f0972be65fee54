"""Lines in which PyTorch, NCCL, CUDA or Gloo say that something failed, wherever they stand and whoever cut them out.

Each pattern is one wording; docs/log-formats.md shows them all. Nothing is concluded here: what a line says about its
writer, a peer, an operation or several ranks is kept, and whether it only says that its writer waited (`effect`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from hangscope.engine_roles import Role, of_prefix
from hangscope.model import FailureKind, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.values import pci_id
from hangscope.reader.logs import engine_lines, store_barrier
from hangscope.reader.logs.failure_line import FailureLine, make_failure
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.nccl_warnings import address_host, failure_of, read_warning, taken_twice
from hangscope.reader.logs.quoted_words import is_quoted
from hangscope.reader.logs.torch_words import GLOG_HEAD, clock_of, default_rank, op_name
from hangscope.reader.logs.tracebacks import is_consequence

_LONGEST_TRACEBACK = 400
MOST = 2000
"""Failures of one file that are kept."""

_CUDA = re.compile(
    r"(?:CUDA|HIP|[Cc]uda runtime) error(?: \(\d+\))?\s?:? (?P<what>.{0,160})|CUDA_ERROR_(?P<name>\w+)"
    r"|(?:HIP|CUDA|Cuda) failure:? '(?P<failure>[^']{1,80})'|NPU (?:function )?error.{0,120}error code is (?P<npu>\d+)"
)
_GPU_LOST = re.compile(
    r"Unable to determine the device handle for (?:GPU ?|gpu )(?P<gpu>[\w:.]*\w)|GPU is lost\b|No devices were found"
    r"|Failed to initialize NVML|NVML: (?:GPU is lost|Unknown Error|Driver/library version mismatch)"
)
# health checks of clouds and of NVIDIA's tools, in a pod's log
_XID = re.compile(
    r"GPU:? (?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?):? .{0,40}?\bX[Ii][Dd]\b(?: [Ee]rror)?"
    r"(?:[ :=#]{1,3}(?P<code>\d{1,4}))?"
)
_OOM = re.compile(r"(?:CUDA|HIP|NPU|XPU) out of memory\.|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError")
_NCCL = re.compile(
    r"NCCL error\b.{0,200}?(?P<what>unhandled system error|unhandled cuda error|remote process exited"
    r"|internal error|invalid usage|invalid argument|unknown result code|in progress)"
    r"|NCCL failure .{0,120}?'(?P<test>[\w ]+)|^(?:.{0,40}\s)?nccl(?P<code>System|Remote|Internal|UnhandledCuda)Error: "
)
_NCCL_KINDS = {
    "unhandled system error": FailureKind.NCCL_SYSTEM_ERROR,
    "System": FailureKind.NCCL_SYSTEM_ERROR,
    "unhandled cuda error": FailureKind.CUDA_ERROR,
    "UnhandledCuda": FailureKind.CUDA_ERROR,
    "remote process exited": FailureKind.NCCL_REMOTE_ERROR,
    "Remote": FailureKind.NCCL_REMOTE_ERROR,
    "internal error": FailureKind.NCCL_INTERNAL_ERROR,
    "Internal": FailureKind.NCCL_INTERNAL_ERROR,
}
_BARE_WARNING = re.compile(
    r"NCCL WARN (?P<text>.*)|(?P<cut>NET/IB\w* ?:? ?Got (?:completion from peer|async).*)"
    r"|^\s*(?P<last>(?:socketProgress\w*|socketStartConnect|Net) ?: .*)"
)
_NCCL_PREFIX = re.compile(
    r"(?<![\w.-])[\w.-]{1,255}:\d{1,10}:\d{1,10} (?:\[-?\d{1,4}\] )?\S{0,120} ?(?:\([^)]*\) )?NCCL "
)
_JOINED = re.compile(r"\d+/\d+ (?:clients|workers) joined|Timed out after \d+ seconds waiting for (?:clients|workers)")
_HOW_MANY = re.compile(r"(\d+/\d+) (?:clients|workers) joined")
_UNIQUE_ID = re.compile(
    r"\[(?P<rank>\d{1,6})\] is setting up NCCL communicator and retr\w+ ncclUniqueId from \[(?P<peer>\d{1,6})\]"
    r".{0,120}?got error: (?P<why>.{0,120})"
)
_CONNECT = re.compile(
    r"client socket has (?:timed out after \d+\w*|failed) (?:while trying )?to connect to (?:any network address of )?"
    r"(?:\[?\(?(?P<peer>[\w.:-]+?)\]?(?:, |:)\d+\)?)?"
)
_PORT_TAKEN = re.compile(
    r"server socket has failed to (?:listen|bind)(?=.{0,200}(?:EADDRINUSE|[Aa]ddress already in use))"
    r"(?:.{0,80}?(?:port: |\]:|:)(?P<port>\d{2,5})\b)?"
)
_RENDEZVOUS = re.compile(r"Rendezvous(?:Timeout|Connection|Closed)Error|connect\(\) timed out\. Original timeout was")
_STORE = re.compile(
    r"wait timeout after \d+ ?ms|Timeout waiting for key|: Socket Timeout|recvValueWithTimeout failed"
    r"|store->get\(.{0,40}\) got error|DistStoreError"
)
_WAITED_FOR_STORE = re.compile(
    r"waitForInput: socket SocketImpl\(.{0,200}?remote=\[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d{1,5})\) "
    r"timed out after (?P<ms>\d{1,12}) ?ms"
)
_STORE_LOST = re.compile(r"\[c10d\] \w+ failed on SocketImpl\(.{0,200}?remote=\[?(?P<peer>[\w.:-]+?)\]?:\d{1,5}\): \S")
_STORE_GONE = re.compile(r"TCPStore server has shut down|failed to recv, got 0 bytes|Failed to check the .should dump")
_MISMATCH = re.compile(
    r"mismatch between collectives on ranks\. Rank (?P<rank>\d{1,6}) is running (?:inconsistent )?collective: "
    r"(?:CollectiveFingerPrint\((?P<body>.{0,600}?)(?:\)\)+|\)(?=,? but)|$))?"
    r"(?:.{0,40}?but Rank (?P<peer>\d{1,6}) is running collective: (?:CollectiveFingerPrint\()?(?P<other>.{0,600}))?"
)
_SEQUENCE = re.compile(r"SequenceNumber=(\d{1,18})")
_OP_TYPE = re.compile(r"(?:OpType=|^)([A-Z_]{3,})")
_DIFFER = re.compile(r"Collectives differ in the following aspects:\s*(?P<what>.{0,200})")
_DDP = re.compile(
    r"but Rank (?P<rank>\d{1,6}) has (?P<mine>\d+) params, "
    r"while rank (?P<peer>\d{1,6}) has inconsistent (?P<theirs>\d+)"
)
_DDP_SIZES = re.compile(
    r"\[(?P<rank>\d{1,6})\]: params\[\d+\] in this process .{0,120}?same param in process (?P<peer>\d{1,6})"
)
_AROUND = re.compile(r"Mismatched collective detected, .{0,60}around rank (?P<rank>\d{1,6})")
_BARRIER = re.compile(
    r"(?:\[Rank (?P<me>\d{1,6})\]: )?Ranks? (?P<ranks>\d{1,6}(?:, ?\d{1,6})*) failed to pass monitoredBarrier"
)
_BARRIER_LATE = re.compile(r"timed out in monitoredBarrier after \d+ ms")
_BARRIER_REACHED = re.compile(r"Rank (?P<rank>\d{1,6}) successfully reached monitoredBarrier, but received errors")
_NEVER = re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks")
_NOT_JOINED = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] finished collective #\d+, but didn't join collective #(?P<seq>\d{1,18})"
)
_NOT_FINISHED = re.compile(r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<seq>\d{1,18})")
_SNAPSHOT = re.compile(r"\[(?P<ranks>[\d, ]+)\] (?P<how>started|finished) (?P<op>[A-Z_]{3,})\s*$")
_SNAPSHOT_SEQ = re.compile(r"#(?P<seq>\d{1,18}) (?:started|finished) ranks:")
_ASCEND_RANK = re.compile(r"\(PID:(?P<pid>\d+), Device:-?\d+, RankID:(?P<rank>\d{1,6})\) ERR\d+")
# The CUDA driver's own line: at an exception on the GPU, or because somebody asked for it, as we do.
_GPU_CORE = re.compile(r"^\W*Starting GPU coredump generation\b")
_HEARTBEAT = re.compile(
    r"Heartbeat monitor timed out|watchdog got stuck for \d+ seconds|detected no heartbeat of its watchdog"
)
_DEEPEP = re.compile(
    r"DeepEP .{0,80}?timeout(?:.{0,200}?src RDMA(?: lane)?: ?(?P<rdma>\d+))?(?:.{0,60}?src nvl: ?(?P<nvl>\d+))?"
)
_ABORTED = re.compile(r"NCCL communicator was aborted on rank (?P<rank>\d{1,6})")
_DOWN = re.compile(r"taking the entire process down|NCCL communicator was aborted|operations have failed or timed out")
_GLOO = re.compile(
    r"gloo\S{0,300}\] (?:Timed out waiting (?P<ms>\d+) ?ms for (?P<op>\w+)|.{0,200}?(?:Connection closed by peer"
    r"|Connection reset|Broken pipe|[Cc]onnect timeout))|connectFullMesh failed"
)
_CPP_STACK = re.compile(r"Exception raised from (checkTimeout) at|frame #\d+: c10d::(ProcessGroup\w+)::")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '(?P<type>[\w:]+)'")
_ENDED_BY_WATCHDOG = re.compile(
    r"[Ww]atchdog caught|collective operation timeout|watchdog thread terminated|heartbeat"
    r"|NCCL communicator was aborted|NCCL error: (?:remote process|unhandled system)"
)
_EXCEPTION = re.compile(r"^(?:ERROR:? +)?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>\S.*)")

WORDS = (
    "CUDA error",
    "HIP error",
    "runtime error (",
    "CUDA_ERROR_",
    "device handle",
    "GPU is lost",
    "No devices were",
    "NVML",
    "out of memory",
    "OutOfMemoryError",
    "NCCL error",
    "NCCL failure",
    "Error: ",
    "NCCL WARN",
    "Got completion from",
    "socketProgress",
    "clients joined",
    "workers joined",
    "waiting for clients",
    "ncclUniqueId",
    "client socket has",
    "Rendezvous",
    "wait timeout after",
    "failed on SocketImpl",
    "shared memory broadcast block",
    "engine proc",
    "stages ready",
    "atchdog timeout",
    "RPC call to",
    "Hang detected",
    "transfer timeout",
    "NIXL",
    "KVTransferError",
    "with prefill instance",
    "baton release",
    "hit an exception",
    "DeepEP",
    "waitForInput",
    *store_barrier.PARTS,
    " Xid",
    " XID",
    "Duplicate GPU",
    "already checked in",
    "Timeout waiting for",
    "Socket Timeout",
    "store->get",
    "TCPStore",
    "mismatch between collectives",
    "inconsistent",
    "not to match sizes",
    "ismatched collective",
    "monitoredBarrier",
    "lagging ranks",
    "didn't join",
    "didn't finish",
    "] started ",
    "] finished ",
    " ranks:",
    "eartbeat",
    "EI000",
    "RankID:",
    "NPU error",
    "NPU function error",
    "failure",
    "watchdog got stuck",
    "process down",
    "was aborted",
    "failed or timed out",
    "gloo",
    "connectFullMesh",
    "server socket",
    "terminate called",
    "raised from checkTimeout",
    "c10d::ProcessGroup",
    "Exception: ",
)
"""Every line that is looked at more closely holds one of these."""
_ANY = re.compile("|".join(map(re.escape, WORDS)))


def ranks_in(text: str) -> tuple[int, ...]:
    return tuple(sorted({integer(part) for part in text.replace(",", " ").split() if is_number(part)}))[:4096]


class ErrorLog:
    """Reads one file's lines of failure."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.failures: list[FailureLine] = []
        self._quoting: dict[str, tuple[int, int, bool]] = {}
        """Prefix → (which failure, its line, whether ``Last error:`` came): NCCL's own words follow below."""
        self._snapshot_seq: dict[str, int] = {}
        self._seen: set[tuple[str, int | None, str, str]] = set()
        self._terminated: dict[str, int] = {}
        """Prefix → which failure says that C++ ended the process: its reason follows."""
        self._barriers = store_barrier.StoreBarriers()
        self._speaker: tuple[Role, int] | None = None
        """Which process of an engine said last that it hit an exception, and in which line: the lines of its traceback
        stand below without its prefix."""

    @cached_property
    def _rules(self) -> tuple[tuple[re.Pattern[str], Callable[[Line, re.Match[str]], None]], ...]:
        """Made where a line asks for them: of a hundred thousand logs most hold none."""
        return (
            (_MISMATCH, self._mismatch),
            (_DDP, self._ddp),
            (_DDP_SIZES, lambda line, m: self._pair(line, m, line.text)),
            (_AROUND, lambda line, m: self._add(line, FailureKind.MISMATCH, ranks=(integer(m["rank"]),))),
            (_BARRIER, self._barrier),
            (_BARRIER_LATE, lambda line, _: self._add(line, FailureKind.MISSING_RANKS, operation="monitored_barrier")),
            (
                _BARRIER_REACHED,
                lambda line, m: self._add(line, FailureKind.OTHER, rank=integer(m["rank"]), peer_rank=0, effect=True),
            ),
            (
                _NEVER,
                lambda line, m: self._add(
                    line, FailureKind.MISSING_RANKS, ranks=ranks_in(m["ranks"]), detail="never joined"
                ),
            ),
            (_NOT_JOINED, self._not_joined),
            (_NOT_FINISHED, self._not_finished),
            (_SNAPSHOT_SEQ, lambda line, m: self._snapshot_seq.__setitem__(line.stream, integer(m["seq"]))),
            (_SNAPSHOT, self._snapshot),
            (_UNIQUE_ID, self._unique_id),
            (_JOINED, self._joined),
            (
                _ASCEND_RANK,
                lambda line, m: self._add(
                    line, FailureKind.OTHER, rank=integer(m["rank"]), pid=integer(m["pid"]), effect=True
                ),
            ),
            (engine_lines.WAITS, self._engine_waits),
            (engine_lines.STUCK, self._engine_stuck),
            (engine_lines.KV_TRANSFER, self._kv_transfer),
            (engine_lines.JIT_LOCK, self._jit_lock),
            (_DEEPEP, self._deepep),
            (_HEARTBEAT, lambda line, _: self._add(line, FailureKind.HEARTBEAT_STUCK)),
            (_GPU_CORE, lambda line, _: self._add(line, FailureKind.GPU_CORE, effect=True)),
            (_XID, self._xid),
            (_GPU_LOST, lambda line, m: self._add(line, FailureKind.GPU_LOST, detail=m["gpu"])),
            (_OOM, lambda line, _: self._add(line, FailureKind.GPU_OOM)),
            (_NCCL, self._nccl),
            (_CUDA, self._cuda),
            (_BARE_WARNING, self._bare_warning),
            (_WAITED_FOR_STORE, self._waited_for_store),
            (_PORT_TAKEN, self._port_taken),
            (_CONNECT, self._connect),
            (_RENDEZVOUS, lambda line, _: self._add(line, FailureKind.RENDEZVOUS_TIMEOUT, effect=True)),
            (_STORE, lambda line, _: self._add(line, FailureKind.STORE_TIMEOUT, effect=True)),
            (
                _STORE_LOST,
                lambda line, m: self._add(
                    line, FailureKind.SOCKET_ERROR, peer_node=address_host(m["peer"]), effect=True
                ),
            ),
            (_STORE_GONE, lambda line, _: self._add(line, FailureKind.SOCKET_ERROR, effect=True, detail="store")),
            (_GLOO, self._gloo),
            (_ABORTED, lambda line, m: self._add(line, FailureKind.OTHER, rank=integer(m["rank"]), effect=True)),
            (_DOWN, lambda line, _: self._add(line, FailureKind.OTHER, effect=True)),
            (_TERMINATE, self._terminate),
            (
                _CPP_STACK,
                lambda line, m: self._add(line, FailureKind.OTHER, effect=True, detail=m[1] or m[2], once=m[0][:12]),
            ),
        )

    def feed(self, line: Line, *, in_traceback: bool = False) -> None:
        text = line.text
        if self._quoting and line.stream in self._quoting and self._quoted(line):
            return
        if self._terminated and line.stream in self._terminated and "what():" in text:
            self._last_words(line)
        if _ANY.search(text) is None:
            return
        if "hit an exception" in text and (role := of_prefix(line.stream)) is not None:
            self._speaker = (role, line.number)
        if "NCCL " in text and _NCCL_PREFIX.search(text) and "error in" not in text:
            return  # NCCL's own lines name their process, and are read where that is known
        if not self._by_rule(line) and not in_traceback:
            self._exception(line)

    def _by_rule(self, line: Line) -> bool:
        """Give a line to the first that knows its wording."""
        if "based" in line.text and self._barriers.feed(line):
            return True
        for pattern, use in self._rules:
            if match := pattern.search(line.text):
                use(line, match)
                return True
        return False

    def _exception(self, line: Line) -> None:
        match = _EXCEPTION.match(line.text)
        if match is not None and "Watchdog caught" not in line.text:
            effect = is_consequence(match["type"], match["message"], [])
            self._add(line, FailureKind.EXCEPTION, effect=effect, detail=match["type"])

    def finish(self) -> None:
        """The barriers that nobody completed."""
        for barrier in self._barriers.not_completed:
            assert barrier.line is not None
            came = f"{barrier.came} of {barrier.size}"
            if barrier.missing:
                self._add(
                    barrier.line, FailureKind.MISSING_RANKS, rank=barrier.waiter, ranks=barrier.missing, detail=came
                )
            else:
                self._add(barrier.line, FailureKind.INIT_TIMEOUT, rank=barrier.waiter, effect=True, detail=came)

    @property
    def waiting(self) -> bool:
        """Whether the reason of an error may follow."""
        return bool(self._quoting or self._terminated)

    def _add(self, line: Line, kind: FailureKind, **values: Any) -> None:
        """Keep one failure; what the same writer says again in the same words is one."""
        key = (kind, line.tag, line.stream, values.pop("once", None) or line.text.strip()[-160:])
        if len(self.failures) >= MOST or key in self._seen:
            return
        self._seen.add(key)
        at = clock_of(line.text) or line.at_ns
        values.setdefault("pid", line.pid)
        if self._speaker is not None and of_prefix(line.stream) is None:
            role, begun = self._speaker
            values.setdefault("role", role if line.number - begun <= _LONGEST_TRACEBACK else None)
            self._speaker = None
        failure = make_failure(self.file, line, kind, **values)
        self.failures.append(FailureLine(failure, line, at, hint=default_rank(line.text)))

    # ---- what several ranks did ----

    def _mismatch(self, line: Line, match: re.Match[str]) -> None:
        mine = match["body"] or ""
        other = match["other"] or ""
        seq = _SEQUENCE.search(mine)
        names = [op_name(found[1]) for body in (mine, other) if (found := _OP_TYPE.search(body))]
        differ = _DIFFER.search(line.text)
        rank = integer(match["rank"])
        peer = integer(match["peer"]) if match["peer"] else None
        self._add(
            line,
            FailureKind.MISMATCH,
            rank=rank,
            peer_rank=peer,
            ranks=(rank,) if peer is None else tuple(sorted({rank, peer})),
            operation=names[0] if names else None,
            seq=integer(seq[1]) if seq else None,
            detail=differ["what"].strip() if differ else " vs ".join(str(name) for name in names) or None,
        )

    def _ddp(self, line: Line, match: re.Match[str]) -> None:
        self._pair(line, match, f"{match['mine']} parameters vs {match['theirs']}")

    def _pair(self, line: Line, match: re.Match[str], detail: str) -> None:
        rank = integer(match["rank"])
        peer = integer(match["peer"])
        ranks = tuple(sorted({rank, peer}))
        self._add(line, FailureKind.MISMATCH, rank=rank, peer_rank=peer, ranks=ranks, detail=detail[:200])

    def _barrier(self, line: Line, match: re.Match[str]) -> None:
        me = integer(match["me"]) if match["me"] else 0  # only rank 0 of the group counts the others
        ranks = ranks_in(match["ranks"])
        self._add(line, FailureKind.MISSING_RANKS, rank=me, ranks=ranks, operation="monitored_barrier")

    def _not_joined(self, line: Line, match: re.Match[str]) -> None:
        self._add(
            line,
            FailureKind.MISSING_RANKS,
            ranks=ranks_in(match["ranks"]),
            seq=integer(match["seq"]),
            detail="did not join",
        )

    def _not_finished(self, line: Line, match: re.Match[str]) -> None:
        ranks = ranks_in(match["ranks"])
        self._add(
            line,
            FailureKind.OTHER,
            ranks=ranks,
            seq=integer(match["seq"]),
            detail="joined, did not finish",
            effect=True,
        )

    def _snapshot(self, line: Line, match: re.Match[str]) -> None:
        """One row of the desync report: these ranks were inside that collective, or past it."""
        operation = op_name(match["op"])
        seq = self._snapshot_seq.get(line.stream)
        ranks = ranks_in(match["ranks"])
        self._add(line, FailureKind.OTHER, ranks=ranks, operation=operation, seq=seq, detail=match["how"], effect=True)

    # ---- the store and the way into the job ----

    def _unique_id(self, line: Line, match: re.Match[str]) -> None:
        lost = re.search(r"reset|closed|Broken pipe|refused", match["why"]) is not None
        kind = FailureKind.SOCKET_ERROR if lost else FailureKind.STORE_TIMEOUT
        rank = integer(match["rank"])
        peer = integer(match["peer"])
        self._add(line, kind, rank=rank, peer_rank=peer, effect=True, detail=match["why"].strip()[:120])

    def _joined(self, line: Line, _: re.Match[str]) -> None:
        count = _HOW_MANY.search(line.text)
        self._add(line, FailureKind.INIT_TIMEOUT, effect=True, detail=count[1] if count else None)

    def _waited_for_store(self, line: Line, match: re.Match[str]) -> None:
        peer = address_host(match["peer"])
        detail = f"{match['peer']}:{match['port']} for {integer(match['ms']) / 1000:g} s"
        self._add(
            line, FailureKind.STORE_TIMEOUT, peer_node=peer, effect=True, detail=detail, once=f"waitForInput {detail}"
        )

    def _connect(self, line: Line, match: re.Match[str]) -> None:
        if (head := GLOG_HEAD.search(line.text)) and head["severity"] == "W":
            return  # one address of several, tried again: every healthy job has these
        peer = address_host(match["peer"]) if match["peer"] else None
        self._add(line, FailureKind.STORE_UNREACHABLE, peer_node=peer, effect=True)

    def _port_taken(self, line: Line, match: re.Match[str]) -> None:
        if (head := GLOG_HEAD.search(line.text)) and head["severity"] == "W":
            return  # one address of several: the error follows if all fail
        detail = f"port {match['port']}" if match["port"] else "its port"
        self._add(line, FailureKind.PORT_TAKEN, detail=detail, once=detail)

    def _gloo(self, line: Line, match: re.Match[str]) -> None:
        if match["ms"]:
            detail = f"Gloo {match['op']} waited {match['ms']} ms"
            self._add(line, FailureKind.WAIT_TIMEOUT, effect=True, operation=match["op"], detail=detail)
        else:
            peer = address_host(read_warning(line.text).peer_address)
            self._add(line, FailureKind.SOCKET_ERROR, peer_node=peer, effect="connectFullMesh" not in line.text)

    # ---- engines; what is only quoted in a line, somebody writes about ----

    def _engine_waits(self, line: Line, match: re.Match[str]) -> None:
        if not is_quoted(line.text, match.start()):
            self._add(line, FailureKind.ENGINE_WAITS, effect=True, detail=match["what"])

    def _engine_stuck(self, line: Line, match: re.Match[str]) -> None:
        if not is_quoted(line.text, match.start()):
            self._add(line, FailureKind.ENGINE_STUCK, effect=True, detail=match["what"].strip())

    def _kv_transfer(self, line: Line, match: re.Match[str]) -> None:
        if is_quoted(line.text, match.start()):
            return
        what = match["why"] or match["nixl"] or match["code"] or match[0]
        peer = address_host(engine_lines.kv_peer(line.text, match))
        self._add(line, FailureKind.KV_TRANSFER, effect=True, peer_node=peer, detail=what.strip())

    def _jit_lock(self, line: Line, match: re.Match[str]) -> None:
        if not is_quoted(line.text, match.start()):
            pid = line.pid if line.pid is not None else engine_lines.baton_pid(line.text)
            self._add(line, FailureKind.JIT_LOCK, effect=True, pid=pid, detail=match["file"])

    def _deepep(self, line: Line, match: re.Match[str]) -> None:
        """Its kernels give up waiting for a peer, which they know by its node and its place there."""
        if is_quoted(line.text, match.start()):
            return
        wait = engine_lines.wait_of(line.text)
        if wait is not None:
            rank, peer = wait
            what = f"DeepEP waits for rank {peer}"
            self._add(
                line,
                FailureKind.ENGINE_STUCK,
                rank=rank,
                peer_rank=peer,
                effect=True,
                detail=what,
                once=f"{rank} {what}",
            )
            return
        peer_words = ", ".join(f"{name} {match[key]}" for name, key in (("RDMA", "rdma"), ("nvl", "nvl")) if match[key])
        what = f"DeepEP waits for {peer_words}" if peer_words else "DeepEP waits for a peer"
        alone = engine_lines.waiting_rank(line.text)
        self._add(line, FailureKind.ENGINE_STUCK, rank=alone, effect=True, detail=what, once=f"{alone} {what}")

    # ---- the GPU and NCCL ----

    def _cuda(self, line: Line, match: re.Match[str]) -> None:
        what = (match["what"] or match["name"] or match["failure"] or match["npu"] or "").strip()
        kind = (
            FailureKind.ECC
            if "ECC" in what
            else FailureKind.GPU_OOM
            if "out of memory" in what.lower()
            else FailureKind.CUDA_ERROR
        )
        self._add(line, kind, detail=what[:160] or None)

    def _xid(self, line: Line, match: re.Match[str]) -> None:
        if "NVRM" not in line.text:  # else it is the driver's own line, and read as such
            self._add(
                line,
                FailureKind.XID,
                code=integer(match["code"]) if match["code"] else None,
                detail=pci_id(match["pci"]),
            )

    def _nccl(self, line: Line, match: re.Match[str]) -> None:
        what = (match["what"] or match["code"] or match["test"] or "").strip()
        kind = _NCCL_KINDS.get(what, FailureKind.OTHER)
        last = self.failures[-1] if self.failures else None
        near = last is not None and last.line.stream == line.stream and line.number - last.line.number <= 2
        # the line below a NCCL error explains the same one
        if not (match["code"] and near and last is not None and last.failure.kind == kind):
            self._add(line, kind, effect=kind == FailureKind.NCCL_REMOTE_ERROR)
        self._quoting[line.stream] = (len(self.failures) - 1, line.number, False)

    def _quoted(self, line: Line) -> bool:
        """NCCL's last words under a NCCL error: they name the peer and the reason."""
        index, number, announced = self._quoting[line.stream]
        text = line.text.strip()
        if line.number - number > 4 or not text or text.startswith(("Exception raised", "frame #")):
            del self._quoting[line.stream]
            return False
        if text == "Last error:":
            self._quoting[line.stream] = (index, line.number, True)
            return True
        if not announced or not 0 <= index < len(self.failures):
            return False
        del self._quoting[line.stream]
        warned = read_warning(text)
        known = self.failures[index]
        peer = address_host(warned.peer_address)
        below = Source(self.file, f"line {line.number}")
        failure = replace(known.failure, detail=text[:200], peer_node=peer, code=warned.status, beside=(below,))
        taken = taken_twice(text)
        if taken is not None:
            failure = replace(failure, kind=taken.kind, ranks=taken.ranks, detail=taken.what)
        self.failures[index] = known._replace(failure=failure)
        return True

    def _bare_warning(self, line: Line, match: re.Match[str]) -> None:
        text = match["text"] or match["cut"] or match["last"] or ""
        warned = read_warning(text)
        kind, effect = failure_of(warned, text)
        if kind is not None:
            peer = address_host(warned.peer_address)
            taken = taken_twice(text)
            if taken is not None:
                self._add(line, kind, ranks=taken.ranks, detail=taken.what)
                return
            self._add(line, kind, peer_node=peer, code=warned.status, effect=effect, detail=warned.status_name)

    def _terminate(self, line: Line, match: re.Match[str]) -> None:
        effect = match["type"].endswith(("DistBackendError", "IoException", "DistNetworkError", "EPException"))
        before = len(self.failures)
        self._add(line, FailureKind.EXCEPTION, effect=effect, detail=match["type"])
        if len(self.failures) > before:
            self._terminated[line.stream] = before

    def _last_words(self, line: Line) -> None:
        """What C++ says below `terminate`: the watchdog's own text means that it only ended a rank that waited."""
        index = self._terminated.pop(line.stream)
        known = self.failures[index]
        beside = (Source(self.file, f"line {line.number}"),)
        effect = known.failure.effect or _ENDED_BY_WATCHDOG.search(line.text) is not None
        self.failures[index] = known._replace(failure=replace(known.failure, effect=effect, beside=beside))
