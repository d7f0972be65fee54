"""What an expert could still say about a recorded case once some ranks' dumps are damaged, gone or of another attempt.

Derived from the injected truth and from what the recorded dumps and logs show, never from what hangscope answers:
a rank whose recording is lost says nothing, so a cause stays knowable where somebody else saw it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kits.recorded import Recorded

LEVELS = ("all", "training", "none")
"""Everything; the dumps with the ranks' own output; the dumps alone."""
GONE = {"absent", "dead", "frozen"}
"""What a rank that others wait for may be, where nothing but its silence is seen."""

_FAILED = re.compile(rb"Watchdog caught|preparing to dump|DistBackendError|Timed out waiting|timed out|Traceback")
_RAISED = re.compile(rb"^(?:\[rank\d+\]: ?)?[\w.]*(?:Error|Exception)\b", re.M)


@dataclass(frozen=True)
class Expected:
    """What may be said. `sure`: it remains knowable, and nothing less than one of `culprits` with one of `kinds` is
    exact. Otherwise those are fine too, and so is naming nobody."""

    sure: bool
    culprits: tuple[frozenset[int], ...]
    kinds: frozenset[str]
    why: str


def witnesses(case: Recorded, culprit: int) -> set[int]:
    """Ranks whose dump shows that they wait in something which needs the culprit and that it is not in as they are."""
    alike = case.truth["kind"] in ("gpu", "network")
    return {
        rank
        for rank, waits in case.waits.items()
        if rank not in case.guilty
        and any(culprit in w.partners and (alike or w.pair or w.call not in case.calls.get(culprit, ())) for w in waits)
    }


def _log_says(case: Recorded, rank: int, what: re.Pattern[bytes]) -> bool:
    return rank in case.logs and bool(what.search(case.logs[rank].read_bytes()))


def expected(case: Recorded, level: str, touched: frozenset[int], mode: str) -> Expected:
    """What may be said of the case where only these files are left, and the dumps of `touched` cannot be relied on."""
    kind = case.truth["kind"]
    if mode == "stampless" and kind != "slow":  # they lack their times, and say everything else
        touched = frozenset()
    kinds = set(case.kinds)
    if level != "all" and kinds & GONE:
        kinds |= GONE  # only a launcher, a traceback or a stack tells these apart
    honest = {frozenset(ranks) for ranks in case.honest}
    if kind == "none":
        return Expected(True, (frozenset(),), frozenset({"none", "unknown"}), "nothing hung")
    special = _special(case, level)
    if special is not None:
        return special
    suspects = {rank for ranks in case.honest for rank in ranks} if kind == "mismatch" else set(case.guilty)
    if touched & suspects:
        return _culprit_lost(case, level, touched, kinds, honest)
    others = case.ranks - set(case.guilty) - touched
    if not case.truth["hang"]:
        sure = len(others & set(case.dumps)) > len(case.guilty)
        return _made(sure, honest, kinds if sure else kinds | {"none"}, "the culprits' dumps beside more others")
    if kind == "network" or case.id in NEEDS_ALL:
        return _made(not touched, honest, kinds, "everybody must be seen")
    unseen = set(case.guilty) - set(case.dumps)
    if unseen:
        return _silent_culprit(case, level, touched, kinds, honest, unseen)
    seen_by = [witnesses(case, culprit) - touched for culprit in case.guilty]
    if kind == "mismatch":
        sure = _outlier_shows(case, touched)
    elif kind == "deadlock":
        sure = len(others & set(case.dumps)) >= 2 and len(case.ranks) > 3
        kinds |= {"mismatch", "absent"} if touched or level != "all" else set()
    else:
        sure = all(seen_by)
    return _made(sure, honest, kinds, f"seen by {[sorted(ranks) for ranks in seen_by]}")


def _outlier_shows(case: Recorded, touched: frozenset[int]) -> bool:
    """Whether enough members are left beside the one that differs; sums over all need every one of them."""
    members = set((case.truth.get("operation") or {}).get("members") or case.ranks)
    if touched & (members if case.truth.get("variant") == "split" else set(ENDS.get(case.id, ()))):
        return False
    peers = members - set(case.guilty)
    return len((peers - touched) & set(case.dumps)) >= min(2, len(peers))


