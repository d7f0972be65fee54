"""Gloo where PyTorch is not around it: XLA on CPU, Horovod."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"gloo/transport/\S{1,80}\] Read timeout \[?(?P<peer_node>[\w.:]{1,60}?)\]?:\d{1,5}\b",
        ("Read timeout",),
        "UNKNOWN: Gloo ReduceScatter failed: [external/gloo/gloo/transport/tcp/buffer.cc:72] Read timeout [10.0.0.7]:38624",
        "jaxlib 0.10; jax#40831; 2026",
        library="Gloo",
        detail="Gloo waited for {peer_node}",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.SOCKET_ERROR,
        r"Gloo \S[\w -]{2,40} failed: .{0,200}?(?:Read|Write) error \[?(?P<peer_node>[\w.:]{1,60}?)\]?:\d{1,5}: \w",
        ("] Read error", "] Write error"),
        "ValueError: UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error "
        "[10.0.0.7]:41110: Connection reset by peer",
        "jaxlib 0.10.2, printed by a job of our own; 2026",
        library="Gloo",
        effect=True,
        explains=True,
        of_writer=True,
    ),
)
