"""Checks of what a dump says: stacks, history, and when an operation began."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.recorder.setup.setting_problems import COST, LOSES_EVIDENCE, Setting, SettingProblem


def stacks_left_out(setting: Setting) -> Iterator[SettingProblem]:
    """A dump without stacks does not say the code line; one with active operations only hides the last good one."""
    if not setting.uses("nccl") or not setting.since((2, 10)):
        return
    name = "TORCH_INCLUDE_STACK_TRACE"
    if setting.boolean(name, default=True) is False:
        what = "dumps carry no stacks, so that the code line of an operation is not known"
        yield SettingProblem(name, setting.environ[name], LOSES_EVIDENCE, what, "set it to 1", {name: "1"})
    name = "TORCH_INCLUDE_ONLY_ACTIVE"
    if setting.boolean(name, default=False):
        what = "dumps carry unfinished operations only: the last one that worked is not known"
        yield SettingProblem(name, setting.environ[name], LOSES_EVIDENCE, what, "set it to 0", {name: "0"})


def slow_stacks(setting: Setting) -> Iterator[SettingProblem]:
    """C++ stacks are symbolised while the dump waits, and symbolising is what makes a dump miss its limit."""
    names = ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK")
    if setting.boolean(*names, default=False):
        name = setting.set(*names) or names[0]
        mode = setting.environ.get("TORCH_SYMBOLIZE_MODE", "")
        if mode not in ("fast", "dladdr"):
            what = "C++ frames are looked up while the dump is being written, which can take longer than the dump may"
            yield SettingProblem(
                name,
                setting.environ[name],
                COST,
                what,
                "set TORCH_SYMBOLIZE_MODE to fast, or this to 0",
                {"TORCH_SYMBOLIZE_MODE": "fast"},
            )


DETAIL_RULES = (stacks_left_out, slow_stacks)
