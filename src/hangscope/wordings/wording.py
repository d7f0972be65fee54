"""One wording of a line, and what the groups of its pattern mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from hangscope.failure_kinds import FailureKind

GROUPS = {
    "rank": "the global rank that the line is about",
    "ranks": "several global ranks, with commas or blanks between them",
    "task": "the number of a task or process of a runtime that is not torch.distributed",
    "peer": "the global rank that it waited for, or lost",
    "node": "the host, pod or address that the line is about",
    "peer_node": "the host, pod or address at the other end",
    "pid": "the process that the line is about",
    "local": "the local rank that the line is about",
    "device": "the GPU, NPU or network device, as its driver calls it",
    "code": "a status or exit code",
    "op": "the operation",
    "seq": "its sequence number",
    "what": "the reason, in the line's own words",
}
"""Group of a pattern → what it captures. Other groups are for `detail` alone."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What one program says in one situation.

    `words`: every line of this wording holds one of these. `below` are lines that go on with it: their groups are added,
    and `most_below` lines are looked at. `effect`: the line says only that its writer waited for others, lost them or
    was stopped. `explains`: it names a peer, a device or a reason, so that exceptions of its writer behind it follow from
    it. `of_writer`: it is about the process that wrote it, unless it names another. `names_ranks`: a task of this
    runtime is one rank. `warns`: healthy jobs print it too, so progress behind it takes it back. `recovers`: the line
    says that what another wording reported of the same peer or device is over. `kernel`: the kernel says it. `seen`
    is where it was read or printed, and in which versions.
    """

    kind: FailureKind | None
    """None where the line takes another back (`recovers`)."""
    pattern: str
    words: tuple[str, ...]
    example: str
    seen: str
    library: str = ""
    detail: str = ""
    operation: str = ""
    code: int | None = None
    below: str = ""
    most_below: int = 0
    effect: bool = False
    explains: bool = False
    of_writer: bool = False
    names_ranks: bool = False
    warns: bool = False
    recovers: bool = False
    kernel: bool = False
    page: str = ""
    """The page of docs/errors that is about it."""

    def search(self, text: str) -> re.Match[str] | None:
        """The wording in a line."""
        if not any(word in text for word in self.words):
            return None
        return compiled(self.pattern).search(text)


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern, compiled where a line first asks for it."""
    return re.compile(pattern)
