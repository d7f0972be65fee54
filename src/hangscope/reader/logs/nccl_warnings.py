"""What one NCCL warning says, in every wording from NCCL 2.18 to 2.30: is it the transport, which peer, which adapter.

Only the text after ``NCCL WARN`` is read here, so that the same text quoted by PyTorch ("Last error:") can be read too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hangscope.model import FailureKind
from hangscope.model.numbers import integer
from hangscope.model.values import is_loopback


class NcclWarning(NamedTuple):
    """A warning, taken apart. `kind` is one of `TransportEvent`'s."""

    kind: str
    peer_address: str | None = None
    hca: str | None = None
    port: int | None = None
    status: int | None = None
    status_name: str | None = None
    fatal: bool | None = None


WC_STATUS = {
    1: "LOC_LEN_ERR",
    2: "LOC_QP_OP_ERR",
    3: "LOC_EEC_OP_ERR",
    4: "LOC_PROT_ERR",
    5: "WR_FLUSH_ERR",
    6: "MW_BIND_ERR",
    7: "BAD_RESP_ERR",
    8: "LOC_ACCESS_ERR",
    9: "REM_INV_REQ_ERR",
    10: "REM_ACCESS_ERR",
    11: "REM_OP_ERR",
    12: "RETRY_EXC_ERR",
    13: "RNR_RETRY_EXC_ERR",
    14: "LOC_RDD_VIOL_ERR",
    15: "REM_INV_RD_REQ_ERR",
    16: "REM_ABORT_ERR",
    17: "INV_EECN_ERR",
    18: "INV_EEC_STATE_ERR",
    19: "FATAL_ERR",
    20: "RESP_TIMEOUT_ERR",
    21: "GENERAL_ERR",
}
"""Work completion statuses of InfiniBand verbs, by number."""

_ADDRESS = r"(?P<peer>\[?[0-9A-Za-z.:%_-]+\]?<\d+>)"
# ≤2.19 "with error 12", 2.20-2.28.3 "with status=12", 2.28.7+ "status=IBV_WC_RETRY_EXC_ERR(12)"
_COMPLETION = re.compile(
    rf"Got completion from peer {_ADDRESS}.{{0,200}}?(?:with error |status=)"
    r"(?:(?:IBV_WC_)?(?P<name>[A-Z_]+)\()?(?P<status>\d+)"
)
_CQE = re.compile(r"Got CQE with error \(devIndex=")
_HCA = re.compile(r"\bhca (?P<hca>[\w.+-]+)")
# ≤2.19 has no device; 2.20+ "mlx5_0:1 Got async event"; 2.23+ "error event", "fatal event"; 2.28.7+ "non-fatal"
_ASYNC = re.compile(
    r"NET/\S{1,64} ?:? ?(?:(?P<hca>[\w.+-]{1,64}?):(?P<port>\d+) )?"
    r"Got (?P<how>(?:non-fatal |fatal )?)async (?P<kind>error |fatal )?event"
    r"(?P<on> on \w+ \(.*?\))?\s?: (?P<text>.*)"
)
# NCCL says "remote peer"; Gloo says "peer", or names the reset that a killed process leaves behind
_CLOSED = re.compile(r"Connection closed by (?:remote )?peer (?P<peer>\S+?)\.?(?:\s|$)")
_RESET = re.compile(r"(?:Read|Write) error (?P<peer>\[\S+?\]:\d+): (?:Connection reset|Broken pipe)")
_SOCKET = re.compile(
    r"[Ss]ocketProgress\w*: Call to \w+ (?:from|to) (?P<peer>\S+) failed"
    r"|Call to (?:recv|send|read|write)\w* (?:(?:from|to) (?P<other>\S+) )?"
    r".{0,200}?failed : "
    r"(?:Connection (?:reset|refused|timed out)|Broken pipe|No route to host|Network is unreachable"
    r"|Software caused connection abort)"
)
_CONNECT = re.compile(
    r"(?:socketStartConnect|socketPollConnect|socketConnect\w*|[Cc]onnect to|[Ss]ocketFinalizeConnect)\b"
    r".{0,200}?(?:exceeded|failed|refused|timed out|unreachable|No route)"
)
_CONNECT_PEER = re.compile(r"[Cc]onnect to (?P<peer>\S+?<\d+>)")
_QP = re.compile(
    r"ibv_modify_qp failed with (?:error )?(?P<name>\d+)?(?P<text>[^,]*)(?:, on dev (?P<hca>[\w.+-]+):(?P<port>\d+))?"
)
_TRUNCATED = re.compile(rf"peer {_ADDRESS} message truncated|message truncated : receiving")
_TRUNCATED_IB = re.compile(r"posted incorrect receive info")
_MISMATCH = re.compile(
    r"Bootstrap Root ?: mismatch|has already checked in|Mismatched NCCL version|mismatch in rank|Duplicate GPU detected"
    r"|Mismatched (?:collective|NCCL)|rank \d+ of \d+ ranks"
)
_CUDA = re.compile(r"Cuda failure|CUDA failure|CUDA error|HIP failure|\b(?:hip|cuda)[A-Z]\w{2,40} failed")
# Memory that the node does not give: /dev/shm of a container, pinned memory, queues of the adapter
_RESOURCE = re.compile(
    r"/dev/shm|shared memory segment|No space left on device|Cannot allocate memory|[Nn]o socket interface found"
    r"|\bibv_(?:reg_mr|create_|alloc_|open_device|query_)\w{0,64}\b.{0,80}failed|Too many open files"
)
_FATAL_COMM = re.compile(r"communicator encountered a fatal error")
_FAILED_DEVICE = re.compile(r"Device \d+ marked as failed")
_FATAL_EVENTS = re.compile(
    r"fatal|catastrophic|CQ error|access violation|invalid request|QP .{0,60}error", re.IGNORECASE
)


