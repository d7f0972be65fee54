"""Checks of NCCL's own log and of its RAS service."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.recorder.setup.setting_problems import LOSES_EVIDENCE, NOTE, Setting, SettingProblem, folder_for
from hangscope.sources.nccl_ras.settings import DEFAULT_PORT, is_free

_SHARED = ("/dev/stderr", "/dev/stdout")


def nothing_logged(setting: Setting) -> Iterator[SettingProblem]:
    """Without NCCL_DEBUG=WARN the one line that names a broken link is not written anywhere.

    NCCL 2.26 to 2.27 (torch 2.7 to 2.10) does not even report such a failure to PyTorch: the line is all there is.
    """
    level = setting.environ.get("NCCL_DEBUG")
    if not setting.uses("nccl", "nccl2") or (level or "").upper() not in ("", "NONE", "VERSION"):
        return
    yield SettingProblem(
        "NCCL_DEBUG",
        level,
        NOTE if level is None else LOSES_EVIDENCE,
        "NCCL's warnings are not logged: a broken link looks like a plain timeout",
        "set it to WARN",
        {"NCCL_DEBUG": "WARN"},
    )


def log_overwritten(setting: Setting) -> Iterator[SettingProblem]:
    """NCCL opens its log with truncation: without %p in the name the ranks overwrite each other's."""
    name = "NCCL_DEBUG_FILE"
    file = setting.environ.get(name)
    if file is None or not setting.uses("nccl", "nccl2"):
        return
    if "%p" not in file.replace("%%", "") and file not in _SHARED:
        better = setting.nccl_log or f"{file}.%h.%p"
        what = "has no %p: every rank opens the same file, empties it and overwrites the others' lines"
        yield SettingProblem(name, file, LOSES_EVIDENCE, what, f"set it to {better}", {name: better})
    elif setting.look_at_files and not _is_there(file, setting):
        folder = folder_for(name, file)
        what = f"there is no folder {folder}: NCCL falls back to stdout, whose last lines a killed rank loses"
        sets = {} if setting.nccl_log is None else {name: setting.nccl_log}
        cure = "make the folder" if setting.nccl_log is None else f"make the folder, or set it to {setting.nccl_log}"
        yield SettingProblem(name, file, LOSES_EVIDENCE, what, cure, sets)


def log_to_stdout(setting: Setting) -> Iterator[SettingProblem]:
    """NCCL's stdout is block-buffered in a pipe: a killed rank loses its last lines."""
    level = setting.environ.get("NCCL_DEBUG", "").upper()
    if (
        setting.uses("nccl", "nccl2")
        and level not in ("", "NONE", "VERSION")
        and "NCCL_DEBUG_FILE" not in setting.environ
    ):
        what = "NCCL logs to stdout, which is buffered: a rank that is killed loses its last lines"
        sets = {} if setting.nccl_log is None else {"NCCL_DEBUG_FILE": setting.nccl_log}
        yield SettingProblem("NCCL_DEBUG_FILE", None, NOTE, what, "set it to a path with %h and %p", sets)


def ras_off(setting: Setting) -> Iterator[SettingProblem]:
    """RAS is free and on by default; it says which ranks are dead or behind while the job hangs."""
    value = setting.environ.get("NCCL_RAS_ENABLE")
    if value is not None and value.strip() == "0" and setting.uses("nccl", "nccl2"):
        what = "NCCL cannot be asked which ranks are dead or behind"
        cure = "set it to 1, unless it was switched off because of crashes in NCCL 2.27"
        yield SettingProblem("NCCL_RAS_ENABLE", value, LOSES_EVIDENCE, what, cure, {"NCCL_RAS_ENABLE": "1"})


def ras_shared(setting: Setting) -> Iterator[SettingProblem]:
    """On the default port all jobs of one user answer for each other, and a second user's get no port at all."""
    if not setting.uses("nccl", "nccl2") or setting.environ.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        return
    address = setting.environ.get("NCCL_RAS_ADDR")
    port = (address or f":{DEFAULT_PORT}").rpartition(":")[2]
    if port != str(DEFAULT_PORT):
        return
    taken = setting.look_at_files and not is_free(DEFAULT_PORT)
    what = f"all jobs on a node share port {DEFAULT_PORT}: a query may be answered by another job"
    if taken:
        what = f"port {DEFAULT_PORT} is taken on this node: this job's RAS is shared with another's, or has no port"
    ours = setting.ras_address or "localhost:<a free port>"
    sets = {} if setting.ras_address is None else {"NCCL_RAS_ADDR": setting.ras_address}
    yield SettingProblem("NCCL_RAS_ADDR", address, LOSES_EVIDENCE if taken else NOTE, what, f"set it to {ours}", sets)


def _is_there(file: str, setting: Setting) -> bool:
    folder = folder_for("NCCL_DEBUG_FILE", file)
    return folder in setting.to_be_made or folder.is_dir()


NCCL_RULES = (nothing_logged, log_overwritten, log_to_stdout, ras_off, ras_shared)
