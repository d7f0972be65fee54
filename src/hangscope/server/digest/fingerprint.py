"""Same hang? The fingerprint of a verdict: its kind, the operation and its group's role, the culprit's own function.

It explains itself: the parts it is made of are kept beside it. Line numbers, paths, ranks, nodes and versions are not
in it: they change from run to run, and are entities of their own. A later version has another prefix, and applies to
new incidents only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

VERSION = "hs1"
_NUMBERED = re.compile(r"\s*\([^()]*\)\s*$")
_DIGITS = re.compile(r"\d+")
_LOCALS = re.compile(r"<locals>\.|\.<locals>")
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:0x)?[0-9a-f]{6,}(?![0-9a-zA-Z])")


class Fingerprint(NamedTuple):
    value: str
    explanation: Mapping[str, str]
    """What it is made of, in words: the part's name → the part."""


def fingerprint(kind: str, operation: str, group: str, function: str, module: str = "") -> Fingerprint:
    """The fingerprint of a verdict. What is not known is an empty part of it."""
    code = f"{_normal(module)}.{_normal(function)}" if module and function else _normal(function)
    parts = {
        "kind": kind,
        "operation": _normal(operation.partition("#")[0].strip()),
        "group": group_role(group),
        "function": code,
    }
    digest = hashlib.sha256(json.dumps(list(parts.values())).encode()).hexdigest()
    return Fingerprint(f"{VERSION}:{digest[:16]}", parts)


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


def _normal(name: str) -> str:
    """A function or module without what one build or run puts into its name."""
    plain = _LOCALS.sub("", name)
    return _DIGITS.sub("N", _HEX.sub("N", plain)).strip()[:200]
