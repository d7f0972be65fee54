"""The simulator: its physics against recorded jobs, its formats against plain Python, its truth against its dumps."""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hangscope.cli.verbs.simulate import command
from hangscope.errors import SettingsError
from hangscope.simulate import Simulated, Spec, random_spec, simulate
from hangscope.simulate.events.event_engine import NEVER, EventEngine, Interference
from hangscope.simulate.files.dump_objects import to_object
from hangscope.simulate.program.step_operations import Op, OpPart
from hangscope.simulate.program.training_sites import Site
from hangscope.simulate.spec.job_layout import GroupDef
from hangscope.simulate.spec.job_spec import FAULTS

CASES = Path(__file__).parents[1] / "cases"
SMALL = {"ranks": 8, "tp": 2, "entries": 120}


def read(data: bytes) -> Any:
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data) if data[:1] == b"{" else pickle.loads(data)


def entries_of(job: Simulated, rank: int) -> list[dict[str, Any]]:
    data = job.dump(rank)
    assert data is not None
    top = read(data)
    return list(top if isinstance(top, list) else top.get("entries", []))


def only_culprit(job: Simulated) -> int:
    culprits: Any = job.truth["culprits"]
    assert len(culprits) == 1
    return int(culprits[0])


def unfinished(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries that are not done; parts of a batch stay "scheduled" for ever and say nothing."""
    closed = {
        (entry["pg_id"], entry["collective_seq_id"], entry["p2p_seq_id"])
        for entry in entries
        if "coalesced" in entry["profiling_name"]
    }
    return [
        entry
        for entry in entries
        if entry["state"] != "completed"
        and ("coalesced" in entry["profiling_name"] or _key(entry) not in closed or not _inside(entry))
    ]


def _key(entry: dict[str, Any]) -> tuple[int, int, int]:
    return entry["pg_id"], entry["collective_seq_id"], entry["p2p_seq_id"]


def _inside(entry: dict[str, Any]) -> bool:
    return not entry["retired"]


# ---- physics ---------------------------------------------------------------------------------------------------------

ALGORITHMS = {
    "all_reduce_barrier": "all_reduce",
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
}
BYTES = {"Float": 4, "BFloat16": 2, "Double": 8, "Half": 2}


class Replay:
    """The programs of a recorded job, as its dumps show them; every group is a role of its own."""

    def __init__(self, case: str) -> None:
        self.truth = json.loads((CASES / case / "truth.json").read_text())
        self.ranks = self.truth["world_size"]
        self.dumps = {
            int(path.name.rpartition("_")[2]): pickle.loads(path.read_bytes())
            for path in sorted((CASES / case).glob("*/nccl_trace_rank_?"))
        }
        self.all: list[GroupDef] = []
        self.local_id: list[dict[int, int]] = []
        names: dict[str, int] = {}
        for dump in self.dumps.values():
            for name, group in dump["pg_config"].items():
                if name not in names:
                    names[name] = len(self.all)
                    members = tuple(json.loads(group["ranks"]))
                    self.all.append(GroupDef(len(self.all), len(self.all), name, "", members))
        self.of = [list(range(len(self.all))) for _ in range(self.ranks)]
        self.rows: list[list[int]] = []
        """rank → for each operation the entry that carries its state."""
        self.programs = [self._program(rank, names) for rank in range(self.ranks)]

    def entries(self, rank: int) -> list[dict[str, Any]]:
        return list(self.dumps[rank]["entries"])

    def states(self, rank: int) -> list[str]:
        return [self.entries(rank)[row]["state"] for row in self.rows[rank]]

    def _program(self, rank: int, names: dict[str, int]) -> list[Op]:
        ops: list[Op] = []
        rows: list[int] = []
        parts: list[OpPart] = []
        size = 0
        batches = {_key(entry) for entry in self.entries(rank) if entry["profiling_name"] == "nccl:coalesced"}
        for row, entry in enumerate(self.entries(rank)):
            name = entry["profiling_name"].removeprefix("nccl:")
            role = names[entry["process_group"][0]]
            dtype = (entry["input_dtypes"] or ["Float"])[0]
            site = Site(name, (), (), dtype, (("f", "/workspace/train.py", 1),), "python3", name.partition(" ")[0])
            if entry["is_p2p"]:
                parts.append(OpPart(site, int(name.rpartition("->" if "->" in name else "<-")[2])))
                size = entry["input_sizes"][0][0] * BYTES[dtype]
                if _key(entry) in batches:
                    continue
            if entry["is_p2p"] or name == "coalesced":
                ops.append(Op(site, role, "p2p", size, tuple(parts)))
                parts = []
            else:
                sizes = [*entry["input_sizes"], *entry["output_sizes"]]
                size = max(shape[0] for shape in sizes) * BYTES[dtype]
                ops.append(Op(site, role, ALGORITHMS.get(name, name), size))
            rows.append(row)
        self.rows.append(rows)
        return ops


@pytest.mark.parametrize(
    "case", ["healthy", "healthy8_mesh", "straggler", "straggler8", "cpu_stall", "gpu_stall", "skipped", "uneven_data",
             "oom_caught", "type_mismatch", "size_mismatch", "dtype_mismatch", "broadcast_root", "link_stall",
             "link_stall8", "broadcast_link", "broadcast_link6", "coalesced", "pipeline", "multi_pg", "mesh_absent",
             "two_culprits", "fsdp_checkpoint", "pg_order", "deadlock3"]
)  # fmt: skip
def test_the_engine_reproduces_recorded_nccl_jobs(case: str) -> None:
    """What every rank of a real job completed, started and only launched is what the engine says it would."""
    real = Replay(case)
    truth, programs, wrong = real.truth, real.programs, Interference()
    kind, culprits = truth["kind"], truth["culprits"]
    if case == "broadcast_root":
        place = truth["operation"]["seq"] - 1
        programs[2][place] = replace(programs[2][place], root=3)
        wrong.matching_until[0] = place
    elif kind == "mismatch":
        mine, others = (
            [(op.site.name, op.size) for op in programs[rank]] for rank in (culprits[0], (culprits[0] + 1) % real.ranks)
        )
        wrong.matching_until[0] = next(i for i, (a, b) in enumerate(zip(mine, others, strict=False)) if a != b)
    elif kind == "gpu":
        wrong.gpu_stops[culprits[0]] = real.states(culprits[0]).index("scheduled")
    elif kind == "network":
        sender, receiver = truth["link"]
        first = next(i for i, state in enumerate(real.states(receiver)) if state != "completed")
        wrong.lost_link, wrong.matching_until[0] = (sender, receiver, first), first
        if case == "broadcast_link6":
            for program in programs:
                program[first] = replace(program[first], root=2)
    engine = EventEngine(
        real,  # type: ignore[arg-type]  # has the tables of Groups
        programs,
        [frozenset()] * real.ranks,
        [[0] * len(program) for program in programs],
        ahead=100,
        interference=wrong,
        begin_ns=0,
    )
    engine.run()
    for rank in range(real.ranks):
        line = engine.timelines[rank]
        got = ["completed" if end != NEVER else "started" for end in line.finished]
        got += ["scheduled"] * (line.launched - len(got))
        assert got == real.states(rank), f"{case}: rank {rank}"


def test_an_operation_is_finished_by_all_or_by_nobody_when_a_rank_is_absent() -> None:
    """Of a group that waits for a missing member nobody gets through, except along a broadcast."""
    job = simulate(Spec(ranks=16, tp=4, pp=2, fault="absent", variant="branch", seed=3, entries=200))
    ends: dict[tuple[str, tuple[int, ...], int], set[bool]] = {}
    for rank in job.dump_ranks:
        top = read(job.dump(rank) or b"")
        config = top["pg_config"]
        for entry in top["entries"]:
            name = entry["process_group"][0]
            if not entry["is_p2p"] and "broadcast" not in entry["profiling_name"] and entry["input_sizes"]:
                members = tuple(json.loads(config[name]["ranks"]))
                done = entry["state"] == "completed"
                ends.setdefault((name, members, entry["collective_seq_id"]), set()).add(done)
    assert ends
    assert all(len(states) == 1 for states in ends.values())


@pytest.mark.parametrize("seed", range(4))
def test_nobody_waits_in_a_healthy_job_that_was_stopped(seed: int) -> None:
    """Every launched operation of a healthy job is completed on every rank."""
    job = simulate(Spec(ranks=16, tp=2, pp=2, ep=2, fault="none", variant="stopped", seed=seed, entries=150))
    assert job.truth["hang"] is False
    for rank in range(16):
        assert not unfinished(entries_of(job, rank))


def test_a_running_job_has_waited_for_milliseconds_only() -> None:
    """A dump of a healthy job in full flight shows operations that were launched a moment before it."""
    job = simulate(Spec(ranks=8, tp=4, fault="none", variant="running", seed=1, entries=150))
    ages = []
    for rank in range(8):
        for entry in unfinished(entries_of(job, rank)):
            if entry["time_discovered_started_ns"]:
                ages.append(entry["time_discovered_started_ns"] - entry["time_created_ns"])
    assert ages
    assert max(ages) < 1_000_000_000


def test_an_absent_rank_waits_for_nothing_and_everybody_else_does() -> None:
    """The culprit has finished all that it launched; all others have something in flight."""
    for seed in range(5):
        job = simulate(Spec(ranks=16, tp=2, pp=2, fault="absent", variant="loader", seed=seed, entries=200))
        culprit = only_culprit(job)
        waiting = [rank for rank in range(16) if unfinished(entries_of(job, rank))]
        assert waiting == [rank for rank in range(16) if rank != culprit]


def test_a_gpu_that_hangs_is_scheduled_where_its_peers_have_started() -> None:
    """With timing on, the operation at the root is started on the peers and only scheduled on the culprit."""
    job = simulate(Spec(ranks=8, fault="gpu", seed=2, entries=100))
    culprit = only_culprit(job)
    states = {rank: unfinished(entries_of(job, rank))[0]["state"] for rank in range(8)}
    assert states.pop(culprit) == "scheduled"
    assert set(states.values()) == {"started"}


def test_without_timing_no_start_is_ever_seen() -> None:
    """As in a job without TORCH_NCCL_ENABLE_TIMING: no state "started", no start times, no durations."""
    job = simulate(Spec(**SMALL, fault="absent", timing=False, seed=1))  # type: ignore[arg-type]
    for rank in range(8):
        for entry in entries_of(job, rank):
            assert entry["state"] in ("scheduled", "completed")
            assert entry["time_discovered_started_ns"] is None
            assert "duration_ms" not in entry


def test_cpus_run_ahead_of_the_hang() -> None:
    """Victims have launched more than what they are stuck in, up to the number that was asked for."""
    far = simulate(Spec(ranks=8, tp=8, fault="absent", variant="loader", ahead=12, layers=4, seed=1, entries=200))
    near = simulate(Spec(ranks=8, tp=8, fault="absent", variant="loader", ahead=2, layers=4, seed=1, entries=200))
    longest = [max(len(unfinished(entries_of(job, rank))) for rank in range(8)) for job in (far, near)]
    assert longest == [12, 2]


def test_a_link_that_dies_leaves_everyone_inside_the_all_reduce() -> None:
    """Nobody finishes the all_reduce in which the link died, and nobody is to blame."""
    job = simulate(Spec(ranks=8, fault="network", variant="collective", data_parallel="ddp", seed=4, entries=100))
    assert job.truth["culprits"] == []
    assert job.truth["link"] in job.truth["accept"]  # type: ignore[operator]
    seq = job.truth["operation"]["seq"]  # type: ignore[index]
    name = job.truth["operation"]["group"]  # type: ignore[index]
    states = Counter(
        entry["state"]
        for rank in range(8)
        for entry in entries_of(job, rank)
        if entry["process_group"][0] == name and entry["collective_seq_id"] == seq
    )
    assert states == {"started": 8}


def test_a_link_that_dies_in_a_broadcast_strands_only_those_behind_it() -> None:
    """Ranks before the dead link finish the broadcast, the receiver and those behind it do not."""
    job = simulate(Spec(ranks=8, tp=8, fault="network", variant="broadcast", culprits=(4,), seed=1, entries=100))
    operation: Any = job.truth["operation"]
    done = [
        rank
        for rank in range(8)
        for entry in entries_of(job, rank)
        if entry["process_group"][0] == operation["group"]
        and entry["collective_seq_id"] == operation["seq"]
        and entry["state"] == "completed"
    ]
    assert job.truth["link"] == [4, 5]
    assert done == [0, 1, 2, 3, 4]


def test_a_wrong_size_of_a_small_all_reduce_is_silent() -> None:
    """NCCL does not notice; the job goes on, and the truth says so."""
    found = []
    for seed in range(12):
        job = simulate(Spec(ranks=8, fault="mismatch", variant="dtype", data_parallel="ddp", seed=seed, entries=300))
        found.append(job.truth["hang"])
        if not job.truth["hang"]:
            assert not any(unfinished(entries_of(job, rank)) for rank in range(8))
    assert False in found


# ---- truth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_variant_of_every_fault_can_be_simulated(fault: str) -> None:
    """A layout with all kinds of groups has a place for every variant, and the truth names it."""
    for variant in FAULTS[fault]:
        spec = Spec(ranks=32, tp=2, pp=4, ep=2, fault=fault, variant=variant, seed=5, entries=400)
        job = simulate(spec)
        assert (job.truth["kind"], job.truth["variant"]) == (fault, variant)
        assert job.truth["hang"] is (fault not in ("none", "slow")) or variant in ("name", "size", "dtype", "root")
        assert bool(job.truth["culprits"]) is (fault not in ("none", "network")) or job.truth["link"]


def test_the_truth_has_the_keys_of_the_recorded_cases() -> None:
    """Everything that truth.json of a recorded case says, a simulated one says too."""
    job = simulate(Spec(ranks=8, fault="network", seed=1, entries=100))
    for case in ("broadcast_link", "healthy"):
        assert set(json.loads((CASES / case / "truth.json").read_text())) <= set(job.truth)
    assert json.loads(json.dumps(job.truth)) == job.truth


@pytest.mark.parametrize("seed", [seed for seed in range(70) if random_spec(seed).ranks <= 32])
def test_the_truth_is_in_the_dumps(seed: int) -> None:
    """Sampled jobs: who is to blame looks like it in the dumps, and the operation at the root is really there."""
    job = simulate(random_spec(seed))
    truth: Any = job.truth
    culprits, kind = truth["culprits"], truth["kind"]
    spec = job.spec
    waiting = {rank: job.contents(rank) for rank in job.dump_ranks}
    if kind in ("dead", "frozen") and not spec.stale_dump:
        assert not set(culprits) & set(job.dump_ranks)
    elif kind not in ("dead", "absent") or not spec.self_dump:
        assert set(culprits) <= set(job.dump_ranks)
    if not truth["hang"]:
        return
    assert len(job.dump_ranks) >= spec.ranks - len(culprits)
    operation = truth["operation"]
    assert set(operation["members"]) <= set(range(spec.ranks))
    if kind in ("absent", "dead", "frozen"):
        assert truth["line"].startswith("/workspace/")
        for rank in culprits:
            contents = waiting.get(rank)
            if contents is not None and kind == "absent" and truth["variant"] != "batch":
                held = contents.ring
                done = held.state == 2
                parts = [held.calls[call].kind == 1 for call in held.call]
                assert (done | parts).all()


def test_several_independent_culprits_are_all_named() -> None:
    """Ranks of different groups that stop at the same place are all in the truth."""
    job = simulate(Spec(ranks=32, tp=2, fault="absent", variant="loader", culprits=(5, 12, 30), entries=100))
    assert job.truth["culprits"] == [5, 12, 30]


def test_a_dead_rank_may_leave_an_old_dump() -> None:
    """The stale dump ends before the peers' last common operation."""
    job = simulate(Spec(ranks=8, fault="dead", stale_dump=True, culprits=(3,), seed=2, entries=100, steps=30))
    old, fresh = entries_of(job, 3), entries_of(job, 0)
    assert old[-1]["record_id"] < fresh[-1]["record_id"] - 3
    assert all(entry["state"] == "completed" for entry in fresh if entry["record_id"] <= old[-1]["record_id"])


# ---- files -----------------------------------------------------------------------------------------------------------

KEYS_2_2 = {"pg_id", "seq_id", "profiling_name", "time_created_us", "input_sizes", "output_sizes", "state", "retired",
            "frames"}  # fmt: skip
KEYS_2_3 = KEYS_2_2 - {"time_created_us"} | {"record_id", "op_id", "time_created_ns", "time_discovered_started_ns",
                                             "time_discovered_completed_ns"}  # fmt: skip
KEYS_2_4 = KEYS_2_3 - {"seq_id"} | {"collective_seq_id", "p2p_seq_id", "process_group", "is_p2p", "input_dtypes",
                                    "output_dtypes"}  # fmt: skip
KEYS_2_5 = KEYS_2_4 | {"timeout_ms"}
KEYS_2_8 = KEYS_2_5 | {"thread_id", "thread_name"}
TOP = {
    "2.3": (KEYS_2_3, "1.4", {"entries", "version", "pg_config"}),
    "2.4": (KEYS_2_4, "2.1", {"version", "pg_config", "entries"}),
    "2.5": (KEYS_2_5, "2.4", {"version", "pg_config", "pg_status", "entries"}),
    "2.7": (KEYS_2_5, "2.4", {"version", "pg_config", "pg_status", "entries"}),
    "2.8": (KEYS_2_8, "2.9", {"version", "pg_config", "nccl_version", "pg_status", "entries"}),
    "2.9": (KEYS_2_8, "2.10", {"version", "pg_config", "comm_lib_version", "pg_status", "entries"}),
    "2.15": (KEYS_2_8, "2.10", {"version", "pg_config", "comm_lib_version", "pg_status", "entries"}),
}


@pytest.mark.parametrize("torch", sorted(TOP))
@pytest.mark.parametrize("form", ["pickle", "python3", "python4", "python5"])
def test_every_version_reads_back_with_plain_pickle(torch: str, form: str) -> None:
    """Top level, version and the keys of every entry are those of that PyTorch."""
    keys, version, top_keys = TOP[torch]
    job = simulate(Spec(ranks=8, tp=2, pp=2, fault="absent", entries=100, torch=torch, form=form))
    top = read(job.dump(1) or b"")
    assert set(top) == top_keys
    assert top["version"] == version
    for entry in top["entries"]:
        assert set(entry) - {"duration_ms"} == keys


def test_torch_2_2_is_a_bare_list_in_microseconds() -> None:
    """The oldest format has no head, one sequence number and microseconds."""
    job = simulate(Spec(**SMALL, fault="absent", torch="2.2"))  # type: ignore[arg-type]
    top = read(job.dump(1) or b"")
    assert isinstance(top, list)
    assert all(set(entry) == KEYS_2_2 for entry in top)
    assert 1.7e15 < top[0]["time_created_us"] < 1.9e15


def test_the_json_form_has_zeros_strings_and_no_stacks() -> None:
    """PyTorch's JSON: alphabetical keys, 0 for None, counters as strings, no frames, an empty communicator state."""
    job = simulate(Spec(**SMALL, fault="absent", form="json"))  # type: ignore[arg-type]
    real = json.loads((CASES / "healthy/gpu-worker-6/nccl_trace_rank_0.json").read_text())
    top = read(job.dump(1) or b"")
    assert list(top) == list(real)
    assert list(top["entries"][0]) == [key for key in real["entries"][0] if key in top["entries"][0]]
    assert top["entries"][-1]["time_discovered_completed_ns"] == 0
    assert all(isinstance(value, str) for status in top["pg_status"].values() for value in status.values())


def test_the_current_format_looks_like_a_recorded_file() -> None:
    """Same top level and same keys in the same order as a dump that PyTorch 2.11 wrote."""
    real = pickle.loads((CASES / "healthy/gpu-worker-6/nccl_trace_rank_0").read_bytes())
    job = simulate(Spec(**SMALL, fault="none", variant="stopped"))  # type: ignore[arg-type]
    made = read(job.dump(0) or b"")
    assert list(made) == list(real)
    assert list(made["entries"][0]) == list(real["entries"][0])
    assert {key: type(value) for key, value in made["entries"][0].items()} == {
        key: type(value) for key, value in real["entries"][0].items()
    }


OPCODES = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "TUPLE2", "BINUNICODE", "BINPUT",
           "LONG_BINPUT", "BINGET", "LONG_BINGET", "BININT1", "BININT2", "BININT", "LONG1", "BINFLOAT", "NONE",
           "NEWTRUE", "NEWFALSE", "STOP"}  # fmt: skip


