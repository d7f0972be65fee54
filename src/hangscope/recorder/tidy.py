"""After a run without trouble nothing stays behind: the node that ends last takes the run's directory away."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from hangscope.incident.layout import MANIFEST
from hangscope.incident.touch import entries
from hangscope.recorder import neighbours, shared


def remove(root: Path) -> bool:
    """Remove what the agents of this run wrote, if every node has ended well and nothing was captured.

    Only folders that an agent claimed are ours: the user may have given a directory with other things in it.
    """
    if shared.marked(root) is not None or (root / MANIFEST).exists():
        return False
    states = shared.statuses(root)
    try:
        claimed = [name for name in entries(root / "nodes") if (root / "nodes" / name / shared.AGENT).is_file()]
    except OSError:
        return False
    told = {folder.name for folder, _ in states}
    if not states or not told.issuperset(claimed) or not all(state.ended_well for _, state in states):
        return False
    run = neighbours.run(root, shared.RUN)
    made = run.made if run is not None else 0
    for name in claimed:
        shutil.rmtree(root / "nodes" / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (root / shared.RUN).unlink()
        (root / "nodes").rmdir()
        for place in (root, *root.parents)[:made]:  # one that holds anything else stays, and those above it
            place.rmdir()
    return True
