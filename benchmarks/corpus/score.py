"""Score any tool's answers about the corpus: `python score.py ANSWERS.json…`. Needs Python 3.10 and nothing else.

Answers are one JSON file a tool:

    {"schema": "hangscope.answers/1", "tool": "name and version",
     "answers": {"nccl/mesh_absent": {"hang": true, "kind": "absent", "culprits": [6], "link": null,
                                      "confidence": "high"}}}

`culprits` is the exact set of global ranks that the tool accuses. All else may be null or left out: who names no
kind, no link and no confidence is not scored on them. A case that is not in the file counts as "no answer", and so does
null in its place. What is counted:

  exact        the accused ranks are exactly those injected, or one of the sets that the truth accepts
  kind         and the kind is right, too (of tools that name one)
  link         the stopped link is named, from and to (of the cases that have one, and tools that name one)
  innocent     cases in which a rank is accused that had nothing to do with it
  sure         … and with high confidence (of tools that state one)
  names nobody cases with a hang in which the tool accuses nobody and names no link
  false alarm  cases without a hang, and without anything injected, in which somebody is accused
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = "hangscope.answers/1"
COLUMNS = ("answered", "exact", "kind", "link", "innocent", "sure", "names nobody", "false alarm")


def right_sets(truth: Mapping[str, Any]) -> list[set[int]]:
    return [set(truth["culprits"]), *(set(ranks) for ranks in truth["accept"])]


def scored(truth: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, bool | None]:
    """One case. None where it does not count: the tool says nothing about it, or the case has no such truth."""
    if answer is None:
        return {**dict.fromkeys(COLUMNS), "answered": False, "exact": False}
    accused = set(answer.get("culprits") or ())
    exact = accused in right_sets(truth)
    kind = answer.get("kind")
    link = truth["link"]
    named_link = answer.get("link")
    innocent = bool(accused.difference(*right_sets(truth)))
    injected = bool(truth["culprits"] or truth["accept"] or truth["link"])
    return {
        "answered": True,
        "exact": exact,
        "kind": None if kind is None else exact and kind in (truth["kind"], *truth["accept_kinds"]),
        "link": None if link is None or "link" not in answer else list(named_link or ()) == list(link),
        "innocent": innocent,
        "sure": None if answer.get("confidence") is None else innocent and answer["confidence"] == "high",
        "names nobody": not accused and not named_link if truth["hang"] else None,
        "false alarm": None if injected or truth["hang"] else bool(accused),
    }


def table(truths: Mapping[str, Any], answers: list[dict[str, Any]], *, markdown: bool) -> list[str]:
    """One row a tool and suite: how many of how many."""
    suites = list(dict.fromkeys(name.partition("/")[0] for name in truths))
    rows = []
    for suite in (*suites, "all"):
        names = [name for name in truths if suite in ("all", name.partition("/")[0])]
        for one in answers:
            results = [scored(truths[name], one["answers"].get(name)) for name in names]
            if not any(result["answered"] for result in results):
                continue  # it has nothing to read there
            cells = []
            for column in COLUMNS:
                counted = [result[column] for result in results if result[column] is not None]
                cells.append(f"{sum(map(bool, counted))}/{len(counted)}" if counted else "-")
            rows.append((suite, str(one["tool"]), *cells))
    heading = ("suite", "tool", *COLUMNS)
    if markdown:
        line = "|".join("---" for _ in heading)
        return [f"| {' | '.join(heading)} |", f"|{line}|", *(f"| {' | '.join(row)} |" for row in rows)]
    widths = [max(len(row[at]) for row in (heading, *rows)) for at in range(len(heading))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heading, *rows)
    ]


def read_answers(path: Path, truths: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's file, checked: a name that the corpus does not have, or ranks that are none, would count as missed."""
    said = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(said, dict) or said.get("schema") != SCHEMA or not isinstance(said.get("answers"), dict):
        raise SystemExit(f"error: {path} is not of schema {SCHEMA}")
    strangers = sorted(set(said["answers"]) - set(truths))
    if strangers:
        raise SystemExit(f"error: {path} answers about {strangers[0]}, which is no case of this corpus")
    for name, answer in said["answers"].items():
        ranks = [] if answer is None else answer.get("culprits") or []
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise SystemExit(f"error: {path}: culprits of {name} are not a list of ranks")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", type=Path, help="one JSON file a tool")
    parser.add_argument("--truths", type=Path, default=Path(__file__).with_name("truths.json"))
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--misses", action="store_true", help="list every case that is not exact")
    options = parser.parse_args()
    truths = json.loads(options.truths.read_text(encoding="utf-8"))["cases"]
    answers = [read_answers(path, truths) for path in options.answers]
    print("\n".join(table(truths, answers, markdown=options.markdown)))
    if options.misses:
        for one in answers:
            for name, truth in truths.items():
                answer = one["answers"].get(name)
                if not scored(truth, answer)["exact"]:
                    said = "no answer" if answer is None else answer.get("culprits")
                    print(f"{one['tool']}: {name}: {said}, injected {truth['culprits'] or truth['link']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
