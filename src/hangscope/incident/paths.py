"""Names of files in archives: refusing tricks when one is opened, choosing safe names when one is made."""

from __future__ import annotations

import re
import unicodedata

_MAX_NAME = 1024
_MAX_COMPONENT = 255
_MAX_DEPTH = 64
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\\:]")


def unsafe(name: str) -> str | None:
    """Why a path may not be created below a target directory; None where it may.

    Stricter than the file systems at hand: what is fine here may be a trick on the machine that opens it next.
    """
    if not name:
        return "an empty name"
    if len(name) > _MAX_NAME:
        return "a name that is too long"
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "an absolute path"
    if "\\" in name:
        return "a backslash in the name"
    if _CONTROL.search(name):
        return "control characters in the name"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "a name that is no UTF-8"
    parts = name.rstrip("/").split("/")
    if ".." in parts:
        return "a path that leaves the target"
    if any(part in ("", ".") for part in parts):
        return "an empty part in the path"
    if len(parts) > _MAX_DEPTH or any(len(part.encode()) > _MAX_COMPONENT for part in parts):
        return "a path that is too deep or too long"
    if any(part.endswith((" ", ".")) or ":" in part for part in parts):
        return "a name that some systems read as another"
    return None


class Names:
    """The names an archive used so far. `add` says why a new one cannot live beside them."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: dict[str, str] = {}

    def add(self, name: str, *, folder: bool = False) -> str | None:
        """None where the name is new; otherwise the reason. Case and Unicode form do not make a name different."""
        parts = name.rstrip("/").split("/")
        keys = [unicodedata.normalize("NFC", part).casefold() for part in parts]
        above = range(1, len(parts) + 1 if folder else len(parts))
        for depth in above:
            key, spelled = "/".join(keys[:depth]), "/".join(parts[:depth])
            if key in self._files:
                return "a file used as a directory"
            if self._folders.setdefault(key, spelled) != spelled:
                return "the same directory in another spelling"
        if folder:
            return None
        key = "/".join(keys)
        if key in self._folders:
            return "a directory used as a file"
        if key in self._files:
            return "the same name twice"
        self._files.add(key)
        return None


def fitting(name: str, names: Names) -> str:
    """A name for a file in a new archive that `unsafe` and `names` accept: as given wherever possible."""
    parts = []
    for part in name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").split("/"):
        fit = _UNFIT.sub("-", part).rstrip(" .") or "-"
        parts.append(fit.encode()[:_MAX_COMPONENT].decode("utf-8", "ignore"))
    wanted = "/".join(parts[-_MAX_DEPTH + 2 :])[-_MAX_NAME + 128 :].lstrip("/")
    chosen, number = wanted, 1
    while names.add(chosen) is not None:
        number += 1
        folder, slash, last = wanted.rpartition("/")
        stem, dot, ending = last.partition(".")
        # The number goes in front of the ending, and behind no digit: what ends a dump's name is its rank.
        chosen = f"{folder}-{number}/{last}" if slash else f"{number}-{stem}{dot}{ending}"
    return chosen
