"""What the API takes, as models: what is not understood is refused with 422, and the place in it is named.

Texts are made one clean line (`plain_values.clean`); a time in the future, which is a node's clock, counts as now.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.accept_push import MOST_ASKED, MOST_BYTES, MOST_CHUNKS
from hangscope.server.intake.entities import MOST_DEVICES, MOST_RANKS
from hangscope.server.intake.job_rosters import MOST_NODES, MOST_VERSIONS
from hangscope.server.web.guard import JSON_BYTES, json_body

LONGEST_DAYS = 36_500
Taken = TypeVar("Taken", bound=BaseModel)


def _line(most: int) -> Any:
    def clean(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
            value = str(value)  # job 48121 is a name as well
        return plain.clean(value, most) if isinstance(value, str) else value

    return BeforeValidator(clean)


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, _line(200)]
Short = Annotated[str, _line(40)]
Long = Annotated[str, _line(300)]
Name = Annotated[str, _line(200), Field(min_length=1)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Days = Annotated[int, Field(ge=1, lt=LONGEST_DAYS)]
RowNumber = Annotated[int, Field(ge=0, lt=1 << 31)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Open(BaseModel):
    """An inventory: other versions say more of a machine than is used here."""

    model_config = ConfigDict(strict=True, extra="ignore")


class LackingAsked(Strict):
    sha256: Annotated[list[Sha256], Field(min_length=1, max_length=MOST_ASKED)]


class Bundle(Strict):
    sha256: Sha256
    size: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    chunks: Annotated[list[Sha256], Field(min_length=1, max_length=MOST_CHUNKS)]


class OfJob(Strict):
    cluster: Text = ""
    attempt: Short = ""


class PushedIncident(OfJob):
    bundle: Bundle
    job: Text = ""
    hang: Annotated[str, _line(100)] = ""
    source: Text = ""
    captured_at: Seconds | None = None
    evidence: Sha256 | None = None


class RankAt(Open):
    rank: Annotated[int, Field(ge=0, lt=1 << 24)]


class Gpu(Open):
    uuid: Text | None = None
    pci: Text | None = None


class Nic(Open):
    name: Text | None = None


class RosterNode(Open):
    node: Name
    ranks: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 24)] | RankAt], Field(max_length=MOST_RANKS)] = []
    gpus: Annotated[list[Gpu], Field(max_length=MOST_DEVICES)] = []
    nics: Annotated[list[Nic | Text], Field(max_length=MOST_DEVICES)] = []
    leaf: Text | None = None
    mounts: Annotated[list[Text], Field(max_length=MOST_DEVICES)] = []


class Roster(OfJob):
    job: Name
    world_size: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    started_at: Seconds | None = None
    image: Long | None = None
    commit: Long | None = None
    versions: Annotated[dict[str, Text], Field(max_length=MOST_VERSIONS)] = {}
    nodes: Annotated[list[RosterNode], Field(max_length=MOST_NODES)] = []


class JobEnd(OfJob):
    job: Name
    exit_status: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    ended_at: Seconds | None = None


class Named(Open):
    kind: Short
    name: Long


class HistoryAsked(Open):
    """Open: an older server answers a newer `diagnose` as well as it can."""

    cluster: Text = ""
    job: Text = ""
    fingerprint: Short = ""
    parts: Annotated[dict[str, Long], Field(max_length=20)] = {}
    kind: Short = ""
    raised: bool = False
    happened_at: Seconds | None = None
    accused: Annotated[list[Named], Field(max_length=1000)] = []


class NewToken(Strict):
    name: Annotated[str, _line(100), Field(min_length=1)]
    scopes: Annotated[list[Literal["push", "read", "triage", "admin"]], Field(min_length=1, max_length=4)]
    days: Days | None = None


class NewWebhook(Strict):
    url: Annotated[str, Field(max_length=2000)]
    shape: Literal["json", "slack", "alertmanager"] = "json"


class Retention(Strict):
    days: Days | None


class IssueChange(Strict):
    """`into` for merge, `fingerprint` for split, `days` for mute: without them a mute is for ever."""

    into: RowNumber | None = None
    fingerprint: Short | None = None
    days: Days | None = None


class NodeChange(Strict):
    """`at`: when it was repaired, now where it is not said. `note`: why, for those who look later."""

    note: Annotated[str, _line(1000)] = ""
    at: Annotated[float, Field(allow_inf_nan=False, gt=0, lt=1 << 33)] | None = None


class SuspectDismissed(Strict):
    kind: Literal["node", "gpu", "nic", "leaf", "link", "commit", "image"]
    name: Annotated[str, _line(300), Field(min_length=1)]
    cluster: Text | None = None
    note: Annotated[str, _line(1000)] = ""


class NodeState(Strict):
    node: Name
    taken_out: bool


class NodeStates(Strict):
    """What a scheduler says of its nodes. `source` is which one: slurm or kubernetes."""

    source: Annotated[str, _line(40), Field(min_length=1)]
    cluster: Text = ""
    nodes: Annotated[list[NodeState], Field(max_length=MOST_NODES)]


def taken(model: type[Taken], most: int = JSON_BYTES, *, optional: bool = False) -> Any:
    """The body of a request as that model, for a route's parameter."""

    async def take(request: Request) -> Taken:
        if (
            optional
            and request.headers.get("content-length", "0") == "0"
            and "transfer-encoding" not in request.headers
        ):
            return model()
        value = await json_body(request, most)
        return await run_in_threadpool(checked, model, value)

    return Depends(take)


def checked(model: type[Taken], value: object) -> Taken:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = [
            {**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False, include_context=False)
        ]
        raise RequestValidationError(found) from None


def described(model: type[BaseModel], *, optional: bool = False) -> dict[str, Any]:
    """The same for OpenAPI, which does not see what a route reads by itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": not optional, "content": {"application/json": {"schema": schema}}}}


MODELS: tuple[type[BaseModel], ...] = (
    LackingAsked,
    PushedIncident,
    Roster,
    JobEnd,
    HistoryAsked,
    NewToken,
    NewWebhook,
    Retention,
    IssueChange,
    NodeChange,
    SuspectDismissed,
    NodeStates,
)
