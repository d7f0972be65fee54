"""Same hang? The fingerprint of a verdict: what a person would file such hangs under.

Of code its kind, its cause, the program and the function of the headline; where no function is known, the operation and
its group's role. Of a machine its kind, its cause and its place: a GPU, a link, a node. A rank that was killed or
stopped is of its program: neither its node nor the line that it was at says why.

It explains itself: the parts are kept beside it. Line numbers, paths, ranks and versions are not in it: they change
from run to run, and are entities of their own. A later version has another prefix, and applies to new incidents only.
hs1 had the operation and the function in every kind, and no digits in functions; hs2 knew no program, cause or place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

VERSION = "hs3"
_NUMBERED = re.compile(r"\s*\([^()]*\)\s*$")
_DIGITS = re.compile(r"\d+")
_LOCALS = re.compile(r"<locals>\.|\.<locals>")
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:0x)?[0-9a-f]{6,}(?![0-9a-zA-Z])")
_WORDS = re.compile(r"[^-_.\s]+")
_RANDOM = re.compile(r"(?=.{5,}$)[a-z0-9]*\d[a-z0-9]*[a-z][a-z0-9]*", re.IGNORECASE)
"""Of a name that Kubernetes or a launcher made unique."""
EVIDENCE = "evidence-"
"""How a job is called of which only evidence is known."""


class Fingerprint(NamedTuple):
    value: str
    explanation: Mapping[str, str]
    """What it is made of, in words: the part's name → the part; empty where it is not known or does not count."""


PARTS = ("kind", "cause", "program", "function", "operation", "group", "place")
OF_MACHINES = frozenset(("gpu", "network", "frozen", "dead", "resources"))
"""Kinds that say nothing about the program, unless the rank raised where it was."""
_OF_PLACES = frozenset(("gpu", "network", "slow"))
"""Kinds of which two are one where they happened in one place."""
_OF_STEPS = "shift"
"""Ranks are whole steps apart: in which function that shows first is chance."""


def fingerprint(
    kind: str,
    operation: str,
    group: str,
    function: str,
    module: str = "",
    *,
    raised: bool = False,
    cause: str = "",
    places: Sequence[str] = (),
) -> Fingerprint:
    """The fingerprint of a verdict as far as the verdict goes. `raised`: the program's own exception, of type `cause`.
    `places`: what it names of machines, in their order."""
    of_code = raised or kind not in OF_MACHINES
    named = f"{_normal(module)}.{_function(function)}" if module and function else _function(function)
    parts = {
        "kind": kind,
        "cause": cause,
        "program": "",
        "function": named if of_code else "",
        "operation": _normal(operation.partition("#")[0].strip()) if of_code and not raised else "",
        "group": group_role(group) if of_code and not raised else "",
        "place": " - ".join(sorted(places)),
    }
    return completed(parts)


def completed(parts: Mapping[str, str], program: str = "", cluster: str = "") -> Fingerprint:
    """The same with the job's program and cluster, which the verdict does not know."""
    known = {name: parts.get(name) or "" for name in PARTS}
    place = f"{known['place']} in {cluster}" if known["place"] and cluster else known["place"]
    used = dict.fromkeys(PARTS, "") | {"kind": known["kind"], "cause": known["cause"]}
    if known["kind"] in _OF_PLACES and place and not (known["kind"] in OF_MACHINES and known["function"]):
        used |= {"place": place}
    elif known["kind"] == _OF_STEPS:
        used |= {"program": program}
    else:
        used |= {"program": program, "function": known["function"]}
        if not known["function"] and known["kind"] not in OF_MACHINES:
            used |= {"operation": known["operation"], "group": known["group"]}
    digest = hashlib.sha256(json.dumps(list(used.values())).encode()).hexdigest()
    return Fingerprint(f"{VERSION}:{digest[:16]}", used)


def program_of(job: str) -> str:
    """What runs of one program have in common in their job's name: without counters, dates and what made it unique."""
    if job.startswith(EVIDENCE):
        return ""
    words = _WORDS.findall(job)
    kept = [word for word in words if not word.isdigit() and not _RANDOM.fullmatch(word)] or [
        word for word in words if not word.isdigit()
    ]
    if kept:
        bare = kept[-1].rstrip("0123456789")
        kept[-1] = bare if len(bare) > 2 else kept[-1]  # run12 is a counter, v2 and 7b are not
    return "-".join(kept)[:100]


OF_CODE = frozenset(("mismatch", "deadlock", "shift"))
"""Kinds that only a program can bring about: which calls its ranks make, in which order and with what."""


def is_about_code(kind: str, explanation: Mapping[str, object]) -> bool:
    """Whether a verdict leaves open, or says, that the program did it, and names a place in it. What a machine did has
    such a place only where the program raised, and then no operation (hs1 had both in every kind)."""
    if kind in OF_MACHINES and explanation.get("operation"):
        return False
    return kind in OF_CODE or bool(explanation.get("function"))


def is_about_machines(kind: str) -> bool:
    """Whether a verdict leaves open, or says, that a machine did it."""
    return kind not in OF_CODE


def title(explanation: Mapping[str, str]) -> str:
    """What people call such a hang."""
    said = explanation.get("kind") or "unknown"
    for name, word in (("cause", ":"), ("function", " in"), ("operation", ","), ("group", " of"), ("place", " on")):
        if explanation.get(name):
            said += f"{word} {explanation[name]}"
    program = explanation.get("program") or ""
    return f"{program}: {said}"[:300] if program else said[:300]


def group_role(group: str) -> str:
    """What a group is for, without its number: ``mesh_tp (6)`` and ``mesh_tp (9)`` are the same role."""
    return _DIGITS.sub("", _NUMBERED.sub("", group)).strip(" _-:")


def _function(name: str) -> str:
    """A function's name: ``load_stage1`` is another one than ``load_stage2``."""
    return _HEX.sub("N", _LOCALS.sub("", name)).strip()[:200]


def _normal(name: str) -> str:
    """A function or module without what one build or run puts into its name."""
    plain = _LOCALS.sub("", name)
    return _DIGITS.sub("N", _HEX.sub("N", plain)).strip()[:200]
