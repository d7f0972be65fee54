"""What must hold, whatever was handed over and whatever was asked.

No traceback, a status that is documented, 5 seconds of CPU, 500 MB, no process left behind, nothing written but what
was asked for, no code of a file run, no character that moves a cursor or turns writing round, products that can be
trusted, and a name for everything that was skipped.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
import unicodedata
from pathlib import Path

from hangscope.bundle.unpack import verify
from hangscope.cli.main import INTERNAL_ERROR
from hangscope.errors import HangscopeError
from hangscope.safeio.walk import survey
from hostile.asking import Ended
from hostile.inputs.registry import Input
from hostile.questions import STARTED, STATUS
from kits import perfetto_reader

SECONDS = 5.0
MEGABYTES = 500
STATUSES = {
    "diagnose": {0, 1, 2, 3},
    "report": {0, 1, 2, 3},
    "show": {0, 2},
    "bundle": {0, 2},
    "run": {STATUS, 2},
}
"""Those that are documented; of other verbs, any that is no mistake of hangscope's."""
OUTSIDE = ("/tmp/h_second_pwned", "/tmp/h_second_escaped.log", "/tmp/h_second_escaped")
"""What the inputs try to write."""


def problems(given: Input, end: Ended, base: Path, before: list[str]) -> list[str]:
    """Everything that is wrong. `before` is what `beside` said before."""
    verb = end.question.verb
    out, err = (text.decode("utf-8", "surrogateescape") for text in (end.out, end.err))
    found = _ending(end, f"{out}\n{err}" if verb in STARTED else err)
    if verb not in STARTED:
        found += [f"slow {end.spent_s:.1f} s"] if end.spent_s > SECONDS else []
        found += [f"memory {end.megabytes:.0f} MB"] if end.megabytes > MEGABYTES else []
    if end.left_over:
        found.append("a process is left")
    if verb != "env":  # which gives a shell the directory as it is
        streams = (("stdout", out), ("stderr", err))
        found += [f"raw {sorted(bad)[:4]} in {where}" for where, text in streams if (bad := raw_characters(text))]
    written = set(beside(base)) ^ set(before)
    if verb in STARTED:
        # Where the ranks' sockets are, and the directory beside one that holds an earlier run.
        written = {path for path in written if not path.startswith(("tmp/hangscope-", "in."))}
    found += [f"written outside: {path}" for path in sorted(written)[:3]]
    found += [f"written outside: {path}" for path in OUTSIDE if os.path.lexists(path)]
    found += [f"seen: {what:.100}" for what in end.seen[:3]]
    if end.status in (0, 1, 3):
        found += _products(given, end, base / "out", out)
    return found


def _ending(end: Ended, said: str) -> list[str]:
    verb = end.question.verb
    if "Traceback (most recent call last)" in said and (verb not in STARTED or "hangscope/" in said):
        frames = [line.strip() for line in said.splitlines() if line.startswith("  File")]
        errors = [line for line in said.splitlines() if re.match(r"\w[\w.]*(Error|Exception)\b", line)]
        return [f"traceback {''.join(frames[-1:])} {''.join(errors[-1:])[:100]}"]
    if end.status == INTERNAL_ERROR or "mistake in hangscope" in said:
        return [f"hangscope's own mistake: {said[-300:]}"]
    if verb in STATUSES and end.status not in STATUSES[verb]:
        return [f"status {end.status}"]
    return []


def raw_characters(text: str) -> set[str]:
    """Characters that a terminal, a page or a ticket must not get as they are."""
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return {ascii(char) for char in set(text) if unicodedata.category(char) in bad and char != "\n"}


def beside(base: Path) -> list[str]:
    """What there is beside the input and the output."""
    inside = (path for top in ("cwd", "home", "tmp", "canary") for path in sorted((base / top).rglob("*")))
    return [str(path.relative_to(base)) for path in inside] + sorted(path.name for path in base.iterdir())


# ---- what was made ---------------------------------------------------------------------------------------------------


def _products(given: Input, end: Ended, out: Path, said: str) -> list[str]:
    found: list[str] = []
    words = end.question.words
    if "--json" in words and words[0] in ("diagnose", "show"):
        try:
            for part in [said] if words[0] == "diagnose" else said.splitlines():
                _strict(part)
        except (ValueError, UnicodeEncodeError) as error:
            found.append(f"JSON on stdout: {error!s:.80}")
    if words[0] == "diagnose" and given.named:
        gaps = json.dumps(json.loads(said).get("gaps"))
        found += [f"not named: {name}" for name in given.named if name not in gaps]
    checks = {".json": _json, ".html": _page, ".md": _ticket, ".txt": _text, ".perfetto-trace": _trace}
    for path in sorted(out.iterdir()):
        if path.name == "b.tar.gz":
            found += _bundle(path, given)
        elif path.stem == "r" and path.suffix in checks:
            found += checks[path.suffix](path)
    return found


def _strict(text: str) -> None:
    """JSON that every parser takes."""

    def refuse(word: str) -> object:
        raise ValueError(f"{word} is no JSON")

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair in it


def _json(path: Path) -> list[str]:
    try:
        _strict(path.read_bytes().decode())
    except (ValueError, UnicodeEncodeError) as error:
        return [f"{path.name}: {error!s:.80}"]
    return []


def _text(path: Path) -> list[str]:
    bad = raw_characters(path.read_bytes().decode("utf-8", "surrogateescape"))
    return [f"raw {sorted(bad)[:4]} in {path.name}"] if bad else []


def _page(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    scripts = ("<script>hsx", "<img src=http", "<svg onload")
    return _text(path) + [f"{what} in the page" for what in scripts if what in text]


def _ticket(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    outside_code = re.sub(r"(?ms)^ {0,3}(`{3,})[^`\n]*\n.*?^ {0,3}\1`*$", "", text)
    outside_code = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", outside_code)
    live = (r"(?<!\\)<(?:script|img|svg)", r"(?<!\\)\]\(http", r"(?<![\\\w])@(?:everyone|root|all)\b")
    return _text(path) + [f"{what} in the ticket" for what in live if re.search(what, outside_code)]


def _trace(path: Path) -> list[str]:
    try:
        trace = perfetto_reader.load(gzip.decompress(path.read_bytes()))
    except Exception as error:  # whatever it is, it is a finding
        return [f"the trace is not read: {error!r:.80}"]
    bad = raw_characters("".join({one.name for one in trace.slices}))
    return [f"raw {sorted(bad)[:4]} in the trace"] if bad else []


def _bundle(path: Path, given: Input) -> list[str]:
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
                stream = archive.extractfile(member)
                found += _named(given, stream.read().decode() if stream else "{}")
    return found


def _named(given: Input, manifest: str) -> list[str]:
    """What a bundle skipped without a word."""
    found = [f"not named: {name}" for name in given.named if name not in manifest]
    if given.skips:
        skipped, gaps = len(survey(given.path).skipped), len(json.loads(manifest)["gaps"])
        found += [f"{skipped} things skipped, {gaps} said"] if gaps < skipped else []
    return found
