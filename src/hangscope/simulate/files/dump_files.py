"""Encodes one rank's dump in the form that was asked for, and names the file."""

from __future__ import annotations

import gzip
import json
import pickle

from hangscope.simulate.files.dump_contents import DumpContents
from hangscope.simulate.files.dump_formats import STATES
from hangscope.simulate.files.dump_objects import config_object, to_object
from hangscope.simulate.files.torch_pickle import Encoder
from hangscope.simulate.record.ring_contents import UNSET
from hangscope.simulate.spec.job_spec import Spec


def encode(spec: Spec, dump: DumpContents, encoder: Encoder) -> bytes:
    """The bytes of one dump file. `encoder`: of the whole job, which knows the layouts of other ranks."""
    if spec.form == "pickle":
        data = encoder.encode(dump)
    elif spec.form == "json":
        data = to_json(dump).encode()
    else:
        data = pickle.dumps(to_object(dump), protocol=int(spec.form.removeprefix("python")))
    # No time stamp in the header: the same job gives the same bytes.
    return gzip.compress(data, compresslevel=4, mtime=0) if spec.gzip else data


def file_name(spec: Spec, rank: int) -> str:
    """As PyTorch names it: the prefix of that version with the rank behind it, and no ending of its own."""
    stem = "nccl_trace_rank_" if spec.minor < 9 else "comm_lib_trace_rank_"
    ending = {"json": ".json"}.get(spec.form, "")
    return f"{stem}{rank}{ending}{'.gz' if spec.gzip else ''}"


def to_json(dump: DumpContents) -> str:
    """PyTorch's JSON form: keys in alphabetical order, no stacks, 0 for what is not known, counters as strings."""
    top: dict[str, str] = {
        "pg_config": _json({key: dict(sorted(values.items())) for key, values in config_object(dump).items()}),
        "version": _json(dump.format.version),
        "pg_status": _json(
            {
                number: {
                    "last_completed_collective": str(completed),
                    "last_enqueued_collective": str(enqueued),
                    "last_started_collective": str(started),
                }
                for number, (enqueued, started, completed) in dump.status.items()
            }
        ),
    }
    if dump.comm_state:
        top["nccl_comm_state"] = "{}"
    if dump.format.library_key:
        top[dump.format.library_key] = _json(dump.library_version)
    if len(dump.ring):
        top["entries"] = f"[{','.join(_json_entries(dump))}]"
    return "{" + ",".join(f'"{key}":{value}' for key, value in sorted(top.items())) + "}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


_VARIABLE = {
    "record_id": "%(record)d",
    "collective_seq_id": "%(seq)d",
    "p2p_seq_id": "%(p2p_seq)d",
    "op_id": "%(op_id)d",
    "time_created_ns": "%(created)d",
    "duration_ms": "%(duration)r",
    "time_discovered_started_ns": "%(started)d",
    "time_discovered_completed_ns": "%(completed)d",
    "state": '"%(state)s"',
    "retired": "%(retired)s",
}


def _json_entries(dump: DumpContents) -> list[str]:
    hidden = dump.always_scheduled
    layouts: dict[tuple[int, bool], str] = {}
    entries = []
    for call, record, seq, p2p_seq, op_id, created, started, completed, duration, state, retired in dump.ring.entries():
        timed = duration == duration
        layout = layouts.get((call, timed))
        if layout is None:
            layout = layouts[call, timed] = _json_layout(dump, call, timed)
        entries.append(
            layout
            % {
                "record": record,
                "seq": seq,
                "p2p_seq": p2p_seq,
                "op_id": op_id,
                "created": created,
                "started": 0 if started == UNSET or hidden else started,
                "completed": 0 if completed == UNSET or hidden else completed,
                "duration": duration,
                "state": STATES[0 if hidden else state],
                "retired": "true" if retired else "false",
            }
        )
    return entries


def _json_layout(dump: DumpContents, call: int, timed: bool) -> str:
    """The text of one call's entries with `%` places for what differs from entry to entry."""
    parts = []
    for key in sorted(dump.format.keys):
        if key == "frames" or (key == "duration_ms" and not timed):
            continue
        value = _VARIABLE.get(key) or _json(getattr(dump.calls[call], key)).replace("%", "%%")
        parts.append(f'"{key}":{value}')
    return "{" + ",".join(parts) + "}"
