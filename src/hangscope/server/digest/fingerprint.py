"""Same hang? The fingerprint of a verdict: of code its kind, operation, group's role and the culprit's own function.

What a machine did (a GPU, a link, a signal, a stop) happens wherever the program is at that moment: its fingerprint is
its kind alone, and where it happened is said by the node, GPU, port or link that the incident names.

It explains itself: the parts it is made of are kept beside it. Line numbers, paths, ranks, nodes and versions are not
in it: they change from run to run, and are entities of their own. A later version has another prefix, and applies to
new incidents only: hs1 had the operation and the function in every kind, and no digits in functions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

VERSION = "hs2"
_NUMBERED = re.compile(r"\s*\([^()]*\)\s*$")
_DIGITS = re.compile(r"\d+")
_LOCALS = re.compile(r"<locals>\.|\.<locals>")
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:0x)?[0-9a-f]{6,}(?![0-9a-zA-Z])")


class Fingerprint(NamedTuple):
    value: str
    explanation: Mapping[str, str]
    """What it is made of, in words: the part's name → the part."""


OF_MACHINES = frozenset(("gpu", "network", "frozen", "dead", "resources"))
"""Kinds that say nothing about the program, unless the rank raised where it was."""


def fingerprint(
    kind: str, operation: str, group: str, function: str, module: str = "", *, raised: bool = False
) -> Fingerprint:
    """The fingerprint of a verdict. What is not known is an empty part of it. `raised`: the program's own exception."""
    parts = {"kind": kind, "operation": "", "group": "", "function": ""}
    if raised or kind not in OF_MACHINES:
        parts["operation"] = "" if raised else _normal(operation.partition("#")[0].strip())
        parts["group"] = "" if raised else group_role(group)
        parts["function"] = f"{_normal(module)}.{_function(function)}" if module and function else _function(function)
    digest = hashlib.sha256(json.dumps([*parts.values(), raised]).encode()).hexdigest()
    return Fingerprint(f"{VERSION}:{digest[:16]}", parts)


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
    function = explanation.get("function") or ""
    operation = explanation.get("operation") or ""
    group = explanation.get("group") or ""
    said = explanation.get("kind") or "unknown"
    if function:
        said += f" in {function}"
    if operation:
        said += f", {operation}"
    if group:
        said += f" of {group}"
    return said[:300]


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
