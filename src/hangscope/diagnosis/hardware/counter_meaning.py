"""What a network counter means, and from when on people who run such networks take it seriously.

Meanings: the kernel's documentation of sysfs-class-infiniband and of mlx5's hardware counters. Limits: NVIDIA's
NVSentinel (nic-health-monitor), which looks once a second. Ours are means since the job started, so that a rate below a
limit says little, and one above it much.
"""

from __future__ import annotations

from typing import NamedTuple

from hangscope.model import CounterChange
from hangscope.text import duration


class Limit(NamedTuple):
    """More than `times` in `seconds` is an alarm; 0 seconds: more than `times` at all."""

    times: int
    seconds: float = 0.0

    def __str__(self) -> str:
        span = {0.0: "", 1.0: " a second", 60.0: " a minute", 3600.0: " an hour"}[self.seconds]
        return "any" if self == ANY else f"more than {self.times}{span}"


class Counter(NamedTuple):
    """`fault` where it counts what a link in order does not have; else load, or something else's doing.

    `few` is how many of them a link in order may have all the same: single bit errors come and go.
    """

    fault: bool
    meaning: str
    limit: Limit | None = None
    few: int = 0


ANY = Limit(0)
FAULT = True
OTHER = False
COUNTERS = {
    # The link itself, gravest first: this is the order in which they are shown.
    "link_downed": Counter(FAULT, "the link went down and had to come back up", ANY),
    "carrier_down_count": Counter(FAULT, "the interface lost its carrier"),
    "req_transport_retries_exceeded": Counter(FAULT, "a connection was given up, unacknowledged after all retries"),
    "local_link_integrity_errors": Counter(FAULT, "more errors on the link than it may have", ANY),
    "excessive_buffer_overrun_errors": Counter(FAULT, "the port's buffer overran", ANY),
    "link_error_recovery": Counter(FAULT, "the link was retrained", Limit(5, 60.0), 5),
    "symbol_error": Counter(FAULT, "errors on a physical lane", Limit(120, 3600.0), 120),
    "port_rcv_errors": Counter(FAULT, "packets arrived corrupted", Limit(10, 1.0), 10),
    # A connection that is given up has been tried seven times (NCCL_IB_RETRY_CNT).
    "local_ack_timeout_err": Counter(FAULT, "no acknowledgement in time, retransmitted", Limit(1, 1.0), 6),
    "rx_icrc_encapsulated": Counter(FAULT, "RoCE packets arrived corrupted", few=10),
    "carrier_changes": Counter(FAULT, "the interface's carrier came or went", Limit(2), 2),
    "rx_crc_errors": Counter(FAULT, "frames arrived corrupted", few=10),
    "tx_carrier_errors": Counter(FAULT, "frames were lost with the carrier", few=10),
    "rx_errors": Counter(FAULT, "frames arrived corrupted", few=10),
    "tx_errors": Counter(FAULT, "frames could not be sent", few=10),
    "roce_adp_retrans": Counter(FAULT, "RoCE retransmitted", few=100),
    "roce_adp_retrans_to": Counter(FAULT, "RoCE retransmitted after a timeout", few=10),
    # Loss that may have happened anywhere between the ends, or be none.
    "port_rcv_remote_physical_errors": Counter(OTHER, "packets arrived that were corrupted upstream", None),
    "packet_seq_err": Counter(OTHER, "the peer missed packets, or got them out of order"),
    "implied_nak_seq_err": Counter(OTHER, "the peer missed packets, or got them out of order"),
    "out_of_sequence": Counter(OTHER, "packets were missed, or came out of order, as with adaptive routing"),
    "req_cqe_error": Counter(OTHER, "requests ended with an error"),
    "resp_cqe_error": Counter(OTHER, "responses ended with an error"),
    "rnr_nak_retry_err": Counter(OTHER, "the peer had no buffer ready", ANY),
    "req_rnr_retries_exceeded": Counter(OTHER, "a connection was given up: the peer never had a buffer ready"),
    "out_of_buffer": Counter(OTHER, "packets came while no buffer was ready"),
    # Load: it delays and does not stop.
    "port_xmit_discards": Counter(OTHER, "dropped at the port: congestion, or the port was down", Limit(100, 1.0)),
    "port_xmit_wait": Counter(OTHER, "had data and no credit: congestion"),
    "roce_slow_restart": Counter(OTHER, "RoCE restarted slowly: congestion", Limit(10, 1.0)),
    "np_ecn_marked_roce_packets": Counter(OTHER, "packets marked on the way: congestion"),
    "np_cnp_sent": Counter(OTHER, "congestion was reported to the sender"),
    "rp_cnp_handled": Counter(OTHER, "slowed down at the receiver's request: congestion"),
}
_GRAVITY = {name: place for place, name in enumerate(COUNTERS)}


def is_fault(change: CounterChange) -> bool:
    known = COUNTERS.get(change.counter)
    return known is not None and known.fault and change.rise > 0


def is_much(change: CounterChange) -> bool:
    """Whether it is more than a link in order may have."""
    return is_fault(change) and change.rise > COUNTERS[change.counter].few


def gravity(change: CounterChange) -> int:
    return _GRAVITY.get(change.counter, len(_GRAVITY))


def over_limit(change: CounterChange) -> bool:
    """Whether the mean since the job started is already above the published limit."""
    limit = COUNTERS[change.counter].limit if change.counter in COUNTERS else None
    if limit is None:
        return False
    if not limit.seconds:
        return change.rise > limit.times
    return bool(change.seconds) and change.rise / (change.seconds or 1) > limit.times / limit.seconds


def counter_text(change: CounterChange, *, meaning: bool = True) -> str:
    """``link_downed +2 (the link went down and had to come back up; alarm at any, exceeded)``."""
    text = f"{change.counter} {'at least ' if change.reset else ''}+{change.rise}"
    known = COUNTERS.get(change.counter)
    if not meaning or known is None:
        return text
    exceeded = ", exceeded" if over_limit(change) else ""
    limit = f"; alarm at {known.limit}{exceeded}" if known.limit else ""
    reset = "; reset or wrapped meanwhile" if change.reset else ""
    return f"{text} ({known.meaning}{limit}{reset})"


def span(changes: list[CounterChange]) -> str:
    seconds = next((c.seconds for c in changes if c.seconds and c.seconds > 0), None)
    return f"since the job started, {duration(seconds)}" if seconds else "since the job started"