def read_warning(text: str) -> NcclWarning:
    """The meaning of one warning; kind "other" where it does not speak of a peer, the transport or the GPU."""
    for pattern, read in _WORDINGS:
        if match := pattern.search(text):
            return read(match, text)
    return NcclWarning("other")


def _completion(match: re.Match[str], text: str) -> NcclWarning:
    status = integer(match["status"])
    hca = _HCA.search(text)
    return NcclWarning(
        "completion_error",
        match["peer"],
        hca=hca["hca"] if hca else None,
        status=status,
        status_name=match["name"] or WC_STATUS.get(status),
        fatal=True,
    )


def _async_event(match: re.Match[str], _: str) -> NcclWarning:
    said = match["how"] or match["kind"]
    if said:
        fatal = match["how"].strip() == "fatal" or (match["kind"] or "").strip() == "fatal"
    else:  # before 2.23 only the event itself tells
        fatal = _FATAL_EVENTS.search(match["text"]) is not None
    port = integer(match["port"]) if match["port"] else None
    return NcclWarning("async_event", hca=match["hca"], port=port, status_name=match["text"].strip(), fatal=fatal)


def _queue_pair(match: re.Match[str], _: str) -> NcclWarning:
    return NcclWarning(
        "connect_failed",
        hca=match["hca"],
        port=integer(match["port"]) if match["port"] else None,
        status=integer(match["name"]) if match["name"] else None,
        status_name=match["text"].strip(" :") or None,
    )


def _connect_failed(_: re.Match[str], text: str) -> NcclWarning:
    peer = _CONNECT_PEER.search(text)
    return NcclWarning("connect_failed", peer["peer"] if peer else None)


def _connection_closed(match: re.Match[str], _: str) -> NcclWarning:
    return NcclWarning("connection_closed", match["peer"], fatal=True)


