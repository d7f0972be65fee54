"""Small dumps for tests, in the shape that PyTorch writes them."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

from hangscope.model import Facts, Job, Operation
from hangscope.reader.dumps import dump_file
from hangscope.reader.join.assemble import Assembled, assemble

T0 = 1_790_000_000_000_000_000
FRAMES = [{"name": "step", "filename": "/workspace/train.py", "line": 40}]


def entry(record: int, seq: int, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """One entry as torch 2.9 and later write it."""
    made: dict[str, Any] = {
        "frames": FRAMES,
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "thread_id": "140000000000001",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": T0 + record * 1_000_000,
        "input_sizes": [[8, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": T0 + record * 1_000_000 + 10,
        "time_discovered_completed_ns": T0 + record * 1_000_000 + 20,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    }
    made.update(changes)
    return made


def group(name: str, desc: str, *ranks: int) -> dict[str, Any]:
    return {name: {"name": name, "desc": desc, "ranks": str(list(ranks))}}


def top(entries: list[Any], *config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "version": "2.10",
        "pg_config": {key: line for table in config for key, line in table.items()},
        "comm_lib_version": "2.28.9",
        "pg_status": {},
        "entries": entries,
    }
    made.update(changes)
    return made


def packed(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol=protocol)


class TorchPickler:
    """Writes plain values as PyTorch's pickler does: texts and frames once, and all else again each time."""

    def __init__(self) -> None:
        self._memo: dict[str, bytes] = {}

    def pickled(self, value: Any) -> bytes:
        return b"\x80\x02" + self.value(value) + b"."

    def value(self, value: Any) -> bytes:
        if isinstance(value, str):
            return self._once(value, b"X" + struct.pack("<I", len(value.encode())) + value.encode())
        if isinstance(value, dict):
            items = b"".join(self.value(key) + self.value(item) for key, item in value.items())
            return self._once(repr(value), b"}(" + items + b"u") if "line" in value else b"}(" + items + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(self.value, value)) + b"e"
        if isinstance(value, tuple):
            return b"".join(map(self.value, value)) + {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)]
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        return b"G" + struct.pack(">d", value) if isinstance(value, float) else self._integer(value)

    def _once(self, key: str, data: bytes) -> bytes:
        if key in self._memo:
            return self._memo[key]
        number = struct.pack("<I", len(self._memo))
        self._memo[key] = b"j" + number if number[1:] != b"\0\0\0" else b"h" + number[:1]
        return data + (b"r" + number if number[1:] != b"\0\0\0" else b"q" + number[:1])

    @staticmethod
    def _integer(value: int) -> bytes:
        if 0 <= value <= 0xFFFF:
            return b"K" + bytes((value,)) if value <= 0xFF else b"M" + struct.pack("<H", value)
        return (
            b"J" + struct.pack("<i", value) if -(1 << 31) <= value < 1 << 31 else b"\x8a\x08" + struct.pack("<q", value)
        )


def read(value: Any, rank: int | None = None, file: str = "", **options: Any) -> dump_file.RawDump:
    """A value read as if it lay in a file of that rank."""
    data = value if isinstance(value, bytes) else packed(value)
    return dump_file.read(data, file=file or f"nccl_trace_rank_{rank}", **options)


def as_json(value: Any) -> bytes:
    """The JSON form: sorted keys, no frames, 0 for None, texts in pg_status, no `entries` where there are none."""
    made = {key: line for key, line in value.items() if key != "entries"}
    made["pg_status"] = {
        number: {key: str(count) for key, count in line.items()} for number, line in value["pg_status"].items()
    }
    made["nccl_comm_state"] = {}
    if value["entries"]:
        made["entries"] = [
            {key: 0 if item is None else item for key, item in line.items() if key != "frames"}
            for line in value["entries"]
        ]
    return json.dumps(made, sort_keys=True).encode()


def job(*raws: dump_file.RawDump, **options: Any) -> Assembled:
    return assemble(raws, **options)


def operations(assembled: Assembled, rank: int) -> list[Operation]:
    return [assembled.ops[row] for row in assembled.ops.rows(rank=rank)]


def of(name: str, desc: str, pg_id: int, record: int = 0, seq: int = 1) -> dict[str, Any]:
    """A collective of that group."""
    return entry(record, seq, process_group=(name, desc), pg_id=pg_id)


def call(record: int, name: str, p2p_seq: int, seq: int = 5) -> dict[str, Any]:
    """A send or receive inside a batch: recorded as scheduled, for ever."""
    made = entry(record, seq, f"nccl:{name}", p2p_seq_id=p2p_seq, is_p2p=True, state="scheduled", retired=False)
    made.update(time_discovered_started_ns=None, time_discovered_completed_ns=None)
    return made


def as_job(assembled: Assembled, **more: Any) -> Job:
    """The dumps as a job with no other evidence; `more` adds some."""
    fields: dict[str, Any] = {
        name: getattr(assembled, name) for name in ("ops", "groups", "ranks", "dumps", "status", "first_kept", "gaps")
    }
    return Job(**{**fields, "nodes": {}, "processes": {}, "facts": Facts(), **more})
