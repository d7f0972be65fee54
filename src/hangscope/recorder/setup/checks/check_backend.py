"""Checks of the torch and the backend themselves: what they cannot record or write, whatever is set."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.recorder.setup.backends import records, writes_file
from hangscope.recorder.setup.setting_problems import LOSES_DUMPS, NOTE, Setting, SettingProblem
from hangscope.recorder.setup.variables import FIRST_RECORDER, NEWEST_KNOWN


def no_recorder(setting: Setting) -> Iterator[SettingProblem]:
    """Torch 2.1 and before have no flight recorder."""
    if setting.release is not None and setting.release < FIRST_RECORDER:
        yield SettingProblem(
            "torch",
            _text(setting),
            LOSES_DUMPS,
            "has no flight recorder: a hang leaves log lines and stacks, and no record of the operations",
            "use torch 2.2 or later; hangscope run still saves stacks, process states and NCCL's log",
        )


def newer_than_known(setting: Setting) -> Iterator[SettingProblem]:
    """A torch newer than the newest one looked at is treated like that one."""
    if setting.release is not None and setting.release > NEWEST_KNOWN:
        what = f"is newer than {NEWEST_KNOWN[0]}.{NEWEST_KNOWN[1]}, the newest that these settings were checked with"
        yield SettingProblem("torch", _text(setting), NOTE, what, "look for a newer hangscope")


def unrecorded_backend(setting: Setting) -> Iterator[SettingProblem]:
    """A backend whose operations never reach the recorder in this torch."""
    release = setting.release
    if release is None or release < FIRST_RECORDER:
        return
    others = any(records(family, release) for family in setting.families)
    for family in sorted(setting.families):
        if records(family, release):
            continue
        if family == "nccl2":
            name = "TORCH_DIST_USE_NCCL2"
            chosen = setting.environ.get(name)
            what = f"{setting.torch} has nccl2, but nothing attaches the recorder to it: no operation is recorded"
            if release < (2, 14):
                what = f"{setting.torch} has no nccl2"
            cure = "pass the backend nccl" if chosen is None else f"set {name} to 0"
            sets = {} if chosen is None else {name: "0"}
            yield SettingProblem(name if chosen else "backend", chosen or "nccl2", LOSES_DUMPS, what, cure, sets)
            continue
        first = {"gloo": "2.8", "xccl": "2.9"}.get(family, "2.15")
        what = f"{setting.torch} does not record this backend's operations; {first} is the first that does"
        cure = "use a newer torch; hangscope run still saves stacks and process states"
        yield SettingProblem("backend", family, NOTE if others else LOSES_DUMPS, what, cure)


def no_dump_file(setting: Setting) -> Iterator[SettingProblem]:
    """Gloo records but never writes a file, in any release, whatever is set; XCCL writes through its pipe only."""
    for family in ("gloo", "xccl"):
        if family in setting.families and records(family, setting.release) and _nothing_writes(setting):
            what = "never writes a dump by itself, whatever is set: its record has to be asked for while the rank lives"
            yield SettingProblem("backend", family, NOTE, what, "launch with hangscope run, which asks every rank")


def no_signal(setting: Setting) -> Iterator[SettingProblem]:
    """nccl2 has no cross-rank signal: a rank that never entered the collective, often the culprit, dumps nothing."""
    if "nccl2" in setting.families and "nccl" not in setting.families and records("nccl2", setting.release):
        yield SettingProblem(
            "backend",
            "nccl2",
            NOTE,
            "each rank dumps only what it notices itself: the rank that never joined leaves nothing",
            "launch with hangscope run, which asks every rank, or set TORCH_DIST_USE_NCCL2 to 0",
        )


def torchcomms(setting: Setting) -> Iterator[SettingProblem]:
    """TorchComms has a recorder of its own, with a ring that is off unless set."""
    name = "TORCH_DISTRIBUTED_USE_TORCHCOMMS"
    if setting.environ.get(name, "0") not in ("", "0"):
        what = "operations go to TorchComms' own recorder; PyTorch's variables do not reach it"
        yield SettingProblem(
            name, setting.environ[name], NOTE, what, "see TorchComms' documentation for its ring's size"
        )


def _nothing_writes(setting: Setting) -> bool:
    return not any(writes_file(family, setting.release) for family in setting.families)


def _text(setting: Setting) -> str:
    return "" if setting.release is None else f"{setting.release[0]}.{setting.release[1]}"


BACKEND_RULES = (no_recorder, newer_than_known, unrecorded_backend, no_dump_file, no_signal, torchcomms)