def _made(sure: bool, honest: set[frozenset[int]], kinds: Iterable[str], why: str) -> Expected:
    sets = honest if sure else honest | {frozenset()}
    return Expected(sure, tuple(sorted(sets, key=sorted)), frozenset(kinds) | (set() if sure else {"unknown"}), why)


def _culprit_lost(
    case: Recorded, level: str, touched: frozenset[int], kinds: set[str], honest: set[frozenset[int]]
) -> Expected:
    """The culprit's own recording is lost. Its end or its stack may still show; otherwise it is the one of whom nothing
    is known, which is worth saying but no proof."""
    parts = {ranks - gone for ranks in honest for gone in (touched, frozenset(case.guilty) - touched)}
    shown = level == "all" and len(case.kinds) == 1 and kinds & {"dead", "frozen"}
    if shown and touched <= set(case.guilty):
        return _made(True, honest, kinds, "its end or its freeze was seen")
    loose = kinds | GONE | {"network", "unknown"} | ({"none"} if not case.truth["hang"] else set())
    return _made(False, honest | parts, loose, "the culprit's own dump is lost")


def _silent_culprit(
    case: Recorded,
    level: str,
    touched: frozenset[int],
    kinds: set[str],
    honest: set[frozenset[int]],
    unseen: set[int],
) -> Expected:
    """The culprit never wrote a dump. With dumps alone, a rank whose dump is lost looks like it."""
    if level == "all" or not touched:
        sure = level == "all" or all(witnesses(case, rank) for rank in unseen)
        return _made(sure, honest, kinds, "the culprit is the one rank without a dump")
    if level == "training":
        alive = all(_log_says(case, rank, _FAILED) for rank in touched)
        raised = all(_log_says(case, rank, _RAISED) for rank in unseen)
        seen = all(witnesses(case, rank) - touched for rank in unseen)
        return _made((alive or raised) and seen, honest, kinds, "the logs tell the silent rank from the others")
    return _made(False, honest, kinds, "several ranks without a usable dump")


Less = tuple[tuple[tuple[int, ...], ...], tuple[str, ...], str]

LESS: dict[str, Less] = {
    "nccl/broadcast_link6": (((0, 1, 5),), ("network",), "the order of the ring is in NCCL's log alone"),
    "nccl/join_group": (((1, 3, 4),), ("absent",), "who made the communicator is in NCCL's log and the stacks alone"),
    "nccl/kill_and_sleep": (((7,), (4,)), ("absent", "frozen"), "two causes, one of which left nothing"),
    "nccl/p2p": (((0, 1),), ("absent",), "an unbatched receive is recorded once its connection is made"),
    "incident/exit": (((),), ("absent",), "captured within a moment of the end: no call is old"),
    "incident/raise": (((),), ("absent",), "captured within a moment of the end: no call is old"),
    "incident/kill": (((),), ("network", "gpu", "absent"), "the last poll shows it inside, like everybody else"),
    "incident/stop": (((),), ("network", "gpu", "absent"), "the last poll shows it inside, like everybody else"),
}
"""What dumps and the ranks' output leave of a case: sets of ranks and kinds that are then as good as the truth.

NCCL's logs, stacks, RAS and the launcher's record are what showed more."""
NEEDS_ALL = ("nccl/moe_split", "nccl/broadcast_root")
"""Splits by peer and roots are not recorded: only sums and states over all members show that something is off."""
ENDS = {"nccl/batch_peer": (0, 4)}
"""Whom the culprit sent to, and who waits for that: the two ends of what went to the wrong rank."""
GLOO_ALONE = "what raised counts as finished in Gloo's dumps: without a traceback nothing shows a hang"


def _special(case: Recorded, level: str) -> Expected | None:
    if level == "all":
        return None
    honest = {frozenset(ranks) for ranks in case.honest}
    if case.suite == "gloo" and level == "none" and case.name != "ddp_shift":
        return _made(False, honest, {*case.kinds, *GONE, "mismatch"}, GLOO_ALONE)
    if case.id not in LESS:
        return None
    sets, kinds, why = LESS[case.id]
    return _made(False, honest | {frozenset(ranks) for ranks in sets}, {*kinds, *case.kinds}, why)
