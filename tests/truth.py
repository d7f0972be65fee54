"""Whether the sentences of a verdict are true, by other code than that which wrote them: small readers of raw dumps and
stacks, and what can be read out of a sentence.

    python tests/truth.py FOLDER…    check what `hangscope diagnose` says of any folders

It knows nothing of hangscope but the verdict's JSON and text. What it cannot contradict, it passes.
"""

from __future__ import annotations

import json
import pickle
import re
import signal
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


@dataclass(frozen=True)
class Entry:
    """One recorded operation: the group's name and description, and (a file's own name, line) of its frames."""

    group: frozenset[str]
    number: int
    name: str
    state: str
    lines: frozenset[tuple[str, int]]


@dataclass
class Raw:
    """What the files hold, read without any judgement."""

    lines: set[tuple[str, int]] = field(default_factory=set)
    """(a file's own name, line) of every frame anywhere."""
    calls: dict[int, dict[int, set[str]]] = field(default_factory=dict)
    """Rank → number → the names that it recorded there."""
    sizes: dict[int, dict[int, set[str]]] = field(default_factory=dict)
    """Rank → number → the sizes of inputs that it recorded there, without blanks."""
    claimed: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    """A group's name → rank → the members that its recorder, or the call that makes it, lists."""
    statuses: dict[int, set[int]] = field(default_factory=dict)
    """Rank → the exit statuses that node.json has of it."""
    files: dict[str, int] = field(default_factory=dict)
    """A file's place below the folder → its lines, or its records."""
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    """Rank → what its recorder has, sends and receives left out."""
    stacked: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    """Rank → the lines in the files of its stacks."""
    formats: set[str] = field(default_factory=set)
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
            raw.files[str(path.relative_to(folder))] = _last_record(dump) if dump else data.count(b"\n") + 1
            if dump is not None:
                _take(raw, dump, path)
            else:
                _take_json(raw, data)
            if dump is None and data[:4096].count(0) == 0:
                texts.append(data.decode("utf-8", "replace"))
                named = _RANK_IN_NAME.search(path.name)
                if path.parent.name == "stacks" and named is not None:
                    raw.stacked.setdefault(int(named[1]), set()).update(_lines_of(texts[-1]))
    raw.text = "\n".join(texts)
    raw.lines.update(_lines_of(raw.text))
    for name, line in re.findall(r'\["[^"]*", "([^"]+)", (\d+)\]', raw.text):  # learnt call sites
        raw.lines.add((name.rsplit("/", 1)[-1], int(line)))
    raw.lines.update((name.rsplit("/", 1)[-1], int(line)) for name, line in _LINE.findall(raw.text))
    named = re.findall(r'"rank": ?(\d+)|\[rank(\d+)\]', raw.text)
    raw.ranks.update(int(number) for either in named for number in either if number)
    return raw


def _lines_of(text: str) -> Iterator[tuple[str, int]]:
    for match in _STACK_LINE.finditer(text):
        name, line = (match[1], match[2]) if match[1] else (match[3], match[4])
        yield name.replace("\\", "/").rsplit("/", 1)[-1], int(line)


def _last_record(dump: dict[str, Any]) -> int:
    """Records are cited by their number in the ring, which has lost the first of them, or by their place."""
    return max([len(dump["entries"]), *(int(entry.get("record_id", 0)) for entry in dump["entries"])])


def _take_json(raw: Raw, data: bytes) -> None:
    """What node.json says of ends, and what a call that makes a group was given."""
    try:
        value = json.loads(data) if data[:1] == b"{" else None
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    for row in value.get("ranks") or () if isinstance(value.get("ranks"), list) else ():
        if isinstance(row, dict) and isinstance(row.get("exit_status"), int):
            raw.statuses.setdefault(row["rank"], set()).add(row["exit_status"])
    if value.get("schema") == "hangscope.calls/1":
        for call in value["calls"]:
            if call.get("ranks") and call.get("group"):
                raw.claimed.setdefault(str(call["group"]), {})[value["rank"]] = set(call["ranks"])


