"""On a Ray cluster: the actor or task that the driver waits for in the end, a cycle of actors, or what nobody can give.

The driver in `ray.get`, and every actor in one, is a victim; who waits in nothing of Ray's is where to look. Ranks of
torch.distributed are judged by what they wait in among themselves, and only named here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from hangscope.diagnosis.accusation import HIGH, LOW, MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared import ray_words
from hangscope.diagnosis.verdict import ActorCulprit, CauseKind, Finding
from hangscope.diagnosis.waits.ray_waits import End, Place, RayWaits, Step
from hangscope.model.ray_cluster import ActorEnd, RayActor
from hangscope.text import is_own_code, plural, sentence

RAY_CYCLE = Grounds("ray_cycle", Layer.MISSED_RANKS, HIGH, "each waits in ray.get for a result that the next must give")
RAY_FROZEN = Grounds("ray_frozen", Layer.MISSED_RANKS, HIGH, "the kernel has stopped the process that others wait for")
RAY_DEAD = Grounds("ray_dead", Layer.MISSED_RANKS, MEDIUM, "an actor died that nobody ended, and none took its place")
RAY_BLOCKED = Grounds(
    "ray_blocked", Layer.MISSED_RANKS, MEDIUM, "the driver's waits lead to it, and two looks found it at one line, idle"
)
RAY_GUESSED = Grounds(
    "ray_guessed", Layer.MISSED_RANKS, LOW, "which task is awaited was not seen: it is one of those that have not ended"
)
RAY_RESOURCES = Grounds(
    "ray_resources",
    Layer.MISSED_RANKS,
    MEDIUM,
    "Ray has no node for a task that the driver waits for, and nothing works",
)
RAY_AWAITS = Grounds("ray_awaits", Layer.SIGNS, LOW, "where a coroutine waits is on no stack")
RAY_DRIVER = Grounds("ray_driver", Layer.LAST_RESORT, LOW, "no task is open: only the driver itself can be looked at")
RAY_WORKS = Grounds("ray_works", Layer.SIGNS, MEDIUM, "what the driver waits for was seen at work")

_MOST = 8
_JUST_DIED_S = 15.0


@dataclass(frozen=True, slots=True)
class RayRoot:
    """Where the waits end: the places, with the way that leads to each; or the actors that died."""

    places: Sequence[Place] = ()
    ways: Sequence[tuple[Place, tuple[Step, ...]]] = ()
    dead: Sequence[RayActor] = ()
    beside: Sequence[Place] = field(default_factory=list)
    """Others that are open and not accused."""


def waits_of(case: Case) -> RayWaits | None:
    ray = case.job.facts.ray
    return RayWaits(ray) if ray is not None else None


def propose(case: Case) -> Iterator[Accusation[RayRoot]]:
    """The deepest of what the graph shows; nothing where no cluster was captured."""
    waits = case.once(waits_of)
    if waits is None:
        return
    cycle = waits.cycle()
    if cycle:
        running = _of_actors([each for each in cycle if each.task is not None and each.task.state.is_running])
        actors = [ray_words.culprit(waits, each) for each in running]
        yield Accusation(RAY_CYCLE, CauseKind.DEADLOCK, RayRoot(places=cycle), actors=actors)
        return
    ends = _ends(waits)
    ranks = set(case.job.ranks)
    found = _stopped_or_dead(waits, ends) or _blocked(waits, ends, ranks) or _pending(waits, ends, ranks)
    if found is None and not any(each[3] is End.BLOCKED and not each[2].driver for each in ends):
        found = _unseen(waits, ends, ranks)
    if found is not None:
        yield found


_Found = tuple[Place, tuple[Step, ...], Place, End]


def _ends(waits: RayWaits) -> list[_Found]:
    """The ends of all waits, one for each process."""
    found: dict[object, _Found] = {}
    for start, way, place in waits.ends():
        key: object = place.key
        if place.process is not None:
            key = (place.process.node, place.process.pid)
        known = found.get(key)
        this = (start, way, place, waits.end(place))
        if known is None or _is_older(waits, this, known):
            found[key] = this
    return list(found.values())


def _is_older(waits: RayWaits, one: _Found, other: _Found) -> bool:
    return (waits.age_s(one[2]) or 0.0) > (waits.age_s(other[2]) or 0.0)


def _of_kind(ends: Sequence[_Found], kind: End) -> list[_Found]:
    return [each for each in ends if each[3] is kind]


def _actors_blocked(ends: Sequence[_Found]) -> list[_Found]:
    return [each for each in _of_kind(ends, End.BLOCKED) if not each[2].driver]


def _stopped_or_dead(waits: RayWaits, ends: Sequence[_Found]) -> Accusation[RayRoot] | None:
    frozen = _of_kind(ends, End.FROZEN)
    if frozen:
        return _accusation(waits, RAY_FROZEN, CauseKind.FROZEN, frozen)
    blocked = _actors_blocked(ends)
    dead = _dead_of_it(waits, blocked)
    if not dead:
        return None
    facts = RayRoot(dead=dead, beside=[each[2] for each in blocked])
    return Accusation(RAY_DEAD, CauseKind.DEAD, facts, actors=[ray_words.dead_culprit(each) for each in dead])


def _blocked(waits: RayWaits, ends: Sequence[_Found], ranks: set[int]) -> Accusation[RayRoot] | None:
    """Who is blocked outside of all communication; who is inside of it waits for others."""
    outside = _outside(waits, ends)
    accused = [each for each in outside if not _is_rank(each[2], ranks)]
    if not accused:
        return _blocked_ranks(waits, ends, ranks)
    exact = all(step.exact for each in accused for step in each[1])
    return _accusation(waits, RAY_BLOCKED if exact or len(accused) == 1 else RAY_GUESSED, CauseKind.ABSENT, accused)


def _blocked_ranks(waits: RayWaits, ends: Sequence[_Found], ranks: set[int]) -> Accusation[RayRoot] | None:
    """Ranks outside of a collective in which others wait and do not move. How far each got, dumps say better."""
    inside = [each for each in _actors_blocked(ends) if _in_collective(waits, each[2])]
    moving = [each for each in _of_kind(ends, End.WORKS) if not _in_collective(waits, each[2])]
    accused = [each for each in (*_outside(waits, ends), *moving) if _is_rank(each[2], ranks)]
    if not inside or not accused or any(_in_collective(waits, each[2]) for each in _of_kind(ends, End.WORKS)):
        return None
    found = _accusation(waits, RAY_BLOCKED, CauseKind.ABSENT, accused)
    numbers = [each[2].process.rank for each in accused if each[2].process is not None]
    return replace(found, accused=[Accused(rank, CauseKind.ABSENT) for rank in numbers if rank is not None])


def _outside(waits: RayWaits, ends: Sequence[_Found]) -> list[_Found]:
    return [each for each in _actors_blocked(ends) if not _in_collective(waits, each[2])]


def _pending(waits: RayWaits, ends: Sequence[_Found], ranks: set[int]) -> Accusation[RayRoot] | None:
    """Nobody is blocked alone: somebody works, or waits for what no node can give."""
    if any(not _is_rank(each[2], ranks) for each in _outside(waits, ends)):
        return None
    works = _of_kind(ends, End.WORKS)
    if works:
        return _no_hang(works)
    found = _of_kind(ends, End.NO_RESOURCES)
    if not found and waits.ray.pending_groups:
        found = _of_kind(ends, End.NO_ACTOR)
    return Accusation(RAY_RESOURCES, CauseKind.RESOURCES, _root(found)) if found else None


def _unseen(waits: RayWaits, ends: Sequence[_Found], ranks: set[int]) -> Accusation[RayRoot] | None:
    """Only a coroutine, or the driver itself, is left to look at."""
    awaits = _of_kind(ends, End.AWAITS)
    if awaits:
        return _accusation(waits, RAY_AWAITS, CauseKind.ABSENT, awaits)
    if waits.ray.ended_during_capture:
        return _no_hang([])
    drivers = _of_kind(ends, End.BLOCKED)
    return _accusation(waits, RAY_DRIVER, CauseKind.ABSENT, drivers) if drivers and not ranks else None


def _is_rank(place: Place, ranks: set[int]) -> bool:
    return place.process is not None and place.process.rank in ranks


def _in_collective(waits: RayWaits, place: Place) -> bool:
    thread = waits.thread(place)
    inside = takewhile(lambda frame: not is_own_code(frame.filename), thread.frames if thread is not None else ())
    return any("/torch/distributed/" in frame.filename or "/ray/util/collective/" in frame.filename for frame in inside)


def _accusation(waits: RayWaits, grounds: Grounds, kind: CauseKind, found: Sequence[_Found]) -> Accusation[RayRoot]:
    actors = [ray_words.culprit(waits, each[2]) for each in found]
    return Accusation(grounds, kind, _root(found), actors=actors)


def _no_hang(found: Sequence[_Found]) -> Accusation[RayRoot]:
    return Accusation(RAY_WORKS, CauseKind.NONE, _root(found), hang=False)


def _root(found: Sequence[_Found]) -> RayRoot:
    return RayRoot([each[2] for each in found], [(each[0], each[1]) for each in found])


def _dead_of_it(waits: RayWaits, blocked: Sequence[_Found]) -> list[RayActor]:
    """Actors that nobody ended, with none of their class made since, that died while those blocked now already ran."""
    since = [each[2].task.since_ns / 1e9 for each in blocked if each[2].task is not None and each[2].task.since_ns]
    first = min(since, default=0.0)
    if not waits.ray.drivers:
        first = 0.0
    return [
        actor
        for actor in waits.ray.actors.values()
        if _died(actor) and not _replaced(waits, actor) and (actor.ended_at_s or 0.0) >= first - _JUST_DIED_S
    ]


def _died(actor: RayActor) -> bool:
    """Whether an actor is dead that nobody ended."""
    return actor.state == "DEAD" and actor.ended_by not in (None, ActorEnd.ON_PURPOSE)


def _replaced(waits: RayWaits, dead: RayActor) -> bool:
    return any(
        other.class_name == dead.class_name
        and other.state == "ALIVE"
        and (other.started_at_s or 0.0) >= (dead.ended_at_s or 0.0)
        for other in waits.ray.actors.values()
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[RayRoot]) -> Words:
    waits = case.once(waits_of)
    assert waits is not None
    return _WORDS[accusation.grounds.name](waits, accusation)


def _is_blocked(waits: RayWaits, accusation: Accusation[RayRoot]) -> Words:
    facts = accusation.facts
    first = facts.places[0]
    alone = len(facts.places) == 1
    frozen = accusation.kind is CauseKind.FROZEN
    who = _list([ray_words.who(each) for each in facts.places])
    state = ray_words.is_in(waits, first) if alone else _lines(accusation.actors)
    if frozen:
        state = ray_words.is_stopped(first)
    start = facts.ways[0][0]
    waiter = "" if start.key == first.key else f", and {ray_words.who(start)} waits for {_it(facts.places)}"
    age = waits.age_s(first)
    since = f" for {ray_words.seconds(age)}" if age is not None else ""
    there = ray_words.on_node(first) if alone else ""
    headline = f"{who}{'' if _is_known_by_name(first) else there} {state}{waiter}"
    summary = f"{sentence(who)}{there} {state}{since}{waiter}."
    step = ray_words.wake_step(first) if frozen else ray_words.code_step(waits, first)
    each = {actor.rank: actor.why for actor in accusation.actors if actor.rank is not None}
    return Words(headline, summary, [*_findings(waits, facts)], each, [step])


def _is_known_by_name(place: Place) -> bool:
    return place.driver or (place.actor is not None and bool(place.actor.name))


def _cycle(waits: RayWaits, accusation: Accusation[RayRoot]) -> Words:
    places = accusation.facts.places
    names = [ray_words.who(each) for each in _of_actors(places)]
    text = f"{_list(names)} wait for each other in ray.get"
    if len(set(names)) == 1:
        text = f"{names[0]} waits in ray.get for a call that it can only answer itself"
    why = [finding for place in places for finding in ray_words.steps_of(waits, place, places)]
    steps = [
        "code: no actor may wait for one that waits for it: pass the ref on, make the methods async, or give the actor"
        " max_concurrency"
    ]
    return Words(text, f"{sentence(text)}, so none of them goes on.", why, steps=steps)


def _of_actors(places: Sequence[Place]) -> list[Place]:
    """Each actor of a cycle once."""
    return list({each.actor.id if each.actor is not None else each.key: each for each in places}.values())


def _dead(waits: RayWaits, accusation: Accusation[RayRoot]) -> Words:
    dead = accusation.facts.dead
    who = _list([each.label for each in dead])
    how = ray_words.death(dead[0])
    text = f"{who} died: {how}"
    source = (waits.ray.source,) if waits.ray.source is not None else ()
    why = [
        Finding(f"{each.label} died: {ray_words.death(each)}", source, ray_words.death_lines(each))
        for each in dead[:_MOST]
    ]
    why += [
        Finding(f"{ray_words.who(each)} {ray_words.is_in(waits, each)}") for each in accusation.facts.beside[:_MOST]
    ]
    return Words(text, f"{sentence(text)}.", why, steps=ray_words.death_steps(dead[0]))


def _resources(waits: RayWaits, accusation: Accusation[RayRoot]) -> Words:
    facts = accusation.facts
    wanted = ray_words.wanted(facts.places[0], waits.ray)
    fits = ray_words.fits_anywhere(facts.places[0], waits.ray)
    what = ray_words.who(facts.places[0])
    count = f" and {plural(len(facts.places) - 1, 'other')}" if len(facts.places) > 1 else ""
    cannot = "no node has that much free" if fits else "no node of the cluster has that much at all"
    text = f"{what}{count} waits for {wanted}: {cannot}"
    why = [*_findings(waits, facts), *ray_words.resource_findings(waits.ray)]
    steps = ["ask for less, end what holds the resources, or add nodes: `ray status` shows the demand"]
    if not fits:
        steps = [f"ask for less than {wanted}, or add a node that has it: this can never be scheduled"]
    return Words(text, f"{sentence(text)}. No actor is at fault.", why, steps=steps)


def _works(waits: RayWaits, accusation: Accusation[RayRoot]) -> Words:
    facts = accusation.facts
    if not facts.places:
        done = plural(waits.ray.ended_during_capture, "task")
        return Words("nothing hangs", f"Nothing hangs: {done} ended while it was looked.", [], steps=())
    first = facts.places[0]
    start = facts.ways[0][0]
    where = ray_words.is_in(waits, first)
    text = f"{ray_words.who(first)} {where}" if where else f"{ray_words.who(first)} is at work"
    waiter = "" if start.key == first.key else f"{ray_words.who(start)} waits for "
    others = f" and {plural(len(facts.places) - 1, 'other')}" if len(facts.places) > 1 else ""
    headline = f"nothing hangs: {waiter}{ray_words.who(first)}{others}, at work" if waiter else f"nothing hangs: {text}"
    return Words(headline, f"{sentence(headline)}.", [*_findings(waits, facts)], steps=())


def _findings(waits: RayWaits, facts: RayRoot) -> Iterator[Finding]:
    """The way from the start to each end, and where the end is."""
    said: set[str] = set()
    for (start, way), place in list(zip(facts.ways, facts.places, strict=False))[:_MOST]:
        for finding in ray_words.way_findings(waits, start, way):
            if finding.text not in said:
                said.add(finding.text)
                yield finding
        yield ray_words.end_finding(waits, place)


def _lines(actors: Sequence[ActorCulprit]) -> str:
    places = {
        f"{each.where.function} ({each.where.file.rpartition('/')[2]}:{each.where.line})"
        for each in actors
        if each.where
    }
    return f"are in {_list(sorted(places))}" if places else "do not move"


def _it(places: Sequence[Place]) -> str:
    return "it" if len(places) == 1 else "them"


def _list(names: Sequence[str]) -> str:
    """``actor A and actor B``; several of one name are counted: ``3 actors A``."""
    counts = Counter(names)
    shown = [name if count == 1 else f"{count} {_several(name)}" for name, count in counts.items()]
    if len(shown) > 3:
        return f"{', '.join(shown[:2])} and {len(shown) - 2} others"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _several(name: str) -> str:
    word, _, rest = name.partition(" ")
    return f"{word}s {rest}" if word in ("actor", "task") else name


_WORDS = {
    "ray_cycle": _cycle,
    "ray_frozen": _is_blocked,
    "ray_dead": _dead,
    "ray_blocked": _is_blocked,
    "ray_guessed": _is_blocked,
    "ray_resources": _resources,
    "ray_awaits": _is_blocked,
    "ray_driver": _is_blocked,
    "ray_works": _works,
}

CAUSE = Cause(
    propose,
    words,
    (
        *(RAY_CYCLE, RAY_FROZEN, RAY_DEAD, RAY_BLOCKED, RAY_GUESSED),
        *(RAY_RESOURCES, RAY_AWAITS, RAY_DRIVER, RAY_WORKS),
    ),
    Asked.ALWAYS,
)
