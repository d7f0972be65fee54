"""What the settings in force would do to a hang's evidence.

One function a rule, each with its sentence as docstring; PyTorch's behaviour is cited by the release it was read from.
"""

from __future__ import annotations

from hangscope.recorder.setup.backends import records
from hangscope.recorder.setup.checks.check_backend import BACKEND_RULES
from hangscope.recorder.setup.checks.check_detail import DETAIL_RULES
from hangscope.recorder.setup.checks.check_dump import DUMP_RULES
from hangscope.recorder.setup.checks.check_nccl import NCCL_RULES
from hangscope.recorder.setup.checks.check_ring import RING_RULES
from hangscope.recorder.setup.checks.check_values import NAME_RULES, VALUE_RULES
from hangscope.recorder.setup.setting_problems import SEVERITIES, Setting, SettingProblem
from hangscope.recorder.setup.variables import FIRST_RECORDER

__all__ = ["Setting", "SettingProblem", "check"]


def check(setting: Setting) -> list[SettingProblem]:
    """Every problem of these settings, the gravest first."""
    rules = [*BACKEND_RULES, *NCCL_RULES]
    if setting.release is None or setting.release >= FIRST_RECORDER:
        rules += [*VALUE_RULES, *NAME_RULES]
        if any(records(family, setting.release) for family in setting.families):
            rules += [*RING_RULES, *DUMP_RULES, *DETAIL_RULES]
    found = [problem for rule in rules for problem in rule(setting)]
    return sorted(found, key=lambda problem: SEVERITIES.index(problem.severity))
