"""Output that did not go through us: ranks whose launcher sent it to files (torchrun --redirects, --tee, --log-dir).

Also NCCL's own log and the dumps, where the user's settings put them elsewhere.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path

from hangscope.recorder.part import Part

MAX_BYTES = 32 << 20
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def output_files(pid: int) -> list[Path]:
    """The regular files that the process's stdout and stderr go to."""
    found: list[Path] = []
    for fd in (1, 2):
        try:
            target = Path(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
        if target.is_file() and target not in found:
            found.append(target)
    return found


def save_redirected(part: Part, owner: str, files: list[Path]) -> None:
    """Copy the end of output files that are `owner`'s: a rank's own, or what all ranks write to."""
    texts = []
    for file in files:
        try:
            with file.open("rb") as stream:
                stream.seek(max(0, file.stat().st_size - MAX_BYTES))
                texts.append(stream.read(MAX_BYTES))
        except OSError as error:
            part.gap(f"output of {owner}", f"{file}: {error.strerror}")
    if any(texts):
        part.write(f"logs/{owner}.redirected.log", b"".join(texts))


def save_error_file(part: Part, rank: int, file: Path | None) -> None:
    """Copy what torchelastic's `record` wrote about the rank's exception: torchrun removes it when it ends."""
    if file is None:
        return
    try:
        text = file.read_bytes()
    except OSError:
        return  # there is one only where the script uses `record` and has failed
    part.write(f"logs/error_rank_{rank}.json", text[:MAX_BYTES], rank=rank)


def dump_files(environ: Mapping[str, str], ranks: list[int]) -> list[Path]:
    """The dump that PyTorch itself would write for each of these ranks, where it is there already."""
    found = []
    for name in DUMP_VARIABLES:
        prefix = environ.get(name)
        if prefix:
            found += [Path(f"{prefix}{rank}") for rank in ranks if os.path.isfile(f"{prefix}{rank}")]
    return list(dict.fromkeys(found))


def save_elsewhere(part: Part, environ: Mapping[str, str], ranks: list[int], node: str) -> None:
    """Copy PyTorch's own dumps and NCCL's log from where the user's settings put them."""
    wanted = [(file, "dumps") for file in dump_files(environ, ranks)]
    pattern = environ.get("NCCL_DEBUG_FILE", "")
    if "%p" in pattern:
        name = glob.escape(pattern).replace("%h", node).replace("%p", "*")
        wanted += [(Path(file), "logs") for file in glob.glob(name)]
    for file, folder in wanted:
        if part.directory.resolve() in file.resolve().parents:
            continue
        try:
            with file.open("rb") as stream:
                part.write(f"{folder}/{file.name}", stream.read(MAX_BYTES))
        except OSError as error:
            part.gap(str(file), f"cannot be read: {error.strerror}")
