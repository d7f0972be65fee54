"""`--on-hang`: the words that it takes, and the user's command with the verdict."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from hangscope.errors import SettingsError
from hangscope.recorder.agent import on_hang
from hangscope.recorder.agent.on_hang import OnHang

VERDICT = {"outcome": "hang", "kind": "absent", "culprits": [{"rank": 3}], "summary": "Rank 3\0 sleeps."}


def test_a_slip_is_found_before_the_job_starts() -> None:
    """A word that is neither report nor kill nor a program is an error, not a surprise at the hang."""
    assert OnHang.of(("report",)) == OnHang()
    assert OnHang.of(("kill", "true", "curl -d @- http://x"), 3).commands == ("true", "curl -d @- http://x")
    with pytest.raises(SettingsError, match="--on-hang kil: neither report nor kill"):
        OnHang.of(("kil",))
    with pytest.raises(SettingsError, match="--grace"):
        OnHang.of(("kill",), -1)


def test_a_command_gets_the_verdict_in_its_environment_and_on_stdin(tmp_path: Path) -> None:
    """Whatever is in the evidence, also what no environment can hold."""
    out = tmp_path / "out"
    command = (
        f'cat > {out}; echo "$HANGSCOPE_OUTCOME/$HANGSCOPE_CULPRITS/$HANGSCOPE_SUMMARY/$HANGSCOPE_INCIDENT" >> {out}'
    )
    assert on_hang.run_command(command, tmp_path, None, VERDICT) == ""
    first, second = out.read_text().splitlines()
    assert json.loads(first) == VERDICT
    assert second == f"hang/3/Rank 3? sleeps./{tmp_path}"


def test_a_command_that_fails_or_hangs_is_said_and_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its last line is quoted; one that does not end is ended, with all that it started."""
    assert (
        on_hang.run_command("echo no route to host >&2; exit 7", tmp_path, None, {})
        == "ended with status 7: no route to host"
    )
    monkeypatch.setattr(on_hang, "COMMAND_S", 0.5)
    begun = time.monotonic()
    assert (
        on_hang.run_command(f"(sleep 30; touch {tmp_path}/late) & wait", tmp_path, None, {})
        == "not finished within 0.5 s"
    )
    assert time.monotonic() - begun < 5
    sleeping = subprocess.run(["pgrep", "-f", f"touch {tmp_path}/late"], capture_output=True, text=True)
    assert sleeping.stdout == ""
