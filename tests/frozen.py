"""The verdicts that a change of the house must not change: all recorded evidence, simulated jobs, the sweep's sample.

    python tests/frozen.py                   compare with what is stored, byte by byte
    python tests/frozen.py --only excerpts   one suite of: cases, links, live, outside, excerpts, wild, simulated, sweep
    python tests/frozen.py --keep DIR        write every verdict as a file of its own
    python tests/frozen.py --old DIR         also show what differs from the verdicts that --keep DIR wrote before
    python tests/frozen.py --write           store the verdicts of this checkout

Only a mended bug changes a verdict, and the commit that changes it names the bug. What is stored is a checksum of the
JSON and of the text, and the verdict in short; the whole of it is made again by an older checkout with `--keep`. The
tests compare all but a part of the simulated jobs (tests/diagnosis/corpus).

In frozen_verdicts.txt a reviewer reads what a change does, one line a verdict; frozen_checksums.txt holds the rest.
"""

from __future__ import annotations

import argparse
import difflib
import json
import multiprocessing
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hangscope
from kits.answers import NAME, Answer, Words, answer
from kits.recorded import recorded
from sweep import Change, Workspace, answers, by_workspace, changes, sample

HERE = Path(__file__).parent
STORED = HERE / "frozen_verdicts.txt"
CHECKSUMS = HERE / "frozen_checksums.txt"
SIMULATED = range(140_000, 140_300)
MOST_OPERATIONS = 40_000
LEAST_ENTRIES = 30
FOLDERS = 1500
"""Of the sweep."""
LOST = ("dumps", "stacks", "logs", "node.json")
SHM = Path("/dev/shm")

Work = tuple[str, str]
"""(suite, name)."""


# ---- what there is ---------------------------------------------------------------------------------------------------


def _cases() -> Iterator[str]:
    for suite in ("cases", "cases_gloo", "incidents"):
        for truth in sorted((HERE / suite).glob("*/truth.json")):
            yield f"{suite}/{truth.parent.name}"


def _in_archive(name: str) -> list[str]:
    with tarfile.open(HERE / name) as listing:
        return sorted(name.split("/")[0] for name in listing.getnames() if name.endswith("truth.json"))


def _incidents(archive: str) -> Iterator[str]:
    for name in _in_archive(archive):
        yield name
        yield from (f"{name}/without-{lost}" for lost in LOST)


def _wild() -> Iterable[str]:
    from kits.wild import folders

    return folders()


def sweeps() -> dict[str, Change]:
    """The sample of the sweep, by name."""
    chosen = sample([change for case in recorded() for change in changes(case)], FOLDERS)
    return {change.name: change for change in chosen}


SUITES: dict[str, Callable[[], Iterable[str]]] = {
    "cases": _cases,
    "links": lambda: _in_archive("recorded_links.tar.xz"),
    "live": lambda: _incidents("recorded_live.tar.xz"),
    "outside": lambda: _incidents("recorded_outside.tar.xz"),
    "excerpts": lambda: sorted(path.stem for path in (HERE / "excerpts").glob("*.txt")),
    "wild": _wild,
    "simulated": lambda: map(str, SIMULATED),
    "sweep": sweeps,
}


# ---- making one ------------------------------------------------------------------------------------------------------


@cache
def _members(archive: str) -> dict[str, bytes]:
    with tarfile.open(HERE / archive) as whole:
        streams = {member.name: whole.extractfile(member) for member in whole if member.isfile()}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


def injected(archive: str, name: str) -> dict[str, Any]:
    """The truth of a recording that lies in an archive."""
    found: dict[str, Any] = json.loads(_members(archive)[f"{name}/truth.json"])
    return found


def files_of(archive: str, name: str) -> dict[str, bytes]:
    """The files of one recording in an archive, its name in front."""
    return {member: data for member, data in _members(archive).items() if member.startswith(f"{name}/")}


def _extract(archive: str, name: str, target: Path) -> None:
    for member, data in files_of(archive, name).items():
        _put(target / Path(member).relative_to(name), data)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _make_incident(archive: str, name: str, target: Path) -> None:
    incident, _, lost = name.partition("/without-")
    _extract(archive, incident, target)
    for path in target.glob(f"nodes/*/{lost}") if lost else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _make_wild(name: str, target: Path) -> None:
    from kits.wild import folders

    for file, data in folders()[name].files.items():
        _put(target / file, data)