def test_pickles_use_pytorchs_opcodes_and_write_each_string_once() -> None:
    """Only the opcodes that PyTorch's own pickler uses, with its memo of strings and frames."""
    job = simulate(Spec(ranks=8, tp=2, pp=2, ep=2, fault="absent", entries=600))
    used = [(op.name, argument) for op, argument, _ in pickletools.genops(job.dump(1) or b"")]
    assert {name for name, _ in used} <= OPCODES
    strings = [argument for name, argument in used if name == "BINUNICODE"]
    assert len(strings) == len(set(strings))
    real = (CASES / "multi_pg/gpu-worker-6/nccl_trace_rank_0").read_bytes()
    shared = [name for name, _ in used if name in ("BINPUT", "BINGET")]
    real_shared = [op.name for op, _, _ in pickletools.genops(real) if op.name in ("BINPUT", "BINGET")]
    assert abs(shared.count("BINGET") / len(shared) - real_shared.count("BINGET") / len(real_shared)) < 0.15


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_the_fast_encoder_says_what_the_plain_objects_say(seed: int) -> None:
    """Every rank's pickle unpickles to the objects of its contents, also where ranks share a layout."""
    job = simulate(Spec(ranks=16, tp=2, pp=2, ep=2, fault="absent", seed=seed, entries=300, torch="2.11"))
    for rank in job.dump_ranks:
        contents = job.contents(rank)
        assert contents is not None
        assert read(job.dump(rank) or b"") == to_object(contents)


