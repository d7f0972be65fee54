"""incident.json: built, verified, merged; attempts stay apart and stale files are recognised."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hangscope.errors import DamagedError, NotFoundError
from hangscope.incident import manifest
from hangscope.incident.layout import write_json
from hangscope.incident.manifest import Manifest, Missing
from hangscope.incident.stale_files import dump_rank, stale_dumps


def _incident(root: Path, *, node: str = "gpu-a017", job: str = "48121", attempt: str = "0") -> Path:
    folder = root / "nodes" / node
    write_json(
        folder / "node.json",
        {"schema": "hangscope.node/1", "node": node, "job": job, "attempt": attempt, "versions": {"torch": "2.11.0"}},
    )
    (folder / "dumps").mkdir()
    (folder / "dumps" / "nccl_trace_rank_0").write_bytes(b"\x80\x02}.")
    return root


def test_built_manifest_lists_every_file_with_its_checksum(tmp_path: Path) -> None:
    """A built manifest verifies, and names job, attempt, nodes and versions that the nodes' own files say."""
    root = _incident(tmp_path)
    built = manifest.build(root, Manifest(reason="stall", nodes_expected=("gpu-a017", "gpu-a018"), world_size=16))
    manifest.write(root, built)
    assert manifest.verify(root) == []
    value = json.loads((root / "incident.json").read_text())
    assert value["schema"] == "hangscope.incident/1"
    assert (value["job"], value["attempt"], value["reason"], value["world_size"]) == ("48121", "0", "stall", 16)
    assert value["nodes_expected"] == ["gpu-a017", "gpu-a018"]
    assert value["nodes_present"] == ["gpu-a017"]
    assert value["versions"]["torch"] == "2.11.0"
    assert set(value["files"]) == {"nodes/gpu-a017/node.json", "nodes/gpu-a017/dumps/nccl_trace_rank_0"}
    assert value["files"]["nodes/gpu-a017/dumps/nccl_trace_rank_0"]["size"] == 4


def test_verify_names_what_changed_vanished_and_appeared(tmp_path: Path) -> None:
    """verify says which file is missing, which differs and which nobody listed."""
    root = _incident(tmp_path)
    (root / "nodes/gpu-a017/extra.txt").write_text("x")
    manifest.write(root, manifest.build(root))
    (root / "nodes/gpu-a017/extra.txt").unlink()
    (root / "nodes/gpu-a017/dumps/nccl_trace_rank_0").write_bytes(b"\x80\x02].")
    (root / "new.txt").write_text("y")
    assert manifest.verify(root) == [
        "new.txt: there, but not listed",
        "nodes/gpu-a017/dumps/nccl_trace_rank_0: not the file that was listed (size or checksum differ)",
        "nodes/gpu-a017/extra.txt: listed, but not there",
    ]


def test_half_written_files_pipes_and_loops_are_left_out(tmp_path: Path) -> None:
    """A manifest can be built where a dump pipe, a temporary file and a circular link lie around."""
    root = _incident(tmp_path)
    os.mkfifo(root / "nodes/gpu-a017/dumps/trace_0.pipe")
    (root / "nodes/gpu-a017/dumps/.nccl.x1.part").write_bytes(b"half")
    (root / "nodes/loop").symlink_to(root)
    (root / "latest").symlink_to(root / "nodes/gpu-a017/node.json")
    assert set(manifest.build(root).files) == {"nodes/gpu-a017/node.json", "nodes/gpu-a017/dumps/nccl_trace_rank_0"}


def test_manifest_survives_a_round_trip_with_fields_of_a_newer_version(tmp_path: Path) -> None:
    """Fields that this version does not know are kept when a manifest is read and written again."""
    one = Manifest(job="7", gaps=(Missing("dump of rank 3", "node down", "n3"),), extra={"cluster": {"rack": 9}})
    manifest.write(tmp_path, one)
    assert manifest.read(tmp_path) == one


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"[" * 100_000, b'{"schema": "other/1"}', b'{"schema": 3}', b"\xff\xfe\x00"]
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, raw: bytes) -> None:
    """Broken or foreign JSON under the manifest's name is a clear error."""
    (tmp_path / "incident.json").write_bytes(raw)
    with pytest.raises(DamagedError, match=r"incident\.json"):
        manifest.read(tmp_path)


def test_fields_of_a_wrong_type_count_as_not_said() -> None:
    """A stranger's manifest with nonsense in its fields is read as far as it makes sense."""
    raw = {"schema": "hangscope.incident/1", "job": ["x"], "attempt": 3, "nodes_present": [1, "a"], "world_size": "8",
           "files": {"a": 1, "b": {"size": 1}}, "gaps": [7, {"what": "x"}], "versions": None}  # fmt: skip
    read = manifest.parse(json.dumps(raw).encode())
    assert (read.job, read.attempt, read.nodes_present, read.world_size) == (None, "3", ("a",), None)
    assert read.files == {"b": {"size": 1}}
    assert read.gaps == (Missing("x", ""),)


