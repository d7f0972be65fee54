"""Chooses which dumps to use: one for each rank and backend, the newest. Nothing is dropped in silence.

Whether the dumps of different ranks are of one attempt is not asked here: diagnosis/evidence/vet_dumps.py compares
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from hangscope.model import UNKNOWN, Gap, Source
from hangscope.reader.dumps.raw_dump import RawDump
from hangscope.reader.join.dump_owner import Sets, claim

Owned = tuple[int, RawDump]
"""A dump and the rank it is read as."""


def choose(raws: Sequence[RawDump], gaps: list[Gap]) -> tuple[list[Owned], list[tuple[str, str]]]:
    """The dumps to use, by rank and backend. What is not used leaves a gap, unless it says the same as what is."""
    used: list[Owned] = []
    duplicates: list[tuple[str, str]] = []
    for rank, candidates in sorted(_by_rank(raws, gaps).items()):
        for _, half in sorted(_by_backend(candidates).items()):
            best = _best(half) if len(half) > 1 else half[0]
            used.append((rank, best))
            for other in half:
                if other is best or (other.role == "poll" and best.role != "poll"):
                    continue
                if other.digest == best.digest or same_recording(other, best):
                    duplicates.append((other.file, best.file))
                else:
                    why = f"{best.file} was used: {_reason(best, other)}"
                    what = f"conflict: another dump of rank {rank}"
                    gaps.append(Gap(what, why, rank, other.node, Source(other.file)))
    return used, duplicates


def _by_rank(raws: Sequence[RawDump], gaps: list[Gap]) -> dict[int, list[RawDump]]:
    by_rank: dict[int, list[RawDump]] = defaultdict(list)
    sets = Sets()
    for raw in raws:
        owner = claim(raw, sets)
        if owner.conflict:
            gaps.append(Gap(owner.conflict, "", owner.rank, raw.node, Source(raw.file)))
        elif owner.rank is None:
            why = "neither a manifest, nor the file's name, nor its content says which rank it is from"
            gaps.append(Gap("rank of a dump", why, None, raw.node, Source(raw.file)))
        if owner.rank is not None:
            by_rank[owner.rank].append(raw)
    return by_rank


def _by_backend(candidates: Sequence[RawDump]) -> dict[str, list[RawDump]]:
    """A rank's dumps by backend, without empty ones where others have entries."""
    if any(len(raw) for raw in candidates):
        candidates = [raw for raw in candidates if len(raw) or raw.role == "poll"]
    halves: dict[str, list[RawDump]] = defaultdict(list)
    for raw in candidates:
        halves[raw.backend].append(raw)
    if "" in halves and len(halves) > 1 and not any(map(len, halves[""])):
        del halves[""]
    return halves


def _best(half: Sequence[RawDump]) -> RawDump:
    """A full dump before a poll, one that a manifest names, the newest, the longest, one with stacks."""

    def merit(raw: RawDump) -> tuple[Any, ...]:
        created = raw.columns["created_ns"]
        newest = int(created.max()) if len(created) else UNKNOWN
        progress = int(raw.columns["state"].sum())
        return (raw.role != "poll", raw.hint_rank is not None, newest, len(raw), raw.has_stacks, progress, raw.complete)

    return max(half, key=merit)


def same_recording(one: RawDump, other: RawDump) -> bool:
    """Whether both are of one process: the same records, written at the same moments. Taken twice, or in two forms."""
    _, left, right = np.intersect1d(one.columns["record_id"], other.columns["record_id"], return_indices=True)
    return len(left) > 0 and bool((one.columns["created_ns"][left] == other.columns["created_ns"][right]).all())


def _reason(best: RawDump, other: RawDump) -> str:
    if best.hint_rank is not None and other.hint_rank is None:
        return "the manifest names it"
    newest, second = (int(raw.columns["created_ns"].max(initial=UNKNOWN)) for raw in (best, other))
    return "it is newer" if newest > second else "it holds more"