def _dump(data: bytes) -> dict[str, Any] | None:
    try:
        value = pickle.loads(data) if data[:1] == b"\x80" else json.loads(data) if data[:1] == b"{" else None
    except Exception:
        return None
    return value if isinstance(value, dict) and "pg_config" in value and "entries" in value else None


def _take(raw: Raw, dump: dict[str, Any], path: Path) -> None:
    named = _RANK_IN_NAME.search(path.name)
    rank = int(dump["rank"]) if isinstance(dump.get("rank"), int) else int(named[1]) if named else None
    of_gloo = any(str(entry.get("profiling_name", "")).startswith("gloo:") for entry in dump["entries"])
    raw.backends.add("gloo" if of_gloo or "gloo" in path.name else "nccl")
    for entry in dump["entries"]:
        for frame in entry.get("frames") or ():
            raw.lines.add((str(frame["filename"]).rsplit("/", 1)[-1], int(frame["line"])))
        if rank is not None:
            number = entry.get("collective_seq_id", entry.get("seq_id"))
            name = _PREFIX.sub("", str(entry.get("profiling_name", "")))
            raw.calls.setdefault(rank, {}).setdefault(int(number), set()).add(name)
            sizes = re.sub(r"\s|\(|\)", "", str(entry.get("input_sizes", "")))
            raw.sizes.setdefault(rank, {}).setdefault(int(number), set()).add(sizes)
            raw.dumped.add(rank)
            if not entry.get("is_p2p") and name != "coalesced":
                group = entry.get("process_group") or ()
                frames = entry.get("frames") or ()
                raw.entries.setdefault(rank, []).append(
                    Entry(
                        frozenset(map(str, group if isinstance(group, list | tuple) else ())),
                        int(number),
                        name,
                        "completed" if entry.get("retired") else str(entry.get("state", "")),
                        frozenset((str(f["filename"]).rsplit("/", 1)[-1], int(f["line"])) for f in frames),
                    )
                )
    raw.formats.add(str(dump.get("version")))
    if rank is not None:
        raw.ranks.add(rank)
        for line in dump["pg_config"].values() if isinstance(dump["pg_config"], dict) else ():
            members = {int(each) for each in re.findall(r"\d+", str(line.get("ranks", "")))}
            if members and "name" in line:
                raw.claimed.setdefault(str(line["name"]), {})[rank] = members


# ---- the sentences ---------------------------------------------------------------------------------------------------


def problems(value: dict[str, Any], text: str, raw: Raw) -> Iterator[str]:
    """Everything that the evidence contradicts."""
    yield from _lines(value, raw)
    yield from _victims(value, raw)
    yield from _numbers(value, raw)
    yield from _people(value, raw)
    yield from _advice(value, raw)
    yield from _counts(value, text, raw)
    yield from _states(value, raw)
    yield from _ends(value, raw)
    yield from _places(value, raw)
    yield from _quoted(value, raw)
    yield from _groups(value, raw)
    yield from _in_flight(value, raw)
    yield from _last_good(value, raw)
    yield from _ruled_out(value, raw)
    yield from _listed_evidence(value, raw)
    yield from _gaps(value, raw)
    yield from _calls_at(value, raw)
    yield from _kernels(value, raw)
    yield from _peers(value)
    yield from _own_stacks(value, raw)


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


