"""What a Ray cluster knows of itself: nodes, jobs, actors, workers and tasks, as one JSON value.

Read from Ray's own store (GCS), which answers with the dashboard off; where a version of Ray keeps it elsewhere, from
the public state API, which needs the dashboard. What neither says is a gap. Nothing of hangscope is imported here: with
Ray Client these functions run in the cluster, as a task that travels with its code.
"""

from __future__ import annotations

import time
from typing import Any

SCHEMA = "hangscope.ray/1"
MOST_TASKS = 20_000
MOST_FAILED = 500
MOST_WORKERS = 20_000
_RUNNING = 8
_FINISHED = 11
_FAILED = 12
_OURS = ("hangscope", "_ray_internal_")


def roster() -> dict[str, Any]:
    """Everything, with gaps for what could not be had."""
    import ray

    found: dict[str, Any] = {"schema": SCHEMA, "at": time.time(), "ray": ray.__version__, "gaps": []}
    parts = {
        "nodes": _nodes,
        "jobs": _jobs,
        "actors": _actors,
        "workers": _workers,
        "tasks": _tasks,
        "placement_groups": _placement_groups,
        "available": _available,
    }
    for name, read in parts.items():
        try:
            found[name] = read()
        except Exception as error:
            found[name] = _by_state_api(name)
            if found[name] is None:
                found[name] = []
                found["gaps"].append(
                    {"what": f"the {name.replace('_', ' ')} of the Ray cluster", "why": repr(error)[:300]}
                )
    return found


def _accessor() -> Any:
    """Ray's own door to its store; its name changed in 2.50."""
    state = _state()
    if hasattr(state, "_connect_and_get_accessor"):
        return state._connect_and_get_accessor()
    state._check_connected()
    return state.global_state_accessor


def _state() -> Any:
    from ray._private.state import state

    return state


def _protos() -> Any:
    from ray.core.generated import gcs_pb2

    return gcs_pb2


def _nodes() -> list[dict[str, Any]]:
    rows = []
    for node in _state().node_table():
        resources = node.get("Resources") or {}
        rows.append(
            {
                "id": node["NodeID"],
                "host": node.get("NodeManagerHostname") or "",
                "address": node.get("NodeManagerAddress") or "",
                "alive": bool(node.get("Alive")),
                "head": "node:__internal_head__" in resources,
                "death": str(node.get("DeathReasonMessage") or "")[:500],
                "resources": {name: value for name, value in resources.items() if not name.startswith("node:")},
            }
        )
    return rows


def _jobs() -> list[dict[str, Any]]:
    rows = []
    for raw in _accessor().get_job_table():
        job = _protos().JobTableData.FromString(raw)
        rows.append(
            {
                "id": job.job_id.hex(),
                "dead": job.is_dead,
                "driver_pid": job.driver_pid,
                "driver_node": job.driver_address.node_id.hex(),
                "driver_address": job.driver_ip_address or job.driver_address.ip_address,
                "entrypoint": job.entrypoint[:500],
                "namespace": job.config.ray_namespace,
                "started_at": job.start_time / 1e3 or None,
                "ended_at": job.end_time / 1e3 or None,
            }
        )
    return rows


def _actors() -> list[dict[str, Any]]:
    protos = _protos()
    rows = []
    for raw in _accessor().get_actor_table(None, None):
        actor = protos.ActorTableData.FromString(raw)
        rows.append(
            {
                "id": actor.actor_id.hex(),
                "class": actor.class_name,
                "name": actor.name,
                "job": actor.job_id.hex(),
                "namespace": actor.ray_namespace,
                "state": protos.ActorTableData.ActorState.Name(actor.state),
                "pid": actor.pid or None,
                "node": (actor.node_id or actor.address.node_id).hex(),
                "restarts": actor.num_restarts,
                "max_restarts": actor.max_restarts,
                "death": _death(actor.death_cause) if actor.HasField("death_cause") else None,
                "resources": dict(actor.required_resources),
                "started_at": actor.start_time / 1e3 or None,
                "ended_at": actor.end_time / 1e3 or None,
            }
        )
    return rows


