"""Hostile evidence by a second hand, over `diagnose`, `show`, `report` and `bundle`, each in a process of its own.

``python tests/hostile/hostile_second.py --count 3000 --seed 1`` runs them all and lists what fell; ``--only 17
--keep DIR`` makes one of them again. Each verb must end without a traceback, with a status that is documented, within
5 seconds of CPU and 500 MB, write nothing but what it was asked for, print no character that moves a cursor or turns
writing round, name what it skipped and leave no process behind.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import importlib
import importlib.resources.readers
import json
import os
import pkgutil
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unicodedata
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import hangscope

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script

from hostile.hostile_second_inputs import CLASSES, Input, kind  # noqa: F401  # `kind` for tests that add their own

SECONDS, MEGABYTES, PATIENCE = 5.0, 500, 60
STATUSES = {"diagnose": {0, 1, 2, 3}, "report": {0, 1, 2, 3}}
VERBS = ("diagnose", "diagnose", "show", "report", "bundle", "bundle")
OUTSIDE = ("/tmp/h_second_pwned", "/tmp/h_second_escaped.log", "/tmp/h_second_escaped")


@dataclass
class Ended:
    """How one command ended."""

    words: list[str]
    status: int
    spent_s: float
    megabytes: float
    out: bytes
    err: bytes
    left_over: bool


def preload() -> None:
    """All modules, so that a child starts at once; nothing else may run in this process, or it could not be forked."""
    for found in pkgutil.walk_packages(hangscope.__path__, "hangscope."):
        if not any(part in found.name for part in ("cluster", "companion", "__main__", "_decoder")):
            with suppress(ImportError):
                importlib.import_module(found.name)

    from hangscope.cli.main import main as command

    with tempfile.TemporaryDirectory() as folder:  # another user may not be able to read what is loaded later
        given = str(Path(__file__).parents[1] / "cases" / "pair_absent")
        outputs = (word for end in ("html", "md", "json", "perfetto-trace") for word in ("-o", f"{folder}/r.{end}"))
        command(["report", given, *outputs])
        command(["bundle", given, "-o", f"{folder}/b.tar.gz", "--pseudonymise"])
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans of a child become ours, so that none is missed


def ask(words: list[str], base: Path, uid: int) -> Ended:
    out, err = base / "stdout", base / "stderr"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(words, base, out, err, uid)
    deadline = time.monotonic() + PATIENCE
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
            break
        time.sleep(0.002)
    left_over = _children_left(child)
    return Ended(
        words,
        os.waitstatus_to_exitcode(status),
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
        out.read_bytes(),
        err.read_bytes(),
        left_over,
    )


def _children_left(group: int) -> bool:
    """Whether somebody whom the command started still runs a second after its end."""
    deadline = time.monotonic() + 1
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        return True
    return False


def _become(words: list[str], base: Path, out: Path, err: Path, uid: int) -> None:
    status = 99
    try:
        os.setsid()
        for path, number in ((out, 1), (err, 2)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(handle, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(base / "cwd")
        os.environ.update(TMPDIR=str(base / "tmp"), HOME=str(base / "home"), PYTHONDONTWRITEBYTECODE="1")
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (12, 12))
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        from hangscope.cli.main import main as command

        status = command(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


# ---- what to ask -----------------------------------------------------------------------------------------------------


def command(rng: Random, given: Input, out: Path) -> list[str]:
    verb = rng.choice(given.verbs or VERBS)
    if given.named:
        verb = rng.choice(("diagnose", "bundle"))
    path = str(given.path)
    if verb == "diagnose":
        extra = (
            ["--json"]
            if given.named
            else rng.choice(([], ["--json"], ["-v"], ["--full", "--width", "40"], ["-v", "--width", "300"]))
        )
        return ["diagnose", path, *extra]
    if verb == "show":
        return [
            "show",
            path,
            *rng.choice(
                ([], ["--json"], ["--last", "3"], ["--state", "unfinished", "--width", "40"], ["--rank", "0-9"])
            ),
        ]
    if verb == "report":
        return [
            "report",
            path,
            *(word for end in ("html", "md", "json", "txt", "perfetto-trace") for word in ("-o", f"{out}/r.{end}")),
        ]
    if verb == "verify":
        return ["bundle", path, "--verify"]
    if verb == "unpack":
        return ["bundle", path, "--unpack", f"{out}/unpacked"]
    options = (
        [], [], ["--no-redact"], ["--pseudonymise"], ["--pseudonymise", "--all-lines"], ["--only-evidence"],
        ["--no-verdict"],
        ["--max-size", "1kB"], ["--max-size", "60kB"], ["--pseudonymise", "--map", f"{out}/map.json"],
    )  # fmt: skip
    return ["bundle", path, "-o", f"{out}/b.tar.gz", *rng.choice(options)]


# ---- what must hold --------------------------------------------------------------------------------------------------


def raw_characters(text: str, *, lines: bool = True) -> set[str]:
    """Characters that a terminal, a page or a ticket must not get as they are."""
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {ascii(char) for char in set(text) if unicodedata.category(char) in bad and not (lines and char in "\n")}


def _strict(text: str) -> object:
    def refuse(word: str) -> object:
        raise ValueError(f"{word} is no JSON")

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair in it
    return value


def problems(given: Input, end: Ended, base: Path, before: list[str]) -> list[str]:
    found: list[str] = []
    verb = end.words[0]
    said = end.out.decode("utf-8", "surrogateescape"), end.err.decode("utf-8", "surrogateescape")
    if "Traceback (most recent call last)" in said[1]:
        lines = [line for line in said[1].splitlines() if line.startswith("  File")]
        last = said[1].strip().splitlines()
        where = lines[-1].strip() if lines else ""
        kind_of = next((line for line in reversed(last) if re.match(r"\w[\w.]*(Error|Exception)\b", line)), "")[:100]
        found.append(f"traceback {where} {kind_of}")
    elif end.status not in STATUSES.get(verb, {0, 2}):
        found.append(f"status {end.status}")
    if end.spent_s > SECONDS:
        found.append(f"slow {end.spent_s:.1f} s")
    if end.megabytes > MEGABYTES:
        found.append(f"memory {end.megabytes:.0f} MB")
    if end.left_over:
        found.append("a process is left")
    found.extend(
        f"raw {sorted(bad)[:4]} in {where}"
        for where, text in zip(("stdout", "stderr"), said, strict=True)
        if (bad := raw_characters(text))
    )
    after = _outside(base)
    if after != before:
        found.append(f"written outside: {sorted(set(after) ^ set(before))[:3]}")
    found.extend(f"written outside: {path}" for path in OUTSIDE if os.path.lexists(path))
    if end.status in (0, 1, 3):
        found.extend(_products(given, end, base / "out", said[0]))
    return found


def _products(given: Input, end: Ended, out: Path, said: str) -> list[str]:
    found: list[str] = []
    if "--json" in end.words:
        try:
            for part in [said] if end.words[0] == "diagnose" else said.splitlines():
                _strict(part)
        except (ValueError, UnicodeEncodeError) as error:
            found.append(f"JSON on stdout: {error!s:.80}")
    if end.words[0] == "diagnose" and given.named:
        gaps = json.dumps(json.loads(said).get("gaps"))
        found.extend(f"not named: {name}" for name in given.named if name not in gaps)
    for path in sorted(out.iterdir()):
        found.extend(_product(path, given))
    return found


def _product(path: Path, given: Input) -> list[str]:
    if path.name == "r.json":
        try:
            _strict(path.read_bytes().decode())
        except (ValueError, UnicodeEncodeError) as error:
            return [f"r.json: {error!s:.80}"]
    if path.suffix in (".html", ".md", ".txt"):
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        found = [f"raw {sorted(bad)[:4]} in {path.name}"] if (bad := raw_characters(text)) else []
        if path.suffix == ".html":
            found += [f"{what} in the page" for what in ("<script>hsx", "<img src=http", "<svg onload") if what in text]
        if path.suffix == ".md":
            outside = re.sub(r"(?ms)^(`{3,})[^`\n]*\n.*?^\1`*$", "", text)
            outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
            bad_md = (r"(?<!\\)<(?:script|img|svg)", r"(?<!\\)\]\(http", r"(?<![\\\w])@(?:everyone|root|all)\b")
            found += [f"{what} in the ticket" for what in bad_md if re.search(what, outside)]
        return found
    if path.name == "b.tar.gz":
        return _bundle(path, given)
    if path.name == "r.perfetto-trace":
        from kits import perfetto_reader

        try:
            trace = perfetto_reader.load(gzip.decompress(path.read_bytes()))
            names = {one.name for one in trace.slices}
            if bad := raw_characters("".join(names)):
                return [f"raw {sorted(bad)[:4]} in the trace"]
        except Exception as error:  # whatever it is, it is a finding
            return [f"the trace is not read: {error!r:.80}"]
    return []


def _bundle(path: Path, given: Input) -> list[str]:
    from hangscope.bundle.unpack import verify
    from hangscope.errors import HangscopeError

    found: list[str] = []
    try:
        verify(path)
    except HangscopeError as error:
        found.append(f"its own bundle is refused: {error!s:.90}")
    with tarfile.open(fileobj=gzip.open(path)) as archive:
        for member in archive:
            if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in member.name.split("/"):
                found.append(f"bundled: {member.name!a:.80}")
            if member.name.count("/") == 1 and member.name.endswith("/incident.json"):
                gaps = (archive.extractfile(member) or open(os.devnull, "rb")).read().decode()  # noqa: SIM115
                found.extend(f"not named: {name}" for name in given.named if name not in gaps)
    return found


def _outside(base: Path) -> list[str]:
    """What there is beside the input and the output."""
    return [
        str(path.relative_to(base))
        for top in ("cwd", "home", "tmp", "canary")
        for path in sorted((base / top).rglob("*"))
    ] + sorted(path.name for path in base.iterdir())


# ---- one input, and all ----------------------------------------------------------------------------------------------


def attack(seed: str, index: int, *, keep: Path | None = None, only: str | None = None) -> tuple[str, Ended, list[str]]:
    """Make one input, ask a verb about it, and say what was wrong."""
    rng = Random(f"{seed}/{index}")
    names = sorted(CLASSES)
    name = only or names[index % len(names)]
    base = keep or Path(tempfile.mkdtemp(prefix="second-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    base.mkdir(exist_ok=True)
    try:
        for folder in ("cwd", "home", "tmp", "out", "canary"):
            (base / folder).mkdir(exist_ok=True)
        (base / "canary" / "secret.log").write_text("[rank0]: RuntimeError: canary\n")
        (base / "stdout").touch()
        (base / "stderr").touch()
        given = CLASSES[name](rng, base / "in")
        base.chmod(0o755)
        if given.uid:
            for folder in ("cwd", "home", "tmp", "out", "stdout", "stderr"):
                os.chown(base / folder, given.uid, given.uid)
        before = _outside(base)
        end = ask(command(rng, given, base / "out"), base, given.uid)
        return name, end, problems(given, end, base, before)
    finally:
        if keep is None:
            subprocess.run(["rm", "-rf", str(base)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", type=int, help="this one alone")
    parser.add_argument("--class", dest="name", choices=sorted(CLASSES), help="this class alone")
    parser.add_argument("--keep", type=Path, help="keep its input here")
    asked = parser.parse_args()
    preload()
    fallen: Counter[str] = Counter()
    worst: dict[str, float] = {}
    for index in [asked.only] if asked.only is not None else range(asked.first, asked.first + asked.count):
        name, end, wrong = attack(asked.seed, index, keep=asked.keep, only=asked.name)
        worst[name] = max(worst.get(name, 0), end.spent_s)
        for what in wrong:
            fallen[f"{name}: {re.sub(r'[0-9.]+ (s|MB)$', '', what)}"] += 1
            print(f"{index:6} {name:18} {what}   [{' '.join(end.words[:1] + end.words[2:])[:60]}]", flush=True)
        if asked.only is not None:
            print(
                end.words,
                end.status,
                f"{end.spent_s:.2f} s {end.megabytes:.0f} MB",
                end.out[-3000:].decode("utf-8", "replace"),
                end.err[-3000:].decode("utf-8", "replace"),
                sep="\n",
            )
    print(f"{asked.count} inputs of {len(CLASSES)} classes, {sum(fallen.values())} problems")
    for what, times in fallen.most_common():
        print(f"{times:6} {what}")
    print(
        "slowest of each class:",
        ", ".join(f"{name} {spent:.1f} s" for name, spent in sorted(worst.items(), key=lambda one: -one[1])[:12]),
    )
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
