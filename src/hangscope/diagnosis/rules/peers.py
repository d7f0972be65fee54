"""mismatch, point-to-point: a rank sends to, or receives from, another peer than the one that waits for it."""

from __future__ import annotations

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.custom import departures
from hangscope.diagnosis.p2p import counterpart_of
from hangscope.diagnosis.rules.departed import departure_finding
from hangscope.diagnosis.standing import Place
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Because, Wait
from hangscope.diagnosis.words import ranks_text, sentence
from hangscope.model import Communicator, Kind


def wrong_peer(case: Case) -> Draft | None:
    """A rank inside a call whose peer has moved on, while another rank waits for it in a call it never made."""
    return _from_dumps(case) or _from_connections(case) or _from_custom(case)


def _from_dumps(case: Case) -> Draft | None:
    ops = case.job.ops
    suspects: dict[int, tuple[Wait, int, Wait]] = {}
    for wait in case.waits.all:
        if not wait.point_to_point:
            continue
        rank = wait.inside[0].rank
        lonely = [(row, c) for row, c in wait.counterparts if c.place is Place.NOT_LAUNCHED and c.certain]
        if not lonely:
            continue
        row, other = lonely[0]
        kind = int(ops.column("kind")[row])
        for against in case.waits.waits_on(rank):
            if not against.point_to_point or against is wait or against.inside[0].rank == other.peer:
                continue
            # Somebody offers what this rank asks another for: a send to it while it receives elsewhere, or the reverse.
            opposite = Kind.SEND if kind == Kind.RECV else Kind.RECV
            offered = [
                r
                for r, c in against.counterparts
                if c.peer == rank
                and int(ops.column("kind")[r]) == opposite
                and c.place in (Place.NOT_LAUNCHED, Place.QUEUED)
            ]
            if offered and _moved_on(case, other.peer, rank):
                suspects[rank] = (wait, row, against)
    if not suspects:
        return None
    if len(suspects) > 1:
        # Those who wait for one with the wrong peer look alike; who left custom is the one.
        odd = departures(case.standings, sorted(suspects), len(case.job.ranks))
        suspects = {rank: found for rank, found in suspects.items() if rank in odd} or suspects
    culprits: dict[int, str] = {}
    why: list[Finding] = []
    for rank, (_, row, against) in sorted(suspects.items()):
        operation = ops[row]
        giver = against.inside[0].rank
        culprits[rank] = f"called {operation.title}, but rank {giver} waits for it"
        why.append(
            Finding(
                f"rank {rank} is inside {operation.title}, which its peer never answers, "
                f"while rank {giver} is inside {case.title(against)} and waits for rank {rank}",
                (*case.source(rank, operation), *case.source(giver)),
                case.user_frames(operation.frames),
            )
        )
    first = min(suspects)
    wait, row, against = suspects[first]
    operation = ops[row]
    return Draft(
        kind="mismatch",
        headline=f"{ranks_text(culprits)} called {operation.title}; rank {against.inside[0].rank} waits "
        f"for another peer",
        summary=f"{sentence(case.who(first))} called {operation.title}, but rank {against.inside[0].rank} "
        f"waits for it in "
        f"{case.title(against)}: sender and receiver do not name each other, and the job hangs.",
        confidence="high" if len(culprits) == 1 else "medium",
        rule="mismatch: a point-to-point call names a peer that moved on, while another rank offers what it asks for",
        culprits=culprits,
        wait=wait,
        why=why,
        next_steps=[f"code: check the peer in the call at {case.user_frame(operation.frames) or operation.title}"],
    )


def _moved_on(case: Case, peer: int, rank: int) -> bool:
    """The peer is inside something else that waits for this rank in turn: it will never make this call.

    An idle peer has not gone on; it is late, and a root of its own.
    """
    return bool(case.waits.of.get(peer)) and bool(case.waits.chain(peer, {rank}))


# ---- from custom: the call looks finished, because its launch never ended ------------------------------------------