def test_gloo_always_says_scheduled_and_forgets_its_members() -> None:
    """Gloo's quirks: done is retired, pg_config has one entry without a name, counters are operation ids."""
    job = simulate(Spec(**SMALL, fault="absent", backend="gloo", torch="2.13", seed=1))  # type: ignore[arg-type]
    culprit = only_culprit(job)
    top = read(job.dump((culprit + 1) % 8) or b"")
    assert top["pg_config"] == {"": {"name": "", "desc": "", "ranks": "[]"}}
    assert {entry["state"] for entry in top["entries"]} == {"scheduled"}
    assert [entry["retired"] for entry in top["entries"]].count(False) == 1
    assert not top["entries"][-1]["retired"]
    assert all(entry["profiling_name"].startswith("gloo:") for entry in top["entries"])


def test_nccl2_leaves_no_dump_of_a_rank_that_waits_for_nobody() -> None:
    """Only ranks whose own operation times out write one, unless a collector asks."""
    alone = simulate(Spec(**SMALL, fault="absent", backend="nccl2", torch="2.15", self_dump=True))  # type: ignore[arg-type]
    asked = simulate(Spec(**SMALL, fault="absent", backend="nccl2", torch="2.15"))  # type: ignore[arg-type]
    assert set(range(8)) - set(alone.dump_ranks) == set(alone.truth["culprits"])  # type: ignore[call-overload]
    assert asked.dump_ranks == list(range(8))
    assert {entry["state"] for entry in entries_of(asked, 0)} <= {"scheduled", "completed"}


