"""Reads a Perfetto trace back, by the documented schema alone: a field that the schema does not have is an error.

The fields are those of perfetto_trace.proto that a synthetic trace may use
(https://perfetto.dev/docs/reference/synthetic-track-event).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

UINT, FIXED, BYTES, TEXT, DOUBLE = "uint", "fixed", "bytes", "text", "double"

SCHEMA: dict[str, dict[int, tuple[str, str]]] = {
    "Trace": {1: ("packet", "TracePacket")},
    "TracePacket": {
        6: ("clock_snapshot", "ClockSnapshot"),
        8: ("timestamp", UINT),
        10: ("trusted_packet_sequence_id", UINT),
        11: ("track_event", "TrackEvent"),
        12: ("interned_data", "InternedData"),
        13: ("sequence_flags", UINT),
        60: ("track_descriptor", "TrackDescriptor"),
        87: ("first_packet_on_sequence", UINT),
    },
    "ClockSnapshot": {1: ("clocks", "Clock"), 2: ("primary_trace_clock", UINT)},
    "Clock": {1: ("clock_id", UINT), 2: ("timestamp", UINT)},
    "TrackEvent": {
        4: ("debug_annotations", "DebugAnnotation"),
        9: ("type", UINT),
        10: ("name_iid", UINT),
        11: ("track_uuid", UINT),
        23: ("name", TEXT),
        47: ("flow_ids", FIXED),
    },
    "DebugAnnotation": {
        1: ("name_iid", UINT),
        3: ("uint_value", UINT),
        5: ("double_value", DOUBLE),
        6: ("string_value", TEXT),
        10: ("name", TEXT),
        17: ("string_value_iid", UINT),
    },
    "InternedData": {
        2: ("event_names", "Interned"),
        3: ("debug_annotation_names", "Interned"),
        29: ("debug_annotation_string_values", "Interned"),
    },
    "Interned": {1: ("iid", UINT), 2: ("text", TEXT)},
    "TrackDescriptor": {
        1: ("uuid", UINT),
        2: ("name", TEXT),
        3: ("process", "ProcessDescriptor"),
        4: ("thread", "ThreadDescriptor"),
        5: ("parent_uuid", UINT),
    },
    "ProcessDescriptor": {1: ("pid", UINT), 6: ("process_name", TEXT)},
    "ThreadDescriptor": {1: ("pid", UINT), 2: ("tid", UINT), 5: ("thread_name", TEXT)},
}

WIRE = {UINT: 0, FIXED: 1, DOUBLE: 1}


def decode(data: bytes, message: str = "Trace") -> dict[str, list[Any]]:
    """A message as lists of values by field name."""
    found: dict[str, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        name, kind = SCHEMA[message][key >> 3]
        assert key & 7 == WIRE.get(kind, 2), f"{message}.{name} has another wire type"
        if kind == UINT:
            value, at = varint(data, at)
        elif kind in (FIXED, DOUBLE):
            (value,) = struct.unpack_from("<Q" if kind == FIXED else "<d", data, at)
            at += 8
        else:
            length, at = varint(data, at)
            part = data[at : at + length]
            assert len(part) == length, f"{message}.{name} is cut off"
            at += length
            value = part.decode() if kind == TEXT else part if kind == BYTES else decode(part, kind)
        found[name].append(value)
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        assert shift <= 70, "a number of more than ten bytes"
        if not byte & 0x80:
            return value, at


@dataclass
class Slice:
    track: int
    name: str
    begin: int
    end: int | None
    flows: tuple[int, ...]
    args: dict[str, Any]


@dataclass
class Loaded:
    """The trace as Perfetto builds it: slices stacked on their tracks, flows by id."""

    tracks: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)

    def path(self, track: int) -> list[str]:
        """The names from the process down."""
        said: list[str] = []
        while track:
            descriptor = self.tracks[track]
            for kind, name in (("process", "process_name"), ("thread", "thread_name")):
                said += descriptor[kind][0][name] if descriptor[kind] else []
            said += descriptor["name"]
            track = descriptor["parent_uuid"][0] if descriptor["parent_uuid"] else 0
        return said[::-1]

    @property
    def arrows(self) -> int:
        count: dict[int, int] = defaultdict(int)
        for item in self.slices:
            for flow in item.flows:
                count[flow] += 1
        return sum(parts - 1 for parts in count.values())


def load(data: bytes) -> Loaded:
    """Replays the packets in the order of their time, as the trace processor does, with its rules checked."""
    packets = decode(data)["packet"]
    trace = Loaded()
    interned: dict[str, dict[int, str]] = defaultdict(dict)
    events = []
    for packet in packets:
        assert packet["trusted_packet_sequence_id"] == [1]
        for table in packet["interned_data"]:
            assert packet["sequence_flags"][0] & 1, "interned data on a sequence that was never cleared"
            for kind, entries in table.items():
                interned[kind] |= {entry["iid"][0]: entry["text"][0] for entry in entries}
        for descriptor in packet["track_descriptor"]:
            assert descriptor["uuid"][0] not in trace.tracks
            parent = descriptor["parent_uuid"]
            assert not parent or parent[0] in trace.tracks, "a track before its parent"
            trace.tracks[descriptor["uuid"][0]] = descriptor
        for event in packet["track_event"]:
            events.append((packet["timestamp"][0], event))
    open_slices: dict[int, list[Slice]] = defaultdict(list)
    for at, event in sorted(events, key=lambda item: item[0]):
        track = event["track_uuid"][0]
        assert track in trace.tracks
        if event["type"] == [2]:
            open_slices[track].pop().end = at
            continue
        name = event["name"][0] if event["name"] else interned["event_names"][event["name_iid"][0]]
        made = Slice(track, name, at, None, tuple(event["flow_ids"]), _args(event, interned))
        (trace.instants if event["type"] == [3] else trace.slices).append(made)
        if event["type"] == [1]:
            open_slices[track].append(made)
    return trace


def _args(event: dict[str, list[Any]], interned: dict[str, dict[int, str]]) -> dict[str, Any]:
    args = {}
    for annotation in event["debug_annotations"]:
        name = (
            annotation["name"][0]
            if annotation["name"]
            else interned["debug_annotation_names"][annotation["name_iid"][0]]
        )
        text = [interned["debug_annotation_string_values"][iid] for iid in annotation["string_value_iid"]]
        values = [*annotation["uint_value"], *annotation["double_value"], *annotation["string_value"], *text]
        assert len(values) == 1
        args[name] = values[0]
    return args