def _make_simulated(name: str, target: Path) -> None:
    from hangscope.errors import SettingsError
    from hangscope.simulate import random_spec, simulate

    spec = random_spec(int(name))
    if spec.backend != "torchcomms":
        spec = replace(spec, entries=min(spec.entries, max(LEAST_ENTRIES, MOST_OPERATIONS // spec.ranks)))
    try:
        simulate(spec).write(target)
    except SettingsError:
        target.mkdir(exist_ok=True)


MAKERS: dict[str, Callable[[str, Path], object]] = {
    "cases": lambda name, target: shutil.copytree(HERE / name, target),
    "links": lambda name, target: _extract("recorded_links.tar.xz", name, target),
    "live": lambda name, target: _make_incident("recorded_live.tar.xz", name, target),
    "outside": lambda name, target: _make_incident("recorded_outside.tar.xz", name, target),
    "excerpts": lambda name, target: _put(target / "job.log", (HERE / "excerpts" / f"{name}.txt").read_bytes()),
    "wild": _make_wild,
    "simulated": _make_simulated,
}


def made(suite: str, name: str, scratch: Path) -> tuple[Path, dict[str, object]]:
    """(the evidence in a folder of its own, the truth that lay beside it, if any)."""
    target = scratch / NAME
    MAKERS[suite](name, target)
    truth: dict[str, object] = {}
    for path in target.rglob("truth.json"):
        truth = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    return target, truth


@cache
def verdict(suite: str, name: str) -> Answer:
    """What hangscope says, once a process. Folders of the sweep are not made one by one, but by `sweep.answers`."""
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as scratch:
        return answer(made(suite, name, Path(scratch))[0])


def diagnosis(suite: str, name: str) -> hangscope.Diagnosis:
    """The same of evidence that is not refused."""
    found = verdict(suite, name).verdict
    assert isinstance(found, hangscope.Diagnosis)
    return found


# ---- comparing -------------------------------------------------------------------------------------------------------


@cache
def stored() -> dict[str, list[str]]:
    """suite/name → (checksum, the verdict in short)."""
    checksums = _lines(CHECKSUMS)
    return {key: [checksums.get(key, ""), short] for key, short in _lines(STORED).items()}


def _lines(path: Path) -> dict[str, str]:
    """`key: value` of each line. A checksum that a merge lost is an empty one, which equals none."""
    return dict(line.split(": ", 1) for line in path.read_text(encoding="utf-8").splitlines())


def names(suite: str) -> list[str]:
    """What is stored of a suite: the same as it has, and quicker than making it."""
    return [key.partition("/")[2] for key in stored() if key.startswith(f"{suite}/")]


def changed(suite: str, name: str, now: Words) -> str:
    """What is to be said about a verdict that is not as it is stored; nothing where it is."""
    before = stored().get(f"{suite}/{name}", ["", "not stored"])
    if before[0] == now.checksum:
        return ""
    same = " (in short the same)" if before[1] == now.short else ""
    return f"{suite}/{name}{same}\n  - {before[1]}\n  + {now.short}"


def _one(work: Work) -> list[tuple[Work, Words]]:
    return [(work, verdict(*work).words)]


def _swept(work: Workspace) -> list[tuple[Work, Words]]:
    made_of_it = []
    for change, found in answers(*work):
        if isinstance(found, Exception):
            raise found
        made_of_it.append((("sweep", change.name), found.words))
    return made_of_it


def run(only: list[str] | None, jobs: int) -> Iterator[tuple[Work, Words]]:
    """Every verdict of the suites that are asked for, on several processes."""
    wanted = [suite for suite in SUITES if suite in (only or SUITES)]
    singles = [(suite, name) for suite in wanted if suite != "sweep" for name in SUITES[suite]()]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=400) as pool:
        for found in pool.imap(_one, singles, chunksize=8):
            yield from found
        if "sweep" in wanted:
            for found in pool.imap(_swept, by_workspace(sweeps().values())):
                yield from found


def _file(directory: Path, key: str) -> Path:
    return directory / (key.replace("/", "__") + ".json")


def _difference(key: str, now: Words, old: Path | None) -> str:
    if old is None or not _file(old, key).exists():
        return ""
    before = _file(old, key).read_text(encoding="utf-8").splitlines()
    lines = list(difflib.unified_diff(before, f"{now.json}\n{now.text}".splitlines(), lineterm="", n=1))
    return "\n".join(lines[2:40]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store what this checkout says")
    parser.add_argument("--only", action="append", choices=sorted(SUITES), help="a suite; may be repeated")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write every verdict there")
    parser.add_argument("--old", type=Path, metavar="DIR", help="show the difference to what --keep wrote there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    now: dict[str, list[str]] = {}
    differing = 0
    for (suite, name), found in run(options.only, options.jobs):
        key = f"{suite}/{name}"
        now[key] = [found.checksum, found.short]
        if options.keep:
            _file(options.keep, key).write_text(f"{found.json}\n{found.text}", encoding="utf-8")
        if not options.write and (difference := changed(suite, name, found)):
            differing += 1
            print(f"{difference}\n{_difference(key, found, options.old)}", end="", flush=True)
    if options.write:
        store(now, options.only)
    print(f"{len(now)} verdicts, {differing} changed", file=sys.stderr)
    return 1 if differing else 0


def store(now: dict[str, list[str]], only: list[str] | None) -> None:
    """Write what there is now, and keep the suites that were not asked for."""
    before = stored() if STORED.exists() and only else {}
    kept = {key: value for key, value in before.items() if key.split("/")[0] not in (only or SUITES)}
    rows = sorted({**kept, **now}.items())
    STORED.write_text("".join(f"{key}: {short}\n" for key, (_, short) in rows), encoding="utf-8")
    CHECKSUMS.write_text("".join(f"{key}: {checksum}\n" for key, (checksum, _) in rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