def _death(cause: Any) -> dict[str, Any] | None:
    """Why an actor died, in Ray's words."""
    kind = cause.WhichOneof("context")
    if kind is None:
        return None
    context = getattr(cause, kind)
    reason = ""
    field = context.DESCRIPTOR.fields_by_name.get("reason")
    if field is not None and field.enum_type is not None:
        reason = field.enum_type.values_by_number[context.reason].name
    text = getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "") or str(context)
    return {"kind": kind.removesuffix("_context"), "reason": reason, "text": text[:4000]}


def _workers() -> list[dict[str, Any]]:
    protos = _protos()
    rows = []
    for raw in _accessor().get_worker_table()[-MOST_WORKERS:]:
        worker = protos.WorkerTableData.FromString(raw)
        kind = worker.DESCRIPTOR.fields_by_name["worker_type"].enum_type.values_by_number[worker.worker_type].name
        ended = "" if worker.is_alive else _enum(worker, "exit_type")
        rows.append(
            {
                "id": worker.worker_address.worker_id.hex(),
                "node": worker.worker_address.node_id.hex(),
                "pid": worker.pid,
                "kind": kind,
                "alive": worker.is_alive,
                "exit_type": ended,
                "exit_detail": worker.exit_detail[:2000],
                "ended_at": worker.end_time_ms / 1e3 or None,
            }
        )
    return rows


def _enum(message: Any, name: str) -> str:
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None or field.enum_type is None:
        return ""
    value = field.enum_type.values_by_number.get(getattr(message, name))
    return value.name if value is not None else ""


def _tasks() -> dict[str, Any]:
    """The tasks that have not ended, those that failed last, and of each job how many have finished."""
    protos = _protos()
    open_tasks: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    finished: dict[str, int] = {}
    for raw in _accessor().get_task_events():
        event = protos.TaskEvents.FromString(raw)
        times = dict(event.state_updates.state_ts_ns)
        state = max(times, default=0)
        if state == _FINISHED:
            job = event.job_id.hex()
            finished[job] = finished.get(job, 0) + 1
            continue
        row = _task(event, state, times)
        (failed if state == _FAILED else open_tasks).append(row)
    failed.sort(key=lambda row: row["since_ns"])
    return {"open": open_tasks[:MOST_TASKS], "failed": failed[-MOST_FAILED:], "finished": finished}


def _task(event: Any, state: int, times: dict[int, int]) -> dict[str, Any]:
    info = event.task_info
    updates = event.state_updates
    kind = info.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[info.type].name
    return {
        "id": event.task_id.hex(),
        "attempt": event.attempt_number,
        "name": info.name or info.func_or_class_name,
        "function": info.func_or_class_name,
        "kind": kind,
        "job": event.job_id.hex(),
        "actor": info.actor_id.hex(),
        "parent": info.parent_task_id.hex(),
        "state": state,
        "since_ns": times.get(state, 0),
        "created_ns": times.get(1, 0),
        "started_ns": times.get(_RUNNING, 0),
        "pid": updates.worker_pid or None,
        "node": updates.node_id.hex(),
        "resources": dict(info.required_resources),
        "error": updates.error_info.error_message[:1000] if state == _FAILED else "",
    }


def _placement_groups() -> list[dict[str, Any]]:
    protos = _protos()
    rows = []
    for raw in _accessor().get_placement_group_table():
        group = protos.PlacementGroupTableData.FromString(raw)
        state = _enum(group, "state")
        if state not in ("PENDING", "RESCHEDULING"):
            continue
        bundles = [dict(bundle.unit_resources) for bundle in group.bundles]
        rows.append({"id": group.placement_group_id.hex(), "name": group.name, "state": state, "bundles": bundles})
    return rows


