"""What an installed hangscope says of recorded jobs, so that two installations can be compared byte by byte."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from say import run, say

CASES = Path(__file__).parents[1] / "tests" / "cases"
_SCRIPT = """
import json, sys, hangscope
from hangscope.report.export import to_json
print(json.dumps({case: to_json(hangscope.diagnose(case)) for case in sys.argv[1:]}))
"""


def verdicts(python: Sequence[str | Path], cases: Sequence[str]) -> dict[str, str]:
    """The verdicts' JSON by that interpreter: in one process, because under emulation the start takes longest."""
    found: dict[str, str] = json.loads(run([*python, "-c", _SCRIPT, *cases], cwd=CASES, timeout=7200))
    return found


def same_verdicts(one: Mapping[str, str], other: Mapping[str, str]) -> None:
    """Raises where a verdict differs."""
    differ = [case for case, said in one.items() if said != other[case]]
    if differ:
        raise SystemExit(f"error: other verdicts on {', '.join(differ)}")
    say(f"  {len(one)} recorded jobs: the same verdicts, byte by byte")
