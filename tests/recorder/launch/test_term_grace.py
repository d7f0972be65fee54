"""How long a scheduler waits from SIGTERM to SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.recorder.launch.term_grace import USUAL_S, grace_s


def test_slurm_is_asked_inside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KillWait as scontrol prints it; the user's own word wins, and a scontrol that fails or hangs costs a second."""
    scontrol = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def answers(body: str) -> float:
        scontrol.write_text(f"#!/bin/sh\n{body}\n")
        scontrol.chmod(0o755)
        return grace_s({"SLURM_JOB_ID": "1"}, None)

    assert answers("printf 'KillOnBadExit           = 0\\nKillWait                = 90 sec\\n'") == 90
    assert answers("exit 1") == USUAL_S
    assert answers("sleep 30") == USUAL_S
    assert grace_s({"SLURM_JOB_ID": "1"}, 12.0) == 12
    assert grace_s({}, None) == USUAL_S
