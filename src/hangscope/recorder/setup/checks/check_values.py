"""Checks of names and values: what PyTorch cannot read, reads differently, or does not read at all."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.recorder.setup import variables as table
from hangscope.recorder.setup.setting_problems import COST, FATAL, LOSES_DUMPS, NOTE, Setting, SettingProblem
from hangscope.recorder.setup.variables import BY_NAME, RING_NAMES, UNPREFIXED, VARIABLES, as_bool, as_int, is_plain_int


def invalid_values(setting: Setting) -> Iterator[SettingProblem]:
    """A boolean or number that PyTorch cannot read ends the process or hangs it, also in a name that does not count."""
    for variable in VARIABLES:
        value = setting.environ.get(variable.name)
        if value is None or not variable.exists_in(setting.release) or not setting.uses(*variable.families):
            continue
        if variable.kind == "bool" and as_bool(value) is None:
            kind = "one of 1, 0, true, false, yes, no"
        elif variable.kind == "int" and as_int(value) is None:
            kind = "a whole number below 2147483648"
        else:
            continue
        cure = _sound_value(variable.name, setting)
        if variable.read_at_dump:
            what = "is parsed only when a dump is written, and throws there: the process dies instead of dumping"
        elif variable.name in RING_NAMES or variable.name.endswith("CPP_STACK"):
            # Seen with torch 2.13 and Gloo: init_process_group never returns. With NCCL it raises.
            what = "cannot be read: init_process_group raises, or with Gloo never returns"
        else:
            what = "cannot be read: init_process_group raises RuntimeError"
        yield SettingProblem(variable.name, value, FATAL, what, f"set it to {kind}: {cure}", {variable.name: cure})


def half_read_numbers(setting: Setting) -> Iterator[SettingProblem]:
    """PyTorch reads a number up to its first strange character and drops the rest: 2e6 is 2, 20k is 20."""
    for variable in VARIABLES:
        value = setting.environ.get(variable.name)
        if variable.kind != "int" or value is None or not setting.uses(*variable.families):
            continue
        number = as_int(value)
        if number is not None and not is_plain_int(value) and variable.exists_in(setting.release):
            cure = _sound_value(variable.name, setting)
            severity = LOSES_DUMPS if variable.name in RING_NAMES else COST
            yield SettingProblem(
                variable.name,
                value,
                severity,
                f"is read as {number}; the rest is silently dropped",
                f"write the number in digits: {cure}",
                {variable.name: cure},
            )


def old_names(setting: Setting) -> Iterator[SettingProblem]:
    """The names of torch 2.1 still work, but a newer name beside them wins, and each prints a warning."""
    for variable in UNPREFIXED:
        value = setting.environ.get(variable.name)
        newer = variable.alias_of
        if value is None or newer is None or not setting.uses(*variable.families):
            continue
        if newer in setting.environ and setting.environ[newer] != value:
            what = f"is ignored, because {newer}={setting.environ[newer]} is set as well"
            yield SettingProblem(variable.name, value, NOTE, what, f"unset {variable.name}")
        else:
            yield SettingProblem(
                variable.name, value, NOTE, "is the deprecated name", f"set {newer} instead", {newer: value}
            )


def unread_names(setting: Setting) -> Iterator[SettingProblem]:
    """A name that this torch does not read does nothing, silently: misspelt, invented, or of another release."""
    for name, value in setting.environ.items():
        variable = BY_NAME.get(name)
        if variable is None:
            meant = table.meant(name)
            if meant is not None:
                what = "does nothing: no release of torch reads a variable of this name"
                yield SettingProblem(name, value, NOTE, what, f"set {meant}")
        elif not variable.exists_in(setting.release) and variable.since and setting.uses(*variable.families):
            first = f"{variable.since[0]}.{variable.since[1]}"
            older = [v.name for v in VARIABLES if v.alias_of == name and v.exists_in(setting.release)]
            what = f"does nothing: {setting.torch} does not read it, {first} is the first that does"
            yield SettingProblem(
                name, value, NOTE, what, f"set {older[0]}" if older else f"unset it, or use torch {first}"
            )


def _sound_value(name: str, setting: Setting) -> str:
    """What hangscope would set, for a variable whose value cannot be read."""
    release = setting.release
    if name in RING_NAMES or name == "TORCH_HCCL_TRACE_BUFFER_SIZE":
        return str(setting.entries)
    if "WAIT_TIMEOUT_DUMP" in name:
        return str(table.default_wait_ms(release))
    if name == "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC":
        return str(max(480, -(-4 * (setting.wait_ms or table.default_wait_ms(release)) // 1000)))
    return {
        "TORCH_NCCL_COORD_CHECK_MILSEC": "1000",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "NCCL_ENABLE_TIMING": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_INCLUDE_STACK_TRACE": "1",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1",
        "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": "1",
        "TORCH_NCCL_CUDA_EVENT_CACHE": "1" if setting.since((2, 6)) else "0",
    }.get(name, "0")


VALUE_RULES = (invalid_values, half_read_numbers)
NAME_RULES = (old_names, unread_names)
