"""What one rank's dump says, before it is encoded: names, sizes and tables as that version and backend write them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangscope.simulate.files.dump_formats import NCCL_OF_TORCH, DumpFormat, format_of
from hangscope.simulate.program.training_sites import Shape, Site
from hangscope.simulate.record.recorded_rows import RecordedCall
from hangscope.simulate.record.ring_contents import RingContents
from hangscope.simulate.spec.job_layout import GroupDef, Groups
from hangscope.simulate.spec.job_spec import Spec

Config = dict[str, tuple[str, str, tuple[int, ...]]]
"""`pg_config`: key → name, description, members."""


def recorded_name(spec: Spec, call: RecordedCall) -> str:
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
    """Sizes of what goes in and what comes out, as that backend records them for a group of so many members."""
    if spec.hooked and spec.backend != "nccl2" and site.name == "all_reduce_barrier":
        return (), ()
    if spec.backend == "gloo":
        if site.name == "_all_gather_base":
            return site.inputs, ((members, *site.inputs[0]),)
        if site.name == "_reduce_scatter_base":
            return site.inputs, site.inputs
    return site.inputs, site.outputs


@dataclass(frozen=True, slots=True)
class CallFields:
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
class DumpContents:
    """One rank's dump before it is encoded: the head, the ring and what every call in it says."""

    format: DumpFormat
    ring: RingContents
    calls: dict[int, CallFields]
    """Number of the call → its values."""
    config: Config
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


def dump_contents(spec: Spec, groups: Groups, ring: RingContents) -> DumpContents:
    """Everything that one rank's file says, for the version and backend of the job."""
    rank = ring.rank
    local = groups.local_id[rank]
    used = sorted((groups.all[groups.of[rank][role]] for role in ring.roles), key=lambda group: local[group.index])
    status = {str(local[groups.of[rank][role]]): counters for role, counters in ring.status.items()}
    torchcomms = spec.backend == "torchcomms"
    if torchcomms:
        # It counts all operations of the process in one row.
        ring = replace(ring, seq=ring.record, p2p_seq=ring.record * 0, op_id=ring.record)
    return DumpContents(
        format=format_of(spec.minor),
        ring=ring,
        calls={
            number: _call_fields(spec, groups, rank, ring.calls[number]) for number in sorted(set(ring.call.tolist()))
        },
        config=_config(spec, used),
        config_by_id={local[group.index]: group.members for group in used},
        status={} if torchcomms else status,
        library_version="" if spec.backend in ("gloo", "torchcomms") else NCCL_OF_TORCH[spec.minor],
        always_scheduled=spec.always_scheduled,
        ranks_text="{}" if torchcomms else "[{}]",
        between="," if torchcomms else ", ",
        comm_state=not torchcomms,
    )


def _call_fields(spec: Spec, groups: Groups, rank: int, call: RecordedCall) -> CallFields:
    group = groups.all[groups.of[rank][call.role]]
    inputs, outputs = recorded_sizes(spec, call.site, len(group.members))
    fields = CallFields(
        frames=call.site.frames if spec.stacks else None,
        pg_id=groups.local_id[rank][group.index],
        process_group=(group.name, group.desc),
        profiling_name=f"{spec.backend}:{recorded_name(spec, call)}",
        thread_name=call.site.thread,
        thread_id=_thread_id(spec, rank, call.site.thread),
        input_sizes=inputs,
        output_sizes=outputs,
        input_dtypes=(call.site.dtype,) * len(inputs),
        output_dtypes=(call.site.output_dtype or call.site.dtype,) * len(outputs),
        timeout_ms=_timeout_ms(spec, group),
        is_p2p=call.p2p,
    )
    if spec.backend == "torchcomms":
        return replace(
            fields,
            frames=None,
            process_group=(group.name, "nccl"),
            profiling_name=f"nccl:{recorded_name(spec, call)}",
            timeout_ms=600_000,
            is_p2p=False,
        )
    return fields


def _thread_id(spec: Spec, rank: int, thread: str) -> str:
    main = 140_000_000_000_000 + (spec.seed * 7_368_787 + rank * 99_991_111) % 9_999_999_999 * 64
    return str(main if thread == "python3" else main + 8_388_608)


def _timeout_ms(spec: Spec, group: GroupDef) -> int:
    if spec.backend == "gloo" and group.index:
        return 1_800_000  # new_group does not hand Gloo the default group's timeout
    return int(spec.timeout_s * 1000)


def _config(spec: Spec, used: list[GroupDef]) -> Config:
    if spec.backend == "gloo":
        # Gloo fills one entry without a name; the last group that was made wins, and its members may be missing.
        return {"": ("", "", ())}
    if spec.backend == "torchcomms":
        # It counts members by their place in the group.
        return {group.name: (group.name, "nccl", tuple(range(len(group.members)))) for group in used}
    config = {group.name: (group.name, group.desc, group.members) for group in used}
    if spec.naming == "hashes":
        # The table knows no description of a communicator that was split off; its entries do.
        config |= {group.name: (group.name, "", group.members) for group in used if group.index}
    return config
