"""Checks of whether, when and where the dump is written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hangscope.recorder.setup import ring_cost
from hangscope.recorder.setup import variables as table
from hangscope.recorder.setup.setting_problems import (
    FATAL,
    LOSES_DUMPS,
    LOSES_EVIDENCE,
    NOTE,
    Setting,
    SettingProblem,
    folder_of,
    free_bytes,
)
from hangscope.text import size


def dump_switched_off(setting: Setting) -> Iterator[SettingProblem]:
    """Without dump-on-timeout nothing is written, and the pipe answers only once a heartbeat (480 s)."""
    newer = "TORCH_FR_DUMP_ON_TIMEOUT"
    older = "TORCH_NCCL_DUMP_ON_TIMEOUT"
    default = table.default_dump_on_timeout(setting.release)
    for family, names in (("nccl", (older,)), ("nccl2", (newer, older))):
        if not setting.uses(family) or setting.boolean(*names, default=default) is not False:
            continue
        name = setting.set(*names)
        if name is None:
            yield SettingProblem(
                older,
                None,
                LOSES_DUMPS,
                f"{setting.torch} writes no dump unless it is set",
                "set it to 1",
                {older: "1"},
            )
            return
        what = "no dump is written when a collective times out"
        if family == "nccl":
            what += ", and the dump pipe answers only once a heartbeat"
        yield SettingProblem(name, setting.environ[name], LOSES_DUMPS, what, "set it to 1", {name: "1"})


def blocking_wait(setting: Setting) -> Iterator[SettingProblem]:
    """With BLOCKING_WAIT there is no watchdog, hence no heartbeat monitor, no pipe and no dump."""
    names = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    if setting.uses("nccl") and setting.boolean(*names, default=False):
        name = setting.set(*names) or names[0]
        yield SettingProblem(
            name,
            setting.environ[name],
            LOSES_DUMPS,
            "starts no watchdog, so that there is no heartbeat monitor, no pipe and no dump",
            "set TORCH_NCCL_BLOCKING_WAIT to 0",
            {"TORCH_NCCL_BLOCKING_WAIT": "0"},
        )


def error_handling(setting: Setting) -> Iterator[SettingProblem]:
    """Only 3 tears the process down without aborting communicators first, which can break the dump (issue 121055)."""
    names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    mode = setting.integer(*names, default=3)
    if mode in (None, 3) or not setting.uses("nccl", "nccl2"):
        return
    name = setting.set(*names) or names[0]
    what = {
        0: "nothing acts on a timeout: the job keeps hanging and nothing is torn down",
        1: "the watchdog aborts communicators while the dump is written, which can lose it",
        2: "the watchdog aborts communicators while the dump is written, which can lose it",
    }.get(mode, "is not one of the known modes 0 to 3")
    yield SettingProblem(
        name,
        setting.environ[name],
        LOSES_DUMPS if mode in (0, 1, 2) else NOTE,
        what,
        "set TORCH_NCCL_ASYNC_ERROR_HANDLING to 3",
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
    )


def monitoring_off(setting: Setting) -> Iterator[SettingProblem]:
    """Up to torch 2.4 the thread that dumps is not started; from 2.5 on it dumps and only does not kill."""
    name = "TORCH_NCCL_ENABLE_MONITORING"
    default = table.default_monitoring(setting.release)
    if not setting.uses("nccl") or setting.boolean(name, default=default) is not False:
        return
    value = setting.environ.get(name)
    cure = f"set {name} to 1"
    if setting.before((2, 5)):
        what = "the heartbeat monitor, which writes the dump, is not started"
        yield SettingProblem(name, value, LOSES_DUMPS, what, cure, {name: "1"})
    else:
        what = "a stuck watchdog no longer ends the process; dumps are written all the same"
        yield SettingProblem(name, value, NOTE, what, cure)


def heartbeat_too_short(setting: Setting) -> Iterator[SettingProblem]:
    """The monitor must not end the process while the watchdog still waits for the dumps: four times the dump limit."""
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    beat = setting.integer(name, default=table.default_heartbeat_s(setting.release))
    wait = setting.wait_ms
    if not setting.uses("nccl") or beat is None or wait is None or not setting.since((2, 3)):
        return
    needed = -(-4 * wait // 1000)
    if beat < needed:
        yield SettingProblem(
            name,
            setting.environ.get(name),
            LOSES_DUMPS,
            f"the monitor ends the process after {beat} s; the dump may take {wait / 1000:g} s and is waited for"
            f" {needed} s",
            f"set it to {max(needed, 480)}",
            {name: str(max(needed, 480))},
        )


def dump_at_every_end(setting: Setting) -> Iterator[SettingProblem]:
    """Seen with torch 2.11: a rank that ends without destroy_process_group() aborts, and that counts as an error."""
    name = "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"
    if setting.uses("nccl") and setting.since((2, 10)) and setting.boolean(name, default=False):
        what = "a rank that ends without destroy_process_group() makes every rank dump as if one had timed out"
        yield SettingProblem(name, setting.environ[name], LOSES_EVIDENCE, what, "set it to 0", {name: "0"})


def limit_too_short(setting: Setting) -> Iterator[SettingProblem]:
    """A dump with stacks takes seconds for the first look-up of names alone, whatever the ring's size."""
    wait = setting.wait_ms
    usual = table.default_wait_ms(setting.release)
    ring = setting.ring
    if wait is None or wait >= usual or not ring or ring < 0 or not setting.uses("nccl", "nccl2"):
        return
    full = ring_cost.dump_seconds(ring)
    bare = ring_cost.dump_seconds(ring, stacks=False)
    if full * 1000 > wait:
        names = [
            name
            for name in table.WAIT_NAMES
            if name in setting.environ and table.BY_NAME[name].exists_in(setting.release)
        ]
        severity, lost = (LOSES_DUMPS, "it is lost") if bare * 1000 > wait else (LOSES_EVIDENCE, "its stacks are lost")
        what = f"allows {wait / 1000:g} s for a dump that takes about {full:.0f} s: {lost}"
        cure = dict.fromkeys(names, str(usual))
        yield SettingProblem(names[0], setting.environ[names[0]], severity, what, f"set it to {usual}", cure)