_OF_RANKS = r"ranks? ((?:\d+(?:-\d+)?(?:, )?)+)"
_CALL = r"([A-Za-z_]\w*) #(\d+)"
_IS_IN = re.compile(rf"^{_OF_RANKS} (?:is|are) inside {_CALL}|^{_OF_RANKS} now waits? in {_CALL}")
_LAST = re.compile(rf"^rank (\d+)'s last operation is {_CALL} in .*, completed$")
_RAN = re.compile(r"\brank (\d+) (?:ran (?:(\w+) )?|passed )(\[[\d, ]*\]) [A-Z]\w+")
_AT = re.compile(r"^at #(\d+) of ")
_STATUS = re.compile(r"^rank (\d+) exited with status (\d+)")
_KILLED = re.compile(r"^rank (\d+) was killed by (SIG\w+)")
_ENDS_WITH = re.compile(r"^rank \d+(?:'s log ends with|.* printed) ([\w.]+): (.{1,40})")
_LAST_LINE = re.compile(r"among its last lines: (.{1,200})$")
_MADE = re.compile(rf"^group (\S+) is made of {_OF_RANKS} on {_OF_RANKS} and made of {_OF_RANKS} on {_OF_RANKS}$")
_PLACE = re.compile(r"^(line|record) (\d+)$")


def _listed(text: str) -> list[int]:
    found: list[int] = []
    for span in text.strip(", ").split(", "):
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _findings(value: dict[str, Any]) -> Iterator[str]:
    yield from (finding["text"] for finding in value["why"])


