"""The JSON Schema of the verdict, made from the classes that it is written from.

`diagnosis.schema.json` beside this file is the same as a file, for programs that are not Python; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from hangscope.diagnosis.verdict import SCHEMA, Diagnosis, Finding, LinkEnd, Place
from hangscope.engine_roles import Role
from hangscope.model import FileWait, Frame, Source
from hangscope.report.contract import Time, keys_of
from hangscope.report.export import optional

Schema = dict[str, Any]


def schema() -> Schema:
    """The published JSON Schema of `to_dict`'s result."""
    named = {
        "time": {
            "type": ["string", "null"],
            "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$",
            "description": "UTC, with milliseconds.",
        },
        **{name: _any(hint) for name, hint in _NAMED.items()},
    }
    named["frames"]["description"] = "Innermost frame first."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:hangscope:diagnosis:1.1",
        "title": SCHEMA,
        "description": "The verdict of `hangscope diagnose --json`. Unknown values are null, never left out. Later"
        " versions may add fields; they change none. Version 1.1 adds `culprits[].where`.",
        **_object(Diagnosis),
        "$defs": named,
    }


_NAMED: Mapping[str, Any] = {
    "frames": tuple[Frame, ...],
    "link_end": LinkEnd,
    "findings": tuple[Finding, ...],
    "place": Place,
    "storage": FileWait,
    "role": Role,
    "frame": Frame,
}
"""What the schema calls by a name of its own, because it is used in several places."""
_NAME_OF = {hint: name for name, hint in _NAMED.items()} | {Time: "time"}


def _object(cls: type) -> Schema:
    properties = {key.name: _key(f"{cls.__name__}.{key.name}", key.hint) for key in keys_of(cls)}
    return {"type": "object", "required": list(properties), "properties": properties}


def _key(path: str, hint: Any) -> Schema:
    name = path.partition(".")[2]
    least = {"minimum": 0} if name in _NOT_NEGATIVE or path in _NOT_NEGATIVE else {}
    described = {"description": _DESCRIBED[path]} if path in _DESCRIBED else {}
    return {**_used(hint), **least, **_NARROWER.get(path, {}), **described}


def _used(hint: Any) -> Schema:
    """A type where it is used: by its name, where it has one."""
    return {"$ref": f"#/$defs/{_NAME_OF[hint]}"} if hint in _NAME_OF else _any(hint)


def _any(hint: Any) -> Schema:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    there = optional(hint)
    if there is not None:
        return _or_null(_used(there))
    if is_dataclass(hint):
        return _object(hint)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [str(word) for word in hint]}
    return _container(get_origin(hint), get_args(hint))


def _or_null(there: Schema) -> Schema:
    if isinstance(there.get("type"), str) and there["type"] != "object":
        return {**there, "type": [there["type"], "null"]}
    return {"anyOf": [there, {"type": "null"}]}


def _container(origin: Any, args: tuple[Any, ...]) -> Schema:
    if origin is Literal:
        return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    if origin is Mapping:
        ranks = {"propertyNames": {"pattern": r"^\d+$"}} if args[0] is int else {}
        return {"type": "object", **ranks, "additionalProperties": _used(args[1])}
    items = {**_used(args[0]), **({"minimum": 0} if args[0] is int else {})}
    length = {"minItems": len(args), "maxItems": len(args)} if len(args) > 2 else {}
    return {"type": "array", **length, "items": items}


