"""The groups of a job by what logs call them, with those that only logs know."""

from collections.abc import Sequence
from dataclasses import replace

from hangscope.model import Group, Job, WatchdogReport

_DEFAULT = "default_pg"
_NOT_NAMED = "a group that no line names"


class LogGroups:
    """`all` are the job's groups, and behind them those that a log speaks of and no dump knows."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.all: list[Group] = []
        self._called: dict[str, list[Group]] = {}
        self._default: list[Group] = []
        self._members: dict[int, frozenset[int]] = {}
        for group in job.groups:
            self._append(group)
        self._of_report = {id(r): self.find(r.rank, r.group_name, r.group_desc) for r in job.facts.watchdog}
        self._name_the_unnamed()

    def of_report(self, report: WatchdogReport) -> int:
        """The group that a log line speaks of."""
        return self._of_report[id(report)]

    def _name_the_unnamed(self) -> None:
        """A group of which no line says that it is the default one is not called so."""
        named = {self._of_report[id(r)] for r in self._job.facts.watchdog if r.group_name is not None}
        for index in range(len(self._job.groups), len(self.all)):
            if index not in named:
                self.all[index] = replace(self.all[index], desc=_NOT_NAMED)

    def add(self, name: str, desc: str, members: tuple[int, ...] | None) -> int:
        """A group that no dump knows."""
        self._append(Group(len(self.all), name, desc, members, members_seen=True))
        return len(self.all) - 1

    def _append(self, group: Group) -> None:
        self.all.append(group)
        if group.is_called(group.name):
            self._called.setdefault(group.name, []).append(group)
        if group.desc in (_DEFAULT, ""):
            self._default.append(group)

    def find(self, rank: int, name: str | None, desc: str | None) -> int:
        """The index of the group that a rank's log calls so; a group that no dump knows is added."""
        fitting = self._with(rank, self._default if name is None else self._called.get(name, ()))
        if name is None and not fitting:
            everyone = set(self._job.ranks)
            fitting = [group for group in self.all if group.members is None or set(group.members) == everyone]
        if fitting:
            return fitting[0].index
        if name is None or name == "0" or desc == _DEFAULT:
            return self.add("0" if name is None else name, desc or _DEFAULT, tuple(self._job.ranks))
        return self.add(name, desc or "", None)

    def _with(self, rank: int, groups: Sequence[Group]) -> list[Group]:
        """Those that a rank may belong to."""
        return [group for group in groups if group.members is None or rank in self._members_of(group)]

    def _members_of(self, group: Group) -> frozenset[int]:
        if group.index not in self._members:
            self._members[group.index] = frozenset(group.members or ())
        return self._members[group.index]
