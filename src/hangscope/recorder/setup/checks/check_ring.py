"""Checks of the ring's size.

Two names for one number, counted in entries, and a copy of it that decides whether a dump is written.
"""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.recorder.setup import ring_cost
from hangscope.recorder.setup.setting_problems import COST, FATAL, LOSES_DUMPS, LOSES_EVIDENCE, Setting, SettingProblem
from hangscope.recorder.setup.variables import BY_NAME, RING_NAMES, default_wait_ms
from hangscope.text import size

_OLDER = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_HCCL = "TORCH_HCCL_TRACE_BUFFER_SIZE"
_LARGE_MEMORY = 256 << 20


def ring_off(setting: Setting) -> Iterator[SettingProblem]:
    """A ring of 0 entries records nothing; that is the default up to torch 2.10."""
    if setting.ring != 0:
        return
    names = _names(setting)
    name = setting.set(*names)
    what = "switches the recorder off: a hang leaves no record of any operation"
    if name is None:
        what = f"{setting.torch} records nothing unless it is set"
        if "TORCH_FR_BUFFER_SIZE" in setting.environ:
            what += "; TORCH_FR_BUFFER_SIZE is read from torch 2.8 on"
        elif setting.uses("nccl") and setting.gate and setting.dumps_on_timeout:
            what += ", and a timeout writes a dump without a single entry"
    yield SettingProblem(
        name or names[-1],
        None if name is None else setting.environ[name],
        LOSES_DUMPS,
        what,
        f"set {' and '.join(names)} to {setting.entries}",
        dict.fromkeys(names, str(setting.entries)),
    )


def gate_closed(setting: Setting) -> Iterator[SettingProblem]:
    """Recording is on through the newer name, but the older one, which alone allows writing, is 0 (2.8 to 2.15)."""
    if not setting.uses("nccl") or not setting.ring or _OLDER not in setting.environ:
        return
    if setting.gate is not None and setting.gate <= 0:
        what = "operations are recorded, but ProcessGroupNCCL never writes the dump: it reads only this name"
        size = str(setting.ring if setting.ring > 0 else setting.entries)
        yield SettingProblem(_OLDER, setting.environ[_OLDER], LOSES_DUMPS, what, f"set it to {size}", {_OLDER: size})


def pipe_without_older_name(setting: Setting) -> Iterator[SettingProblem]:
    """Torch 2.8 to 2.10 makes the dump pipe only where the older name of the ring's size is set."""
    if setting.release is None or not (2, 8) <= setting.release <= (2, 10) or not setting.uses("nccl"):
        return
    if "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in setting.environ and setting.ring and _OLDER not in setting.environ:
        what = f"the dump pipe is never made: {setting.torch} looks only at this name for it"
        size = str(setting.ring)
        yield SettingProblem(_OLDER, None, LOSES_DUMPS, what, f"set it to {size}", {_OLDER: size})


def ring_without_end(setting: Setting) -> Iterator[SettingProblem]:
    """A negative size is taken for the largest number there is, and the ring never wraps (seen with torch 2.13)."""
    if setting.ring is not None and setting.ring < 0:
        name = setting.set(*RING_NAMES, _HCCL) or RING_NAMES[0]
        what = "is taken for the largest number there is: memory grows until the node kills the process"
        yield SettingProblem(
            name,
            setting.environ.get(name),
            FATAL,
            what,
            f"set it to {setting.entries}",
            dict.fromkeys(_set_names(setting), str(setting.entries)),
        )


def ring_too_large(setting: Setting) -> Iterator[SettingProblem]:
    """The size counts entries, not bytes: a large one costs gigabytes a rank, and its dump is not written in time."""
    entries = setting.ring
    if entries is None or entries <= 0:
        return
    memory = ring_cost.memory_bytes(entries)
    severity = COST if memory >= _LARGE_MEMORY else ""
    parts = [
        f"asks for {entries:,} entries, not bytes: {size(ring_cost.memory_bytes(entries, deep=False))} to"
        f" {size(memory)} of host memory in each rank once full"
    ]
    wait = setting.wait_ms if setting.uses("nccl", "nccl2") else None
    if wait is not None:
        wait = max(wait, default_wait_ms(setting.release))  # a limit set too low is that variable's fault
    bare = ring_cost.dump_seconds(entries, stacks=False)
    full = ring_cost.dump_seconds(entries)
    if wait is not None and bare * 1000 > wait:
        severity = LOSES_DUMPS
        parts.append(
            f"its dump of {size(ring_cost.dump_bytes(entries))} takes about {bare:.0f} s even without "
            f"stacks, and PyTorch allows {wait / 1000:g} s: it cannot be written in time"
        )
    elif wait is not None and full * 1000 > wait:
        severity = LOSES_EVIDENCE
        parts.append(f"a dump with stacks takes about {full:.0f} s, PyTorch allows {wait / 1000:g} s: no stacks")
    if entries == ring_cost.BYTES_MISREADING:
        parts.append("a vendor's guide gives this number as 2 MB, which is wrong")
    if severity:
        name = setting.set(*RING_NAMES, _HCCL) or RING_NAMES[0]
        yield SettingProblem(
            name,
            setting.environ.get(name),
            severity,
            "; ".join(parts),
            f"set it to {setting.entries}; 20000 keeps a long history",
            dict.fromkeys(_set_names(setting), str(setting.entries)),
        )


def _names(setting: Setting) -> list[str]:
    """The names that this torch and backend read."""
    if setting.families == {"hccl"}:
        return [_HCCL]
    names = [name for name in RING_NAMES if BY_NAME[name].exists_in(setting.release)]
    return names[:1] if setting.families <= {"gloo", "xccl", "other"} else names


def _set_names(setting: Setting) -> list[str]:
    return [name for name in (*RING_NAMES, _HCCL) if name in setting.environ] or _names(setting)


RING_RULES = (ring_off, gate_closed, pipe_without_older_name, ring_without_end, ring_too_large)
