"""Inputs that were slow, or large in memory, stay within 5 s of CPU and 500 MB: a sample of the families.

All of them: ``make slow-inputs``. Sizes are smaller here, so that the whole takes seconds; what was quadratic took
longer even so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hangscope
from hostile import slow_inputs
from hostile.slow_families import FAMILIES

SAMPLE = {
    "watchdog_one_rank_in_many_groups": 600_000,
    "nccl_one_process_many_comms": 900_000,
    "tracebacks_chained": 300_000,
    "srun_huge_lists": 100_000,
    "ras_text_sections": 200_000,
    "ras_text_operations": 200_000,
    "counters_of_many_ports": 1_900_000,
    "incident_of_many_nodes": 1_900_000,
    "archives_of_empty_members": 150_000,
    "dump_each_entry_in_its_own_group": 300_000,
    "ranks_each_in_two_groups": 400_000,
}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_slow_input_is_diagnosed_within_the_limits(name: str) -> None:
    """Less than 5 s of CPU and 500 MB, and a verdict in the end."""
    # by a small process: what the kernel calls a process's memory begins with that of the one that started it
    words = [sys.executable, slow_inputs.__file__, "--all", "--verb", "diagnose", "--size", str(SAMPLE[name]), name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name} " in done.stdout


def test_there_are_families_for_everything_that_is_read() -> None:
    """At least ninety, and each writes the same bytes again."""
    assert len(FAMILIES) >= 90


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tracebacks_chained", "chains of more than 50"),
        ("srun_huge_lists", "more than 32,768 are listed"),
        ("ras_text_operations", "ranks more without listing them"),
        ("incident_of_many_nodes", "more than 131,072 is implausible"),
        ("archives_of_empty_members", "entries"),
    ],
)
def test_what_a_limit_leaves_out_is_a_gap_with_a_number(tmp_path: Path, name: str, words: str) -> None:
    """Nothing is left out silently."""
    slow_inputs.write(name, tmp_path, SAMPLE[name])
    gaps = hangscope.load(tmp_path).gaps
    assert any(words in gap.why for gap in gaps), [gap.why for gap in gaps][:5]
