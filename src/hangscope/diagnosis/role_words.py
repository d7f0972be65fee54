"""A verdict in an engine's own language: which of its processes a rank is, beside the rank's number."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.verdict import Finding
from hangscope.engine_roles import Role
from hangscope.model import Job

_RANK = re.compile(r"\b[Rr]ank\s(\d{1,7})\b(?!\s\()")
_QUOTED = re.compile(r"“[^”]*”|\"[^\"]*\"|`[^`]*`")
_LISTED = 8


def roles_of(job: Job) -> dict[int, Role]:
    return {rank: process.role for rank, process in job.processes.items() if process.role is not None}


def with_roles(words: Words, roles: Mapping[int, Role], accused: Collection[int]) -> Words:
    """The accused ranks by their engine's names as well: once in the headline, once in the summary."""
    if not roles or not accused:
        return words
    return replace(
        words, headline=_named(words.headline, roles, accused), summary=_named(words.summary, roles, accused)
    )


def _named(text: str, roles: Mapping[int, Role], accused: Collection[int]) -> str:
    """`text` with the name behind the first mention of each; what it quotes stays as it is."""
    quotes = [found.span() for found in _QUOTED.finditer(text)]
    done: set[int] = set()

    def add(found: re.Match[str]) -> str:
        rank = int(found[1])
        quoted = any(start <= found.start() < end for start, end in quotes)
        if quoted or rank in done or rank not in accused or rank not in roles:
            return found[0]
        done.add(rank)
        return f"{found[0]} ({roles[rank].label})"

    return _RANK.sub(add, text)


def role_findings(job: Job) -> Iterator[Finding]:
    """Which processes of an engine the ranks are, and which of its processes are none."""
    roles = roles_of(job)
    if roles:
        engine = next(iter(roles.values())).engine
        listed = ", ".join(f"rank {rank} {role.label}" for rank, role in sorted(roles.items())[:_LISTED])
        more = f" and {len(roles) - _LISTED} more" if len(roles) > _LISTED else ""
        yield Finding(f"the ranks are processes of {engine}: {listed}{more}")
    others = job.facts.others
    if others:
        named = ", ".join(f"{each.role.label} (pid {each.pid})" for each in others[:_LISTED])
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        sources = (others[0].source,) if others[0].source is not None else ()
        yield Finding(f"processes of the engine that are no ranks: {named}{more}", sources)
