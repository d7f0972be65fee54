"""What of a node's files was written before its GPUs were asked what they run: what came after that is our doing.

A process whose GPU is asked loses its CUDA context, and says so in its log, in NCCL's log and in a dump of its own.
Read as evidence, that would be a GPU that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hangscope.incident.layout import GPUS_ASKED_FILE, NODE_FILE

GROWING = ("logs", "dumps")
"""Folders of a node's part into which ranks, or who passes on their output, still write."""
WHY = "written after the GPUs were asked what they run, which ends what runs there: not read"
_MOST_FILES = 20_000


def sizes_before(node: Mapping[str, Any]) -> dict[str, int] | None:
    """By a node.json or gpu/asked.json: file of the node's part → how many of its bytes count; None where its GPUs were
    not asked."""
    cores = node.get("gpu_cores")
    files = cores.get("files") if isinstance(cores, Mapping) else None
    if not isinstance(files, Mapping) or len(files) > _MOST_FILES:
        return None
    return {
        name: size
        for name, size in files.items()
        if isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool) and size >= 0
    }


def node_folder(name: str) -> str | None:
    """The folder of the node, with its slash, whose sizes a file of this name has; None for all others."""
    files = (file for file in (NODE_FILE, GPUS_ASKED_FILE) if f"/{name}".endswith(f"/{file}"))
    file = next(files, None)
    return None if file is None else name[: -len(file)]


def counted_bytes(sizes: Mapping[str, int], name: str) -> int | None:
    """How many bytes of a file of the node's part count; None for all of them."""
    if not name.startswith(tuple(f"{folder}/" for folder in GROWING)):
        return None
    return sizes.get(name, 0)
