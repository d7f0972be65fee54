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


def choose(raws: Sequence[RawDump], gaps: list[Gap]) -> tuple[list[tuple[int, RawDump]], list[tuple[str, str]]]:
    """The dumps to use, by rank and backend. What is not used leaves a gap, unless it says the same as what is."""
    owned: list[tuple[int, RawDump]] = []
    sets = Sets()
    for raw in raws:
        claimed = claim(raw, sets)
        if claimed.conflict:
            gaps.append(Gap(claimed.conflict, "", claimed.rank, raw.node, Source(raw.file)))
        elif claimed.rank is None:
            why = "neither a manifest, nor the file's name, nor its content tells whose it is"
            gaps.append(Gap("rank of a dump", why, None, raw.node, Source(raw.file)))
        if claimed.rank is not None:
            owned.append((claimed.rank, raw))
    by_rank: dict[int, list[RawDump]] = defaultdict(list)
    for rank, raw in owned:
        by_rank[rank].append(raw)
    used: list[tuple[int, RawDump]] = []
    duplicates: list[tuple[str, str]] = []
    for rank, candidates in sorted(by_rank.items()):
        if any(len(raw) for raw in candidates):
            candidates = [raw for raw in candidates if len(raw) or raw.role == "poll"]
        halves: dict[str, list[RawDump]] = defaultdict(list)
        for raw in candidates:
            halves[raw.backend].append(raw)
        if "" in halves and len(halves) > 1 and not any(map(len, halves[""])):
            del halves[""]
        for _, half in sorted(halves.items()):
            best = _best(half) if len(half) > 1 else half[0]
            used.append((rank, best))
            for other in half:
                if other is best or (other.role == "poll" and best.role != "poll"):
                    continue
                if other.digest == best.digest or _same_recording(other, best):
                    duplicates.append((other.file, best.file))
                else:
                    why = f"{best.file} was used: {_reason(best, other)}"
                    what = f"conflict: another dump of rank {rank}"
                    gaps.append(Gap(what, why, rank, other.node, Source(other.file)))
    return used, duplicates


def _best(half: Sequence[RawDump]) -> RawDump:
    """A full dump before a poll, one that a manifest names, the newest, the longest, one with stacks."""

    def merit(raw: RawDump) -> tuple[Any, ...]:
        created = raw.columns["created_ns"]
        newest = int(created.max()) if len(created) else UNKNOWN
        progress = int(raw.columns["state"].sum())
        return (raw.role != "poll", raw.hint_rank is not None, newest, len(raw), raw.has_stacks, progress, raw.complete)

    return max(half, key=merit)


def _same_recording(one: RawDump, other: RawDump) -> bool:
    """Whether both are of one process: the same records, written at the same moments. Taken twice, or in two forms."""
    _, left, right = np.intersect1d(one.columns["record_id"], other.columns["record_id"], return_indices=True)
    return len(left) > 0 and bool((one.columns["created_ns"][left] == other.columns["created_ns"][right]).all())


def _reason(best: RawDump, other: RawDump) -> str:
    if best.hint_rank is not None and other.hint_rank is None:
        return "the manifest names it"
    newest, second = (int(raw.columns["created_ns"].max(initial=UNKNOWN)) for raw in (best, other))
    return "it is newer" if newest > second else "it holds more"