def test_a_smaller_ring_holds_the_end_of_a_larger_one() -> None:
    """What a ring of 60 entries keeps is exactly the last 60 of the same job's ring of 600."""
    common: dict[str, Any] = {"ranks": 16, "tp": 2, "pp": 4, "fault": "absent", "seed": 7, "steps": 60}
    large, small = simulate(Spec(**common, entries=600)), simulate(Spec(**common, entries=60))
    for rank in range(16):
        assert entries_of(large, rank)[-60:] == entries_of(small, rank)


def test_rings_wrap_at_unequal_rates() -> None:
    """Pipeline stages record different numbers of operations, so equal record ids are not equal operations."""
    job = simulate(Spec(ranks=8, pp=4, tp=2, fault="none", variant="stopped", entries=100, layers=6, steps=40))
    firsts = {entries_of(job, rank)[0]["record_id"] for rank in range(8)}
    assert len(firsts) > 1
    assert min(firsts) > 0


def test_clocks_differ_by_node_and_not_within_one() -> None:
    """Skew moves all times of a node by one amount within the limit."""
    common: dict[str, Any] = {"ranks": 16, "gpus_per_node": 4, "fault": "none", "variant": "stopped", "entries": 50}
    true, skewed = simulate(Spec(**common)), simulate(Spec(**common, clock_skew_ms=50))
    moved = {}
    for rank in range(16):
        pairs = zip(entries_of(true, rank), entries_of(skewed, rank), strict=True)
        (moved[rank],) = {b["time_created_ns"] - a["time_created_ns"] for a, b in pairs}
    assert all(abs(by) <= 50_000_000 for by in moved.values())
    assert len(set(moved.values())) == 4
    assert len({moved[rank] for rank in range(4)}) == 1


