"""The verdicts that a change of the house must not change: all recorded evidence, simulated jobs, the sweep's sample.

    python tests/frozen.py --write           store the verdicts of this checkout
    python tests/frozen.py                   compare with what is stored, byte by byte
    python tests/frozen.py --only excerpts   one suite of: cases, links, live, excerpts, wild, simulated, sweep
    python tests/frozen.py --old DIR         also show what differs from the verdicts that --keep DIR wrote before
    python tests/frozen.py --keep DIR        write every verdict as a file of its own

Only a mended bug changes a verdict, and the commit that changes it names the bug. What is stored is a checksum of the
JSON and of the text, and the verdict in short; the whole of it is made again by an older checkout with `--keep`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import lzma
import multiprocessing
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED = HERE / "frozen_verdicts.json.xz"
SIMULATED = range(140_000, 140_300)
MOST_OPERATIONS = 40_000
LEAST_ENTRIES = 30
FOLDERS = 1500
LOST = ("dumps", "stacks", "logs", "node.json")
WHEN = 1_790_000_000
"""The time of every file: a checkout or an unpacked archive gives them the time of the day."""

Work = tuple[str, str, str]
"""(suite, name, whatever the suite needs to make it)."""


# ---- what there is ---------------------------------------------------------------------------------------------------


def _cases() -> Iterator[Work]:
    for suite in ("cases", "cases_gloo", "incidents"):
        for truth in sorted((HERE / suite).glob("*/truth.json")):
            yield "cases", f"{suite}/{truth.parent.name}", ""


def _names(archive: Path) -> list[str]:
    with tarfile.open(archive) as listing:
        return sorted(name.split("/")[0] for name in listing.getnames() if name.endswith("truth.json"))


def _links() -> Iterator[Work]:
    for name in _names(HERE / "recorded_links.tar.xz"):
        yield "links", name, ""


def _live() -> Iterator[Work]:
    for name in _names(HERE / "recorded_live.tar.xz"):
        for lost in ("", *LOST):
            yield "live", f"{name}{'/without-' if lost else ''}{lost}", lost


def _excerpts() -> Iterator[Work]:
    for path in sorted((HERE / "excerpts").glob("*.txt")):
        yield "excerpts", path.stem, ""


def _wild() -> Iterator[Work]:
    for name in _wild_folders():
        yield "wild", name, ""


@cache
def _wild_folders() -> dict[str, Any]:
    from kits import (
        wild_dumps,  # noqa: F401  (each brings its folders)
        wild_logs,  # noqa: F401
        wild_mixed,  # noqa: F401
        wild_records,  # noqa: F401
    )
    from kits.wild import folders

    return {folder.name: folder for folder in folders()}


def _simulated() -> Iterator[Work]:
    for seed in SIMULATED:
        yield "simulated", str(seed), ""


def _sweep() -> Iterator[Work]:
    from kits.knowable import recorded
    from sweep import changes, sample

    for change in sample([change for case in recorded() for change in changes(case)], FOLDERS):
        yield "sweep", change.name, ""


SUITES: dict[str, Callable[[], Iterator[Work]]] = {
    "cases": _cases,
    "links": _links,
    "live": _live,
    "excerpts": _excerpts,
    "wild": _wild,
    "simulated": _simulated,
    "sweep": _sweep,
}


# ---- making one ------------------------------------------------------------------------------------------------------


@cache
def _members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as whole:
        streams = {member.name: whole.extractfile(member) for member in whole if member.isfile()}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


def _extract(archive: Path, name: str, target: Path) -> None:
    for member, data in _members(archive).items():
        if member.startswith(f"{name}/"):
            path = target / Path(member).relative_to(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _make(work: Work, target: Path) -> None:
    """The evidence, in a folder of its own."""
    suite, name, detail = work
    if suite == "cases":
        shutil.copytree(HERE / name, target)
    elif suite == "links":
        _extract(HERE / "recorded_links.tar.xz", name, target)
    elif suite == "live":
        _extract(HERE / "recorded_live.tar.xz", name.split("/")[0], target)
        for path in target.glob(f"nodes/*/{detail}") if detail else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif suite == "excerpts":
        target.mkdir()
        shutil.copyfile(HERE / "excerpts" / f"{name}.txt", target / "job.log")
    elif suite == "wild":
        for file, data in _wild_folders()[name].files.items():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_bytes(data)
    elif suite == "simulated":
        _simulate(int(name), target)
    elif suite == "sweep":
        _damage(name, target)
    for path in target.rglob("truth.json"):
        path.unlink()
    for path in (target, *target.rglob("*")):
        os.utime(path, (WHEN, WHEN))


def _simulate(seed: int, target: Path) -> None:
    from hangscope.errors import SettingsError
    from hangscope.simulate import random_spec, simulate

    spec = random_spec(seed)
    if spec.backend != "torchcomms":
        spec = replace(spec, entries=min(spec.entries, max(LEAST_ENTRIES, MOST_OPERATIONS // spec.ranks)))
    try:
        simulate(spec).write(target)
    except SettingsError:
        target.mkdir(exist_ok=True)


def _damage(name: str, target: Path) -> None:
    from kits.knowable import SUITES as RECORDED
    from kits.knowable import read_case
    from sweep import applied, changes, workspace

    suite, case_name = name.split("/")[:2]
    case = read_case(suite, RECORDED[suite] / case_name)
    change = next(change for change in changes(case) if change.name == name)
    with workspace(case, change.logs, target.parent) as folder, applied(case, change, folder):
        shutil.copytree(folder, target)


def verdict(work: Work) -> tuple[Work, str, str]:
    """(which, the verdict as JSON, the verdict as text)."""
    import hangscope
    from hangscope.errors import HangscopeError
    from hangscope.report.export import to_json
    from hangscope.report.terminal import render_text

    before = Path.cwd()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        _make(work, Path(scratch) / "job")
        os.chdir(scratch)
        try:
            found = hangscope.diagnose(hangscope.load(["job"]))
            return work, to_json(found), render_text(found, width=100, verbose=True)
        except HangscopeError as error:
            return work, json.dumps({"error": str(error), "hint": error.hint}, indent=1), ""
        finally:
            os.chdir(before)


# ---- comparing -------------------------------------------------------------------------------------------------------


def short(said: str) -> str:
    """The verdict in one line."""
    value = json.loads(said)
    if "error" in value:
        return f"refused: {value['error']}"
    accused = ",".join(str(culprit["rank"]) for culprit in value["culprits"])
    return f"{value['outcome']} {value['kind']} [{accused}] {value['confidence']}: {value['headline']}"


def checksum(said: str, text: str) -> str:
    return hashlib.blake2b(f"{said}\0{text}".encode(), digest_size=12).hexdigest()


def works(only: list[str] | None = None) -> list[Work]:
    return [work for suite, listed in SUITES.items() if not only or suite in only for work in listed()]


def run(wanted: list[Work], jobs: int) -> Iterator[tuple[Work, str, str]]:
    if jobs < 2:
        yield from map(verdict, wanted)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=400) as pool:
        yield from pool.imap(verdict, wanted, chunksize=8)


def stored() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(lzma.decompress(STORED.read_bytes()))
    return found


def _file(directory: Path, key: str) -> Path:
    return directory / (key.replace("/", "__") + ".json")


def _difference(key: str, said: str, text: str, old: Path | None) -> str:
    if old is None or not _file(old, key).exists():
        return ""
    before = _file(old, key).read_text(encoding="utf-8").splitlines()
    lines = list(difflib.unified_diff(before, f"{said}\n{text}".splitlines(), lineterm="", n=1))
    return "\n".join(lines[2:40]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store what this checkout says")
    parser.add_argument("--only", action="append", choices=sorted(SUITES), help="a suite; may be repeated")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write every verdict there")
    parser.add_argument("--old", type=Path, metavar="DIR", help="show the difference to what --keep wrote there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    options = parser.parse_args()
    before = stored() if STORED.exists() else {}
    now: dict[str, list[str]] = {}
    changed = 0
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    for (suite, name, _), said, text in run(works(options.only), options.jobs):
        key = f"{suite}/{name}"
        now[key] = [checksum(said, text), short(said)]
        if options.keep:
            _file(options.keep, key).write_text(f"{said}\n{text}", encoding="utf-8")
        if not options.write and before.get(key, [""])[0] != now[key][0]:
            changed += 1
            print(f"{key}\n  - {before.get(key, ['', 'not stored'])[1]}\n  + {now[key][1]}", flush=True)
            print(_difference(key, said, text, options.old), end="", flush=True)
    if options.write:
        kept = {key: value for key, value in before.items() if options.only and key.split("/")[0] not in options.only}
        text = json.dumps(dict(sorted({**kept, **now}.items())), indent=0)
        STORED.write_bytes(lzma.compress(text.encode()))
    print(f"{len(now)} verdicts, {changed} changed", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
