"""How long a scheduler waits from SIGTERM to SIGKILL: half of it is ours, to save why a job stands still."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

USUAL_S = 30.0
"""Slurm's KillWait and Kubernetes' terminationGracePeriodSeconds, where nobody changed them."""
ASK_S = 1.0
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d{1,6}) sec", re.MULTILINE)


def grace_s(environ: Mapping[str, str], given: float | None) -> float:
    """As the user says, else as Slurm says of itself, else what is usual. Asked only once SIGTERM has come."""
    if given is not None:
        return given
    if "SLURM_JOB_ID" not in environ:
        return USUAL_S
    try:
        config = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=ASK_S, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return USUAL_S
    found = _KILL_WAIT.search(config.stdout)
    return float(found[1]) if found else USUAL_S
