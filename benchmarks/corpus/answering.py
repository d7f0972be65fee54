"""What all adapters share: every case is asked about in turn, and the answers are written as score.py takes them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any] | None
CASES = Path(__file__).with_name("cases")


def write_answers(tool: str, ask: Callable[[Path], Answer]) -> int:
    parser = argparse.ArgumentParser(description=f"Ask {tool} about every case of the corpus.")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the answers' file")
    parser.add_argument("--cases", type=Path, default=CASES, help="the corpus's cases")
    options = parser.parse_args()
    folders = sorted(path for path in options.cases.glob("*/*") if path.is_dir())
    answers = {f"{folder.parent.name}/{folder.name}": ask(folder) for folder in folders}
    said = {"schema": "hangscope.answers/1", "tool": tool, "answers": answers}
    options.out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(answer is not None for answer in answers.values())} of {len(answers)} answered", file=sys.stderr)
    return 0
