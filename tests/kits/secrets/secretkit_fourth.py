"""A fourth generator of secrets, written blind: `python tests/kits/secrets/secretkit_fourth.py SEED…`

Its author had not seen what is recognised, nor the other generators.
Kinds, notations and whole texts are in the modules beside it. Each plant has values of its own, so what is learnt from
one helps no other. The command plants them in logs, settings, stacks, dumps, a manifest and in names, makes the bundle
that a user makes, and prints what comes through.
"""

from __future__ import annotations

import collections
import itertools
import json
import pickle
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))  # also run as a script

from kits.secrets.secretkit_fourth_innocent import innocents
from kits.secrets.secretkit_fourth_kinds import KINDS, Dice, Secret, made
from kits.secrets.secretkit_fourth_notations import NOTATIONS, PREFIXES
from kits.secrets.secretkit_fourth_whole import WHOLE

WINDOW = 10
"""So many characters in a row of a secret are a leak; of a shorter secret all of it."""


class Plant(NamedTuple):
    kind: str
    notation: str
    text: str
    parts: tuple[str, ...]
    name: str = ""
    value: str = ""

    def needles(self) -> Iterator[str]:
        whole = self.kind.startswith(("user ", "mail", "gcp account"))
        window = 3 * WINDOW if self.kind.startswith("recovery") else WINDOW  # phrases share words
        for part in self.parts:
            if len(part) <= window or whole:
                yield part
            else:
                yield from (part[i : i + window] for i in range(len(part) - window + 1))


def _logged(d: Dice, text: str) -> str:
    """The text as a launcher writes it: one rank's mark before each line, the time going on where there is one."""
    front = d.random.choice(PREFIXES)
    first = front(d)
    timed = re.search(r"\d\d:\d\d:\d\d", first)
    return "\n".join((front(d) if timed else first) + line for line in text.split("\n"))


def _written(d: Dice, secret: Secret, notation: str) -> Plant:
    text = NOTATIONS[notation](d, secret)
    text, parts = (text, secret.parts) if isinstance(text, str) else text
    return Plant(secret.kind, notation, _logged(d, text), parts, secret.name, secret.value)


