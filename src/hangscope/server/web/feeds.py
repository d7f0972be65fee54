"""For monitors and readers: Prometheus metrics, and the newest incidents as Atom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from xml.etree import ElementTree

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from sqlalchemy import case, func, select

from hangscope.server.store import work_queue
from hangscope.server.store.access_tokens import Access
from hangscope.server.store.tables import DELIVERIES, INCIDENTS, ISSUES, JOBS, WEBHOOKS, WORK
from hangscope.server.web import answers, lists
from hangscope.server.web.guard import Reader

router = APIRouter(tags=["read"], responses=answers.ERRORS)
_ATOM = "http://www.w3.org/2005/Atom"


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text"}},
)
def metrics(request: Request, access: Reader) -> PlainTextResponse:
    """What there is in the project, and what waits, in Prometheus's text format."""
    text = "".join(f"{line}\n" for line in _metrics(request, access))
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _metrics(request: Request, access: Access) -> Iterator[str]:
    mine = INCIDENTS.c.project_id == access.project_id
    with request.app.state.database.read() as connection:
        counts = lists.counts(connection, access.project_id)
        jobs = connection.execute(
            select(func.count()).select_from(JOBS).where(JOBS.c.project_id == access.project_id)
        ).scalar_one()
        issues = connection.execute(
            select(ISSUES.c.state, func.count())
            .where(ISSUES.c.project_id == access.project_id, ISSUES.c.merged_into.is_(None))
            .group_by(ISSUES.c.state)
        ).all()
        oldest = connection.execute(
            select(func.min(INCIDENTS.c.received_at))
            .join(WORK, WORK.c.subject == INCIDENTS.c.id)
            .where(mine, WORK.c.kind == "digest")
        ).scalar()
    yield from _suspects(request, access)
    yield from _deliveries(request, access)
    yield "# HELP hangscope_incidents Incidents by state and kind."
    yield "# TYPE hangscope_incidents gauge"
    for state, kind, count in counts:
        yield f'hangscope_incidents{{state="{state}",kind="{kind}"}} {count}'
    yield "# HELP hangscope_issues Issues by state."
    yield "# TYPE hangscope_issues gauge"
    for row in issues:
        yield f'hangscope_issues{{state="{row[0]}"}} {row[1]}'
    yield "# HELP hangscope_jobs Jobs with a roster or an incident."
    yield "# TYPE hangscope_jobs gauge"
    yield f"hangscope_jobs {jobs}"
    yield "# HELP hangscope_oldest_waiting_seconds How long the oldest accepted incident waits for its diagnosis."
    yield "# TYPE hangscope_oldest_waiting_seconds gauge"
    yield f"hangscope_oldest_waiting_seconds {0 if oldest is None else max(0.0, time.time() - oldest):.1f}"


def _suspects(request: Request, access: Access) -> Iterator[str]:
    found = request.app.state.history.suspects(access.project_id)["suspects"]
    proposed = [each for each in found if each["proposed"]]
    yield "# HELP hangscope_suspects Machines and code that history suspects."
    yield "# TYPE hangscope_suspects gauge"
    yield f'hangscope_suspects{{state="proposed"}} {len(proposed)}'
    yield f'hangscope_suspects{{state="watched"}} {sum(bool(each.get("watched")) for each in found)}'
    yield "# HELP hangscope_suspect Who is proposed to be taken out, with its odds."
    yield "# TYPE hangscope_suspect gauge"
    for each in proposed:
        names = {"kind": each["kind"], "name": each["name"], "cluster": each["cluster"], "node": each["node"] or ""}
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in names.items())
        yield f"hangscope_suspect{{{labels}}} {min(each['odds'], 1e9):.6g}"


def _deliveries(request: Request, access: Access) -> Iterator[str]:
    waits = DELIVERIES.c.id.in_(select(WORK.c.subject).where(WORK.c.kind == work_queue.DELIVER))
    state = case((DELIVERIES.c.delivered_at.is_not(None), "delivered"), (waits, "waiting"), else_="failed")
    with request.app.state.database.read() as connection:
        counted = connection.execute(
            select(state.label("state"), func.count())
            .join(WEBHOOKS, WEBHOOKS.c.id == DELIVERIES.c.webhook_id)
            .where(WEBHOOKS.c.project_id == access.project_id)
            .group_by(state)
        )
        counts = {row[0]: row[1] for row in counted}
    yield "# HELP hangscope_deliveries Messages to webhooks of the last 30 days, by what came of them."
    yield "# TYPE hangscope_deliveries gauge"
    for name in ("delivered", "waiting", "failed"):
        yield f'hangscope_deliveries{{state="{name}"}} {counts.get(name, 0)}'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


@router.get(
    "/incidents.atom",
    response_class=Response,
    responses={200: {"content": {"application/atom+xml": {}}, "description": "the feed"}},
)
def atom(request: Request, access: Reader) -> Response:
    """The newest incidents, for feed readers."""
    base = request.app.state.base_url
    with request.app.state.database.read() as connection:
        found = lists.incidents(connection, access.project_id, lists.Filters())
    feed = ElementTree.Element("feed", xmlns=_ATOM)
    _add(feed, "title", f"hangscope: {access.project}")
    _add(feed, "id", f"{base}/")
    _add(feed, "updated", _time(found[0]["happened_at"] if found else 0.0))
    for each in found:
        entry = ElementTree.SubElement(feed, "entry")
        _add(entry, "title", each["headline"] or f"incident {each['id']} ({each['state']})")
        _add(entry, "id", f"{base}/incidents/{each['id']}")
        _add(entry, "updated", _time(each["happened_at"]))
        _add(entry, "summary", each["summary"] or each["problem"] or "")
        ElementTree.SubElement(entry, "link", href=f"{base}/incidents/{each['id']}")
    return Response(ElementTree.tostring(feed, encoding="utf-8"), media_type="application/atom+xml")


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = text


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat()