def dump_folder(setting: Setting) -> Iterator[SettingProblem]:
    """PyTorch makes only its default folder; a prefix in a folder that is missing or not writable loses the dump."""
    name = setting.set(*table.DUMP_NAMES, "TORCH_HCCL_DEBUG_INFO_TEMP_FILE")
    if name is None or not setting.look_at_files or not setting.uses("nccl", "nccl2", "hccl", "other"):
        return
    prefix = setting.environ[name]
    reason = _unusable(prefix, setting)
    if reason:
        yield SettingProblem(
            name,
            prefix,
            LOSES_DUMPS,
            f"{reason}: the dump cannot be opened, and nothing is written",
            _make_or("make the folder", setting.dump_prefix),
            {} if setting.dump_prefix is None else _same_group(name, setting, setting.dump_prefix),
        )
    elif not prefix.startswith("/"):
        what = "is relative: each rank writes below the directory it happens to run in"
        yield SettingProblem(name, prefix, NOTE, what, "use an absolute path")


def pipe_folder(setting: Setting) -> Iterator[SettingProblem]:
    """A pipe stem in a missing folder throws in the monitor thread: the process ends."""
    name = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    if name not in setting.environ or not setting.since((2, 3)):
        return
    stem = setting.environ[name]
    if not setting.uses("nccl"):
        what = f"only ProcessGroupNCCL has a dump pipe; {', '.join(sorted(setting.families))} does not"
        yield SettingProblem(name, stem, NOTE, what, "unset it")
        return
    reason = _unusable(stem, setting) if setting.look_at_files else ""
    if reason:
        yield SettingProblem(
            name,
            stem,
            FATAL,
            f"{reason}: the pipe cannot be made, and the process ends",
            _make_or("make the folder", setting.pipe_stem),
            {} if setting.pipe_stem is None else {name: setting.pipe_stem},
        )


def room_for_dumps(setting: Setting) -> Iterator[SettingProblem]:
    """Every rank writes its dump; the folder must have room for all of them."""
    if setting.world_size is None or not setting.look_at_files or not setting.uses("nccl", "nccl2", "other"):
        return
    entries = setting.ring
    free = free_bytes(setting.prefix)
    if entries is None or entries <= 0 or free is None:
        return
    needed = ring_cost.dump_bytes(entries) * setting.world_size
    if needed > free:
        name = setting.set(*table.DUMP_NAMES) or table.DUMP_NAMES[0]
        yield SettingProblem(
            name,
            setting.environ.get(name),
            LOSES_DUMPS,
            f"{setting.world_size} ranks need {size(needed)}; {folder_of(setting.prefix)} has {size(free)} left",
            "free space, or choose another folder",
        )


def _same_group(name: str, setting: Setting, value: str) -> dict[str, str]:
    if name not in table.DUMP_NAMES:
        return {name: value}
    return {other: value for other in table.DUMP_NAMES if other in setting.environ or other == name}


def _unusable(prefix: str, setting: Setting) -> str:
    folder = folder_of(prefix)
    if folder in setting.to_be_made:
        return ""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} is not writable"
    return ""


def _make_or(first: str, ours: str | None) -> str:
    return first if ours is None else f"{first}, or use {ours}"


DUMP_RULES = (
    dump_switched_off,
    blocking_wait,
    error_handling,
    monitoring_off,
    heartbeat_too_short,
    dump_at_every_end,
    limit_too_short,
    dump_folder,
    pipe_folder,
    room_for_dumps,
)
