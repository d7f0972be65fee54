"""The log lines that a verdict rests on, shown as they are.

A sentence of ours is less than the line it was made of: the line also has the peer's address, the error code and the
sizes that differ. Ranks that print the same line but for its numbers are quoted once.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hangscope.diagnosis.verdict import Finding, LogFact
from hangscope.model import Facts, Failure, KernelMessage, Source, TransportEvent, WatchdogReport

_MOST_SHOWN = 3
_MOST_OF_ONE = 6
"""Lines of one finding: a block with its rows."""
_MOST_FACTS = 50
_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f]*", re.IGNORECASE)

_HEAD = "Traceback (most recent call last):"
"""It says nothing of what was raised."""

_LogFact = WatchdogReport | Failure | TransportEvent | KernelMessage


def with_quotes(findings: Sequence[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The findings, each with the line that it cites, unless its sentence or one before it says that line already."""
    quoted: list[Finding] = []
    shapes: set[str] = set()
    for finding in findings:
        lines = [facts.quotes[source] for source in finding.sources if source in facts.quotes]
        lines = [line for line in lines if not line.endswith(_HEAD)]
        new = [line for line in dict.fromkeys(lines) if not _is_said(line, finding) and _shape(line) not in shapes]
        if not new or len(shapes) >= _MOST_SHOWN:
            quoted.append(finding)
            continue
        shapes.update(_shape(line) for line in new[:_MOST_OF_ONE])
        quoted.append(replace(finding, detail=(*finding.detail, *new[:_MOST_OF_ONE])))
    return tuple(quoted)


def _is_said(quote: str, finding: Finding) -> bool:
    return any(quote in text for text in (finding.text, *finding.detail))


def _shape(line: str) -> str:
    return _NUMBER.sub("0", line)


def log_facts(findings: Iterable[Finding], facts: Facts) -> tuple[LogFact, ...]:
    """What the findings cite of logs, as data: each line once, with what it names."""
    known = {fact.source: fact for fact in reversed(list(_all(facts)))}
    cited = dict.fromkeys(source for finding in findings for source in finding.sources if source in facts.quotes)
    return tuple(_log_fact(source, facts.quotes[source], known.get(source)) for source in list(cited)[:_MOST_FACTS])


def _all(facts: Facts) -> Iterator[_LogFact]:
    yield from facts.failures
    yield from facts.transport
    yield from facts.kernel
    yield from facts.watchdog


def _log_fact(source: Source, quote: str, fact: _LogFact | None) -> LogFact:
    if fact is None:
        return LogFact(quote, source)
    if isinstance(fact, WatchdogReport):
        return LogFact(quote, source, fact.kind, fact.rank)
    if isinstance(fact, KernelMessage):
        return LogFact(quote, source, fact.kind, node=fact.node, code=fact.code)
    code = fact.code if isinstance(fact, Failure) else fact.status
    address = fact.peer_address if isinstance(fact, TransportEvent) else None
    return LogFact(quote, source, fact.kind, fact.rank, fact.node, fact.peer_rank, fact.peer_node or address, code)
