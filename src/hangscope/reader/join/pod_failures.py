"""Pods' ends with their ranks: which pods are this job's, who ran in them, and which ends are history."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace

from hangscope.model import Failure, FailureKind, Gap
from hangscope.model.values import short_name
from hangscope.reader.join.who_is_who import Identity
from hangscope.sources.kubernetes.read import STOPPED, Pod, PodEnd

HISTORY_NS = 15 * 60 * 1_000_000_000
"""A container that was started anew so long before or after the capture is another story."""
_OF_ITS_NODE = (FailureKind.NODE_FAILED, FailureKind.EVICTED)
"""Ends that every rank of the pod shared."""


def machines(pods: Sequence[Pod]) -> dict[str, str]:
    """Pod → the machine that it ran on."""
    return {pod.name: pod.machine for pod in pods if pod.machine is not None}


def place_missing(pods: Sequence[Pod], who: Identity) -> None:
    """Name the node of ranks of which nothing was collected: one pod without ranks has those that no other has, where
    each of the others has as many."""
    if not pods:
        return
    ours, _ = _of_this_job(pods, who)
    found = {pod.name: _ranks_of(pod, ours, who) for pod in ours}
    empty = [name for name, ranks in found.items() if not ranks]
    left = sorted(who.ranks - set(who.nodes))
    if len(empty) == 1 and left and all(len(ranks) == len(left) for name, ranks in found.items() if name != empty[0]):
        who.nodes.update(dict.fromkeys(left, empty[0]))


def of_pods(
    pods: Sequence[Pod], who: Identity, dumped: Collection[int], captured_at_ns: int | None
) -> tuple[list[Failure], list[Gap]]:
    """What the API server says of this job's pods. A pod of which ranks left dumps (`dumped`) was there when the others
    waited: what ended it came after, and accuses nobody."""
    if not pods:
        return [], []
    ours, gaps = _of_this_job(pods, who)
    ours = _without_cleaning_up(ours)
    failures: list[Failure] = []
    on = machines(pods)
    well = {pod.name for pod in ours if pod.well}
    for pod in ours:
        ranks = _ranks_of(pod, ours, who)
        later = any(rank in dumped for rank in ranks)
        for end in pod.ends:
            why = _why_history(end, pod, well, captured_at_ns)
            if why:
                gaps.append(Gap(end.failure.text, why, node=pod.name, source=pod.source))
            else:
                failures.extend(_placed(end, [] if later else ranks, on.get(pod.name), effect=later))
    return _once(failures), gaps


def _of_this_job(pods: Sequence[Pod], who: Identity) -> tuple[list[Pod], list[Gap]]:
    """Those of the job whose ranks are known, else of the only job there is: a list may show a whole namespace."""
    nodes = {short_name(node) for node in who.nodes.values()}
    known = [pod for pod in pods if _is_named(pod, nodes)]
    if known:
        return _with_siblings(known, pods), []
    listed = {(pod.namespace, pod.job) for pod in pods if pod.job is not None}
    if len(listed) > 1 or (nodes and not listed):
        what = f"what {len(pods)} pods' statuses say"
        why = "they are of several jobs, or of none that is known here: list one job's alone (kubectl get pods -l …)"
        return [], [Gap(what, why, source=pods[0].source)]
    return [pod for pod in pods if pod.job is not None or not listed or _may_be_of(pod, pods)], []


def _with_siblings(known: Sequence[Pod], pods: Sequence[Pod]) -> list[Pod]:
    """These pods and the others of their job, events about them included."""
    jobs = {(pod.namespace, pod.job) for pod in known if pod.job is not None}
    same = [pod for pod in pods if (pod.namespace, pod.job) in jobs]
    names = {pod.name for pod in (*known, *same)}
    return [pod for pod in pods if pod.name in names or (pod.job is None and _may_be_of(pod, same))]


def _may_be_of(pod: Pod, pods: Sequence[Pod]) -> bool:
    """Whether an event, which names no job, is about a pod of the list, or one that was in it by its name."""
    others = [other for other in pods if other.job is not None]
    return any(pod.name == other.name or pod.name.startswith(f"{other.job}-") for other in others)


def _without_cleaning_up(pods: Sequence[Pod]) -> list[Pod]:
    """Without stops that came when the job was over, and those of most of its pods: then it was deleted."""
    stops = {pod.name: end.failure.at_ns for pod in pods for end in pod.ends if end.failure.kind == STOPPED}
    most = 2 * len(stops) > len({pod.name for pod in pods})

    def is_late(pod: Pod) -> bool:
        at_ns = stops.get(pod.name)
        others = [end.failure for other in pods if other.name != pod.name for end in other.ends]
        ended = [each.at_ns for each in others if each.kind != STOPPED and each.at_ns is not None]
        return at_ns is None or not ended or at_ns > min(ended)

    return [
        replace(pod, ends=tuple(end for end in pod.ends if end.failure.kind != STOPPED))
        if most or is_late(pod)
        else pod
        for pod in pods
    ]


def _is_named(pod: Pod, nodes: set[str]) -> bool:
    return short_name(pod.name) in nodes or (pod.machine is not None and short_name(pod.machine) in nodes)


def _ranks_of(pod: Pod, pods: Sequence[Pod], who: Identity) -> list[int]:
    """The ranks that ran in a pod: by its name, or by its machine's where no other pod of the job was there."""
    names = {short_name(pod.name)}
    beside = {other.name for other in pods if other.machine == pod.machine}
    if pod.machine is not None and beside == {pod.name}:
        names.add(short_name(pod.machine))
    return sorted(rank for rank, node in who.nodes.items() if short_name(node) in names)


def _why_history(end: PodEnd, pod: Pod, well: Set[str], captured_at_ns: int | None) -> str:
    """Why an end has nothing to do with the hang; empty where it may have."""
    if end.whole and pod.name in well:
        return "past: the pod runs and is ready"
    at_ns = end.failure.at_ns
    near = captured_at_ns is None or (at_ns is not None and abs(at_ns - captured_at_ns) <= HISTORY_NS)
    if end.restarted and not near:
        return f"past: the container was started again since ({pod.restarts} restarts); the hang was at another time"
    return "" if near or not end.whole or at_ns is None else "not the hang's time"


def _placed(end: PodEnd, ranks: Sequence[int], machine: str | None, *, effect: bool) -> Iterator[Failure]:
    """One failure a rank where all of the pod is gone. A container that ended says nothing of which rank in it was the
    first; where there is one alone, out of memory can only be its own."""
    failure = replace(end.failure, effect=end.failure.effect or effect)
    if failure.kind == FailureKind.NODE_FAILED and machine is not None:
        failure = replace(failure, node=machine)
    alone = failure.kind == FailureKind.HOST_OOM and len(ranks) == 1
    if ranks and (alone or (end.whole and failure.kind in _OF_ITS_NODE)):
        for rank in ranks:
            yield replace(failure, rank=rank)
    else:
        yield failure


def _once(failures: Sequence[Failure]) -> list[Failure]:
    """A pod's status and its events tell of one end."""
    kept: dict[tuple[object, ...], Failure] = {}
    for failure in failures:
        node: object = failure.node if failure.kind in _OF_ITS_NODE else failure.text
        kept.setdefault((failure.kind, node, failure.rank), failure)
    return list(kept.values())
