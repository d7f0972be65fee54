"""A dump as plain Python objects: what `pickle.loads` gives back, and what Python tools pickle again."""

from __future__ import annotations

import math

from hangscope.simulate.files.dump_contents import CallFields, DumpContents
from hangscope.simulate.files.dump_formats import STATES
from hangscope.simulate.program.training_sites import Frame
from hangscope.simulate.record.ring_contents import UNSET

_STATUS_KEYS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def to_object(dump: DumpContents) -> object:
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


def config_object(dump: DumpContents) -> dict[str, dict[str, str]]:
    return {
        key: {"name": name, "desc": desc, "ranks": dump.ranks_text.format(dump.between.join(map(str, members)))}
        for key, (name, desc, members) in dump.config.items()
    }


def _entries(dump: DumpContents) -> list[dict[str, object]]:
    frames: dict[Frame, dict[str, object]] = {}
    calls = {number: _call_object(fields, frames) for number, fields in dump.calls.items()}
    hidden = dump.always_scheduled
    entries: list[dict[str, object]] = []
    for call, record, seq, p2p_seq, op_id, created, started, completed, duration, state, retired in dump.ring.entries():
        values: dict[str, object] = {
            **calls[call],
            "record_id": record,
            "seq_id": seq + p2p_seq,
            "collective_seq_id": seq,
            "p2p_seq_id": p2p_seq,
            "op_id": op_id,
            "time_created_ns": created,
            "time_created_us": created // 1000,
            "duration_ms": duration,
            "state": STATES[0 if hidden else state],
            "time_discovered_started_ns": None if started == UNSET or hidden else started,
            "time_discovered_completed_ns": None if completed == UNSET or hidden else completed,
            "retired": retired,
        }
        entry = {key: values[key] for key in dump.format.keys}
        if math.isnan(duration):
            entry.pop("duration_ms", None)
        if entry["frames"] is None:
            del entry["frames"]
        entries.append(entry)
    return entries


def _call_object(fields: CallFields, shared_frames: dict[Frame, dict[str, object]]) -> dict[str, object]:
    """What all entries of one call say."""
    frames = None
    if fields.frames is not None:
        keys = ("name", "filename", "line")
        frames = [shared_frames.setdefault(frame, dict(zip(keys, frame, strict=True))) for frame in fields.frames]
    return {
        "frames": frames,
        "pg_id": fields.pg_id,
        "process_group": fields.process_group,
        "profiling_name": fields.profiling_name,
        "thread_name": fields.thread_name,
        "thread_id": fields.thread_id,
        "input_sizes": [list(shape) for shape in fields.input_sizes],
        "output_sizes": [list(shape) for shape in fields.output_sizes],
        "input_dtypes": list(fields.input_dtypes),
        "output_dtypes": list(fields.output_dtypes),
        "timeout_ms": fields.timeout_ms,
        "is_p2p": fields.is_p2p,
    }
