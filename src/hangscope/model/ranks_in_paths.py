"""The rank that the name of a file or of its folder says: ``nccl_trace_rank_3``, ``rank_3.log``, ``attempt_0/3/``."""

from __future__ import annotations

import re

from hangscope.model.numbers import integer
from hangscope.model.values import RANK_LIMIT

_OTHER_RANKS = "".join(rf"(?<!{word}[_.-])" for word in ("node", "local", "group", "host", "role"))
_RANK = re.compile(rf"(?<![a-z]){_OTHER_RANKS}rank[_.=-]?(\d{{1,7}})(?!\d)", re.IGNORECASE | re.ASCII)
_ENDING = re.compile(r"\.[a-z][a-z0-9]{0,9}$", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<!\d)(\d{1,7})$", re.ASCII)
_ATTEMPT = re.compile(r"attempt_\d+")
_LOCAL_RANK = re.compile(r"\d{1,6}", re.ASCII)


def rank_of_dump(name: str) -> int | None:
    """The rank that a dump's name gives: ``nccl_trace_rank_3``, ``gpu-a017_3.json``, ``rank3_dump.pickle.gz``.

    A number after the word rank counts first, then one at the very end, whatever stands before it. Where the name has
    neither, its folder may say ``rank_3``.
    """
    *folders, base = re.split(r"[/\\!]", name.rstrip("/"))
    said = _RANK.findall(base)
    if said:
        return integer(said[-1])
    for _ in range(3):
        base = _ENDING.sub("", base)
    last = _LAST_NUMBER.search(base)
    if last:
        return integer(last[1])
    said = _RANK.findall(folders[-1]) if folders else []
    return integer(said[-1]) if said else None


def rank_of_log(parts: tuple[str, ...]) -> int | None:
    """The rank that a log's name gives, ``rank_3.log``, or else its folder's, ``rank_3/``."""
    found = _RANK.search(parts[-1]) or _RANK.search("".join(parts[-2:-1]))
    rank = integer(found[1]) if found else None
    return rank if rank is not None and rank < RANK_LIMIT else None


def worker_of(parts: tuple[str, ...]) -> int | None:
    """The local rank by which torchrun names a worker's folder, ``attempt_0/3/``; None for a file in no such folder."""
    if len(parts) < 3 or not _ATTEMPT.fullmatch(parts[-3]) or not _LOCAL_RANK.fullmatch(parts[-2]):
        return None
    return integer(parts[-2])
