"""What is said of logs as people paste them, against what an expert wrote down before the tool saw them.

    python tests/pasted/score.py [NAME…]

Excerpts after public threads (times, hosts, paths and numbers are ours), of every accelerator, engine, scheduler, file
system and network that people paste, and of healthy runs. Each answer was written down before the first run on it.

    exact   outcome, group of kinds and culprits as in the truth; every decisive substring, fact, node and peer is said
    short   nothing false, but something is missing
    wrong   a false accusation, a failure called OK, a healthy run called a failure, or a false outcome or kind that is
            not marked as of low confidence

A decisive entry that is a list is met by any one of its members. Case and white space do not count.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import hangscope
from hangscope.report.terminal import render_text

HERE = Path(__file__).resolve().parent
# Kinds that say the same to a person who mends the job.
GROUPS = {"absent": "waited for", "frozen": "waited for", "deadlock": "waited for"}
FAILURES = {"hang", "crash", "pause", "slow"}


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/truth.json"))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def flat(text: str) -> str:
    return " ".join(text.split()).lower()


def strings(value: Any) -> list[str]:
    """Every text in a JSON value, the inputs' own paths excepted."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() if key not in ("inputs", "schema") for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return []


def ask(name: str) -> tuple[dict[str, Any] | None, str, int]:
    """The verdict as JSON (None where there is none), as text, and the exit status. The truth is never among the input,
    and no word of the folder's name can be mistaken for the verdict's."""
    with tempfile.TemporaryDirectory(prefix="x") as temporary:
        folder = Path(temporary) / "in"
        folder.mkdir()
        for log in (HERE / name).iterdir():
            if log.name != "truth.json":
                shutil.copyfile(log, folder / log.name)
        try:
            verdict = hangscope.diagnose(folder)
        except hangscope.HangscopeError as error:
            return None, str(error), error.exit_status
    return verdict.to_dict(), render_text(verdict, width=2000), verdict.exit_status


def judged(name: str) -> tuple[str, list[str], str]:
    """One of exact, short, wrong; why; and what the tool said, in a few words."""
    truth = json.loads((HERE / name / "truth.json").read_text(encoding="utf-8"))
    return judge(truth, *ask(name))


def accused(verdict: dict[str, Any]) -> list[int]:
    return sorted(culprit["rank"] for culprit in verdict["culprits"] if culprit["rank"] is not None)


def group(kind: str) -> str:
    return GROUPS.get(kind, kind)


def judge(truth: dict[str, Any], verdict: dict[str, Any] | None, text: str, status: int) -> tuple[str, list[str], str]:
    """One of exact, short, wrong; why; and what the tool said, in a few words."""
    if verdict is None:
        return ("wrong" if status not in (2,) else "short"), [f"no verdict, exit {status}"], f"exit {status}"
    said = flat("\n".join([*strings(verdict), text]))
    headline = flat(verdict.get("headline") or verdict.get("summary") or "")
    advice = flat("\n".join(verdict.get("next_steps") or []))
    outcome, kind, sure = verdict["outcome"], verdict["kind"], verdict["confidence"] or "none"
    who = accused(verdict)
    false: list[str] = []
    missing: list[str] = []

    wanted = as_list(truth["outcome"])
    if outcome not in wanted:
        if outcome == "unknown":
            missing.append(f"outcome unknown, not {'/'.join(wanted)}")
        elif outcome == "ok" or ("ok" in wanted and outcome in FAILURES and wanted == ["ok"]):
            false.append(f"{outcome} where it is {'/'.join(wanted)}")
        else:
            (missing if sure == "low" else false).append(f"outcome {outcome}, not {'/'.join(wanted)}")

    kinds = as_list(truth["kind"])
    if group(kind) not in {group(one) for one in kinds}:
        (missing if kind in ("unknown", "none") or sure == "low" else false).append(
            f"kind {kind}, not {'/'.join(kinds)}"
        )

    guilty = set(truth["culprits"]).union(*truth.get("accept", []))
    innocent = [rank for rank in who if rank not in guilty]
    if innocent:
        false.append(f"accuses {innocent} at {sure}" + (" (HIGH)" if sure == "high" else ""))
    elif who != truth["culprits"] and who not in truth.get("accept", []):
        missing.append(f"culprits {who}, not {truth['culprits']}")
    if who and not innocent and sure == "high" and truth.get("never_high"):
        missing.append("surer than the text allows")

    for phrase in truth.get("forbid", []):
        if flat(phrase) in headline:
            false.append(f"headline says “{phrase}”")
    for phrase in truth.get("forbid_advice", []):
        if flat(phrase) in advice:
            missing.append(f"advice “{phrase}” does not fit")

    for entry in truth.get("decisive", []):
        if not any(flat(one) in said for one in as_list(entry)):
            missing.append(f"does not quote “{as_list(entry)[0]}”")
    for fact in truth.get("must_mention", []):
        where = advice if fact == "recorder" else said
        if flat(fact) not in where:
            missing.append(f"does not mention “{fact}”")
    for name in (truth.get("node"), truth.get("peer")):
        if name and flat(name) not in said:
            missing.append(f"does not name {name}")
    operation = truth.get("operation")
    if operation:
        held = verdict.get("operation") or {}
        number = "" if operation["seq"] is None else f" #{operation['seq']}"
        if (held.get("name"), held.get("seq")) != (
            operation["name"],
            operation["seq"],
        ) and f"{operation['name']}{number}" not in said:
            missing.append(f"does not name {operation['name']}{number}")

    result = "wrong" if false else "short" if missing else "exact"
    return result, [*false, *missing], f"{outcome}/{kind} {who} {sure}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="else all")
    wanted = parser.parse_args().names or names()
    counts: collections.Counter[str] = collections.Counter()
    high = 0
    for name in wanted:
        result, why, said = judged(name)
        counts[result] += 1
        high += any("(HIGH)" in one for one in why)
        print(f"{result:5}  {name:46} {said:28} {'; '.join(why)}", flush=True)
    print(f"{len(wanted)} excerpts: {counts['exact']} exact, {counts['short']} short, {counts['wrong']} wrong")
    print(f"innocent at high: {high}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