def test_groups_share_a_name_where_they_were_split() -> None:
    """Disjoint groups of one kind may be called the same; otherwise every group has its own number or hash."""

    def names(job: Simulated) -> list[set[str]]:
        return [
            {e["process_group"][0] for e in entries_of(job, r) if e["process_group"][1] == "mesh_tp"} for r in (0, 7)
        ]

    assert names(simulate(Spec(**SMALL, naming="shared"))) == [{"2"}, {"2"}]  # type: ignore[arg-type]
    for naming in ("numbers", "hashes"):
        first, last = names(simulate(Spec(**SMALL, naming=naming)))  # type: ignore[arg-type]
        assert first != last


def test_the_same_seed_gives_the_same_bytes() -> None:
    """A job is a function of its spec, including its evidence; another seed is another job."""
    spec = random_spec(11)
    assert dict(simulate(spec).files()) == dict(simulate(spec).files())
    assert random_spec(11) == spec
    assert random_spec(12) != spec
    files = [dict(simulate(Spec(**SMALL, fault="absent", seed=seed)).files()) for seed in (1, 2)]  # type: ignore[arg-type]
    assert files[0] != files[1]


def test_gzip_wraps_the_same_dump() -> None:
    """A compressed dump is the plain one, compressed."""
    plain, packed = (simulate(Spec(**SMALL, fault="absent", gzip=flag)) for flag in (False, True))  # type: ignore[arg-type]
    assert gzip.decompress(packed.dump(2) or b"") == plain.dump(2)