def _states(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Who is said to be inside a call, or to have run it, recorded it, with that size, and nothing after the last."""
    for text in _findings(value):
        if (inside := _IS_IN.search(text)) is not None:
            listed, name, number = inside.groups()[:3] if inside[1] else inside.groups()[3:]
            for rank in _listed(listed):
                own = raw.calls.get(rank, {}).get(int(number), set())
                if own and not any(_same_call(name, recorded) for recorded in own):
                    yield f"rank {rank} is said to be in {name} #{number}, and recorded {sorted(own)}"
        if (last := _LAST.search(text)) is not None:
            rank, name, number = int(last[1]), last[2], int(last[3])
            own = raw.calls.get(rank, {}).get(number, set())
            if own and not any(_same_call(name, recorded) for recorded in own):
                yield f"rank {rank}'s last operation is said to be {name} #{number}, and it recorded {sorted(own)}"
        if (at := _AT.search(text)) is not None:
            for rank_text, _, sizes in _RAN.findall(text):
                own = raw.sizes.get(int(rank_text), {}).get(int(at[1]), set())
                if own and not any(sizes.replace(" ", "") in each for each in own):
                    yield f"rank {rank_text} is said to have passed {sizes} at #{at[1]}, and recorded {sorted(own)}"


def _ends(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """A status or a signal that is said is in node.json, or written somewhere."""
    for text in _findings(value):
        if (exited := _STATUS.search(text)) is not None:
            rank, status = int(exited[1]), int(exited[2])
            if raw.statuses.get(rank) and status not in raw.statuses[rank]:
                yield f"rank {rank} is said to have exited with {status}, and node.json has {raw.statuses[rank]}"
        if (killed := _KILLED.search(text)) is not None:
            number = int(signal.Signals[killed[2]])
            known = raw.statuses.get(int(killed[1]), set())
            if known and known.isdisjoint((-number, 128 + number)):
                yield f"rank {killed[1]} is said to be killed by {killed[2]}, and node.json has {known}"


def _places(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Each place that is cited exists: the file, and the line or record in it."""
    for finding in value["why"]:
        for source in finding["sources"]:
            file = next((f for f in raw.files if source["file"] == f or source["file"].endswith(f"/{f}")), None)
            at = _PLACE.match(source["place"] or "")
            if file is not None and at is not None and int(at[2]) > raw.files[file]:
                yield f"{source['file']} has no {source['place']}"


def _quoted(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """What a rank is said to have printed is in a file."""
    said = re.sub(r"\s+", " ", raw.text)
    for text in _findings(value):
        ends = _ENDS_WITH.search(text)
        last = _LAST_LINE.search(text)
        words = ends[2] if ends is not None else last[1] if last is not None else ""
        if words.rstrip("… ") not in said:
            yield f"no evidence has the words: {words}"
    for culprit in value["culprits"]:
        code = (culprit["where"] or {}).get("code")
        if code and code not in raw.text and json.dumps(code)[1:-1] not in raw.text:
            yield f"no evidence has the code: {code}"
        if culprit["pid"] is not None and not re.search(rf"(?<!\d){culprit['pid']}(?!\d)", raw.text + str(raw.files)):
            yield f"no evidence has the pid {culprit['pid']}"


def _groups(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """What each rank says of a group is in its recorder, or in the call that it is in."""
    for text in _findings(value):
        made = _MADE.search(text)
        for members, ranks in ((made[2], made[3]), (made[4], made[5])) if made is not None else ():
            for rank in _listed(ranks):
                if made is not None and raw.claimed.get(made[1], {}).get(rank) != set(_listed(members)):
                    yield f"rank {rank} has not said that group {made[1]} is of {members}"


def _of(raw: Raw, rank: int, group: str | None, number: int) -> list[Entry]:
    """What a rank recorded of that number in a group that is called so, by its name or its description."""
    words = set((group or "").replace("(", " ").replace(")", " ").split())
    return [each for each in raw.entries.get(rank, ()) if each.number == number and words & each.group]


_SYMMETRIC = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier", re.IGNORECASE)


def _in_flight(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Who is said not to have launched the operation has not recorded it; nobody left what a member never came to."""
    operation = value["operation"]
    if operation is None or operation["seq"] is None or "->" in operation["name"] or "<-" in operation["name"]:
        return
    states = operation["state_by_rank"]
    missing = [int(rank) for rank, state in states.items() if state == "not launched"]
    for rank in missing:
        own = _of(raw, rank, operation["group"], operation["seq"])
        if own and all(_same_call(operation["name"], entry.name) for entry in own):
            yield f"rank {rank} is said not to have launched {operation['name']} #{operation['seq']}, and recorded it"
    left = [rank for rank, state in states.items() if state == "completed"]
    if missing and left and _SYMMETRIC.search(operation["name"]) and "all_to_all" not in operation["name"]:
        yield f"ranks {left} are said to have completed what {missing} never launched"


def _last_good(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """What every member finished, each that recorded it did; and not all of them finished a later one, too."""
    last = value["last_completed"]
    if last is None or last["seq"] is None or re.search("->|<-", last["name"]) or value["operation"] is None:
        return
    members = [rank for rank in value["operation"]["members"] if raw.entries.get(rank)]
    if value["operation"]["group"] != last["group"]:
        return
    for rank in members:
        own = _of(raw, rank, last["group"], last["seq"])
        if own and all(entry.state in ("scheduled", "started") for entry in own) and not _gloo(raw):
            later = any(_of(raw, rank, last["group"], last["seq"] + more) for more in (1, 2))
            if not later:
                yield f"rank {rank} is said to have finished {last['name']} #{last['seq']}, and recorded {own[0].state}"
    following = [_of(raw, rank, last["group"], last["seq"] + 1) for rank in members]
    calls = {entry.name for own in following for entry in own}
    whole = 1 < len(members) == len(value["operation"]["members"]) and len(calls) == 1 and not _gloo(raw)
    if whole and all(own and all(entry.state == "completed" for entry in own) for own in following):
        yield f"{last['name']} #{last['seq']} is said to be the last that all finished, and all finished the next"


def _gloo(raw: Raw) -> bool:
    return "gloo" in raw.backends


_ALIVE = re.compile(r"^all (\d+) processes were alive$")
_AGREE = re.compile(r"agree on all (\d+) ranks$")
_STARTED = re.compile(rf"^the kernel of every waiting rank started {_CALL}$")
_NO_ERROR = re.compile(r"^no transport error in NCCL's log of (\d+) ranks?$")
_NET_WARNING = re.compile(
    r"NCCL WARN (?:NET/(?!Plugin)|.*(?:connection closed|Connection reset by peer|got completion))"
)


def _ruled_out(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    for each in value["ruled_out"]:
        why = each["why"]
        if (alive := _ALIVE.search(why)) is not None:
            count = (value["completeness"] or {}).get("ranks") or len(raw.ranks)
            if int(alive[1]) > count:
                yield f"{alive[1]} processes are said to be alive, of {count} ranks"
        if (agree := _AGREE.search(why)) is not None and int(agree[1]) > len(raw.dumped | raw.ranks):
            yield f"calls are said to agree on {agree[1]} ranks, and {len(raw.dumped)} recorded any"
        if _AGREE.search(why) is not None and value["operation"] is not None and value["operation"]["seq"] is not None:
            operation = value["operation"]
            names = {
                entry.name for rank in raw.entries for entry in _of(raw, rank, operation["group"], operation["seq"])
            }
            if len(names) > 1 and not _gloo(raw):
                yield f"calls are said to agree, and #{operation['seq']} is {sorted(names)}"
        if (started := _STARTED.search(why)) is not None and value["operation"] is not None:
            for victim in value["victims"]:
                own = _of(raw, victim["rank"], value["operation"]["group"], int(started[2]))
                if own and victim["operation"] == f"{started[1]} #{started[2]}" and own[0].state == "scheduled":
                    yield f"the kernel of rank {victim['rank']} is said to have started, and it recorded scheduled"
        if why.endswith("truncated messages, whose sizes differ") and "truncated" not in raw.text:
            yield "no log tells of a truncated message"
        elif _NO_ERROR.search(why) is not None and (line := _NET_WARNING.search(raw.text)) is not None:
            yield f"no transport error is said to be in NCCL's log: {raw.text[line.start() : line.start() + 160]}"


_DUMPS = re.compile(rf"^flight recorder dumps of {_OF_RANKS}, format (\S+)$")
_STACKS = re.compile(rf"^stacks of {_OF_RANKS}$")


def _listed_evidence(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Whose dumps and stacks are said to be there; of which format."""
    for each in value["evidence"]:
        if (dumps := _DUMPS.search(each["text"])) is not None:
            for rank in set(_listed(dumps[1])) - raw.dumped if raw.dumped else ():
                if not any(
                    _RANK_IN_NAME.search(file) and int(_RANK_IN_NAME.search(file)[1]) == rank for file in raw.files
                ):  # type: ignore[index]
                    yield f"a dump of rank {rank} is said to be there"
            if raw.formats and dumps[2] not in raw.formats:
                yield f"dumps are said to be of format {dumps[2]}, and are of {sorted(raw.formats)}"
        if (stacks := _STACKS.search(each["text"])) is not None and raw.stacked:
            for rank in set(_listed(stacks[1])) - set(raw.stacked):
                if f'"rank": {rank}' not in raw.text and f"rank={rank}" not in raw.text:
                    yield f"a stack of rank {rank} is said to be there"


def _gaps(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """What is said not to be there is not."""
    for gap in value["gaps"]:
        if gap["what"] == "flight recorder dumps" and gap["why"] == "none from any rank" and raw.dumped:
            yield f"no rank is said to have left a dump, and {sorted(raw.dumped)} did"
        missing = re.fullmatch(r"no dump of rank (\d+)", gap["what"])
        if missing is not None and int(missing[1]) in raw.dumped:
            yield f"rank {missing[1]} is said to have left no dump, and did"
        killed = re.search(r"killed by signal (\d+)|ended with status (\d+)", gap["why"])
        known = raw.statuses.get(int(missing[1]), set()) if missing is not None else set()
        if killed is not None and known:
            said = {-int(killed[1]), 128 + int(killed[1])} if killed[1] else {int(killed[2])}
            if known.isdisjoint(said):
                yield f"rank {missing[1] if missing else '?'}: {gap['why']}, and node.json has {sorted(known)}"


_CALLED = re.compile(rf"^(?:the others|{_OF_RANKS}) called {_CALL} at (\S+?):(\d+); rank (\d+) did not get there$")
_DIVERGE = re.compile(r"^the code paths diverge here: rank (\d+) continued at (\S+?):(\d+), the rest at (\S+?):(\d+)$")


def _calls_at(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """A call from a line is recorded with that line, by somebody else than who did not get there."""
    for text in _findings(value):
        if (called := _CALLED.search(text)) is not None:
            line = called[4].rsplit("/", 1)[-1], int(called[5])
            ranks = set(_listed(called[1])) if called[1] else set(raw.entries) - {int(called[6])}
            own = [e for rank in ranks for e in raw.entries.get(rank, ()) if e.number == int(called[3]) and e.lines]
            if own and not any(line in entry.lines for entry in own):
                yield f"nobody recorded {called[2]} #{called[3]} from {line[0]}:{line[1]}"
        if (parts := _DIVERGE.search(text)) is not None:
            odd = int(parts[1])
            here, there = (parts[2].rsplit("/", 1)[-1], int(parts[3])), (parts[4].rsplit("/", 1)[-1], int(parts[5]))
            mine = {line for e in raw.entries.get(odd, ()) for line in e.lines} | raw.stacked.get(odd, set())
            theirs = {line for rank, es in raw.entries.items() if rank != odd for e in es for line in e.lines}
            if mine and here not in mine:
                yield f"rank {odd} has no line {here[0]}:{here[1]}"
            if theirs and there not in theirs:
                yield f"nobody else has the line {there[0]}:{there[1]}"


_NEVER_STARTED = re.compile(rf"^rank (\d+) launched {_CALL}, but its kernel never started; it started on {_OF_RANKS}$")
_NONE_FINISHED = re.compile(rf"^all (\d+) members of (\S+).* started {_CALL}, and none finished it$")


def _kernels(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Which kernels started, by the recorded states."""
    group = (value["operation"] or {}).get("group")
    for text in _findings(value):
        if (never := _NEVER_STARTED.search(text)) is not None:
            own = _of(raw, int(never[1]), group, int(never[3]))
            if own and all(entry.state != "scheduled" for entry in own):
                yield f"the kernel of rank {never[1]} is said never to have started, and is {own[0].state}"
            for rank in _listed(never[4]):
                theirs = _of(raw, rank, group, int(never[3]))
                if theirs and all(entry.state == "scheduled" for entry in theirs):
                    yield f"the kernel of rank {rank} is said to have started, and is scheduled"
        if (none := _NONE_FINISHED.search(text)) is not None:
            states = {rank: [e.state for e in _of(raw, rank, none[2], int(none[4]))] for rank in raw.entries}
            done = [rank for rank, found in states.items() if found and set(found) == {"completed"}]
            if done:
                yield f"nobody is said to have finished {none[3]} #{none[4]}, and ranks {done} did"
            if sum(bool(found) for found in states.values()) > int(none[1]):
                yield f"{none[1]} members are said to be in {none[3]} #{none[4]}, and more recorded it"


_PEER = re.compile(r"^rank (\d+) is inside (?:send (\d+)->(\d+)|recv (\d+)<-(\d+)) of \S+ and waits for rank (\d+)$")


def _peers(value: dict[str, Any]) -> Iterator[str]:
    """Who sends or receives is one end, and waits for the other."""
    for text in _findings(value):
        if (peer := _PEER.search(text)) is not None:
            own, other = (peer[2], peer[3]) if peer[2] else (peer[4], peer[5])
            if (own, other) != (peer[1], peer[6]):
                yield f"the ends do not fit: {text}"


_THREAD = re.compile(r"^rank (\d+)'s \w+ thread is (?:here|not in a collective)$|^rank (\d+) is here$")


def _own_stacks(value: dict[str, Any], raw: Raw) -> Iterator[str]:
    """Frames that are shown of a rank's thread are in a stack of that rank, and of no other alone."""
    for finding in value["why"]:
        thread = _THREAD.search(finding["text"])
        if thread is None:
            continue
        rank = int(thread[1] or thread[2])
        for name, line in re.findall(r"(\S+?):(\d+)  \S", "\n".join(finding["detail"])):
            if raw.stacked.get(rank) and (name.rsplit("/", 1)[-1], int(line)) not in raw.stacked[rank]:
                yield f"no stack of rank {rank} has {name}:{line}"


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
