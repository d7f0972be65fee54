"""Whether a thread works, by what the kernel counts."""

from __future__ import annotations

import pytest

from hangscope.processes.thread_activity import Sample, works


@pytest.mark.parametrize(
    ("cpu_s", "switches", "may_spin", "expected"),
    [
        (0.0, 0, False, False),
        (0.0, 40, False, True),
        (0.5, 0, False, True),
        (2.0, 0, False, True),
        (2.0, 1, True, False),
    ],
)
def test_work_is_told_from_waiting_by_the_kernel(cpu_s: float, switches: int, may_spin: bool, expected: bool) -> None:
    """CPU time or context switches are work; a wait that spins is none, where waits may spin."""
    assert works(Sample(0.0, 5.0, 100), Sample(2.0, 5.0 + cpu_s, 100 + switches), may_spin=may_spin) is expected