def test_verify_without_a_manifest_says_so(tmp_path: Path) -> None:
    """A plain folder cannot be verified, and the error says why."""
    with pytest.raises(NotFoundError, match=r"no incident\.json here"):
        manifest.verify(tmp_path)


def test_parts_of_several_nodes_merge_into_one() -> None:
    """Merged parts name all nodes, keep the first capture's reason, and add up files and gaps."""
    one = Manifest("48121", "0", "stall", "rank 2 waits", "2026-11-15T02:30:11Z", ("a", "b"), ("a",), 16,
                   files={"nodes/a/x": {"size": 1}}, gaps=(Missing("x", "y"),))  # fmt: skip
    two = Manifest("48121", "0", "watchdog", "later", "2026-11-15T02:40:11Z", ("a", "b"), ("b",), 16,
                   files={"nodes/b/x": {"size": 2}}, gaps=(Missing("x", "y"),))  # fmt: skip
    merged = manifest.merge([two, one])
    assert (merged.reason, merged.detail) == ("stall", "rank 2 waits")
    assert merged.nodes_present == ("a", "b")
    assert set(merged.files) == {"nodes/a/x", "nodes/b/x"}
    assert merged.gaps == (Missing("x", "y"),)


def test_attempts_of_one_job_are_never_merged() -> None:
    """Parts of two attempts raise, because their ranks are different processes."""
    with pytest.raises(ValueError, match="different attempts"):
        manifest.merge([Manifest("48121", "0"), Manifest("48121", "1")])


def test_newest_attempt_is_picked_and_the_rest_named() -> None:
    """The highest attempt of one job wins, also when an older one was captured later; of several jobs, the latest."""
    old = Manifest("48121", "9", captured_at="2026-11-15T09:00:00Z")
    new = Manifest("48121", "10", captured_at="2026-11-15T08:00:00Z")
    names, others = manifest.newest([("a", old), ("b", new), ("c", new)])
    assert names == ["b", "c"]
    assert [name for name, _ in others] == ["a"]
    other_job = Manifest("50000", "0", captured_at="2026-11-16T08:00:00Z")
    assert manifest.newest([("a", old), ("b", new), ("d", other_job)])[0] == ["d"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nccl_trace_rank_3", ("nccl_trace_rank", 3)),
        ("tmp/comm_lib_trace_rank_1023", ("comm_lib_trace_rank", 1023)),
        ("nccl_trace_rank_container-node02_5", ("nccl_trace_rank_container-node02", 5)),
        ("nodes/a/dumps/gloo_rank_7.pickle", ("gloo", 7)),
        ("x/nccl_trace_rank_0.json.gz", ("nccl_trace_rank", 0)),
        ("rank_0.log", None),
        ("nodes/a/logs/nccl.host.123.log", None),
        ("train.py", None),
    ],
)
def test_dump_names_give_rank(name: str, expected: tuple[str, int] | None) -> None:
    """The names that PyTorch and users give to dumps are recognised, and logs are not taken for dumps."""
    assert dump_rank(name) == expected


def test_dumps_of_an_earlier_run_are_recognised(tmp_path: Path) -> None:
    """A dump hours older than the rest, or superseded in another default folder of the same node, is marked stale."""
    base = 1_794_700_000.0
    modified = {
        "nodes/a/dumps/tmp/nccl_trace_rank_0": base,
        "nodes/a/dumps/tmp/nccl_trace_rank_1": base - 3 * 86400,
        "nodes/b/dumps/tmp/nccl_trace_rank_2": base + 30,
        "nodes/b/dumps/root/.cache/torch/nccl_trace_rank_2": base - 600,
        "nodes/b/logs/rank_2.log": base - 9 * 86400,
    }
    assert {item.file: item.why for item in stale_dumps(modified)} == {
        "nodes/a/dumps/tmp/nccl_trace_rank_1": "72.0 h older than the newest dump",
        "nodes/b/dumps/root/.cache/torch/nccl_trace_rank_2": "older than nodes/b/dumps/tmp/nccl_trace_rank_2, also a "
        "dump of rank 2",
    }
    root = _incident(tmp_path)
    old = root / "nodes/gpu-a017/dumps/nccl_trace_rank_9"
    old.write_bytes(b"old")
    os.utime(old, (base, base))
    assert [item.file for item in manifest.build(root).stale] == ["nodes/gpu-a017/dumps/nccl_trace_rank_9"]


def test_a_dump_dated_in_the_future_makes_no_other_old() -> None:
    """A node whose clock runs years ahead, or a file that lies about its date, drops neither the dumps of other nodes
    nor another dump of its own rank."""
    now = time.time()
    modified = {
        "nodes/a/dumps/tmp/nccl_trace_rank_0": now + 9e8,
        "nodes/a/dumps/root/nccl_trace_rank_0": now - 60,
        "nodes/b/dumps/tmp/nccl_trace_rank_1": now - 90,
    }
    assert stale_dumps(modified) == []
