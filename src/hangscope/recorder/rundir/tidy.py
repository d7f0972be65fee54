"""After a run without trouble nothing stays behind: the node that ends last takes the run's directory away."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hangscope.incident.layout import MANIFEST
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.safeio.safe_files import remove_empty, remove_file, remove_tree
from hangscope.safeio.walk import entries


def remove(root: Path) -> bool:
    """Remove what the agents of this run wrote, if every node has ended well and nothing was captured.

    Only folders that an agent claimed are ours: the user may have given a directory with other things in it.
    """
    if run_directory.marked(root) is not None or (root / MANIFEST).exists():
        return False
    states = run_directory.statuses(root)
    try:
        claimed = [name for name in entries(root / "nodes") if (root / "nodes" / name / run_directory.AGENT).is_file()]
    except OSError:
        return False
    reported = {folder.name for folder, _ in states}
    if not states or not reported.issuperset(claimed) or not all(state.ended_well for _, state in states):
        return False
    run = peer_files.run_file(root, run_directory.RUN)
    made = run.made if run is not None else 0
    for name in claimed:
        remove_tree(root / "nodes" / name)
    with contextlib.suppress(OSError):
        remove_file(root / run_directory.RUN)
        remove_empty(root / "nodes")
        for place in (root, *root.parents)[:made]:  # one that holds anything else stays, and those above it
            remove_empty(place)
    return True
