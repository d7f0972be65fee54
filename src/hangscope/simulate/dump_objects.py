"""A dump as plain Python objects: what `pickle.loads` gives back, and what Python tools pickle again."""

from __future__ import annotations

import math

from hangscope.simulate.dump_formats import STATES, Dumped
from hangscope.simulate.ring_records import UNSET

_STATUS_KEYS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def to_object(dump: Dumped) -> object:
    """The whole dump. Dictionaries of frames are shared between entries, as PyTorch shares them."""
    entries = _entries(dump)
    form = dump.format
    if form.version is None:
        return entries
    if form.version == "1.4":
        config = {number: list(members) for number, members in dump.config_by_id.items()}
        return {"entries": entries, "version": form.version, "pg_config": config}
    top: dict[str, object] = {"version": form.version, "pg_config": config_object(dump)}
    if form.library_key:
        top[form.library_key] = dump.library_version
    if form.has_status:
        top["pg_status"] = {
            number: dict(zip(_STATUS_KEYS, values, strict=True)) for number, values in dump.status.items()
        }
    if entries:
        top["entries"] = entries
    return top


def config_object(dump: Dumped) -> dict[str, dict[str, str]]:
    return {
        key: {"name": name, "desc": desc, "ranks": dump.ranks_text.format(dump.between.join(map(str, members)))}
        for key, (name, desc, members) in dump.config.items()
    }


def _entries(dump: Dumped) -> list[dict[str, object]]:
    held = dump.holding
    frames: dict[tuple[str, str, int], dict[str, object]] = {}
    fixed = {
        number: {
            "frames": None
            if values.frames is None
            else [
                frames.setdefault(frame, dict(zip(("name", "filename", "line"), frame, strict=True)))
                for frame in values.frames
            ],
            "pg_id": values.pg_id,
            "process_group": values.process_group,
            "profiling_name": values.profiling_name,
            "thread_name": values.thread_name,
            "thread_id": values.thread_id,
            "input_sizes": [list(shape) for shape in values.input_sizes],
            "output_sizes": [list(shape) for shape in values.output_sizes],
            "input_dtypes": list(values.input_dtypes),
            "output_dtypes": list(values.output_dtypes),
            "timeout_ms": values.timeout_ms,
            "is_p2p": values.is_p2p,
        }
        for number, values in dump.fixed.items()
    }
    entries: list[dict[str, object]] = []
    for call, record, seq, p2p_seq, op_id, created, started, completed, duration, state, retired in held.entries():
        values: dict[str, object] = {
            **fixed[call],
            "record_id": record,
            "seq_id": seq + p2p_seq,
            "collective_seq_id": seq,
            "p2p_seq_id": p2p_seq,
            "op_id": op_id,
            "time_created_ns": created,
            "time_created_us": created // 1000,
            "duration_ms": duration,
            "state": STATES[0 if dump.always_scheduled else state],
            "time_discovered_started_ns": None if started == UNSET or dump.always_scheduled else started,
            "time_discovered_completed_ns": None if completed == UNSET or dump.always_scheduled else completed,
            "retired": retired,
        }
        entry = {key: values[key] for key in dump.format.keys}
        if math.isnan(duration):
            entry.pop("duration_ms", None)
        if entry["frames"] is None:
            del entry["frames"]
        entries.append(entry)
    return entries
