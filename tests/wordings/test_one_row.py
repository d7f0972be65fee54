"""The recipe for a wording: one row, and it is read, looked for in large trees, diagnosed and documented."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from hangscope import wordings

TESTS = Path(__file__).parents[1]
ROW = r"""
    Wording(
        FailureKind.NODE_LOST,
        r"flumefs: rank (?P<rank>\d{1,6}) fell off (?P<node>[\w.-]{1,60})",
        ("flumefs: rank",),
        "flumefs: rank 3 fell off gpu-a017",
        "written for this test",
        library="FlumeFS",
    ),
"""
"""What its author writes into the file."""
USE = """
import json, sys
import hangscope
hangscope.__path__.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])
from hangscope.safeio.evidence_names import holds_evidence
from error_pages import formats

verdict = hangscope.diagnose(hangscope.load(sys.argv[3]))
print(json.dumps({
    "accused": [[culprit.rank, str(verdict.kind)] for culprit in verdict.culprits],
    "headline": verdict.headline,
    "in a large tree": holds_evidence(sys.argv[4].encode(), telling=True, name="worker-7.log"),
    "documented": "FlumeFS" in formats(),
}))
"""


def used(rooms: Path, log: Path, line: str) -> dict[str, object]:
    """What hangscope makes of a log, with the wordings that lie in `rooms`."""
    command = [sys.executable, "-c", USE, str(rooms), str(TESTS), str(log), line]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_a_wording_is_one_row(tmp_path: Path) -> None:
    """No other file has to know of it; without the row, the same line tells nothing."""
    line = "[rank3]: flumefs: rank 3 fell off gpu-a017"
    log = tmp_path / "rank_3.log"
    log.write_text(f"epoch 1 step 20 loss 0.5\n{line}\n")
    rooms = tmp_path / "rooms"
    shutil.copytree(Path(wordings.__file__).parent, rooms / "wordings")
    unknown = used(rooms, log, line)
    assert (unknown["accused"], unknown["documented"]) == ([], False)
    file = rooms / "wordings" / "storage.py"
    begin = "ROWS: tuple[Wording, ...] = (\n"
    text = file.read_text()
    assert text.count(begin) == 1
    file.write_text(text.replace(begin, begin + ROW))
    known = used(rooms, log, line)
    assert known["accused"] == [[3, "dead"]]
    assert "went down with its node" in str(known["headline"])
    assert (known["in a large tree"], known["documented"]) == (True, True)
