"""What history calls a machine: its name, and its cluster where the project has several; before a repair, another one.

What a machine did before it was repaired stays explained by what it was then, so that nobody else is blamed for it; and
the repaired one begins anew.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, func, select

from hangscope.server.history.place_names import ARROW, qualified
from hangscope.server.intake.entities import LINK, NODE, PLACES
from hangscope.server.store.tables import ENTITIES, JOBS, MARKS

REPAIRED = "repaired"
DISMISSED = "dismissed"
NOTE = "note"
DRAINED = "drained"


class Marks(NamedTuple):
    """When a machine was repaired last, and when somebody last said that suspecting it is wrong."""

    repaired_at: float = 0.0
    dismissed_at: float = 0.0


NONE = Marks()


class Places:
    """The names of one project's machines."""

    def __init__(self, connection: Connection, project_id: int) -> None:
        self._project_id = project_id
        self._connection = connection
        mine = JOBS.c.project_id == project_id
        first, last = connection.execute(select(func.min(JOBS.c.cluster), func.max(JOBS.c.cluster)).where(mine)).one()
        self.has_clusters = first != last
        self.only = "" if self.has_clusters else first or ""
        """The one cluster that there is."""
        self._marks, self._of_nodes = self._read_marks()

    def _read_marks(self) -> tuple[dict[int, Marks], dict[tuple[str, str], Marks]]:
        """By entity, and by cluster and name of nodes: a link is repaired with either of its ends."""
        rows = self._connection.execute(
            select(MARKS.c.entity_id, MARKS.c.what, MARKS.c.at, ENTITIES.c.kind, ENTITIES.c.cluster, ENTITIES.c.name)
            .join(ENTITIES, ENTITIES.c.id == MARKS.c.entity_id)
            .where(MARKS.c.project_id == self._project_id, MARKS.c.what.in_((REPAIRED, DISMISSED)))
        )
        found: dict[int, Marks] = {}
        nodes: dict[tuple[str, str], Marks] = {}
        for row in rows:
            before = found.get(row.entity_id, NONE)
            if row.what == REPAIRED:
                made = before._replace(repaired_at=max(row.at, before.repaired_at))
            else:
                made = before._replace(dismissed_at=max(row.at, before.dismissed_at))
            found[row.entity_id] = made
            if row.kind == NODE:
                nodes[row.cluster, row.name] = made
        return found, nodes

    def marks(self, entity_id: int, kind: str, name: str, cluster: str, above: int | None) -> Marks:
        """Of a machine, of the node that it is in, and of a link's ends."""
        found = [self._marks.get(entity_id, NONE)]
        if above is not None and kind in PLACES and kind != NODE:
            found.append(self._marks.get(above, NONE))
        if kind == LINK and self._of_nodes:
            found += [self._of_nodes.get((cluster, end), NONE) for end in name.split(ARROW)]
        made = Marks(max(each.repaired_at for each in found), max(each.dismissed_at for each in found))
        if kind not in PLACES:  # code is suspect by the jobs that ran it: those until then were another's
            return Marks(repaired_at=max(made))
        return made

    def label(self, kind: str, name: str, cluster: str) -> str:
        return qualified(name, cluster) if self.has_clusters and kind in PLACES else name
