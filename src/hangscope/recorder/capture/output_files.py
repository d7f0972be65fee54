"""Output that did not go through us: ranks whose launcher sent it to files (torchrun --redirects, --tee, --log-dir).

Also NCCL's own log and the dumps, where the user's settings put them elsewhere.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from hangscope.incident.node_dir import NodeDir
from hangscope.processes.target_rights import Rights
from hangscope.recorder.setup.variables import DUMP_NAMES

MAX_BYTES = 32 << 20
MOST_BYTES = 1 << 30
"""Of all files that one environment names."""
ERROR_BYTES = 4 << 20
"""An error file holds one traceback."""


def save_redirected(
    node_dir: NodeDir,
    owner: str,
    files: list[Path],
    rights: Mapping[Path, Rights] | None = None,
    earlier: Mapping[Path, bytes] | None = None,
) -> None:
    """Copy the end of output files that are `owner`'s: a rank's own, or what all ranks write to. What comes before the
    end that a file had, as `earlier` says, is of attempts before this one."""
    texts = []
    for file in files:
        try:
            text = (rights or {}).get(file, Rights()).read(file, MAX_BYTES, tail=True)
            end_before = (earlier or {}).get(file, b"")
            texts.append(text.rpartition(end_before)[2] if end_before else text)
        except OSError as error:
            node_dir.gap(f"output of {owner}", f"{file}: {error.strerror}")
    if any(texts):
        node_dir.write(f"logs/{owner}.redirected.log", b"".join(texts))


def save_error_file(node_dir: NodeDir, rank: int, file: Path | None, rights: Rights | None = None) -> None:
    """Copy what torchelastic's `record` wrote about the rank's exception: torchrun removes it when it ends."""
    if file is None:
        return
    try:
        text = (rights or Rights()).read(file, ERROR_BYTES)
    except FileNotFoundError:
        return  # there is one only where the script uses `record` and has failed
    except OSError as error:
        node_dir.gap(f"error file of rank {rank}", f"{file}: {error.strerror}", rank)
        return
    node_dir.write(f"logs/error_rank_{rank}.json", text, rank=rank)


def dump_files(
    environ: Mapping[str, str], ranks: list[int], rights: Rights | None = None, since: float = 0.0
) -> list[Path]:
    """The dump that PyTorch itself would write for each of these ranks, where it is there already and no older."""
    prefixes = [prefix for name in DUMP_NAMES if (prefix := environ.get(name))]
    wanted = list(dict.fromkeys(Path(f"{prefix}{rank}") for prefix in prefixes for rank in ranks))
    return [path for path, changed in (rights or Rights()).files(wanted) if changed >= since]


def save_elsewhere(
    node_dir: NodeDir,
    environ: Mapping[str, str],
    ranks: list[int],
    node: str,
    rights: Rights | None = None,
    since: tuple[float, Collection[int]] = (0.0, ()),
) -> None:
    """Copy PyTorch's own dumps and NCCL's log from where the user's settings put them, with the ranks' rights.

    `since` is when the attempt began, and the processes of those before it, whose files lie in the same place.
    """
    rights = rights or Rights()
    began_at, earlier = since
    wanted: list[tuple[Path, str]] = []
    try:
        wanted += [(file, "dumps") for file in dump_files(environ, ranks, rights, began_at)]
    except OSError as error:
        node_dir.gap("dumps that PyTorch wrote", f"cannot be looked for: {error.strerror}")
    pattern = environ.get("NCCL_DEBUG_FILE", "")
    try:
        wanted += [(file, "logs") for file in _nccl_logs(pattern, node, rights, earlier)]
    except OSError as error:
        node_dir.gap(pattern, f"cannot be listed: {error.strerror}")
    own = os.path.realpath(node_dir.directory) + os.sep
    left = MOST_BYTES
    for file, folder in wanted:
        if os.path.normpath(file).startswith(own) or (not rights.foreign and os.path.realpath(file).startswith(own)):
            continue
        try:
            data = rights.read(file, min(MAX_BYTES, left), tail=folder == "logs")
        except OSError as error:
            node_dir.gap(str(file), f"cannot be read: {error.strerror}")
            continue
        left -= len(data)
        node_dir.write(f"{folder}/{file.name}", data)


def _nccl_logs(pattern: str, node: str, rights: Rights, earlier: Collection[int]) -> list[Path]:
    """NCCL's log of every process, without those of earlier attempts. A file without %p is one that all write over."""
    if "%p" not in pattern:
        return []
    name = glob.escape(pattern).replace("%h", node)
    before = {name.replace("%p", str(pid)) for pid in earlier}
    return [file for file in rights.find(name.replace("%p", "*")) if glob.escape(str(file)) not in before]
