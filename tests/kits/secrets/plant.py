"""Secrets of every kind in every notation, planted in every place of an incident.

`python tests/kits/secrets/plant.py 1 2 3` (seeds) makes the bundles that a user makes of them, by default and with
--all-lines, and says what comes through. Each plant has values of its own, so what is learnt from one helps no other.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import json
import pickle
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))  # also run as a script

from kits.secrets import whole_texts
from kits.secrets.innocent import innocents
from kits.secrets.kinds import KINDS, Dice, Kind, Secret, secret
from kits.secrets.notations import BARE, BARE_BROKEN, BROKEN, NAMED, is_beyond, prefixed, written

WINDOW = 10
"""So many letters in a row of a secret are a leak; of a shorter secret all of it."""
EVIDENCE = "gpu-a017:81233:81301 [6] NCCL INFO Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA"


class Plant(NamedTuple):
    kind: str
    notation: str
    text: str
    parts: tuple[str, ...]
    """What nobody may read of it."""
    name: str = ""
    value: str = ""

    @property
    def beyond(self) -> bool:
        """Whether nothing promises to find it: it is known by prose, by another line or by a column alone."""
        return is_beyond(self.notation) or self.notation in whole_texts.BEYOND

    def needles(self) -> Iterator[str]:
        """The strings of which none may be found."""
        window = 3 * WINDOW if "{words}" in self.kind + self.notation else WINDOW  # phrases share words
        for part in self.parts:
            if len(part) <= window or "{user}" in self.notation or "{mail}" in self.notation:
                yield part
            else:
                yield from (part[at : at + window] for at in range(len(part) - window + 1))


def plants(seed: object, per_notation: int = 2, per_kind: int = 2) -> list[Plant]:
    """Every notation with some kinds, every kind in some notations, every whole text; in random order."""
    dice = Dice(seed)
    known = [kind for kind in KINDS if kind.known_by_form]
    found: list[Plant] = []
    for rows, kinds in ((NAMED, KINDS), (list(BROKEN), KINDS), (BARE, known), (list(BARE_BROKEN), known)):
        pairs = [(kind, row) for row in rows for kind in dice.random.sample(kinds, per_notation)]
        pairs += [(kind, row) for kind in kinds for row in dice.random.sample(rows, per_kind if rows is NAMED else 1)]
        found += [_plant(kind, row, dice, bare=kinds is known) for kind, row in pairs]
    for row, (text, parts) in whole_texts.whole_texts(dice):
        found.append(Plant("whole text", row, prefixed(text, dice) if dice.random.random() < 0.5 else text, parts))
    dice.random.shuffle(found)
    return found


def _plant(kind: Kind, row: str, dice: Dice, *, bare: bool) -> Plant:
    made = secret(kind, dice)
    while bare and not _found_alone(made):
        made = secret(kind, dice)
    broken = (BARE_BROKEN if bare else BROKEN).get(row)
    text, parts = broken(made) if broken is not None else written(row, made)
    return Plant(kind.shape, row, prefixed(text, dice), parts, "" if bare else made.name, "" if bare else made.value)


def _found_alone(made: Secret) -> bool:
    """Whether it has a form of its own, or is random enough without: some keys look like a name, as the page says."""
    from hangscope.bundle.redact.random_words import is_random

    has_form = re.sub(r"\{[^}]*\}|=", "", made.kind) != ""
    return has_form or is_random(made.value.encode())


def leaked(everything: Iterable[Plant], text: str) -> list[Plant]:
    """Those of which a needle is in the text, also where NULs are between its letters."""
    wanted: dict[str, list[Plant]] = collections.defaultdict(list)
    for one in everything:
        for needle in one.needles():
            wanted[needle].append(one)
    text = f"{text}\n{text.replace(chr(0), '')}" if "\0" in text else text
    windows = {text[at : at + WINDOW] for at in range(len(text) - WINDOW + 1)}
    seen = [needle for needle in wanted if (needle in windows if len(needle) == WINDOW else needle in text)]
    return list({id(one): one for needle in seen for one in wanted[needle]}.values())


# ---- an incident -----------------------------------------------------------------------------------------------------

PLACES = (
    "log", "among evidence", "message of an exception", "packed log", "kernel log", "stack", "dump", "dump, protocol 4",
    "dump in JSON", "settings", "gaps of a node", "error file", "manifest", "never seen", "text in UTF-16",
)  # fmt: skip


def incident(root: Path, everything: list[Plant], dice: Dice) -> dict[str, list[Plant]]:
    """An incident with a share of the plants in every place, and tokens in names of files and hosts."""
    places = {place: everything[number :: len(PLACES)] for number, place in enumerate(PLACES)}
    node = root / "nodes/gpu-worker-6"
    for folder in ("dumps", "logs", "stacks", "kernel"):
        (node / folder).mkdir(parents=True)
    _logs(node, {place: [one.text for one in rows] for place, rows in places.items()})
    for name, protocol in (("dump", 2), ("dump, protocol 4", 4)):
        dump = pickle.dumps(_dump(places[name]), protocol=protocol)
        (node / f"dumps/nccl_trace_rank_{protocol}").write_bytes(dump)
    (node / "dumps/nccl_trace_rank_1.json").write_text(json.dumps(_dump(places["dump in JSON"])))
    for number, one in enumerate(places["error file"]):
        (node / f"logs/error_rank_{number}.json").write_text(json.dumps(_error(one.text)))
    named = [one for one in places["settings"] if one.name]
    about: dict[str, Any] = {"schema": "hangscope.node/1", "node": "gpu-worker-6"}
    about["settings"] = {one.name: one.value for one in named}
    about["env"] = [{"name": one.name, "value": one.value} for one in named]
    about["gaps"] = [{"what": one.text, "why": one.text} for one in places["gaps of a node"]]
    places["settings"] = [one for one in named if about["settings"][one.name] == one.value]
    (node / "node.json").write_text(json.dumps(about))
    texts = [{"ranks": [0], "text": one.text, "by": "gpu-worker-6"} for one in places["never seen"]]
    manifest = {
        "schema": "hangscope.incident/1",
        "job": f"x {places['manifest'][0].text}",
        "reason": "stall",
        "detail": "; ".join(one.text for one in places["manifest"][1:4]),
        "gaps": [{"what": one.text, "why": one.text, "node": "gpu-worker-6"} for one in places["manifest"]],
        "settings": about["settings"],
        "never_seen": texts[::2],
        "elsewhere": texts[1::2],
    }
    (root / "incident.json").write_text(json.dumps(manifest))
    return {**places, "name": _names(root, node, dice)}


def _logs(node: Path, texts: dict[str, list[str]]) -> None:
    def write(name: str, lines: list[str]) -> None:
        (node / name).write_text("".join(f"{line}\n" for line in lines), newline="", encoding="utf-8")

    frame = '  File "/workspace/train.py", line 3, in main'
    for rank in range(4):
        rows = texts["log"][rank::4]
        write(f"logs/rank_{rank}.log", [line for number, row in enumerate(rows) for line in (f"step {number}", row)])
    write("logs/rank_4.log", [line for row in texts["among evidence"] for line in (EVIDENCE, row)])
    errors = [("Traceback (most recent call last):", frame, f"ValueError: {row}", "step 3") for row in texts[PLACES[2]]]
    write("logs/rank_5.log", [line for error in errors for line in error])
    packed = gzip.compress("".join(f"{row}\n" for row in texts["packed log"]).encode())
    (node / "logs/rank_6.log.gz").write_bytes(packed)
    write("kernel/dmesg.txt", [line for row in texts["kernel log"] for line in ("[12345.6] NVRM: Xid 79", row)])
    rows = [line for row in texts["stack"] for line in (frame, row)]
    write("stacks/rank_0.1.txt", ["Thread 0x00007f0fd6b67140 (most recent call first):", *rows])
    (node / "logs/launch.txt").write_text("".join(f"{row}\r\n" for row in texts[PLACES[-1]]), "utf-16", newline="")


def _dump(rows: list[Plant]) -> dict[str, Any]:
    entries = [
        {
            "frames": [{"name": one.text, "filename": f"/outputs/x={number}/train.py", "line": 3}],
            "process_group": (str(number), one.text),
            "profiling_name": f"nccl:{one.text}" if "\n" not in one.text else "nccl:all_reduce",
            "thread_name": one.text,
            "record_id": number,
            "extra": {one.name: one.value} if one.name else {},
        }
        for number, one in enumerate(rows)
    ]
    groups = {str(number): {"name": one.text, "desc": one.text, "ranks": "[0, 1]"} for number, one in enumerate(rows)}
    return {"version": "2.10", "pg_config": groups, "entries": entries}


def _error(text: str) -> dict[str, Any]:
    stack = f'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n{text}\nValueError: {text}'
    return {"message": {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}


def _names(root: Path, node: Path, dice: Dice) -> list[Plant]:
    """Files and hosts that bear a token."""
    found = []
    for kind in [kind for kind in KINDS if kind.known_by_form and kind.shape[0] != "{" and "/" not in kind.shape][:24]:
        made = secret(kind, dice)
        if "/" in made.value or not _found_alone(made):
            continue
        found.append(Plant(kind.shape, "in a name", f"run-{made.value}", made.parts))
        (node / f"logs/run-{made.value}.log").write_text("step 1\n")
        (root / f"nodes/run-{made.value}/logs").mkdir(parents=True)
        (root / f"nodes/run-{made.value}/logs/rank_9.log").write_text(f"{EVIDENCE}\n")
    return found


def members(bundle: Path) -> Iterator[tuple[str, str]]:
    """Every member's name and text; that of dumps and of packed logs decoded, that of JSON as it is and decoded."""
    with tarfile.open(bundle) as archive:
        for member in archive:
            raw = archive.extractfile(member).read()  # type: ignore[union-attr]
            raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            text = (
                json.dumps(pickle.loads(raw), ensure_ascii=False)
                if raw[:1] == b"\x80"
                else raw.decode("utf-8", "replace")
            )
            text = text.encode("utf-8", "backslashreplace").decode()
            if raw[:1] == b"\x80" or member.name.endswith(".json"):
                text += text.replace("\\n", "\n").replace('\\"', '"')
            yield member.name, text


