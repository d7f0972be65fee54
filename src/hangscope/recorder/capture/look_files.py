"""The rings of a look as dumps of an incident. Nothing is asked of the ranks: they have answered already."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.live.looks import Look
from hangscope.recorder.live.watched_rank import WatchedRank

_BEGINS = b"\x80\x02}"
_ENDS = b"."
_GROUPS = b"X\x09\x00\x00\x00pg_config"


def write_rings(node_dir: NodeDir, look: Look, ranks: Iterable[WatchedRank]) -> None:
    """dumps/<recorder>_rank_<r>.pickle, or .json, for every answer."""
    known = {rank.number: rank for rank in ranks}
    for number, rings in look.rings.items():
        for recorder, body in rings.items():
            members = known[number].members(recorder) if recorder != "nccl" and number in known else {}
            ending = "json" if body.startswith(b"{") else "pickle"
            node_dir.write(f"dumps/{recorder}_rank_{number}.{ending}", with_groups(body, members), rank=number)


def with_groups(body: bytes, members: dict[str, dict[str, Any]]) -> bytes:
    """A pickled dump with the members of its groups, where its recorder does not know them (Gloo, torch 2.8-2.15).

    A pickle builds its table and ends: one more key before the end goes over the one that is there, and so in JSON.
    """
    text = body.rstrip()
    if members and text.startswith(b"{") and text.endswith(b"}") and len(text) > len(b"{}"):
        return text[:-1] + b', "pg_config": ' + json.dumps(members).encode() + b"}"
    if not members or not (body.startswith(_BEGINS) and body.endswith(_ENDS)):
        return body
    return body[:-1] + _GROUPS + pickle.dumps(members, protocol=2)[2:-1] + b"s" + _ENDS
