"""`demo` beside files that others left: nothing in them is believed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from hangscope.cli.verbs.demo import command
from hangscope.demo.follow import _is_below
from hangscope.errors import LaunchError


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """A demo starts in a directory of its own: what lies in another one may name any process to end."""
    (tmp_path / "nodes").mkdir()
    result = CliRunner().invoke(command, ["--dir", str(tmp_path)])
    assert isinstance(result.exception, LaunchError)


def test_only_our_own_processes_are_ended() -> None:
    """A pid counts where it is below the one that was started, whatever a file says."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert _is_below(process.pid, os.getpid())
        assert not any(_is_below(pid, process.pid) for pid in (process.pid, 1, 0, -1, True, "7", None, 1 << 60))
        process.communicate(b"\n")
