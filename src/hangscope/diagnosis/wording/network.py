"""Operations that everybody joined and that do not finish."""

from collections.abc import Iterable

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.advice import KERNEL, ROOT
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.hardware.stuck_link import way_of
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Link
from hangscope.diagnosis.wording.others import Words
from hangscope.model import State, TransportEvent
from hangscope.text import short, verb


def cut_off(case: Case, a: Accusation) -> Words:
    title, inside = case.names.wait(a.its_wait), a.its_wait.waiters
    stuck, finished = f"is stuck in {title}, which its peers have finished", ranks_text(a.its_wait.finished)
    return Words(
        f"{title} does not arrive at {ranks_text(a.ranks)}",
        f"Bytes of {title} do not get through {_ends(a.link, f'towards {ranks_text(inside)}')}: "
        f"{finished} finished it, {ranks_text(inside)} {verb(inside, 'is', 'are')} stuck inside it.",
        {x.rank: f"receives {title} {x.text}, and does not get it" if a.link else stuck for x in a.accused},
        link_steps(case, a.link) or [_ports_step(case, inside), port_commands.LOGS],
    )


def _ends(link: Link | None, otherwise: str) -> str:
    return f"from rank {link.sender.rank} to rank {link.receiver.rank}" if link else otherwise


def pair(case: Case, a: Accusation) -> Words:
    title = case.names.wait(a.its_wait)
    text = f"bytes {_ends(a.link, f'in {title}')} do not arrive"
    return Words(
        text,
        f"Sender and receiver both launched {title}, and {text}.",
        {x.rank: f"sends {x.operation}, {x.text}" if x.operation else x.text for x in a.accused},
        link_steps(case, a.link) or [port_commands.LOGS],
    )


def port_errors(case: Case, a: Accusation) -> Words:
    title, members = case.names.wait(a.its_wait), len(a.its_wait.inside)
    trouble = case.ports.trouble(a.its_wait.waiters)
    return Words(
        f"errors on {a.detail}, while everybody is inside {title}",
        f"Network: all {members} members are inside {case.names.wait_in_group(a.its_wait)} and none finished; counters "
        f"of errors rose on {a.detail} and hardly anywhere else.",
        {x.rank: f"what it sends and receives in {x.operation} goes over {a.detail}" for x in a.accused},
        port_commands.steps(trouble.path, trouble.ports) if trouble else [],
    )


def link_stuck(case: Case, a: Accusation) -> Words:
    text = f"bytes {_ends(a.link, '')} do not arrive"
    return Words(
        text,
        f"{text[:1].upper()}{text[1:]}: {a.findings[0].text}.",
        {x.rank: f"sends {x.operation}, which does not arrive" if x.operation else "waits for it" for x in a.accused},
        link_steps(case, a.link) or [_ports_step(case, a.ranks)],
    )


def everybody_inside(case: Case, a: Accusation) -> Words:
    started = all(u.state is State.STARTED for u in a.its_wait.inside)
    how, what = "started" if started else "launched", case.names.wait_in_group(a.its_wait)
    edge = f"between rank {a.link.sender.rank} and rank {a.link.receiver.rank}" if a.link else "edge not determined"
    return Words(
        f"network or hardware inside {case.names.wait(a.its_wait)}, {edge}",
        f"Network or hardware inside {what}, {edge}: all {len(a.its_wait.inside)} members {how} it and none finished.",
        steps=[_ports_step(case, a.its_wait.waiters), port_commands.LOGS],
    )


def everybody_launched(case: Case, a: Accusation) -> Words:
    either, why, *steps = (*KERNEL, port_commands.LOGS) if case.stacks.on_gpu else ROOT
    return Words(
        f"everybody is inside {case.names.wait(a.its_wait)}; {either} or the network, not determined",
        f"All that take part launched {case.names.wait_in_group(a.its_wait)} and do not finish it; {why}.",
        steps=steps,
    )


def gpu_error(case: Case, a: Accusation) -> Words:
    title, names = case.names.wait(a.its_wait), ranks_text(a.ranks)
    codes = ", ".join(dict.fromkeys(x.text for x in a.accused))
    nodes = [case.job.nodes.get(rank) or f"the node of rank {rank}" for rank in a.ranks]
    return Words(
        f"the GPU of {names} failed inside {title}",
        f"The GPU of {names} reported an error ({codes}) while all members were inside {title}.",
        {x.rank: f"its GPU reported {x.text}" for x in a.accused},
        [f"node: drain {node}, then nvidia-smi -q and a GPU reset" for node in nodes],
    )


def transport_warning(case: Case, a: Accusation) -> Words:
    assert isinstance(a.detail, TransportEvent)
    event, title = a.detail, case.names.wait(a.its_wait)
    port = f" ({event.hca}{f', port {event.port}' if event.port else ''})" if event.hca else ""
    who = f"rank {event.rank}" if event.rank is not None else event.node or "a rank that its log does not name"
    where = case.names.ranks([event.rank]) if event.rank is not None else who
    device = f" on {event.hca}" if event.hca else ""
    return Words(
        f"NCCL on {who} reports a transport error{port} inside {title}",
        f"Network: all members are inside {title}, and NCCL on {where} reports {short(event.text, 120)}{port}.",
        {x.rank: x.text or f"NCCL on it reports a transport error{device}" for x in a.accused},
        link_steps(case, a.link) or [_ports_step(case, a.ranks)],
    )


def link_steps(case: Case, link: Link | None) -> list[str]:
    return port_commands.steps(case.ports.path(way_of(link)), case.ports.suspects) if link else []


def _ports_step(case: Case, ranks: Iterable[int]) -> str:
    return port_commands.look_at({case.job.nodes[r] for r in ranks if r in case.job.nodes})