def _from_custom(case: Case) -> Draft | None:
    """A rank that is missed, and whose last calls name another peer than is the custom there; that one never answered.

    A batch is recorded as a whole before it is launched: a rank that is stuck connecting to the wrong peer has it in
    its dump, often as completed.
    """
    missed = {
        rank
        for wait in case.waits.all
        for rank, because in wait.blockers.items()
        if wait.point_to_point and because is Because.NOT_LAUNCHED
    }
    idle = sorted(rank for rank in missed if all(not unit.rows for unit in case.standings.of[rank].inside))
    for departure in departures(case.standings, idle, len(case.job.ranks)).values():
        call, usual = case.job.ops[departure.row], case.job.ops[departure.usual_row]
        peer = call.destination if call.kind is Kind.SEND else call.source
        if call.kind not in (Kind.SEND, Kind.RECV) or call.kind is not usual.kind or call.frames != usual.frames:
            continue
        if peer is None or _answered(case, call.row, call.rank, peer):
            continue
        waiting = [w for w in case.waits.waits_on(departure.rank) if w.point_to_point]
        who = ranks_text({rank for w in waiting for rank in w.waiters})
        text = f"called {call.title}, which rank {peer} does not answer, while {who} "
        text += f"{'waits' if len(waiting) == 1 else 'wait'} for it"
        return Draft(
            kind="mismatch",
            headline=f"rank {departure.rank} {text}",
            summary=f"{sentence(case.who(departure.rank))} {text}: sender and receiver do not name each other, and the "
            "job hangs.",
            confidence="high" if departure.sure else "medium",
            rule="mismatch: a point-to-point call names another peer than is the custom there, and it does not answer",
            culprits={departure.rank: text},
            wait=waiting[0],
            why=[
                departure_finding(case, departure),
                Finding(f"rank {peer} never made the other side of {call.title}", case.source(peer)),
                Finding(f"{who} {'is' if len(waiting) == 1 else 'are'} inside {case.title(waiting[0])}"),
            ],
            next_steps=[f"code: check the peer that rank {departure.rank} passes to {call.title}"],
        )
    return None


def _answered(case: Case, row: int, rank: int, peer: int) -> bool:
    """Whether the peer is known to have made the other side of a call."""
    standing = case.standings.of.get(peer)
    if standing is None or standing.source != "dump" or not standing.whole:
        return True  # nobody can say that it did not
    return counterpart_of(row, rank, peer, case.standings).row is not None


# ---- from NCCL's log: torch makes a communicator of two for an unbatched send or receive, then records the call ------


def _from_connections(case: Case) -> Draft | None:
    """Ranks that are stuck making a two-rank communicator with a peer that is elsewhere.

    In a pair's communicator the lower global rank is number 0. A rank whose possible peers have all gone on has named
    the wrong one; a rank that could still be waiting for such a rank is its victim.
    """
    open_pairs = _open_pairs(case)
    if not open_pairs or not set(case.waits.roots()) & set(open_pairs):
        return None
    idle = set(open_pairs)
    wrong: dict[int, str] = {}
    victims: set[int] = set()
    for rank, part in sorted(open_pairs.items()):
        higher = part.rank_in_comm == 0
        possible = {r for r in case.job.ranks if (r > rank if higher else r < rank)}
        still_there = (possible & idle) - {rank}
        if not still_there:
            direction = "above" if higher else "below"
            wrong[rank] = f"connects to a peer {direction} it, and all of those went on"
        else:
            victims.add(rank)
    tied = not wrong
    culprits = wrong or dict.fromkeys(sorted(idle), "waits for a peer that connects to another rank")
    waiting = [w for w in case.waits.all if set(w.blockers) & set(open_pairs)]
    why = [
        Finding(
            f"rank {rank} is making a communicator of two ranks that nobody completes "
            f"(it is its rank {part.rank_in_comm}, so its peer is {'above' if part.rank_in_comm == 0 else 'below'} "
            f"rank {rank})",
            (part.source,) if part.source else (),
        )
        for rank, part in sorted(open_pairs.items())
    ]
    if victims and not tied:
        why.append(
            Finding(f"{ranks_text(victims)} can only be waiting for {ranks_text(culprits)}: everybody else went on", ())
        )
    return Draft(
        kind="mismatch",
        headline=f"{ranks_text(culprits)} {'connects' if len(culprits) == 1 else 'connect'} to a "
        f"point-to-point peer that is elsewhere",
        summary=f"{sentence(ranks_text(culprits))} {'is' if len(culprits) == 1 else 'are'} stuck "
        f"connecting for a send or receive to a peer "
        f"that does not answer, while {ranks_text(victims) if victims else 'the others'} "
        f"{'waits' if len(victims) == 1 else 'wait'}: sender and receiver do not name each other.",
        confidence="medium",
        rule="mismatch: unfinished two-rank communicators in NCCL's log that do not pair up",
        culprits=culprits,
        wait=waiting[0] if waiting else None,
        why=why,
        next_steps=[f"code: check the peer that {ranks_text(culprits)} passes to send or recv"],
    )


def _open_pairs(case: Case) -> dict[int, Communicator]:
    """Idle ranks that started a two-rank communicator, never completed it, and whose partner never came."""
    by_id: dict[str, list[Communicator]] = {}
    for part in case.job.facts.communicators:
        by_id.setdefault(part.comm_id, []).append(part)
    found: dict[int, Communicator] = {}
    for parts in by_id.values():
        present = {p.rank for p in parts}
        for part in parts:
            if part.size == 2 and part.rank is not None and part.started and not part.completed and len(present) == 1:
                standing = case.standings.of.get(part.rank)
                if standing is not None and all(not unit.rows for unit in standing.inside):
                    found[part.rank] = part
    return found
