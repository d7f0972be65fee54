"""Telling evidence from what merely lies beside it, in a folder that is no incident."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_UNTOLD = 10_000
"""So many files are taken whose names say nothing; of a folder with more, those that begin like evidence."""

_NO_FOLDERS = frozenset((".git", "__pycache__", "node_modules", ".venv", "venv", "lost+found", "wandb"))
_NO_ENDINGS = (
    ".py", ".pyc", ".ipynb", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".so", ".o", ".a",  # programs
    ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".gguf", ".onnx", ".npy", ".npz", ".parquet",  # models, data
    ".arrow", ".distcp", ".idx", ".tfrecord", ".whl", ".deb", ".png", ".jpg", ".gif", ".mp4", ".pdf", ".swp", ".part",
    ".tmp", ".html", ".htm", ".perfetto-trace", ".pftrace",
)  # fmt: skip


def is_evidence(path: str) -> bool:
    """Whether a file of a plain folder may be evidence. Dumps, logs and JSON have any name; models, data, programs and
    hidden folders never are, and may be large or private."""
    *folders, name = path.split("/")
    if any(folder in _NO_FOLDERS or (folder.startswith(".") and folder not in (".cache", "..")) for folder in folders):
        return False
    return not name.lower().endswith(_NO_ENDINGS)


_TELLS = re.compile(
    r"rank|[nhrm]ccl|trace|dump|flight|log|std|slurm|dmesg|kern|stack|snapshot|node|incident|counters|status|gather|"
    r"\.(?:out|err|json|pkl|pickle|gz|tgz|tar)\b|(?:^|/)[oe]\d",
    re.IGNORECASE,
)
_BEGINS = (b"\x80", b"{", b"[", b"\x1f\x8b", b"\xff", b"# hangscope")
"""A pickle, JSON or a tagged line, a packed file, a black box or UTF-16, our own."""


def bounded(files: Sequence[T], name: Callable[[T], str], head: Callable[[T], bytes]) -> tuple[list[T], int]:
    """Which of a tree's files are taken, and how many are not: a data set or a cache of a hundred thousand files beside
    the evidence is not worth anybody's minutes. `head` gives the first bytes of a file."""
    if len(files) <= MOST_UNTOLD:
        return list(files), 0
    kept: list[T] = []
    untold = 0
    for one in files:
        if not _TELLS.search("/".join(name(one).split("/")[-2:])):
            untold += 1
            if untold > MOST_UNTOLD and not head(one).lstrip().startswith(_BEGINS):
                continue
        kept.append(one)
    return kept, len(files) - len(kept)


def untaken(left: int, whole: int) -> tuple[str, str]:
    """How a gap says what `bounded` did: (what, why)."""
    why = (
        f"not looked at: neither name nor beginning says that they are evidence, and there are more than {MOST_UNTOLD}"
    )
    return f"{left} of {whole} files", why
