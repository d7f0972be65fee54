"""`hangscope.toml`, or `[tool.hangscope]` in pyproject.toml: what neither option nor environment of `run` says.

Read from the working directory alone, or from where `--config` says. A key that nobody knows and a value of another
type are errors that name file and key, before the job starts. A command in it runs with the user's rights, so it is
taken only from a file that nobody else could have written.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hangscope.errors import SettingsError
from hangscope.safeio.safe_files import open_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN = "hangscope.toml"
SHARED = "pyproject.toml"
MOST_BYTES = 1 << 20

NUMBER = (int, float)
WHOLE = (int,)
TEXT = (str,)
FLAG = (bool,)
KEYS: Mapping[str, tuple[type, ...]] = {
    "dir": TEXT,
    "job": TEXT,
    "node": TEXT,
    "stall-after": NUMBER,
    "entries": WHOLE,
    "fix": FLAG,
    "no-diagnose": FLAG,
    "on-hang": TEXT,  # or a list of them
    "grace": NUMBER,
    "max-incidents": WHOLE,
    "keep": FLAG,
    "metrics": TEXT,
    "metrics-port": (int, str),
}
"""The options of `run` that a file may hold, by name, with the types that TOML has for them."""
HARMLESS = ("report", "kill")


def load(asked: Path | None, directory: Path) -> dict[str, Any]:
    """The file's settings by parameter name, as click takes them for defaults; empty where there is no file."""
    if asked is not None:
        return _read(asked, _table_of(asked))
    for name in (OWN, SHARED):
        path = directory / name
        if path.exists() or path.is_symlink():
            found = _read(path, _table_of(path))
            if found or name == OWN:
                return found
    return {}


def _table_of(path: Path) -> Sequence[str]:
    return ("tool", "hangscope") if path.name == SHARED else ()


def _read(path: Path, table: Sequence[str]) -> dict[str, Any]:
    try:
        with open_file(path) as stream:
            status = os.fstat(stream.fileno())
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    if len(raw) > MOST_BYTES:
        raise SettingsError(f"{path}: more than {MOST_BYTES} bytes is no file of settings")
    try:
        value: Any = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are both
        if table:
            return {}  # somebody else's file; whoever reads it says so
        raise SettingsError(f"{path}: {error}", hint="it is read as TOML, for example: stall-after = 60") from None
    for name in table:
        value = value.get(name, {})
        if not isinstance(value, dict):
            raise SettingsError(f"{path}: {'.'.join(table)} is no table")
    where = f"{path}: [{'.'.join(table)}]" if table else f"{path}:"
    checked = {name: _checked(where, name, each) for name, each in value.items()}
    _refuse_commands_of_others(where, checked.get("on-hang", ()), status)
    return {_parameter(name): each for name, each in checked.items()}


def _parameter(name: str) -> str:
    return {"dir": "directory", "metrics": "metrics_file"}.get(name, name.replace("-", "_"))


def _checked(where: str, name: str, value: Any) -> Any:
    kinds = KEYS.get(name)
    if kinds is None:
        close = get_close_matches(name.replace("_", "-"), KEYS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it may have: {', '.join(KEYS)}"
        raise SettingsError(f"{where} there is no setting {name!r}", hint=hint)
    listed = value if name == "on-hang" and isinstance(value, list) else [value]
    for each in listed:
        if not isinstance(each, kinds) or (isinstance(each, bool) and bool not in kinds):
            raise SettingsError(f"{where} {name} must be {_types_of(name)}, not {_type_of(each)}")
    if name == "on-hang":
        return tuple(listed)
    return str(value) if name == "metrics-port" else value


_TYPE_NAMES: Mapping[tuple[type, ...], str] = {
    NUMBER: "a number",
    TEXT: "a string",
    FLAG: "true or false",
    WHOLE: "a whole number",
}


def _types_of(name: str) -> str:
    extra = " or a list of strings" if name == "on-hang" else ""
    return _TYPE_NAMES.get(KEYS[name], "a port, or a string ADDRESS:PORT") + extra


def _type_of(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return next((words for kinds, words in _TYPE_NAMES.items() if type(value) in kinds), "a date or time")


def _refuse_commands_of_others(where: str, on_hang: Sequence[str], status: os.stat_result) -> None:
    """A command from a file that somebody else can write would be theirs, run with our rights."""
    if all(word in HARMLESS for word in on_hang):
        return
    if status.st_uid not in (os.geteuid(), 0):
        why = f"the file belongs to somebody else (user {status.st_uid})"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = "others may write the file"
    else:
        return
    raise SettingsError(
        f"{where} on-hang: a command is not taken from here: {why}",
        hint="`chmod go-w` your own file, or give the command with --on-hang or HANGSCOPE_ON_HANG",
    )
