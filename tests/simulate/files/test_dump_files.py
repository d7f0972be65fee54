"""The dump formats, against plain Python and recorded files."""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools
import time
from pathlib import Path
from typing import Any

import pytest

from hangscope.simulate import Simulated, Spec, simulate
from hangscope.simulate.files.dump_objects import to_object
from kits.simulated_dumps import SMALL, entries_of, only_culprit, read

CASES = Path(__file__).parents[2] / "cases"
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