def _available() -> dict[str, dict[str, float]]:
    """Node → what of its resources nobody holds."""
    found = _state().available_resources_per_node()
    return {
        node: {name: value for name, value in each.items() if not name.startswith("node:")}
        for node, each in found.items()
    }


# ---- the public state API, where the store's own tables are not to be had --------------------------------------------

_STATES = (
    "NIL",
    "PENDING_ARGS_AVAIL",
    "PENDING_NODE_ASSIGNMENT",
    "PENDING_OBJ_STORE_MEM_AVAIL",
    "PENDING_ARGS_FETCH",
    "SUBMITTED_TO_WORKER",
    "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
    "RUNNING",
    "RUNNING_IN_RAY_GET",
    "RUNNING_IN_RAY_WAIT",
    "FINISHED",
    "FAILED",
)


def _by_state_api(name: str) -> Any:
    """The same rows from `ray.util.state`; None where it does not answer."""
    try:
        from ray.util import state as api

        if name == "actors":
            return [
                _actor_row(each) for each in api.list_actors(detail=True, limit=10_000, raise_on_missing_output=False)
            ]
        if name == "tasks":
            rows = [
                _task_row(each) for each in api.list_tasks(detail=True, limit=10_000, raise_on_missing_output=False)
            ]
            unfinished = [row for row in rows if row["state"] not in (_FINISHED, _FAILED)]
            failed = [row for row in rows if row["state"] == _FAILED][-MOST_FAILED:]
            ended = [row["job"] for row in rows if row["state"] == _FINISHED]
            return {"open": unfinished, "failed": failed, "finished": {job: ended.count(job) for job in set(ended)}}
        if name == "workers":
            return [
                _worker_row(each) for each in api.list_workers(detail=True, limit=10_000, raise_on_missing_output=False)
            ]
    except Exception:
        pass
    return None


def _actor_row(actor: Any) -> dict[str, Any]:
    death = actor.death_cause or {}
    kind = next(iter(death), "") if isinstance(death, dict) else ""
    text = str((death.get(kind) or {}).get("error_message", death)) if kind else ""
    return {
        "id": actor.actor_id,
        "class": actor.class_name,
        "name": actor.name or "",
        "job": actor.job_id,
        "namespace": actor.ray_namespace or "",
        "state": actor.state,
        "pid": actor.pid or None,
        "node": actor.node_id or "",
        "restarts": int(actor.num_restarts or 0),
        "max_restarts": 0,
        "death": {"kind": kind.removesuffix("_context"), "reason": "", "text": text[:4000]} if kind else None,
        "resources": dict(actor.required_resources or {}),
    }


def _task_row(task: Any) -> dict[str, Any]:
    state = _STATES.index(task.state) if task.state in _STATES else 0
    started = int((task.start_time_ms or 0) * 1e6)
    created = int((task.creation_time_ms or 0) * 1e6)
    return {
        "id": task.task_id,
        "attempt": task.attempt_number,
        "name": task.name,
        "function": task.func_or_class_name or task.name,
        "kind": task.type,
        "job": task.job_id,
        "actor": task.actor_id or "",
        "parent": task.parent_task_id or "",
        "state": state,
        "since_ns": started or created,
        "created_ns": created,
        "started_ns": started,
        "pid": task.worker_pid or None,
        "node": task.node_id or "",
        "resources": dict(task.required_resources or {}),
        "error": (task.error_message or "")[:1000],
    }


def _worker_row(worker: Any) -> dict[str, Any]:
    return {
        "id": worker.worker_id,
        "node": worker.node_id,
        "pid": worker.pid,
        "kind": worker.worker_type,
        "alive": bool(worker.is_alive),
        "exit_type": worker.exit_type or "",
        "exit_detail": (worker.exit_detail or "")[:2000],
        "ended_at": (worker.end_time_ms or 0) / 1e3 or None,
    }
