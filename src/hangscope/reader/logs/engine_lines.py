"""What inference engines say of themselves: that they wait for workers, stand still, lose a transfer or a lock.

DeepEP's own timeouts name the waiting rank and the one that it waits for. Its internode kernels know a rank as (RDMA
rank, NVLink rank): the rank divided by 8, and the rest (NUM_MAX_NVL_PEERS). Over RDMA, ranks of different nodes talk to
the one with their own NVLink rank; over NVLink, to those of their node. Its low-latency kernels say ranks as they are.
"""

from __future__ import annotations

import re

from hangscope.model.numbers import integer
from hangscope.model.values import RANK_LIMIT

WAITS = re.compile(
    r"(?P<what>No available shared memory broadcast block found in \d+ ?s\w*"
    r"|Waiting for \d+ (?:local|remote|core)[\w, ]*engine proc\(?s?\)? to (?:start|connect)"
    r"|Initialization timeout: \d+/\d+ stages ready)"
)
"""An engine that waits for its workers: they may be compiling."""
STUCK = re.compile(
    r"(?P<what>(?:[Ss]cheduler|(?<!\w)\w{1,40}Manager) watchdog timeout.{0,80}"
    r"|Watchdog timeout \(self\.watchdog_timeout.{0,40}"
    r"|RPC call to \w+ timed out|Hang detected (?:on rank \d{1,6}|after \d+ seconds).{0,40})"
)
"""An engine that gave up waiting."""
KV_TRANSFER = re.compile(
    r"NIXL transfer failure: (?P<nixl>\w+)|(?P<code>NIXL_ERR_\w+)|Sync batch data transfer timeout(?P<mooncake>)"
    r"|KVTransferError\(bootstrap_room=\d+(?:, remote_endpoint=(?P<endpoint>[\w.:\[\]-]{1,80}))?\): (?P<why>.{0,120})"
    r"|Lost connection with prefill instance \(bootstrap_addr: (?P<lost>[\w.:\[\]-]{1,80})\)"
)
"""A transfer of the KV cache, between a prefill and a decode engine, that does not come to its end."""
_KV_PEER = re.compile(
    r"'?remote_host'?[:=] ?'?(?P<host>[\w.:-]{1,80}?)'?(?:,|\s|\}|$)|to (?P<to>[\w.-]{1,80}):\d{2,5}\b"
)
JIT_LOCK = re.compile(r"waiting for baton release at (?P<file>\S{1,300})", re.IGNORECASE)
"""The lock of a cache of compiled extensions: torch's cpp_extension, aiter, FlashInfer."""
_BATON_PID = re.compile(r"\[pid=(?P<pid>\d{1,9})\b")


def kv_peer(text: str, match: re.Match[str]) -> str | None:
    """The host at the other end of a transfer, where the line names it."""
    named = match["endpoint"] or match["lost"]
    if named:
        return named.strip("[]").rpartition(":")[0].strip("[]") or named
    found = _KV_PEER.search(text)
    return (found["host"] or found["to"]) if found is not None else None


def baton_pid(text: str) -> int | None:
    """The process that waits, where the line says so itself."""
    found = _BATON_PID.search(text)
    return integer(found["pid"]) if found is not None else None


# ---- DeepEP ----------------------------------------------------------------------------------------------------------

NVLINK_RANKS = 8
_WAITER = re.compile(
    r"DeepEP .{0,80}?timeout.{0,80}?\bRDMA: ?(?P<rdma>\d{1,6}), ?nvl: ?(?P<nvl>\d)\b(?P<rest>.{0,200})"
)
_PEER_RDMA = re.compile(r"\b(?:src|dst) RDMA(?: lane)?: ?(?P<rdma>\d{1,6})")
_PEER_NVL = re.compile(r"\b(?P<end>src|dst) (?:nvl|NVL): ?(?P<nvl>\d)\b")
_LOW_LATENCY = re.compile(
    r"DeepEP timeout for [\w ]{1,40}, rank (?P<rank>\d{1,6})\b.{0,80}?\b(?:src|dst)_rank (?P<peer>\d{1,6})\b"
)


_RANK = re.compile(r"DeepEP timeout for [\w ]{1,40}, rank (?P<rank>\d{1,6})\b")


def waiting_rank(text: str) -> int | None:
    """The rank that gave up waiting, where the line names no peer."""
    found = _RANK.search(text)
    return integer(found["rank"]) if found is not None and integer(found["rank"]) < RANK_LIMIT else None


def wait_of(text: str) -> tuple[int, int] | None:
    """(the rank that gave up waiting, the rank that it waited for); None where the line does not say both."""
    direct = _LOW_LATENCY.search(text)
    if direct is not None:
        return _edge(integer(direct["rank"]), integer(direct["peer"]))
    matched = _WAITER.search(text)
    if matched is None:
        return None
    rdma = integer(matched["rdma"])
    nvl = integer(matched["nvl"])
    peer_rdma = _PEER_RDMA.search(matched["rest"])
    peer_nvl = _nvlink_peer(matched["rest"])
    if peer_rdma is None and peer_nvl is None:
        return None
    to_rdma = integer(peer_rdma["rdma"]) if peer_rdma is not None else rdma
    to_nvl = peer_nvl if peer_nvl is not None else nvl
    if "(NVL check)" in text:
        to_rdma = rdma  # it waits inside of its node, whatever it passes on over RDMA
    elif "forwarder" in text:
        to_nvl = nvl  # it waits for its own place on another node, whatever it passes on to inside of this one
    return _edge(rdma * NVLINK_RANKS + nvl, to_rdma * NVLINK_RANKS + to_nvl)


def _nvlink_peer(rest: str) -> int | None:
    """The one whose data it waits for; else the one that it passes data on to."""
    ends = {found["end"]: integer(found["nvl"]) for found in _PEER_NVL.finditer(rest)}
    return ends.get("src", ends.get("dst"))


def _edge(rank: int, peer: int) -> tuple[int, int] | None:
    return (rank, peer) if rank != peer and max(rank, peer) < RANK_LIMIT else None