_PLAIN: Mapping[Any, Any] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    float: ["number", "null"],
    float | None: ["number", "null"],
    Source: "string",
}
_NOT_NEGATIVE = frozenset(
    (
        *("rank", "local_rank", "waits_for_count", "times_last", "operations", "waiting_s"),
        *("ranks", "dumps", "stacks", "logs", "nccl_logs", "Completeness.gpu_cores"),
        *("Place.line", "CodeLine.line", "GpuKernel.device"),
        *("named", "jobs", "cluster_named", "cluster_jobs", "incidents", "id"),
    )
)
_NARROWER: Mapping[str, Schema] = {
    "Diagnosis.summary": {"minLength": 1},
    "OperationInFlight.state_by_rank": {
        "additionalProperties": {"enum": ["not launched", "scheduled", "started", "completed", "unknown"]}
    },
    "FileWait.call": {"enum": ["read", "write", "sync", "open", "stat", "list", "access"]},
    "History.answer": {"enum": ["hardware", "code", "network", "storage", "outage", "not decided"]},
}
"""Of which values only some are given, or which are never empty."""
_DESCRIBED: Mapping[str, str] = {
    "Diagnosis.outcome": "What people see as the first word.",
    "Diagnosis.culprits": "Exactly the ranks accused, sorted; empty where nobody can be.",
    "Diagnosis.operation": "The operation in flight at the root.",
    "Diagnosis.last_completed": "The last operation that every member of that group finished.",
    "Diagnosis.link": "The connection over which bytes do not arrive.",
    "Diagnosis.first_reported": "Where the timeout was first reported; seldom the culprit.",
    "Diagnosis.confidence_rule": "The rule that gave the confidence.",
    "Diagnosis.also_possible": "What fits nearly as well.",
    "Diagnosis.gaps": "Evidence that should be there and is not; never an accusation by itself.",
    "Diagnosis.gpu_cores": "What ranks' GPUs ran when they were asked; a rank that is not here was not asked, or"
    " did not answer.",
    "Diagnosis.engine": "Whose processes the ranks are, where an engine such as vLLM or SGLang runs them; else"
    " null. Since 1.2.",
    "Diagnosis.actors": "The actors, tasks or drivers of a Ray cluster that are accused, also where they are no"
    " ranks of torch.distributed. Since 1.2.",
    "Diagnosis.history": "What the fleet's history says, asked for with `--server`; null where nobody asked, or the"
    " server did not answer. It changes nothing else in the verdict but `retry`.",
    "Diagnosis.retry": "Whether the job is worth starting again as it is: same (on any nodes), elsewhere (without"
    " `nodes`), no (its code does it, on any node), unknown; null where the job goes on, or ended well.",
    "Diagnosis.waiting_is_least": "Whether waiting_s is only for how long the ranks were seen to wait: when it"
    " began, nothing says.",
    "Culprit.rank": "A global rank; null where the evidence names the culprit by what follows alone.",
    "Culprit.where": "The line of the user's own code at which the rank is or ended; null where nothing shows it."
    " Since 1.1.",
    "Culprit.storage": "The file that the rank, or a process that it waits for, is blocked on; null where none was"
    " seen. Since 1.1.",
    "Culprit.role": "Which process of an engine the rank is; null where it is none, or nothing says so. Since 1.2.",
    "Culprit.device": "The GPU, NPU or network device, as its driver calls it, of a culprit without a rank.",
    "Culprit.task": "The task of a runtime, of a culprit without a rank.",
    "Awaited.rank": "A global rank.",
    "Awaited.waits_for": "All ranks that it waits for, sorted; a share of them where `waits_for_count` is larger.",
    "Awaited.chain": "From this rank to the root of the hang, itself first.",
    "Awaited.waits_for_count": "How many ranks it waits for.",
    "FirstReported.rank": "A global rank.",
    "FirstReported.local_time": "Whether `at` is by the log's own clock, which names no zone, and not in UTC.",
    "Lateness.rank": "A global rank.",
    "GpuCore.kernels": "Launches that had not ended; none where nothing ran.",
    "GpuKernel.blocks": "Its blocks that were on the GPU.",
    "Engine.roles": "Rank, as text, to which process of the engine it is.",
    "Engine.others": "Processes of the engine that are no ranks, such as its API server. Nobody of them is ever"
    " accused.",
    "ActorCulprit.label": "As people know it: actor Learner 'learner-2' (rank 2), task preprocess, the driver.",
    "ActorCulprit.where": "The line of the user's own code at which it is; null where nothing shows it.",
    "LinkEnd.rank": "A global rank.",
    "Place.code": "The text of the line, where it was saved with the stacks or printed in the traceback.",
    "Place.around": "The lines of source near it, where they were saved.",
    "Place.seen_in": "What shows it: the stack of the training thread, that of a process which the rank started and"
    " waits for, the traceback of what it raised, the stack at the fatal signal that ended it, or the call that"
    " was recorded.",
    "Place.pid": "The process that is there, where it is one that the rank started.",
    "Place.moves": "Whether a second look found it at another line of the same function.",
    "Place.filename": "The same as file, under the name that it has in a frame.",
    "Place.name": "The same as function, under the name that it has in a frame.",
    "Place.through": "The innermost frame of an installed package that this line called, and in which the rank is.",
    "FileWait.mount": "Where the file system is mounted.",
    "FileWait.type": "Its type, such as nfs4.",
    "FileWait.source": "The server and its export, or the device.",
    "FileWait.state": "The kernel's letter for the thread.",
    "FileWait.wait_channel": "The kernel's function that it sleeps in.",
    "FileWait.for_s": "For how long it was seen in that one call.",
    "Role.says": "For people: TP rank 3 of the engine (Worker_TP3).",
}
"""What a name alone does not say."""