def plants(seed: int, per_notation: int = 8, per_kind: int = 4) -> list[Plant]:
    """Every notation with some kinds, every kind in some notations, every whole text."""
    d = Dice(f"fourth {seed}")
    found = []
    for notation in NOTATIONS:
        for kind in d.random.sample(sorted(KINDS), per_notation):
            found.append(_written(d, made(kind, d), notation))
    for kind in KINDS:
        for notation in d.random.sample(sorted(NOTATIONS), per_kind):
            found.append(_written(d, made(kind, d), notation))
    for kind, make in WHOLE.items():
        for _ in range(max(1, per_kind // 2)):
            text, parts = make(d)
            text = _logged(d, text) if d.random.random() < 0.5 else text
            found.append(Plant(kind, "whole", text, parts))
    d.random.shuffle(found)
    return found


def leaked(everything: Iterable[Plant], text: str) -> list[Plant]:
    """Those of which a window stands in the text, also where NULs stand between its characters."""
    wanted: dict[int, dict[str, list[Plant]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for one in everything:
        for needle in one.needles():
            wanted[len(needle)][needle].append(one)
    found: dict[int, Plant] = {}
    for body in (text, text.replace("\0", "")) if "\0" in text else (text,):
        for length, needles in wanted.items():
            seen = {body[i : i + length] for i in range(len(body))} & needles.keys()
            found |= {id(one): one for needle in seen for one in needles[needle]}
    return list(found.values())


def _names_of(everything: list[Plant], d: Dice) -> list[Plant]:
    """Files and hosts that bear a token or a person's name."""
    rows = []
    for kind in ("huggingface", "github", "openai", "groq", "anthropic", "unknown vendor token"):
        secret = made(kind, d)
        rows.append(Plant(kind, "in a name", f"run-{secret.value}", secret.parts))
    return rows


def _run_folder(one: Plant) -> str:
    """Hydra names a run's folder after its overrides."""
    return f"/outputs/lr=0.1,{one.name}={one.value.replace('/', '_')}/train.py" if one.name else f"/x/{one.text}.py"


def plant(root: Path, seed: int, per_notation: int = 8, per_kind: int = 4) -> tuple[dict[str, list[Plant]], list[str]]:
    """An incident with all of it: plants by place, and the innocent lines that are in its logs."""
    d = Dice(f"places {seed}")
    everything = plants(seed, per_notation, per_kind)
    good = innocents(d)
    share = len(everything) // 20
    cut = iter(everything)
    take = {
        place: list(itertools.islice(cut, share))
        for place in ("stacks", "dump", "settings", "manifest", "never_seen", "error file", "utf-16 file")
    }
    take["logs"] = list(cut)
    take["names"] = _names_of(everything, d)
    node = root / "nodes/gpu-worker-6"
    for folder in ("logs", "stacks", "dumps"):
        (node / folder).mkdir(parents=True)
    lines = [f"step {i}\n{one.text}\n" for i, one in enumerate(take["logs"])]
    (node / "logs/nccl.gpu-worker-6.1190.log").write_text("".join(f"{line}\n" for line in good))
    for rank in range(8):
        (node / f"logs/rank_{rank}.log").write_text("".join(lines[rank::8]), newline="")
    (node / "logs/launch.txt").write_text(
        "".join(f"{one.text}\r\n" for one in take["utf-16 file"]), "utf-16", newline=""
    )
    frame = '  File "/workspace/train.py", line 3, in main\n'
    stack = "".join(f"{frame}{one.text}\n" for one in take["stacks"])
    (node / "stacks/rank_0.1.txt").write_text(
        f"Thread 0x00007f0fd6b67140 (most recent call first):\n{stack}", newline=""
    )
    entries = [
        {
            "frames": [{"name": one.text, "filename": _run_folder(one), "line": 3}],
            "process_group": (str(i), one.text),
            "profiling_name": "nccl:all_reduce",
            "thread_name": one.text,
            "record_id": i,
        }
        for i, one in enumerate(take["dump"])
    ]
    config = {str(i): {"name": one.text, "desc": one.text, "ranks": "[0, 1]"} for i, one in enumerate(take["dump"])}
    dump = {"version": "2.10", "pg_config": config, "entries": entries}
    (node / "dumps/nccl_trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    (node / "dumps/nccl_trace_rank_1.json").write_text(json.dumps(dump))
    settings = {one.name: one.value for one in take["settings"] if one.name}
    about = {"schema": "hangscope.node/1", "node": "gpu-worker-6", "settings": settings}
    gaps = [{"what": one.text, "why": one.text} for one in take["settings"]]
    (node / "node.json").write_text(json.dumps({**about, "gaps": gaps}))
    for i, one in enumerate(take["error file"]):
        said = {"message": {"message": one.text, "extraInfo": {"py_callstack": f"{frame}{one.text}", "timestamp": "1"}}}
        (node / f"logs/error_rank_{i}.json").write_text(json.dumps(said))
    for one in take["names"]:
        (node / f"logs/{one.text}.log").write_text("step 1\n")
        (root / f"nodes/{one.text}/logs").mkdir(parents=True)
        (root / f"nodes/{one.text}/logs/rank_9.log").write_text("step 1\n")
    texts = [{"ranks": [i], "text": one.text, "by": "gpu-worker-6"} for i, one in enumerate(take["never_seen"])]
    manifest = {
        "schema": "hangscope.incident/1",
        "job": "48121",
        "attempt": "0",
        "reason": "stall",
        "detail": "; ".join(one.text for one in take["manifest"][:3]),
        "gaps": [{"what": one.text, "why": one.text, "node": "gpu-worker-6"} for one in take["manifest"]],
        "never_seen": texts[::2],
        "elsewhere": texts[1::2],
    }
    (root / "incident.json").write_text(json.dumps(manifest))
    return take, good


def members(bundle: Path) -> Iterator[tuple[str, str]]:
    """Every member's text and the names; text of JSON and dumps decoded as well."""
    with tarfile.open(bundle) as archive:
        for member in archive:
            yield "names", member.name
            if not member.isfile():
                continue
            raw = archive.extractfile(member).read()  # type: ignore[union-attr]
            text = raw.decode("utf-8", "replace")
            if raw[:1] == b"\x80":
                text += json.dumps(pickle.loads(raw), ensure_ascii=False)
            if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                text += raw.decode("utf-16", "replace")
            yield member.name, text


def run(seed: int, folder: Path, **how: object) -> tuple[dict[str, list[Plant]], dict[str, list[Plant]], list[str]]:
    """What was planted by place, what of it came through, and the innocent lines that did not."""
    from hangscope.bundle.pack import write_bundle

    planted, good = plant(folder / "in", seed)
    write_bundle(folder / "in", folder / "x.tar.gz", **how)  # type: ignore[arg-type]
    everything = "\n".join(f"{name}\n{text}" for name, text in members(folder / "x.tar.gz"))
    lost = {place: leaked(rows, everything) for place, rows in planted.items()}
    return planted, lost, [line for line in good if line not in everything]


def main(seeds: list[str]) -> int:
    total = through = harmed = 0
    kinds: collections.Counter[str] = collections.Counter()
    ways: collections.Counter[str] = collections.Counter()
    for seed in seeds or ["0"]:
        with tempfile.TemporaryDirectory() as folder:
            planted, lost, gone = run(int(seed), Path(folder))
        for place, rows in lost.items():
            for one in rows:
                kinds[one.kind] += 1
                ways[one.notation] += 1
                print(f"LEAK {place} | {one.kind} | {one.notation} | {one.text[:600]!r}")
        for line in gone:
            print(f"HARMED {line}")
        total += sum(map(len, planted.values()))
        through += sum(map(len, lost.values()))
        harmed += len(gone)
    print("kinds", kinds.most_common(40))
    print("notations", ways.most_common(60))
    print(f"{through} of {total} came through; {harmed} innocent lines harmed")
    return through + harmed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
