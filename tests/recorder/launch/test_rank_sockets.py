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


def test_a_run_keeps_all_of_its_own_directories(tmp_path: Path) -> None:
    """One for sockets and one for GPU cores: the second does not clear the first away, nor those of runs that live."""
    first = rank_sockets.make_in(str(tmp_path))
    second = rank_sockets.make_in(str(tmp_path))
    assert first.exists() and second.exists()
    (first / rank_sockets.OWNER).write_text("4194303")  # no process has so high a number here
    rank_sockets.make_in(str(tmp_path))
    assert not first.exists() and second.exists()
