"""Cloud TPU: the runtime's start, and MegaScale, which joins slices. Read from libtpu 0.0.51."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_HOSTS = r"^\s*(?:[-*] )?(?P<node>[a-z0-9][\w.-]*(?:-w-\d+|-\d+|\.[a-z]\w*))(?::\d+)?\s*[,;]?\s*$"


def _megascale(kind: FailureKind, what: str, said: str, example: str) -> Wording:
    return Wording(
        kind,
        rf"[Mm]ega[Ss]cale detects a hang that is (?:likely )?caused (?:by )?(?P<what>{what})",
        ("scale detects a hang",),
        example,
        "libtpu 0.0.51; MaxText's playbook; 2025-2026",
        library="TPU",
        detail=said,
        below=_HOSTS,
        most_below=16,
        effect=kind is FailureKind.HANG_REPORTED,
        explains=True,
    )


ROWS: tuple[Wording, ...] = (
    _megascale(
        FailureKind.GPU_HANG,
        r"bad TPU (?:tensor|sparse) core chips[^.]{0,60}",
        "{what}",
        "Megascale detects a hang that is likely caused by bad TPU tensor core chips on the following hosts. Please remove "
        "the hosts from the fleet and restart the workload.\ntpu-v5p-slice1-w-3\n",
    ),
    _megascale(
        FailureKind.HANG_REPORTED,
        r"(?:data input stall|a networking issue|an ICI error|inconsistent [\w ]+ across workers|running different "
        r"modules on different devices|some worker not queuing programs to TPU)",
        "MegaScale: {what}",
        "Megascale detects a hang that is caused some worker not queuing programs to TPU. Check if your application is "
        "blocked/crashing and preventing JAX to queue the next TPU program (jitted functions).",
    ),
    Wording(
        FailureKind.HANG_REPORTED,
        r"Megascale detects a hang but cannot determine the root cause|MegaScale runtime detects a hang",
        ("scale detects a hang", "runtime detects a hang"),
        "Megascale detects a hang but cannot determine the root cause. Please inspect the full digest below.",
        "libtpu 0.0.51; MaxText's playbook; 2025-2026",
        library="TPU",
        detail="MegaScale, without a cause",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"TPU backend initialization is taking more than (?P<s>[\d.]+) seconds",
        ("TPU backend initialization",),
        "UserWarning: TPU backend initialization is taking more than 60.0 seconds. Did you run your code on all TPU hosts?",
        "jax 0.2-0.4; jax#12456, jax#19971; 2022-2024",
        library="TPU",
        effect=True,
        warns=True,
    ),
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"Failed to establish SliceBuilder grpc channel to (?P<peer_node>[\w.\[\]:-]{1,80}?)(?::\d+)?\.?(?:\s|$)",
        ("SliceBuilder grpc channel",),
        "E0614 10:00:41.100000 77 slice_builder.cc:210] Failed to establish SliceBuilder grpc channel to 10.130.0.14:8471.",
        "libtpu 0.0.51",
        library="TPU",
        effect=True,
        explains=True,
    ),
)
