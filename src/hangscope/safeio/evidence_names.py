"""Telling evidence from what merely lies beside it: by a file's name, and in a large tree by its first bytes.

The one list of what is skipped is here; readers, collectors and bundles all ask it.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from hangscope.safeio import limits
from hangscope.safeio.file_magic import TAR, TAR_AT, UTF16, ZIP, is_cuda_elf, is_gzip
from hangscope.wordings import words_beyond

T = TypeVar("T")

_NO_FOLDERS = frozenset(("__pycache__", "node_modules", "venv", "lost+found"))
_NO_ENDINGS = (
    ".py", ".pyc", ".ipynb", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".so", ".a", ".whl", ".deb",  # programs
    ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".gguf", ".onnx", ".distcp",  # models
    ".npy", ".npz", ".parquet", ".arrow", ".idx", ".tfrecord", ".wandb",  # data
    ".png", ".jpg", ".gif", ".mp4", ".pdf", ".html", ".htm", ".perfetto-trace", ".pftrace",  # pictures, our own pages
    ".part", ".tmp", ".swp",  # half-written
)  # fmt: skip
"""What never is evidence, and may be large or private: nobody reads, collects or bundles it. Not `.o`, which some batch
systems give a job's output."""
_DOCUMENTS = (".md", ".rst")
"""They quote log lines without being evidence: they are bundled, and not read."""
_NOT_READ = (*_NO_ENDINGS, *_DOCUMENTS)
_OWN_OUTPUT = frozenset(("verdict.json", "verdict.txt", "truth.json"))


def is_walked(folder: str) -> bool:
    """Whether evidence may lie in a directory of this name: never in a hidden one."""
    return not folder.startswith(".") and folder not in _NO_FOLDERS


def is_read(name: str) -> bool:
    """Whether a file of this name is read as evidence. Not if it is hidden, half-written, a document, code, or what
    hangscope itself wrote."""
    return not (name.startswith(".") or name.lower().endswith(_NOT_READ) or name in _OWN_OUTPUT)


def is_evidence(path: str) -> bool:
    """Whether a file of a plain folder may be evidence. Dumps, logs and JSON have any name; models, data, programs and
    hidden folders never are, and may be large or private."""
    folder, _, name = path.rpartition("/")
    return not name.lower().endswith(_NO_ENDINGS) and _may_hold(folder)


@lru_cache(maxsize=1 << 12)
def _may_hold(folder: str) -> bool:
    """The same of all folders above a file: asked once for its neighbours. PyTorch leaves dumps below ``.cache``."""
    return all(is_walked(part) for part in folder.split("/") if part not in (".cache", ".."))


_TELLS = re.compile(
    r"rank|[nhrm]ccl|trace|dump|flight|log|std|slurm|dmesg|kern|stack|snapshot|node|incident|counters|status|gather|"
    r"worker|train|task|pod|"
    r"\.(?:out|err|json|pkl|pickle|gz|tgz|tar|zip)\b|(?:^|/)[oe]\d"
)
"""What the names of evidence hold, in small letters: a pattern that ignores case takes three times as long."""

_PARTS = (
    *("Error", "xception", "ailed", "illed", "ermina", "exit", "imeout", "imed out", "signal", "died", "bort"),
    *("CCL ", "most recent", "Process ", "Thread ", "ProcessGroup", "atchdog ", "out of memory"),
    *(": error: ", "CUDA error", "Python error", "us error", "NVRM", "SXid", "ink ", "_core 0", " 0000:", "AER:"),
    *("blocked for", "egfault", "tion fault", "victed", "CANCEL", "ABORT", "RUNNING AT", "marked dead"),
    *("completion from", "cast block", "engine proc", "ang detected", "baton release", "NIXL_", "ost connection"),
)
WORDS = tuple(word.encode() for word in (*_PARTS, *words_beyond(_PARTS)))
"""A stretch of a log without any of these holds no evidence: parts that the readers' own words have in common, as few
and as short as they can be without being in every line of a training log."""

