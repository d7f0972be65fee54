"""What the settings in force would do to a hang's evidence.

One function a rule, each with its sentence as docstring; PyTorch's behaviour is cited by the release it was read from.
"""

from __future__ import annotations

from hangscope.recorder.backends import records
from hangscope.recorder.checks.backend import BACKEND_RULES
from hangscope.recorder.checks.detail import DETAIL_RULES
from hangscope.recorder.checks.dump import DUMP_RULES
from hangscope.recorder.checks.nccl import NCCL_RULES
from hangscope.recorder.checks.ring import RING_RULES
from hangscope.recorder.checks.values import NAME_RULES, VALUE_RULES
from hangscope.recorder.problems import SEVERITIES, Problem, Setting
from hangscope.recorder.variables import FIRST_RECORDER

__all__ = ["Problem", "Setting", "check"]


def check(setting: Setting) -> list[Problem]:
    """Every problem of these settings, the gravest first."""
    rules = [*BACKEND_RULES, *NCCL_RULES]
    if setting.release is None or setting.release >= FIRST_RECORDER:
        rules += [*VALUE_RULES, *NAME_RULES]
        if any(records(family, setting.release) for family in setting.families):
            rules += [*RING_RULES, *DUMP_RULES, *DETAIL_RULES]
    found = [problem for rule in rules for problem in rule(setting)]
    return sorted(found, key=lambda problem: SEVERITIES.index(problem.severity))