def test_encoding_is_quicker_than_pickling_the_same_objects() -> None:
    """Large jobs take seconds: writing a dump costs less than Python's own pickle.dumps of the finished objects."""
    job = simulate(Spec(ranks=64, tp=4, pp=2, fault="absent", entries=2000))
    objects = []
    for rank in range(2):
        contents = job.contents(rank)
        assert contents is not None
        objects.append(to_object(contents))
    job.dump(0)

    def cpu_seconds(work: Any) -> float:
        best = 1e9
        for _ in range(3):
            begin = time.process_time()
            work()
            best = min(best, time.process_time() - begin)
        return best

    whole = cpu_seconds(lambda: [job.dump(rank) for rank in range(1, 33)]) / 32
    pickled = cpu_seconds(lambda: [pickle.dumps(item, protocol=2) for item in objects]) / 2
    assert whole < 4 * pickled


# ---- evidence --------------------------------------------------------------------------------------------------------


def test_the_roster_and_logs_tell_the_dead_from_the_frozen() -> None:
    """A killed rank has its signal in the roster, a frozen one is still there; neither has anything in its log."""
    killed = dict(simulate(Spec(ranks=8, fault="dead", variant="killed", culprits=(3,), entries=60)).files())
    frozen = dict(simulate(Spec(ranks=8, fault="frozen", culprits=(3,), entries=60)).files())
    rosters = [{row["rank"]: row for row in json.loads(files["roster.json"])} for files in (killed, frozen)]
    assert [roster[3]["exit"] for roster in rosters] == [-9, None]
    real = json.loads((CASES / "sigkill/roster.json").read_text())
    assert list(rosters[0][0]) == list(real[0])
    for files in (killed, frozen):
        assert b"ProcessGroupNCCL" not in files["gpu-node-0/rank_3.log"]
        assert b"ProcessGroupNCCL" in files["gpu-node-0/rank_2.log"]