_ANY = re.compile(b"|".join(re.escape(word) for word in WORDS))
_SHORT = 128
_KEYS = re.compile(rb'entries|pg_config|pg_status|_seq_id|comm_lib|nccl|hangscope|"rank|"node|"host')
"""What stands near the beginning of dumps, rosters and our own files."""
_COUNTED = re.compile(rb"\s*\d{1,20}\s*")
_FIRST_OF_EVIDENCE = (b"\x80", b"{", b"[", b"\x1f", b"\xff", b"#")
"""How dumps, JSON, packed files, black boxes and our own stacks begin."""


def holds_evidence(data: bytes, *, telling: bool, name: str = "") -> bool:
    """Whether a file that begins so, or is so as a whole, holds anything that a reader may know. `telling`: its name
    says that it does, and a file whose name says nothing must begin like a dump, JSON, a packed file or our own. A file
    that is larger than what was looked at is taken on its first byte's word."""
    if len(data) >= limits.HEAD_BYTES:
        return telling or data.lstrip()[:1] in _FIRST_OF_EVIDENCE or is_cuda_elf(data)
    if is_gzip(data):
        try:
            data = zlib.decompressobj(31).decompress(data, limits.HEAD_BYTES)
        except zlib.error:
            return False
        if len(data) >= limits.HEAD_BYTES or is_gzip(data):
            return True
    if data.startswith(UTF16):
        data = data.replace(b"\0", b"")
    return _is_known_format(data) or (telling and _says_something(data, name))


def _is_known_format(data: bytes) -> bool:
    if data[:1] == b"\xff" or data.startswith(TAR, TAR_AT) or data.startswith(ZIP) or is_cuda_elf(data):
        return True
    return data.lstrip()[:1] in (b"\x80", b"{", b"[", b"#") and _KEYS.search(data) is not None


def _says_something(data: bytes, name: str) -> bool:
    if "count" in name and _COUNTED.fullmatch(data) is not None:
        return True
    # One look for all words is faster in a short text, one for each in a long one.
    return (_ANY.search(data) is not None) if len(data) < _SHORT else any(word in data for word in WORDS)


Known = dict[tuple[str, bool], bool]
"""Whether a file holds evidence, by its path and whether its name says so: a tree that is read and then packed is
looked into once."""


def bounded(
    files: Sequence[T],
    name: Callable[[T], str],
    look: Callable[[T], bytes],
    *,
    path: Callable[[T], str] | None = None,
    known: Known | None = None,
) -> tuple[list[T], Counter[str]]:
    """Which of a tree's files are taken, and how many are not, by what they are called: a data set or a cache of a
    hundred thousand files beside the evidence is not worth anybody's minutes. `look` gives the first bytes of one.

    Up to so many are taken as they are, those first whose names say that they are evidence; of the rest those that
    hold some. So a log that says nothing goes where there are tens of thousands of them, and one that says something
    never does. What is `known` of a file at this `path` is not looked for again, and what is seen is added to it.
    """
    seen: Known = {} if known is None else known
    where = path or name
    left: Counter[str] = Counter()
    if len(files) <= limits.TAKEN_UNSEEN:
        return list(files), left
    names = [name(one) for one in files]
    telling = [_TELLS.search("/".join(each.rsplit("/", 2)[-2:]).lower()) is not None for each in names]
    room = {True: limits.TAKEN_UNSEEN, False: max(0, limits.TAKEN_UNSEEN - sum(telling))}
    kept: list[T] = []
    for one, called, tells in zip(files, names, telling, strict=True):
        room[tells] -= 1
        if room[tells] < 0:
            key = (where(one), tells)
            if key not in seen:
                seen[key] = holds_evidence(look(one), telling=tells, name=called)
            if not seen[key]:
                left[_DIGITS.sub("#", called.rpartition("/")[2])[:40]] += 1
                continue
        kept.append(one)
    return kept, left


_DIGITS = re.compile(r"\d+")
_SHOWN = 3


def untaken(left: Counter[str], whole: int) -> tuple[str, str]:
    """How a gap says what `bounded` did: (what, why)."""
    common = [f"{count} like {kind}" for kind, count in left.most_common(_SHOWN)]
    rest = sum(left.values()) - sum(count for _, count in left.most_common(_SHOWN))
    kinds = ", ".join([*common, *([f"{rest} of other names"] if rest else [])])
    most = limits.TAKEN_UNSEEN
    why = f"not taken: nothing in them says that they are evidence, and there are more than {most} ({kinds})"
    return f"{sum(left.values())} of {whole} files", why
