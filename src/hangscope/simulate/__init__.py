"""Synthetic jobs of any size, layout, fault and format version, with their truth.

    spec      ->  program   ->  faults    ->  events    ->  record    ->  files, truth
    (what to      (who does     (where it     (who waits    (each         (dumps, logs,
    simulate)     what)         strikes)      for what)     rank's ring)  truth.json)

`simulate(Spec(…))` runs one; the result gives its files as bytes or writes them. `random_spec(seed)` samples the space,
`random_shift_spec(seed)` that of jobs that come apart without hanging.
"""

from __future__ import annotations

from hangscope.simulate.simulated_job import Simulated, simulate
from hangscope.simulate.spec.job_spec import Spec
from hangscope.simulate.spec.random_specs import random_shift_spec, random_spec

__all__ = ["Simulated", "Spec", "random_shift_spec", "random_spec", "simulate"]