def everything_in(bundle: Path) -> str:
    return "\n".join(f"{name}\n{text}" for name, text in members(bundle))


def through(seed: object, *options: str, per: int = 2) -> tuple[dict[str, list[Plant]], dict[str, list[Plant]]]:
    """What was planted by place, and what of it is in the bundle that `hangscope bundle` makes."""
    from hangscope.cli.main import main as hangscope

    with tempfile.TemporaryDirectory() as folder:
        root, target = Path(folder) / "in", Path(folder) / "x.tar.gz"
        planted = incident(root, plants(seed, per, per), Dice(f"names {seed}"))
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            assert hangscope(["bundle", str(root), "-o", str(target), *options]) == 0
        text = everything_in(target)
    return planted, {place: leaked(rows, text) for place, rows in planted.items()}


def main(seeds: list[str]) -> None:
    from hangscope.bundle.redact.redact_file import Redactor

    for options in ((), ("--all-lines",)):
        total = collections.Counter[str]()
        lost = collections.Counter[str]()
        promised = collections.Counter[str]()
        for seed in seeds or ["1"]:
            planted, found = through(seed, *options)
            for place, rows in found.items():
                total[place] += len(planted[place])
                lost[place] += len(rows)
                promised["planted"] += sum(not one.beyond for one in planted[place])
                promised["found"] += sum(not one.beyond for one in rows)
                for one in rows:
                    print(
                        f"{' '.join(options) or 'default'} | {place} | {one.kind} | {one.notation} | {one.text[:300]!r}"
                    )
        share = 100 * lost.total() / total.total()
        print(
            f"{' '.join(options) or 'default'}: {lost.total()} of {total.total()} come through ({share:.2f} %)",
            dict(+lost),
        )
        print(f"  of those that are promised {promised['found']} of {promised['planted']}")
    lines = innocents(Dice(seeds[0] if seeds else 1))
    harmed = [line for line in lines if Redactor().text(line.encode()) != line.encode()]
    print(f"{len(lines)} innocent strings, {len(harmed)} harmed: {harmed}")


if __name__ == "__main__":
    main(sys.argv[1:])
