"""Where the ranks' sockets lie."""

from __future__ import annotations

from pathlib import Path

from hangscope.recorder.launch import rank_sockets


def test_the_sockets_directory_is_private_and_short(tmp_path: Path) -> None:
    """Only the user can enter it, and a socket's path fits into what the kernel allows, whatever TMPDIR says."""
    made = rank_sockets.make({"TMPDIR": str(tmp_path / ("long" * 40))})
    try:
        assert made.stat().st_mode & 0o777 == 0o700
        assert len(str(made / "4194304.sock")) < 108
    finally:
        rank_sockets.remove(made)
    assert not made.exists()
