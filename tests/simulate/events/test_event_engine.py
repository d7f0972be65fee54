"""The physics of the simulator, against recorded jobs and against what must follow."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hangscope.simulate import Spec, simulate
from hangscope.simulate.events.event_engine import NEVER, EventEngine, Interference
from hangscope.simulate.program.step_operations import Op, OpPart
from hangscope.simulate.program.training_sites import Site
from hangscope.simulate.spec.job_layout import GroupDef
from kits.simulated_dumps import entries_of, only_culprit, operation_key, read, unfinished

CASES = Path(__file__).parents[2] / "cases"

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
        batches = {operation_key(entry) for entry in self.entries(rank) if entry["profiling_name"] == "nccl:coalesced"}
        for row, entry in enumerate(self.entries(rank)):
            name = entry["profiling_name"].removeprefix("nccl:")
            role = names[entry["process_group"][0]]
            dtype = (entry["input_dtypes"] or ["Float"])[0]
            site = Site(name, (), (), dtype, (("f", "/workspace/train.py", 1),), "python3", name.partition(" ")[0])
            if entry["is_p2p"]:
                parts.append(OpPart(site, int(name.rpartition("->" if "->" in name else "<-")[2])))
                size = entry["input_sizes"][0][0] * BYTES[dtype]
                if operation_key(entry) in batches:
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
