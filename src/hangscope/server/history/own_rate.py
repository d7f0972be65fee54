"""Whether an entity hangs jobs at a rate of its own: the likelihood of its jobs with such a rate, over that without.

Without one, a job of a program hangs at the program's rate, which is only known as well as its jobs show it (a Beta
distribution around the rate of all others). With one, from some job on, each job is hung by the entity with a chance
that may be anything, and else as before. What is not known is averaged over, not estimated: a program of three jobs
convicts nobody.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_RATES = np.geomspace(5e-4, 0.95, 24)
"""Of programs: how often their jobs hang by themselves."""
_OWN = np.linspace(0.06, 0.94, 10)
"""Of the entity; any of them as likely."""
_STRENGTH = 2.0
"""A program is believed to hang as all others do with the weight of so many jobs: programs differ a lot."""
_MOST_OF_A_PROGRAM = 0.3
"""A program whose jobs hang more often than that has bad code, whichever commit it came with."""
_ALWAYS = 0.5
"""Half of what is bad was so when it was first seen; else it began at any of its jobs."""


class CodeRates:
    """How often each program's jobs hang, and how well that is known."""

    def __init__(self, hangs: Floats, jobs: Floats) -> None:
        elsewhere = (hangs.sum() - hangs + 0.5) / (jobs.sum() - jobs + 10.0)
        one = _STRENGTH * elsewhere + hangs
        other = _STRENGTH * (1.0 - elsewhere) + np.maximum(0.0, jobs - hangs)
        self.mean: Floats = one / (one + other)
        # The grid is even in the logarithm, so that each point stands for a part as wide as itself.
        log = np.outer(one, np.log(_RATES)) + np.outer(other - 1.0, np.log1p(-_RATES))
        self._log = log

    def log_weight(self, *, of_code: bool) -> Floats:
        """By program and rate: how likely it is. Code is not excused by a rate that no good code has."""
        log = np.where(_RATES > _MOST_OF_A_PROGRAM, -np.inf, self._log) if of_code else self._log
        weight = np.exp(log - log.max(axis=1, keepdims=True))
        found: Floats = np.log(weight / weight.sum(axis=1, keepdims=True) + 1e-300)
        return found


class Evidence(NamedTuple):
    """The jobs of one entity, in the order in which they started. `ratio` has one value a hang of a machine: how likely
    what its verdict names is if the machine hung the job, over how likely it is if the job hung by itself."""

    weight: Floats
    hung: NDArray[np.bool_]
    code: NDArray[np.intp]
    ratio: Floats


def log_ratio_of_code(seen: Evidence, log_weight: Floats) -> float:
    """The logarithm of the likelihood with a rate of its own over that without, of code: it is bad from its first job
    on, and what a verdict names says nothing about it. `log_weight` is of `CodeRates`."""
    hung = np.bincount(seen.code[seen.hung], seen.weight[seen.hung], minlength=len(log_weight))
    with_hangs = np.flatnonzero(hung)
    healthy = np.where(seen.hung, 0.0, seen.weight).sum()
    # program × own rate × the program's rate
    gain = hung[with_hangs][:, None, None] * np.log((1.0 - _OWN)[:, None] + _OWN[:, None] / _RATES)
    total = _log_sum(gain + log_weight[with_hangs][:, None, :], axis=2).sum(axis=0) + healthy * np.log1p(-_OWN)
    return float(_log_sum(total, axis=0) - np.log(len(_OWN)))


def log_ratio_of_machine(seen: Evidence, log_weight: Floats) -> float:
    """The same of a machine, which may have become bad at any of its jobs."""
    weight = seen.weight[seen.hung]
    code = seen.code[seen.hung]
    # hang × own rate × the program's rate: how much likelier the hang is with the entity's own rate
    gain = np.log((1.0 - _OWN)[None, :, None] + _OWN[None, :, None] * seen.ratio[:, None, None] / _RATES)
    gain *= weight[:, None, None]
    total = _beginnings(seen)
    for each in np.unique(code):
        mine = np.where((code == each)[:, None, None], gain, 0.0)
        after = np.zeros((len(code) + 1, *gain.shape[1:]))
        after[:-1] = mine[::-1].cumsum(axis=0)[::-1]
        total = total + _log_sum(after + log_weight[each], axis=2)
    return float(_log_sum(_log_sum(total, axis=1), axis=0) - np.log(len(_OWN)))


def _beginnings(seen: Evidence) -> Floats:
    """By number of hangs before it began, and own rate: how likely it began there and hung none of the healthy jobs
    since."""
    jobs = len(seen.hung)
    before = np.concatenate(([0], seen.hung.cumsum()[:-1])) if jobs else np.zeros(0, dtype=np.intp)
    healthy = np.where(seen.hung, 0.0, seen.weight)[::-1].cumsum()[::-1]
    prior = np.full(jobs, (1.0 - _ALWAYS) / max(1, jobs - 1))
    prior[:1] = _ALWAYS if jobs > 1 else 1.0
    chance = prior[:, None] * np.exp(healthy[:, None] * np.log1p(-_OWN))
    found = np.zeros((int(seen.hung.sum()) + 1, len(_OWN)))
    np.add.at(found, before, chance)
    return np.log(found + 1e-300)


def _log_sum(values: Floats, axis: int) -> Floats:
    most = values.max(axis=axis, keepdims=True)
    summed: Floats = np.log(np.exp(values - most).sum(axis=axis)) + most.squeeze(axis)
    return summed
