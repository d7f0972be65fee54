"""`snapshot --gpu`: the GPUs of a run are asked what they run, after its agents have saved the rest.

It ends the job's CUDA contexts. So the agents do not do it on a word in a directory that others may write into: whoever
asks does it, for the ranks of this node, with its own rights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hangscope.incident.layout import NODE_FILE
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.peer_files import NodeStatus
from hangscope.safeio import bounded_json
from hangscope.sources.gpu_core import ask as gpu_cores

_NODE_BYTES = 64 << 20
NOBODY = "no rank of the run is on this node: ask where they run"


def of_run(root: Path, incident: Path, say: Callable[[str], None], *, foreign: bool = False) -> bool:
    """Ask the GPUs of the ranks of this run on this node, and add the answers to `incident`; whether any came.
    `foreign`: it is another user's."""
    if foreign:
        say("--gpu: the run is another user's: ask as that user")
        return False
    asked = False
    answered = False
    for folder, state in run_directory.statuses(root):
        ranks = [] if state.ended else _ranks_here(root, state)
        if ranks:
            asked = True
            node_dir = NodeDir(incident, incident / "nodes" / folder.name)
            taken = gpu_cores.take(node_dir, ranks, state.command_pid)
            came = taken is not None and bool(taken.ranks)
            report(node_dir, came, say)
            _add(node_dir, taken)
            answered = answered or came
    if not asked:
        say(f"--gpu: {NOBODY}")
    return answered


def report(node_dir: NodeDir, answered: bool, say: Callable[[str], None]) -> None:
    """Why a GPU did not answer, one line a rank."""
    for gap in node_dir.gaps:
        if gap["what"].startswith("GPU core"):
            say(f"no {gap['what']}: {gap['why']}")
    if not answered:
        say("--gpu: no GPU has answered")


def _ranks_here(root: Path, state: NodeStatus) -> list[WatchedRank]:
    """The ranks of a node's status that are processes of this machine and of this run."""
    found = []
    for row in state.live:
        if row.pid and linux_process.environment(row.pid).get("HANGSCOPE_DIR") == str(root):
            rank = WatchedRank.of(RankProcess(row.pid, row.rank))
            if not rank.handle.ended():
                found.append(rank)
    return found


def _add(node_dir: NodeDir, taken: gpu_cores.CoresTaken | None) -> None:
    """To the node.json that the agent wrote, and will write again at the end of the job."""
    try:
        value = bounded_json.loads(node_dir.read(NODE_FILE, _NODE_BYTES))
    except (OSError, ValueError):
        return
    if not isinstance(value, dict):
        return
    before = value.get("gaps")
    value["gaps"] = [*(before if isinstance(before, list) else []), *node_dir.gaps]
    if taken is not None:
        value["gpu_cores"] = taken.to_json()
    node_dir.write_json(NODE_FILE, value)
