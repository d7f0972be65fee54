"""What waits on disk until a server takes it."""

from __future__ import annotations

import stat
from pathlib import Path

from hangscope.push.spool import Spool


def test_a_new_account_gets_its_spool(tmp_path: Path) -> None:
    """Where nothing of ~/.local/state is there yet, the folders above are made, and the spool is the user's alone."""
    folder = tmp_path / "state" / "hangscope" / "spool" / "host"
    spool = Spool(folder)
    spool.add("end", {"job": "j"})
    assert [entry.value for entry in spool.entries()] == [{"job": "j"}]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
