"""The lines of source around those at which the ranks of this node are: what the code was is known while it runs.

Read as each rank sees its files and with its rights, out of the stacks that were saved. A file that was changed after
its process began is left out: its lines may not be those that run.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process
from hangscope.sources.ranks import RankSeen
from hangscope.sources.source_code.schema import NAME, SCHEMA
from hangscope.sources.source_code.source_lines import SourceLines, path_for
from hangscope.text import is_own_code

AROUND = 3
MOST_TEXT = 2 << 20
MOST_PLACES = 200
"""Of one rank in one sample."""
MOST_LINES = 8_000
"""Of all ranks of a node."""
LONGEST = 200
SECONDS = 2.0
_FAULT_FRAME = re.compile(r'^  File "([^"\n]{1,1000})", line (\d{1,7}) in ', re.M)
_SPY_FRAME = re.compile(r"^    \S[^\n]{0,400} \(([^()\n]{1,1000}):(\d{1,7})\)[ \t]*$", re.M)

Lines = dict[int, str]


WHAT = "source code"


class SourceCode:
    """What was read so far. Ranks that have the same lines share them."""

    def __init__(self) -> None:
        self._lines = SourceLines()
        self._files: dict[str, list[tuple[set[int], Lines]]] = {}
        """Name → each version that ranks have of it, with those ranks."""
        self._kept = 0
        self._unchanged: dict[tuple[int, str], bool] = {}
        self._lock = threading.Lock()
        self._written = 0

    def take(self, node_dir: NodeDir, rank: RankSeen, sample: int) -> None:
        """Read the lines around each frame of the user's own code in that sample of a rank."""
        until = time.monotonic() + SECONDS
        for name in (f"stacks/rank_{rank.number}.{sample}.txt", f"stacks/rank_{rank.number}.{sample}.children.txt"):
            for file, number in _places(_saved(node_dir, name)):
                with self._lock:
                    if time.monotonic() > until or self._kept >= MOST_LINES:
                        return
                    self._add(rank, file, number)

    def write(self, node_dir: NodeDir) -> None:
        """Save what there is, where there is more than before."""
        with self._lock:
            if self._kept <= self._written:
                return
            self._written = self._kept
            files = self._rows()
        node_dir.write_json(NAME, {"schema": SCHEMA, "files": files})

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "file": file,
                "ranks": sorted(ranks),
                "lines": {str(number): lines[number] for number in sorted(lines)},
            }
            for file, versions in sorted(self._files.items())
            for ranks, lines in versions
        ]

    def _add(self, rank: RankSeen, file: str, number: int) -> None:
        known = self._files.get(file, [])
        if any(rank.number in ranks and number in lines for ranks, lines in known):
            return
        if not self._is_as_it_was(rank, file):
            return
        near = range(max(1, number - AROUND), number + AROUND + 1)
        read = {each: self._lines.line(rank, file, each).rstrip()[:LONGEST] for each in near}
        if not read[number]:
            return
        self._kept += 1
        for ranks, lines in known:
            if all(lines.get(each, text) == text for each, text in read.items()):
                ranks.add(rank.number)
                self._kept += len(read.keys() - lines.keys())
                lines.update(read)
                return
        self._kept += len(read)
        self._files.setdefault(file, []).append(({rank.number}, read))

    def _is_as_it_was(self, rank: RankSeen, file: str) -> bool:
        """Whether a file has not been changed since the rank's process began."""
        key = (rank.process.pid, file)
        if key not in self._unchanged:
            self._unchanged[key] = _is_unchanged(rank, file)
        return self._unchanged[key]


begin = SourceCode


def _saved(node_dir: NodeDir, name: str) -> str:
    if not node_dir.has(name):
        return ""
    try:
        return node_dir.read(name, MOST_TEXT).decode(errors="replace")
    except OSError:
        return ""


def _places(text: str) -> list[tuple[str, int]]:
    """Each line of the user's own Python files that the stacks show, once."""
    frames = [*_FAULT_FRAME.findall(text), *_SPY_FRAME.findall(text)]
    own = (frame for frame in frames if frame[0].endswith(".py") and is_own_code(frame[0]))
    return [(file, int(number)) for file, number in list(dict.fromkeys(own))[:MOST_PLACES]]


def _is_unchanged(rank: RankSeen, file: str) -> bool:
    stat = linux_process.stat(rank.process.pid)
    if stat is None:
        return False
    try:
        found = rank.rights.files([Path(path_for(rank, file))])
    except OSError:
        return False
    began_at = time.time() - linux_process.age_s(stat)
    return bool(found) and found[0][1] <= began_at
