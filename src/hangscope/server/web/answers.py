"""What the API answers, as models for its description. Fields may be added: what is not described here is given too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Error(Answer):
    """Every answer that is no success has this shape. `request` is the number under which the server's log has it."""

    error: str
    hint: str | None = None
    request: str | None = None


class LackingSaid(Answer):
    lacking: list[str]


class LackingError(Error):
    lacking: list[str]


class BlobKept(Answer):
    sha256: str
    size: int


class IncidentAccepted(Answer):
    incident: int
    new: bool


class JobKept(Answer):
    job: int


class Incident(Answer):
    id: int
    state: str
    outcome: str | None = None
    kind: str | None = None
    confidence: str | None = None
    headline: str | None = None
    summary: str | None = None
    problem: str | None = None
    happened_at: float
    received_at: float
    cluster: str | None = None
    job: str | None = None
    attempt: str | None = None
    job_id: int | None = None
    fingerprint: str | None = None
    issue_id: int | None = None


class Page(Answer):
    """`next` is the address of what follows, or null."""

    next: str | None = None


class Incidents(Page):
    incidents: list[Incident]


class OneIncident(Incident):
    explanation: dict[str, Any] = {}
    accused: list[dict[str, Any]] = []


class Part(Answer):
    id: int
    size: int
    source: str
    token: str | None = None
    counts: bool = True


class Bundles(Answer):
    bundles: list[Part]


class Issue(Answer):
    id: int
    title: str
    state: str
    incidents: int
    first_seen_at: float
    last_seen_at: float


class Issues(Page):
    issues: list[Issue]


class Job(Answer):
    id: int
    cluster: str
    name: str
    attempt: str
    started_at: float
    ended_at: float | None = None
    exit_status: int | None = None
    world_size: int | None = None


class Jobs(Page):
    jobs: list[Job]


class Node(Answer):
    name: str
    last_seen_at: float


class OneNode(Node):
    cluster: str
    jobs_total: int
    incidents_total: int
    jobs: list[dict[str, Any]] = []
    incidents: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    suspect: dict[str, Any] | None = None


class NodeMarked(Answer):
    node: str
    cluster: str
    what: str


class StatesNoted(Answer):
    """`repaired` are nodes that had been taken out and are back."""

    repaired: list[str]


class Nodes(Page):
    nodes: list[Node]


class Suspects(Answer):
    suspects: list[dict[str, Any]]
    made_at: float | None = None


class NodeChecked(Answer):
    """`known`: a job ran on it or a verdict named it. `similar`: known nodes that may have been meant."""

    node: str
    known: bool
    proposed: bool
    says: str = ""
    similar: list[str] = []


class Decision(Answer):
    """`says` is the sentence of the page and of `diagnose --server`."""

    answer: str
    says: str
    rows: list[dict[str, Any]]


class IssueChanged(Answer):
    issue: int


class Tokens(Answer):
    tokens: list[dict[str, Any]]


class TokenMade(Answer):
    token: str


class Revoked(Answer):
    revoked: bool


class Deleted(Answer):
    deleted: bool


class Webhooks(Answer):
    webhooks: list[dict[str, Any]]


class WebhookMade(Answer):
    id: int
    secret: str


class Queued(Answer):
    queued: int


class Deliveries(Page):
    """`state` of each: waiting, delivered, or failed with its `problem` and how often it was tried."""

    deliveries: list[dict[str, Any]]


class Kept(Answer):
    days: int | None


class Audit(Page):
    audit: list[dict[str, Any]]


class Usage(Answer):
    used: dict[str, float]
    budgets: dict[str, float]


def following(path: str, given: Mapping[str, object]) -> str:
    """The address of the next page."""
    return f"{path}?{urlencode({name: value for name, value in given.items() if value not in (None, '')})}"


_SAID = {
    400: "not JSON, or a name that cannot be",
    401: "a valid token is needed",
    403: "the token has not that scope",
    404: "there is no such thing in this project",
    408: "the body came too slowly",
    413: "too much for one request",
    422: "something in it is not understood",
    429: "too many requests",
    503: "the database does not answer: later again",
    507: "the disk is full, or the project's budget used up",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": said} for status, said in _SAID.items()
}