_WORDINGS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], NcclWarning]], ...] = (
    (_COMPLETION, _completion),
    (_CQE, lambda _match, _text: NcclWarning("completion_error", fatal=True)),
    (_ASYNC, _async_event),
    (_TRUNCATED, lambda match, _text: NcclWarning("size_desync", match["peer"], fatal=True)),
    (_TRUNCATED_IB, lambda _match, _text: NcclWarning("size_desync", fatal=True)),
    (_CLOSED, _connection_closed),
    (_RESET, _connection_closed),
    (_QP, _queue_pair),
    (_CONNECT, _connect_failed),
    (_SOCKET, lambda match, _text: NcclWarning("connection_error", match["peer"] or match["other"])),
    (_CUDA, lambda _match, _text: NcclWarning("cuda_error", fatal=True)),
    (_MISMATCH, lambda _match, _text: NcclWarning("init_mismatch")),
    (_FATAL_COMM, lambda _match, _text: NcclWarning("async_event", fatal=True)),
    (_FAILED_DEVICE, lambda _match, _text: NcclWarning("async_event", fatal=True)),
)
"""Each wording with what it means; the first that is there counts."""


_SAME_GPU = re.compile(r"Duplicate GPU detected ?: ?rank (\d{1,6}) and rank (\d{1,6}) both on CUDA device (\w{1,16})")
_SAME_RANK = re.compile(r"rank (\d{1,6}) of \d{1,6} ranks has already checked in")


class TakenTwice(NamedTuple):
    """What two processes took that only one can have: one GPU, or one rank's number."""

    kind: FailureKind
    ranks: tuple[int, ...]
    what: str


def taken_twice(text: str) -> TakenTwice | None:
    """What a warning says was taken twice; ranks are those of NCCL's communicator."""
    if match := _SAME_GPU.search(text):
        return TakenTwice(FailureKind.SAME_GPU, tuple(sorted({integer(match[1]), integer(match[2])})), match[3])
    if match := _SAME_RANK.search(text):
        return TakenTwice(FailureKind.SAME_RANK, (integer(match[1]),), match[1])
    return None


_PROXY = re.compile(r"Failed to execute operation \w+ from rank \d+, retcode (?P<code>\d+)|Socket recv failed while")

FAILURE_KINDS = {
    "completion_error": FailureKind.IB_ERROR,
    "connection_closed": FailureKind.SOCKET_ERROR,
    "connection_error": FailureKind.SOCKET_ERROR,
    "connect_failed": FailureKind.SOCKET_ERROR,
    "size_desync": FailureKind.MISMATCH,
    "cuda_error": FailureKind.CUDA_ERROR,
    "init_mismatch": FailureKind.MISMATCH,
}
"""A warning's kind → the kind of failure that it is."""


def failure_of(warning: NcclWarning, text: str) -> tuple[FailureKind | None, bool]:
    """(the kind of failure that a warning tells of, None for none; whether it only says that a peer went away)."""
    if warning.kind == "async_event":
        return (FailureKind.IB_ERROR if warning.fatal else None), False
    if warning.kind == "cuda_error":
        return (FailureKind.GPU_OOM if "out of memory" in text else FailureKind.CUDA_ERROR), False
    if warning.kind == "init_mismatch" and (taken := taken_twice(text)) is not None:
        return taken.kind, False
    if warning.kind == "other":
        if _RESOURCE.search(text):
            return FailureKind.NODE_RESOURCE, False
        return (FailureKind.NCCL_INTERNAL_ERROR if _PROXY.search(text) else None), True
    # status 5, a flushed work request, follows from an earlier error of the same connection
    effect = warning.kind == "connection_closed" or "Connection reset" in text or "Broken pipe" in text
    return FAILURE_KINDS.get(warning.kind), effect or warning.status == 5


_NAME = re.compile(r"^\[?(?P<host>.+?)\]?(?:<\d+>|:\d+)?$")


def address_host(address: str | None) -> str | None:
    """The host part of ``10.0.0.1<4711>`` or ``[10.0.0.1]:4711``; None for a loopback, which names no one."""
    if not address:
        return None
    match = _NAME.match(address)
    host = match["host"].strip("[]") if match else address
    host = host.partition("%")[0]  # the interface of a link-local address is the writer's own
    return None if is_loopback(host) else host
