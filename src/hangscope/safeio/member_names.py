"""Names of files in archives: refusing tricks when one is opened, choosing safe names when one is made."""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Iterator

from hangscope.safeio.limits import MEMBER_NAME, MEMBER_NAME_PART, MEMBER_NAME_PARTS

_STEPS = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\\:]")


def unsafe(name: str) -> str | None:
    """Why a path may not be created below a target directory; None where it may.

    Stricter than the file systems at hand: what is fine here may be a trick on the machine that opens it next.
    """
    if not name:
        return "an empty name"
    if len(name) > MEMBER_NAME:
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
    return _unsafe_parts(name.rstrip("/").split("/"))


def _unsafe_parts(parts: list[str]) -> str | None:
    if ".." in parts:
        return "a path that leaves the target"
    if any(part in ("", ".") for part in parts):
        return "an empty part in the path"
    if len(parts) > MEMBER_NAME_PARTS or any(len(part.encode()) > MEMBER_NAME_PART for part in parts):
        return "a path that is too deep or too long"
    if any(part.endswith((" ", ".")) or ":" in part for part in parts):
        return "a name that some systems read as another"
    return None


def _key(part: str) -> str:
    return unicodedata.normalize("NFC", part).casefold()


class Names:
    """The names an archive used so far. `add` says why a new one cannot live beside them."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: dict[str, str] = {}
        self._entered: dict[str, str] = {"": ""}
        """Directories that were met, as they are spelled → what their files' keys begin with."""
        self._ways: dict[tuple[str, ...], list[str]] = {(): []}
        self._taken: dict[str, int] = {}
        """Up to which number a name is known to be taken: thousands that clash do not count up from 1 each."""

    def way(self, folders: list[str]) -> list[str]:
        """Names for directories one below the other, each as given wherever possible. Asked again, the same."""
        known = len(folders)
        while (way := self._ways.get(tuple(folders[:known]))) is None:
            known -= 1
        for end in range(known + 1, len(folders) + 1):
            way = self._ways[tuple(folders[:end])] = [*way, self.spelling(way, folders[end - 1])]
        return way

    def spelling(self, above: list[str], folder: str) -> str:
        """A name for a directory below `above` that clashes with none there: one that is spelled like it stays it."""
        over = "/".join(above)
        front = self._entered.get(over)
        if front is None:
            front = "".join(f"{_key(part)}/" for part in above)
        for number in self.numbers(f"{front}{_key(folder)}/"):
            chosen = folder if number == 1 else f"{_cut(folder, MEMBER_NAME_PART - 20)}-{number}"
            key = f"{front}{_key(chosen)}"
            spelled = f"{over}/{chosen}" if over else chosen
            if key not in self._files and self._folders.get(key, spelled) == spelled:
                return chosen
        raise ValueError(f"no free name for the directory {folder[:100]!r}")

    def numbers(self, wanted: str) -> Iterator[int | str]:
        """1 for the name as it is; then numbers that were not tried for it, and at last some that nobody has."""
        first = self._taken.get(wanted, 0) + 1
        for number in range(first, first + _STEPS):
            self._taken[wanted] = number
            yield number
        for _ in range(4):
            yield secrets.token_hex(8)

    def add(self, name: str, *, folder: bool = False) -> str | None:
        """None where the name is new; otherwise the reason. Case and Unicode form do not make a name different."""
        plain = name.rstrip("/")
        above, _, last = (plain, "", "") if folder else plain.rpartition("/")
        front = self._entered.get(above)
        if front is None:
            reason = self._enter(above.split("/"))
            if reason is not None:
                return reason
            front = self._entered[above]
        if folder:
            return None
        key = f"{front}{_key(last)}"
        if key in self._folders:
            return "a directory used as a file"
        if key in self._files:
            return "the same name twice"
        self._files.add(key)
        return None

    def _enter(self, parts: list[str]) -> str | None:
        """Meet a directory for the first time; the reason where it cannot be one."""
        key = ""
        spelled = ""
        for part in parts:
            key = f"{key}{_key(part)}"
            spelled = f"{spelled}/{part}" if spelled else part
            if key in self._files:
                return "a file used as a directory"
            if self._folders.setdefault(key, spelled) != spelled:
                return "the same directory in another spelling"
            key = self._entered[spelled] = f"{key}/"
        return None


def fitting(name: str, names: Names, keep: int = 0) -> str:
    """A name for a file in a new archive that `unsafe` and `names` accept: as given wherever possible. Of one that is
    too long its end is kept, and its first `keep` parts, which say whose it is.

    Always in a few steps, whatever names are there already: a directory or a file that clashes by case or form gets a
    number, and where numbers do not help, a number that nobody has.
    """
    parts = []
    for part in name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").split("/"):
        fit = _UNFIT.sub("-", part).rstrip(" .") or "-"
        parts.append(fit.encode()[:MEMBER_NAME_PART].decode("utf-8", "ignore"))
    front = parts[:keep]
    room = MEMBER_NAME - 128 - len("/".join(front))
    ending = "/".join(parts[keep:][-MEMBER_NAME_PARTS + 2 + keep :])[-room:].lstrip("/") or "-"
    wanted = "/".join([*front, ending])
    *folders, last = wanted.split("/")
    above = "".join(f"{folder}/" for folder in names.way(folders))
    for number in names.numbers(f"{above}{_key(last)}"):
        # The number goes in front of the name, and behind no digit: what ends a dump's name is its rank.
        room = MEMBER_NAME_PART - len(str(number)) - 1
        chosen = above + (last if number == 1 else f"{number}-{_cut(last, room)}")
        if names.add(chosen) is None:
            return chosen
    raise ValueError(f"no free name for {wanted[:100]!r}")  # four random numbers were taken: cannot be


def _cut(text: str, room: int) -> str:
    """The end of a name that is too long: what a file is stands there."""
    return text.encode()[-room:].decode("utf-8", "ignore")