def test_an_exception_leaves_its_traceback() -> None:
    """A rank that raised says what and where, and exits with status 1."""
    files = dict(simulate(Spec(ranks=8, fault="dead", variant="exception", culprits=(6,), entries=60)).files())
    log = files["gpu-node-0/rank_6.log"].decode()
    assert "[rank6]: Traceback (most recent call last):" in log
    assert "[rank6]: ValueError: bad sample" in log
    assert json.loads(files["roster.json"])[6]["exit"] == 1


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("2.2", "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank "),
        ("2.3", "Timeout at NCCL work: "),
        ("2.4", "ProcessGroupNCCL.cpp:607] [Rank "),
        ("2.5", "Exception (either an error or timeout) detected by watchdog at work: "),
        ("2.9", " failure detected by watchdog at work sequence id: "),
        ("2.14", "ProcessGroupNCCL.cpp:741] [PG GUID "),
    ],
)
def test_logs_speak_the_words_of_their_version(torch: str, words: str) -> None:
    """Ranks that wait log the watchdog's line as that PyTorch writes it."""
    files = dict(simulate(Spec(ranks=8, fault="absent", culprits=(3,), torch=torch, entries=60)).files())
    log = files["gpu-node-0/rank_1.log"].decode()
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in log
    assert words in log


