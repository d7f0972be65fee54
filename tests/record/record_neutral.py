"""Make recorded files neutral: no path and no host name of the machine they were recorded on."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import struct
import tarfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

Replacements = Sequence[tuple[str, str]]
"""(a path or a name, what to write instead)."""


def neutral_text(data: bytes, replacements: Replacements) -> bytes:
    """`data` with every replacement made, in one pass: what was written instead is not looked at again.

    A name is replaced as a whole word only; a path wherever it starts, the longest first.
    """
    meaning = {old.encode(): new.encode() for old, new in replacements}
    if not meaning:
        return data
    patterns = [
        re.escape(old) if b"/" in old else rb"(?<![\w-])" + re.escape(old) + rb"(?![\w-])"
        for old in sorted(meaning, key=len, reverse=True)
    ]
    return re.sub(b"|".join(patterns), lambda match: meaning[match.group()], data)


def neutral_pickle(data: bytes, replacements: Replacements) -> bytes:
    """The same for a pickle, string by string: each carries its length, so the bytes around it cannot be left alone.

    The memo numbers its entries and does not point into the file, so nothing else has to move.
    """
    pieces: list[bytes] = []
    starts = [(opcode, position or 0) for opcode, _, position in pickletools.genops(data)]
    for index, (opcode, start) in enumerate(starts):
        end = starts[index + 1][1] if index + 1 < len(starts) else len(data)
        if opcode.name == "FRAME":
            raise ValueError("a framed pickle (protocol 4) holds lengths of whole frames")
        if opcode.name == "BINUNICODE":
            text = neutral_text(data[start + 5 : end], replacements)
            pieces.append(data[start : start + 1] + struct.pack("<I", len(text)) + text)
        else:
            pieces.append(data[start:end])
    return b"".join(pieces)


def neutralise(folder: Path, replacements: Replacements) -> list[str]:
    """Rewrite every file below `folder` in place; returns what could not be treated properly."""
    problems = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.suffix == ".ncclbb":  # fixed offsets, and no name but the node's own
            continue
        if data[:1] == b"\x80":
            try:
                data = neutral_pickle(data, replacements)
            except (ValueError, EOFError, struct.error) as error:  # a dump cut off while it was written
                problems.append(f"{path.name}: {error}; rewritten as text")
                data = neutral_text(data, replacements)
        else:
            data = neutral_text(data, replacements)
        path.write_bytes(data)
        name = ".".join(dict(replacements).get(part, part) for part in path.name.split("."))
        if name != path.name:
            path.rename(path.with_name(name))
    return problems


def leaks(folder: Path, words: Iterable[str]) -> list[str]:
    """Where one of `words` still stands below `folder`, in a file or in its name."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        for word in words:
            if neutral_text(data, [(word, "")]) != data or word in path.name.split("."):
                found.append(f"{path.relative_to(folder)}: {word}")
    return found


def pack(folder: Path, archive: Path) -> None:
    """Everything below `folder` as a .tar.gz without owners, written to a temporary name and renamed."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() else 0o644
        return info

    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f".{archive.name}.part")
    with tarfile.open(temporary, "w:gz") as stream:
        for path in sorted(folder.iterdir()):
            stream.add(path, arcname=path.name, filter=plain)
    os.replace(temporary, archive)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a dump holds no {module}.{name}")


def read_dump(path: Path) -> dict[str, Any]:
    """One dump as plain values, for the summary."""
    value = _Plain(BytesIO(path.read_bytes())).load()
    return value if isinstance(value, dict) else {"entries": value}
