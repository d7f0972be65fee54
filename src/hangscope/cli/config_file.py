"""`hangscope.toml`, or `[tool.hangscope]` in pyproject.toml: what neither option nor environment of `run` says.

Read from the user's own ~/.config and from the working directory, or from where `--config` says. A key that nobody
knows and a value of another type are errors that name file and key, before the job starts. A file counts only where
nobody but the user, or root, can have written it. And one that merely lies in the working directory, where a project
was cloned or unpacked to, does not say what commands run, nor where evidence and other files go.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hangscope.cli.output import note
from hangscope.cli.size_options import seconds
from hangscope.errors import SettingsError
from hangscope.safeio.owners import open_ours_alone
from hangscope.safeio.safe_files import Patience, Refused, read_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN = "hangscope.toml"
SHARED = "pyproject.toml"
MOST_BYTES = 1 << 20

TIME = (int, float, str)
WHOLE = (int,)
TEXT = (str,)
FLAG = (bool,)
KEYS: Mapping[str, tuple[type, ...]] = {
    "dir": TEXT,
    "job": TEXT,
    "node": TEXT,
    "stall-after": TIME,
    "look-every": TIME,
    "entries": WHOLE,
    "fix": FLAG,
    "timing": FLAG,
    "gpu-core": FLAG,
    "look": TEXT,
    "no-diagnose": FLAG,
    "on-hang": TEXT,  # or a list of them
    "kill-after": TIME,
    "kill-working": FLAG,
    "grace": TIME,
    "exit-on-hang": WHOLE,
    "term-grace": TIME,
    "max-incidents": WHOLE,
    "keep": FLAG,
    "metrics": TEXT,
    "metrics-port": (int, str),
    "server": TEXT,
    "token-file": TEXT,
}
"""The options of `run` that a file may hold, by name, with the types that TOML has for them."""
HARMLESS = ("report", "kill")
ANSWER_S = 4.0
_patience = Patience(ANSWER_S)


def load(asked: Path | None, directory: Path, say: Callable[[str], None] = note) -> dict[str, Any]:
    """The files' settings by parameter name, as click takes them for defaults; empty where there is none.

    The user's own file first, then what lies in `directory`, which may not say everything, then `asked`, in whose place
    the other two are not looked at. `say` gets what was ignored, and why."""
    if asked is not None:
        return _by_parameter(_asked_for(asked))
    found: dict[str, Any] = {}
    own = own_file()
    if own is not None:
        found.update(_looked_at(own, say) or {})
    for name in (OWN, SHARED):
        lying_there = _looked_at(directory / name, say)
        if lying_there is not None and (lying_there or name == OWN):
            found.update(_without_what_is_the_users(directory / name, lying_there, say))
            break
    return _by_parameter(found)


def own_file() -> Path | None:
    """Where the user's own settings are: ~/.config/hangscope/hangscope.toml, or below XDG_CONFIG_HOME."""
    home = os.environ.get("HOME", "")
    place = os.environ.get("XDG_CONFIG_HOME", "") or (os.path.join(home, ".config") if home else "")
    return Path(place, "hangscope", OWN) if os.path.isabs(place) else None


def _asked_for(path: Path) -> dict[str, Any]:
    try:
        return _read(path)
    except Refused as error:
        hint = "copy what you trust into a file that only you can write"
        raise SettingsError(f"{path}: {error.strerror}", hint=hint) from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None


def _looked_at(path: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """What a file says that nobody asked for; None where there is none, or none that counts. It keeps no job from
    starting, whoever put it there: a pipe, somebody else's, one that is too large or does not answer is ignored."""
    try:
        return _patience.ask(str(path), lambda: _read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if path.name == OWN or _is_about_us(path):
            say(f"{path} is ignored: {error.strerror or error}")
        return None


def _is_about_us(project: Path) -> bool:
    """Whether a pyproject.toml that does not count names us: somebody may wonder why it does not."""
    try:
        return b"tool.hangscope" in read_file(project, MOST_BYTES)
    except OSError:
        return False


def _without_what_is_the_users(path: Path, found: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Whatever comes with a directory, a cloned project too, decides neither what runs, nor where something goes."""
    kept = {name: value for name, value in found.items() if not _is_the_users(name, value)}
    left = [name for name in found if name not in kept]
    if left:
        say(
            f"{path}: {', '.join(left)} is ignored here: it may be in {own_file() or '~/.config/hangscope/' + OWN},"
            " in a file given with --config, in the environment or an option"
        )
    return kept


def _is_the_users(name: str, value: Any) -> bool:
    if name == "on-hang":
        return not all(word in HARMLESS for word in value)
    if name == "metrics-port":
        return not value.isdigit()  # an address: who can reach it is the user's to say
    return name in ("dir", "metrics", "server", "token-file")


def _read(path: Path) -> dict[str, Any]:
    """The settings in one file, checked. Raises OSError where it does not count, SettingsError where it is wrong."""
    with open_ours_alone(path) as stream:
        raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise Refused(f"more than {MOST_BYTES} bytes is not a settings file", path)
    table = ("tool", "hangscope") if path.name == SHARED else ()
    try:
        value: Any = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are both
        if table:
            return {}  # somebody else's file; whoever reads it says so
        raise SettingsError(f"{path}: {error}", hint="it is read as TOML, for example: stall-after = 60") from None
    for name in table:
        value = value.get(name, {})
        if not isinstance(value, dict):
            raise SettingsError(f"{path}: {'.'.join(table)} is not a table")
    where = f"{path}: [{'.'.join(table)}]" if table else f"{path}:"
    return {name: _checked(where, name, each) for name, each in value.items()}


def _by_parameter(found: Mapping[str, Any]) -> dict[str, Any]:
    return {_parameter(name): each for name, each in found.items()}


def _parameter(name: str) -> str:
    return {"dir": "directory", "metrics": "metrics_file"}.get(name, name.replace("-", "_"))


def _checked(where: str, name: str, value: Any) -> Any:
    kinds = KEYS.get(name)
    if kinds is None:
        close = get_close_matches(name.replace("_", "-"), KEYS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it may have: {', '.join(KEYS)}"
        raise SettingsError(f"{where} unknown setting {name!r}", hint=hint)
    listed = value if name == "on-hang" and isinstance(value, list) else [value]
    for each in listed:
        if not isinstance(each, kinds) or (isinstance(each, bool) and bool not in kinds):
            raise SettingsError(f"{where} {name} must be {_types_of(name)}, not {_type_of(each)}")
    if kinds == TIME and isinstance(value, str) and seconds(value) is None:
        raise SettingsError(f"{where} {name} = {value!r} is not a time", hint="write 90, '30s' or '5m'")
    if name == "on-hang":
        return tuple(listed)
    return str(value) if name == "metrics-port" else value


_TYPE_NAMES: Mapping[tuple[type, ...], str] = {
    TIME: "a number of seconds, or a string such as '5m'",
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