def test_a_dead_link_comes_with_nccls_view_of_the_ring() -> None:
    """NCCL's logs name the neighbours on the ring and the device of each channel, and the warning if asked for."""
    spec = Spec(
        ranks=16, gpus_per_node=4, fault="network", variant="collective", nccl_warnings=True, entries=60, seed=2
    )
    job = simulate(spec)
    link: Any = job.truth["link"]
    sender, receiver = link
    texts = {name: data.decode() for name, data in job.files() if "/nccl." in name}
    assert len(texts) == 16
    warned = [name for name, text in texts.items() if "NCCL WARN" in text]
    assert len(warned) == (spec.node(sender) != spec.node(receiver))
    assert all("Ring 00 : " in text and "Init COMPLETE" in text for text in texts.values())


def test_no_evidence_means_dumps_and_truth_alone() -> None:
    """Without evidence there is nothing but what PyTorch itself writes."""
    names = [name for name, _ in simulate(Spec(ranks=8, fault="dead", evidence=False, entries=60)).files()]
    assert all(name == "truth.json" or "trace_rank_" in name for name in names)
    assert len(names) == 8


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ranks": 16, "tp": 3}, "do not make 16 ranks"),
        ({"ranks": 16, "dp": 3, "tp": 4}, "do not make 16 ranks"),
        ({"ranks": 8, "ep": 3}, "ep=3 does not divide dp=8"),
        ({"fault": "flood"}, "fault 'flood' is not known"),
        ({"fault": "mismatch", "variant": "loader"}, "variant of mismatch 'loader' is not known"),
        ({"culprits": (9,)}, "there is no rank 9"),
        ({"torch": "2.4", "form": "json"}, "torch 2.4 has no JSON form"),
        ({"torch": "2.7", "backend": "gloo"}, "Gloo records nothing in torch 2.7"),
        ({"ranks": 1}, "ranks=1 is too small"),
    ],
)
def test_impossible_jobs_are_refused_with_a_cure(wrong: dict[str, Any], words: str) -> None:
    """A spec that cannot be is refused when it is made, with a hint."""
    with pytest.raises(SettingsError, match=words) as raised:
        Spec(**wrong)
    assert raised.value.hint


def test_a_fault_without_a_place_is_refused() -> None:
    """A wrong split needs an all_to_all: without one the error says what to change."""
    with pytest.raises(SettingsError, match="found no place for mismatch split") as raised:
        simulate(Spec(ranks=4, fault="mismatch", variant="split", entries=50))
    assert raised.value.hint


def test_the_command_writes_a_directory_and_says_the_truth(tmp_path: Path) -> None:
    """`simulate -o DIR` writes dumps, evidence and truth; the answer is on stdout."""
    target = tmp_path / "job"
    arguments = ["-o", str(target), "--ranks", "16", "--layout", "tp=4,pp=2", "--fault", "absent", "--culprit", "5"]
    result = CliRunner().invoke(command, [*arguments, "--torch", "2.5", "--entries", "80"])
    assert result.exit_code == 0, result.output
    assert "rank 5" in result.stdout
    truth = json.loads((target / "truth.json").read_text())
    assert truth["culprits"] == [5]
    assert len(list(target.glob("*/nccl_trace_rank_*"))) == 16
    again = CliRunner().invoke(command, arguments)
    assert isinstance(again.exception, SettingsError)


def test_the_commands_help_has_an_example_that_runs(tmp_path: Path) -> None:
    """The example in --help is a command line that works."""
    text = CliRunner().invoke(command, ["--help"]).output
    example = " ".join(text[text.index("Example:") :].split()).partition("hangscope simulate ")[2]
    arguments = example.replace("/tmp/job", str(tmp_path / "job")).split()
    assert CliRunner().invoke(command, arguments).exit_code == 0
