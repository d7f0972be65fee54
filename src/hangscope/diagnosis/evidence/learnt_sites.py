"""From where a rank makes a call whose own frames are not recorded: as in the steps before."""

from __future__ import annotations

from functools import cached_property

from hangscope.model import CallSite, Frame, Job, Operation

_Call = tuple[str, str, str]
_BEFORE = 2


class CallSites:
    """The calls that were learnt while all was well, asked by what they are and by their place in the step."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def frames(self, operation: Operation) -> tuple[Frame, ...]:
        """The frames of that call in earlier steps; empty where none was learnt, or several lines fit alike."""
        ops = self._job.ops
        part = self._job.ops.span(operation.rank)
        first = max(part.start, operation.row - _BEFORE)
        before = tuple(_call(ops[row]) for row in range(first, operation.row))
        known = self._by_call.get(_call(operation), [])
        # Its own steps come first; another rank runs the same program, as a rule.
        for mine in ([s for s in known if s.rank == operation.rank], known):
            for depth in (_BEFORE, 1, 0):
                fitting = [s for s in mine if s.before[len(s.before) - depth :] == before[len(before) - depth :]]
                lines = {s.frames for s in fitting if len(s.before) >= depth <= len(before)}
                if lines:
                    return lines.pop() if len(lines) == 1 else ()
        return ()

    @cached_property
    def _by_call(self) -> dict[_Call, list[CallSite]]:
        found: dict[_Call, list[CallSite]] = {}
        for site in self._job.facts.sites:
            found.setdefault(site.call, []).append(site)
        return found


def _call(operation: Operation) -> _Call:
    sizes = ",".join("x".join(map(str, shape[:8])) for shape in operation.input_shapes[:64])[:500]
    return operation.group.name or "", operation.name, sizes
