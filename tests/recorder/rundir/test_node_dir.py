"""This node's part of an incident, also where its place takes nothing more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hangscope.incident.node_dir import NodeDir


def test_a_part_goes_on_elsewhere_once_its_place_is_full(tmp_path: Path) -> None:
    """With what was saved before; a place that has become read-only counts the same."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        spare = tmp_path / "spare"
        node_dir = NodeDir(place / "i", place / "i" / "nodes" / "n", lambda: spare)
        spare.mkdir()
        assert node_dir.write("dumps/first", b"1")
        assert node_dir.write("dumps/large", b"2" * (1 << 20))
        assert node_dir.moved == "No space left on device"
        assert (node_dir.incident, node_dir.directory) == (spare, spare / "nodes" / "n")
        assert node_dir.write("node.json", b"{}")
        assert sorted(path.name for path in spare.rglob("*") if path.is_file()) == ["first", "large", "node.json"]
        assert node_dir.gaps == []
        alone = NodeDir(place / "j", place / "j" / "nodes" / "n")
        assert not alone.write("large", b"2" * (1 << 20))
        assert alone.gaps[0]["why"] == "cannot be written: No space left on device"
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_a_gap(tmp_path: Path) -> None:
    """A file that cannot be written is named with the reason, and nothing is raised."""
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "stacks").write_text("a file where a folder should be")
    node_dir = NodeDir(tmp_path, tmp_path / "n")
    assert not node_dir.write("stacks/rank_1.1.txt", "x", rank=1)
    [gap] = node_dir.gaps
    assert (gap["what"], gap["rank"]) == ("stacks/rank_1.1.txt", 1)
