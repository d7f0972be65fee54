"""A W&B alert, by the rank that has an active run: its companion calls `wandb.alert`, and only where the training has
imported wandb itself.

The rank is asked over its worker server, which needs torch 2.10 and a Python that answers: in a hang most do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import ask

HANDLER = "hangscope_wandb"
ANSWER_S = 3.0
_MOST_ASKED = 16
_TITLE = 60
_TEXT = 600


def send(ranks: Sequence[WatchedRank], title: str, text: str) -> str:
    """Ask the ranks of this node, the lowest first, until one has sent it. Returns the problem, empty for none."""
    able = [rank for rank in sorted(ranks, key=lambda rank: rank.number) if _may_be_asked(rank)]
    if not able:
        return "no rank of this node can be asked (it needs torch 2.10 or newer)"
    words = f"title={quote(_cut(title, _TITLE))}&text={quote(_cut(text, _TEXT))}"
    why = ""
    for rank in able[:_MOST_ASKED]:
        answer = ask(rank.process.socket or "", f"{HANDLER}?{words}", ANSWER_S, 1 << 16)
        found = as_object(answer.body) if answer.ok else {}
        if found.get("sent") is True:
            return ""
        why = why or str(found.get("why") or answer.error or "")[:200]
    return f"no rank of this node sent it: {why or 'no answer'}"


def _may_be_asked(rank: WatchedRank) -> bool:
    return rank.process.socket is not None and HANDLER in rank.process.handlers and not rank.ended


def _cut(text: str, limit: int) -> str:
    clean = "".join(character if character.isprintable() else " " for character in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def as_object(body: bytes) -> dict[str, Any]:
    """A JSON object; empty where it is none."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
