"""DeepEP's own timeouts, which name the waiting rank and the one that it waits for.

Its internode kernels know a rank as (RDMA rank, NVLink rank): the rank divided by 8, and the rest (NUM_MAX_NVL_PEERS).
Over RDMA, ranks of different nodes talk to the one with their own NVLink rank; over NVLink, to those of their node.
"""

from __future__ import annotations

import re

from hangscope.reader.values import RANK_LIMIT

NVLINK_RANKS = 8
_WAITER = re.compile(
    r"DeepEP .{0,80}?timeout.{0,80}?\bRDMA: ?(?P<rdma>\d{1,6}), ?nvl: ?(?P<nvl>\d)\b(?P<rest>.{0,200})"
)
_PEER_RDMA = re.compile(r"\b(?:src|dst) RDMA(?: lane)?: ?(?P<rdma>\d{1,6})")
_PEER_NVL = re.compile(r"\b(?:src|dst) (?:nvl|NVL): ?(?P<nvl>\d)\b")


def wait_of(text: str) -> tuple[int, int] | None:
    """(the rank that gave up waiting, the rank that it waited for); None where the line does not say both."""
    matched = _WAITER.search(text)
    if matched is None:
        return None
    rdma = int(matched["rdma"])
    nvl = int(matched["nvl"])
    peer_rdma = _PEER_RDMA.search(matched["rest"])
    peer_nvl = _PEER_NVL.search(matched["rest"])
    if peer_rdma is None and peer_nvl is None:
        return None
    # A forwarder waits for its own place on another node, whatever it passes on to inside of this one.
    forwards = "forwarder" in text
    to_rdma = int(peer_rdma["rdma"]) if peer_rdma is not None else rdma
    to_nvl = int(peer_nvl["nvl"]) if peer_nvl is not None and not forwards else nvl
    rank = rdma * NVLINK_RANKS + nvl
    peer = to_rdma * NVLINK_RANKS + to_nvl
    return (rank, peer) if rank != peer and max(rank, peer) < RANK_LIMIT else None
