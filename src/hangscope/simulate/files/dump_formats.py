"""The dump formats: which keys each PyTorch version writes, in which order, under which names.

| torch    | version | what is different                                                                    |
|----------|---------|--------------------------------------------------------------------------------------|
| 2.2      | none    | a bare list; microseconds; `seq_id`; no record or operation ids                        |
| 2.3      | 1.4     | entries first; `pg_config` of integers; one `seq_id` for collectives and transfers    |
| 2.4      | 2.1     | two sequence numbers, `process_group`, types                                          |
| 2.5–2.7  | 2.4     | `pg_status`, `timeout_ms`                                                             |
| 2.8      | 2.9     | `nccl_version`, threads                                                               |
| 2.9–2.15 | 2.10    | `comm_lib_version`                                                                    |
"""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("scheduled", "started", "completed")

NCCL_OF_TORCH = {
    2: "2.19.3",
    3: "2.20.5",
    4: "2.20.5",
    5: "2.21.5",
    6: "2.21.5",
    7: "2.26.2",
    8: "2.27.3",
    9: "2.27.5",
    10: "2.27.5",
    11: "2.28.9",
    12: "2.29.7",
    13: "2.29.7",
    14: "2.30.7",
    15: "2.30.7",
}
"""The NCCL of each torch 2.x wheel."""

_ENTRY_2_2 = (
    "pg_id",
    "seq_id",
    "profiling_name",
    "time_created_us",
    "input_sizes",
    "output_sizes",
    "state",
    "retired",
    "frames",
)
_ENTRY_2_3 = (
    "record_id",
    "pg_id",
    "seq_id",
    "op_id",
    "profiling_name",
    "time_created_ns",
    "duration_ms",
    "input_sizes",
    "output_sizes",
    "state",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "retired",
    "frames",
)
_ENTRY = (
    "frames",
    "record_id",
    "pg_id",
    "process_group",
    "thread_name",
    "thread_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "time_created_ns",
    "duration_ms",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
    "state",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "retired",
    "timeout_ms",
    "is_p2p",
)


@dataclass(frozen=True, slots=True)
class DumpFormat:
    """One version's dump: its version text and the keys of an entry in order."""

    version: str | None
    keys: tuple[str, ...]
    library_key: str = ""
    has_status: bool = False


def format_of(minor: int) -> DumpFormat:
    """The format of torch 2.`minor`."""
    if minor <= 2:
        return DumpFormat(None, _ENTRY_2_2)
    if minor == 3:
        return DumpFormat("1.4", _ENTRY_2_3)
    without_threads = tuple(key for key in _ENTRY if not key.startswith("thread"))
    if minor == 4:
        return DumpFormat("2.1", tuple(key for key in without_threads if key != "timeout_ms"))
    if minor <= 7:
        return DumpFormat("2.4", without_threads, has_status=True)
    if minor == 8:
        return DumpFormat("2.9", _ENTRY, "nccl_version", has_status=True)
    return DumpFormat("2.10", _ENTRY, "comm_lib_version", has_status=True)
