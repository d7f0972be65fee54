"""source/lines.json: the lines of source that were saved with the stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.reader.load import load
from hangscope.sources.source_code.read import code_lines

ROW = {"file": "/job/train.py", "ranks": [0, 1], "lines": {"7": "def save():", "8": "    write()"}}
GOOD = {"schema": "hangscope.source/1", "files": [ROW]}


def test_it_is_read_as_it_was_written() -> None:
    """Each file comes with its ranks and its lines by number."""
    (found,) = code_lines(GOOD, "lines.json")
    assert (found.ranks, found.file, dict(found.lines)) == (
        (0, 1),
        "/job/train.py",
        {7: "def save():", 8: "    write()"},
    )


@pytest.mark.parametrize(
    "row",
    [
        None,
        {**ROW, "file": 7},
        {**ROW, "lines": ["def save():"]},
        {**ROW, "lines": {"x": "a", "8": 3, "99999999999": "b", "²": "c"}},
    ],
)
def test_what_is_none_is_left_out(row: Any) -> None:
    """Wrong types give no line and no error."""
    assert code_lines({**GOOD, "files": [row]}, "lines.json") == []


def test_it_is_bounded() -> None:
    """A file of a million lines, each of a megabyte, keeps little of it."""
    lines = {str(number): "x" * 2000 for number in range(30_000)}
    found = code_lines({**GOOD, "files": [{**ROW, "lines": lines}] * 3}, "lines.json")
    assert sum(len(each.lines) for each in found) == 20_000
    assert max(len(text) for each in found for text in each.lines.values()) == 400


def test_source_alone_is_no_evidence(tmp_path: Path) -> None:
    """The text of lines says nothing about a job by itself, and breaks nothing beside evidence."""
    (tmp_path / "stacks").mkdir()
    (tmp_path / "lines.json").write_text(json.dumps(GOOD))
    frame = '  File "/job/train.py", line 8 in save\n'
    (tmp_path / "stacks" / "rank_0.1.txt").write_text(
        f"# hangscope stacks rank=0 pid=7 sample=1 by=worker-server\nThread 0x1 (most recent call first):\n{frame}"
    )
    assert [each.file for each in load(tmp_path).facts.code] == ["/job/train.py"]
