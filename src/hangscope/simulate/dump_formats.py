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

from dataclasses import dataclass, replace

from hangscope.simulate.layouts import Groups
from hangscope.simulate.ring_records import Call, Holding
from hangscope.simulate.spec import Spec
from hangscope.simulate.training_sites import Shape, Site

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
class Format:
    """One version's dump: its version text and the keys of an entry in order."""

    version: str | None
    keys: tuple[str, ...]
    library_key: str = ""
    has_status: bool = False


def format_of(minor: int) -> Format:
    """The format of torch 2.`minor`."""
    if minor <= 2:
        return Format(None, _ENTRY_2_2)
    if minor == 3:
        return Format("1.4", _ENTRY_2_3)
    without_threads = tuple(key for key in _ENTRY if not key.startswith("thread"))
    if minor == 4:
        return Format("2.1", tuple(key for key in without_threads if key != "timeout_ms"))
    if minor <= 7:
        return Format("2.4", without_threads, has_status=True)
    if minor == 8:
        return Format("2.9", _ENTRY, "nccl_version", has_status=True)
    return Format("2.10", _ENTRY, "comm_lib_version", has_status=True)


def recorded_name(spec: Spec, call: Call) -> str:
    """The operation's name as that version and backend write it, without the library's prefix."""
    name = call.label
    if spec.backend == "gloo":
        return {
            "_all_gather_base": "all_gather",
            "_reduce_scatter_base": "all_reduce",  # Gloo builds it from an all_reduce
            "all_reduce_barrier": "barrier",
        }.get(name, name)
    if spec.backend == "torchcomms":
        return {
            "_all_gather_base": "all_gather_single",
            "_reduce_scatter_base": "reduce_scatter_single",
            "all_to_all": "all_to_all_single",
            "all_reduce_barrier": "barrier",
        }.get(name, call.site.direction or name)
    if spec.backend == "nccl2":
        return {"all_to_all": "all_to_all_single", "all_reduce_barrier": "barrier"}.get(name, name)
    if name == "all_reduce_barrier" and spec.minor < 6:
        return "all_reduce"
    return name


def recorded_sizes(spec: Spec, site: Site, members: int) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    if spec.hooked and spec.backend != "nccl2" and site.name == "all_reduce_barrier":
        return (), ()
    if spec.backend == "gloo":
        if site.name == "_all_gather_base":
            return site.inputs, ((members, *site.inputs[0]),)
        if site.name == "_reduce_scatter_base":
            return site.inputs, site.inputs
    return site.inputs, site.outputs


@dataclass(frozen=True, slots=True)
class Fixed:
    """The values of an entry that depend on the call and the rank alone."""

    frames: tuple[tuple[str, str, int], ...] | None
    pg_id: int
    process_group: tuple[str, str]
    profiling_name: str
    thread_name: str
    thread_id: str
    input_sizes: tuple[Shape, ...]
    output_sizes: tuple[Shape, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int
    is_p2p: bool


@dataclass(frozen=True, slots=True)
class Dumped:
    """One rank's dump before it is encoded: the head, the ring and the fixed values of every call in it."""

    format: Format
    holding: Holding
    fixed: dict[int, Fixed]
    """Number of the call → its values."""
    config: dict[str, tuple[str, str, tuple[int, ...]]]
    """`pg_config`: key → name, description, members."""
    config_by_id: dict[int, tuple[int, ...]]
    """`pg_config` of format 1.4: pg_id → members."""
    status: dict[str, tuple[int, int, int]]
    library_version: str
    always_scheduled: bool = False
    ranks_text: str = "[{}]"
    """How `pg_config` writes the members."""
    between: str = ", "
    comm_state: bool = True
    """Whether the JSON form has the communicators' state."""


def dumped(spec: Spec, groups: Groups, holding: Holding) -> Dumped:
    """Everything that one rank's file says, for the version and backend of the job."""
    rank = holding.rank
    form = format_of(spec.minor)
    local = groups.local_id[rank]
    thread = 140_000_000_000_000 + (spec.seed * 7_368_787 + rank * 99_991_111) % 9_999_999_999 * 64
    foreign = spec.backend == "torchcomms"
    fixed = {}
    for number in sorted(set(holding.call.tolist())):
        call = holding.calls[number]
        group = groups.all[groups.of[rank][call.role]]
        inputs, outputs = recorded_sizes(spec, call.site, len(group.members))
        timeout = int(spec.timeout_s * 1000)
        if spec.backend == "gloo" and group.index:
            timeout = 1_800_000  # new_group does not hand Gloo the default group's timeout
        fixed[number] = Fixed(
            frames=call.site.frames if spec.stacks and not foreign else None,
            pg_id=local[group.index],
            process_group=(group.name, "nccl" if foreign else group.desc),
            profiling_name=f"{'nccl' if foreign else spec.backend}:{recorded_name(spec, call)}",
            thread_name=call.site.thread,
            thread_id=str(thread if call.site.thread == "python3" else thread + 8_388_608),
            input_sizes=inputs,
            output_sizes=outputs,
            input_dtypes=(call.site.dtype,) * len(inputs),
            output_dtypes=(call.site.output_dtype or call.site.dtype,) * len(outputs),
            timeout_ms=600_000 if foreign else timeout,
            is_p2p=call.p2p and not foreign,
        )
    used = sorted((groups.all[groups.of[rank][role]] for role in holding.roles), key=lambda group: local[group.index])
    # The table knows no description of a communicator that was split off; its entries do.
    silent = spec.naming == "hashes"
    config = {g.name: (g.name, "" if silent and g.index else g.desc, g.members) for g in used}
    library = NCCL_OF_TORCH[spec.minor]
    if spec.backend == "gloo":
        # Gloo fills one entry without a name; the last group that was made wins, and its members may be missing.
        config, library = {"": ("", "", ())}, ""
    if foreign:
        # torchcomms counts all operations of the process in one row, and members by their place in the group.
        holding = replace(holding, seq=holding.record, p2p_seq=holding.record * 0, op_id=holding.record)
        config = {g.name: (g.name, "nccl", tuple(range(len(g.members)))) for g in used}
        library = ""
    return Dumped(
        format=form,
        holding=holding,
        fixed=fixed,
        config=config,
        config_by_id={local[group.index]: group.members for group in used},
        status={} if foreign else {str(local[groups.of[rank][role]]): value for role, value in holding.status.items()},
        library_version=library,
        always_scheduled=spec.always_scheduled,
        ranks_text="{}" if foreign else "[{}]",
        between="," if foreign else ", ",
        comm_state=not foreign,
    )
