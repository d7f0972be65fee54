"""Whether the sentences of a verdict are true, by other code than that which wrote them: small readers of raw dumps and
stacks, and what can be read out of a sentence.

    python tests/truth.py FOLDER…    check what `hangscope diagnose` says of any folders

It knows nothing of hangscope but the verdict's JSON and text. What it cannot contradict, it passes.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_RANK_IN_NAME = re.compile(r"(?:rank_|trace_rank_|trace_|gloo_rank_|nccl_rank_)(\d+)(?=[._]|$)")
_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+)|\(([^()\s]+\.py):(\d+)\)')
_LINE = re.compile(r"([\w./-]+\.py):(\d+)")
_NUMBER = re.compile(r"(?<![\w#])#(\d+)\b")
_RANKS = re.compile(r"\branks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)")
_OF_NCCL = re.compile(r"\b(?:TORCH_)?NCCL_\w+|NCCL's log|\bNCCL \d")
_WAIT = re.compile(r"^ +(\d+) ranks? waits?\b", re.MULTILINE)
_PREFIX = re.compile(r"^(?:nccl|gloo|xccl|nccl2|ncclx):")


@dataclass
class Raw:
    """What the files hold, read without any judgement."""

    lines: set[tuple[str, int]] = field(default_factory=set)
    """(a file's own name, line) of every frame anywhere."""
    calls: dict[int, dict[int, set[str]]] = field(default_factory=dict)
    """Rank → number → the names that it recorded there."""
    ranks: set[int] = field(default_factory=set)
    dumped: set[int] = field(default_factory=set)
    backends: set[str] = field(default_factory=set)
    text: str = ""

    @property
    def numbers(self) -> set[int]:
        return {number for calls in self.calls.values() for number in calls}


def read(folder: Path) -> Raw:
    raw = Raw()
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("truth.json", "verdict.json", "verdict.txt", "verdict.html"):
            data = path.read_bytes()
            dump = _dump(data)
            if dump is not None:
                _take(raw, dump, path)
            elif data[:4096].count(0) == 0:
                texts.append(data.decode("utf-8", "replace"))
    raw.text = "\n".join(texts)
    for match in _STACK_LINE.finditer(raw.text):
        name, line = (match[1], match[2]) if match[1] else (match[3], match[4])
        raw.lines.add((name.replace("\\", "/").rsplit("/", 1)[-1], int(line)))
    for name, line in re.findall(r'\["[^"]*", "([^"]+)", (\d+)\]', raw.text):  # learnt call sites
        raw.lines.add((name.rsplit("/", 1)[-1], int(line)))
    raw.lines.update((name.rsplit("/", 1)[-1], int(line)) for name, line in _LINE.findall(raw.text))
    named = re.findall(r'"rank": ?(\d+)|\[rank(\d+)\]', raw.text)
    raw.ranks.update(int(number) for either in named for number in either if number)
    return raw


def _dump(data: bytes) -> dict[str, Any] | None:
    try:
        value = pickle.loads(data) if data[:1] == b"\x80" else json.loads(data) if data[:1] == b"{" else None
    except Exception:
        return None
    return value if isinstance(value, dict) and "pg_config" in value and "entries" in value else None


def _take(raw: Raw, dump: dict[str, Any], path: Path) -> None:
    named = _RANK_IN_NAME.search(path.name)
    rank = int(dump["rank"]) if isinstance(dump.get("rank"), int) else int(named[1]) if named else None
    raw.backends.add("gloo" if "gloo" in path.name else "nccl")
    for entry in dump["entries"]:
        for frame in entry.get("frames") or ():
            raw.lines.add((str(frame["filename"]).rsplit("/", 1)[-1], int(frame["line"])))
        if rank is not None:
            number = entry.get("collective_seq_id", entry.get("seq_id"))
            name = _PREFIX.sub("", str(entry.get("profiling_name", "")))
            raw.calls.setdefault(rank, {}).setdefault(int(number), set()).add(name)
            raw.dumped.add(rank)
    if rank is not None:
        raw.ranks.add(rank)


# ---- the sentences ---------------------------------------------------------------------------------------------------


def problems(value: dict[str, Any], text: str, raw: Raw) -> Iterator[str]:
    """Everything that the evidence contradicts."""
    yield from _lines(value, raw)
    yield from _victims(value, raw)
    yield from _numbers(value, raw)
    yield from _people(value, raw)
    yield from _advice(value, raw)
    yield from _counts(value, text, raw)


def _sentences(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("headline", "summary"):
        yield key, value[key] or ""
    for number, finding in enumerate(value["why"], 1):
        yield f"why {number}", finding["text"]
        yield from ((f"why {number}, detail", line) for line in finding["detail"])
    yield from (("next step", step) for step in value["next_steps"])
    yield from ((f"rank {culprit['rank']}", culprit["why"]) for culprit in value["culprits"])


def _lines(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    for where, sentence in _sentences(value):
        for name, line in _LINE.findall(sentence):
            if (name.rsplit("/", 1)[-1], int(line)) not in raw.lines:
                yield f"{where}: no evidence has the line {name}:{line}"
    for culprit in value["culprits"]:
        place = culprit["where"]
        if place is not None and (place["file"].rsplit("/", 1)[-1], place["line"]) not in raw.lines:
            yield f"rank {culprit['rank']}: no evidence has its line {place['file']}:{place['line']}"


def _victims(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Each waits in a call that it recorded itself, where its dump has that number."""
    for victim in value["victims"]:
        name, _, number = (victim["operation"] or "").partition(" #")
        own = raw.calls.get(victim["rank"], {}).get(int(number), set()) if number.isdigit() else set()
        if own and not any(_same_call(name, recorded) for recorded in own):
            yield f"victim {victim['rank']} is said to be in {name} #{number}, and recorded {sorted(own)}"


def _same_call(name: str, recorded: str) -> bool:
    return (
        name.lower().strip("_").replace("_", "") in recorded.lower().replace("_", "")
        or recorded.lower() in name.lower()
    )


def _numbers(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """A number of an operation is in a dump, or one past its end, or stands in a log."""
    known = raw.numbers | {number + 1 for number in raw.numbers}
    for where, sentence in _sentences(value):
        for number in map(int, _NUMBER.findall(sentence)):
            if raw.numbers and number not in known and not re.search(rf"(?<!\d){number}(?!\d)", raw.text):
                yield f"{where}: no evidence has a number #{number}"


def _people(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Ranks that are spoken of exist."""
    world = (value["completeness"] or {}).get("ranks") or 0
    for where, sentence in _sentences(value):
        for listed in _RANKS.findall(sentence):
            last = max(int(part) for span in listed.split(", ") for part in span.split("-"))
            if raw.ranks and last > max(raw.ranks | {world - 1}):
                yield f"{where}: there is no rank {last}"
    first = value["first_reported"]
    if first is not None and first["at"] is None:
        reports = {
            int(rank) for rank in re.findall(r"^\[rank(\d+)\]:.*(?:Watchdog caught|RuntimeError)", raw.text, re.M)
        }
        if len(reports) > 1:
            yield f"rank {first['rank']} is said to have reported first, without a time, and {sorted(reports)} report"


def _advice(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    if raw.backends == {"gloo"} and "NCCL" not in raw.text.replace("TORCH_NCCL", "").replace("NCCL_", ""):
        for step in value["next_steps"]:
            if _OF_NCCL.search(step):
                yield f"advice about NCCL for a job on Gloo: {step}"
    clean = {int(r) for r in re.findall(r'"rank": (\d+),(?:(?!"rank":).){0,600}?"exit_status": 0\b', raw.text, re.S)}
    for step in value["next_steps"]:
        ranks = {int(number) for number in re.findall(r"\brank (\d+)\b", step)}
        if "dmesg" in step and ranks and ranks <= clean:
            yield f"the kernel's log for a rank that ended with status 0: {step}"


def _counts(value: dict[str, Any], text: str, raw: Raw) -> Iterator[str]:
    said = (value["completeness"] or {}).get("dumps")
    if said is not None and said > len(raw.dumped) and raw.dumped:
        yield f"{said} dumps are said to be there, and {len(raw.dumped)} are"
    waiting = _WAIT.search(text.split("\nWhy\n", 1)[0])
    if waiting is not None and int(waiting[1]) > len(value["victims"]):
        yield f"{waiting[1]} ranks are said to wait, of {len(value['victims'])} victims"
    for victim in value["victims"]:
        if victim["rank"] in {culprit["rank"] for culprit in value["culprits"]}:
            yield f"rank {victim['rank']} is a victim and accused"


def main() -> int:
    import hangscope
    from hangscope.report.export import to_json
    from hangscope.report.terminal import render_text

    found = 0
    for folder in sys.argv[1:]:
        verdict = hangscope.diagnose(hangscope.load(folder))
        for problem in problems(json.loads(to_json(verdict)), render_text(verdict, width=100), read(Path(folder))):
            found += 1
            print(f"{folder}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
