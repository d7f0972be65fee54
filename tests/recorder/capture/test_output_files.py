"""Output, dumps and NCCL's logs that lie elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.capture import (
    output_files,
)


def test_what_an_earlier_attempt_left_is_not_evidence_of_this_one(tmp_path: Path) -> None:
    """Dumps from before the attempt began, and NCCL's logs of the processes before, stay where they are."""
    place = tmp_path / "first"
    place.mkdir()
    for name in ("dump_0", "dump_1", "nccl.n1.70.log", "nccl.n1.90.log"):
        (place / name).write_text("x")
    os.utime(place / "dump_0", (100.0, 100.0))
    environ = {"TORCH_FR_DUMP_TEMP_FILE": str(place / "dump_"), "NCCL_DEBUG_FILE": str(place / "nccl.%h.%p.log")}
    node_dir = NodeDir(tmp_path / "second", tmp_path / "second" / "n")
    output_files.save_elsewhere(node_dir, environ, [0, 1], "n1", since=(200.0, [70]))
    saved = {path.name for path in (tmp_path / "second").rglob("*") if path.is_file()}
    assert saved == {"dump_1", "nccl.n1.90.log"}
