"""Synthetic jobs of any size, layout, fault and format version, with their truth.

`simulate(Spec(…))` runs one; the result gives its files as bytes or writes them. `random_spec(seed)` samples the space.
"""

from __future__ import annotations

from hangscope.simulate.random_specs import random_spec
from hangscope.simulate.simulated import Simulated, simulate
from hangscope.simulate.spec import Spec

__all__ = ["Simulated", "Spec", "random_spec", "simulate"]
