"""Cores of GPUs as evidence: our tables, the driver's own files, and what was written after the GPUs were asked."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hangscope import diagnose, load
from hangscope.bundle.pack import write_bundle
from hangscope.model import Gap
from kits.gpu_cores import ALL_REDUCE, SPIN, Kernel, Section, core, elf

FAILURE = "[rank0]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
STEP = "step 1 loss 3.2\n"


def incident(root: Path, *, asked: bool = True) -> Path:
    """Two ranks of one node; rank 0's log goes on with an error after its GPU was asked."""
    node = root / "nodes" / "a"
    for folder in ("logs", "gpu", "dumps"):
        (node / folder).mkdir(parents=True)
    (node / "logs" / "rank_0.log").write_text(STEP + FAILURE)
    (node / "logs" / "rank_1.log").write_text(STEP)
    (node / "logs" / "nccl.a.100.log").write_text(
        "a:100:100 [0] NCCL WARN Cuda failure 719 'unspecified launch failure'\n"
    )
    value: dict[str, Any] = {
        "schema": "hangscope.node/1",
        "node": "a",
        "ranks": [{"rank": rank, "pid": 100 + rank, "state": "S"} for rank in (0, 1)],
        "gaps": [],
    }
    if asked:
        files = {"logs/rank_0.log": len(STEP), "logs/rank_1.log": len(STEP)}
        value["gpu_cores"] = {"asked_at": "2026-11-18T03:22:38.815Z", "ranks": [0, 1], "files": files}
    (node / "node.json").write_text(json.dumps(value))
    manifest = {"schema": "hangscope.incident/1", "reason": "stall", "captured_at": "2026-11-18T03:22:30.000Z"}
    (root / "incident.json").write_text(json.dumps({**manifest, "world_size": 2, "files": {}}))
    return root


def failures(place: Path) -> list[str]:
    return [failure.text for failure in load(place).facts.failures]


def test_what_came_after_the_gpus_were_asked_is_not_read(tmp_path: Path) -> None:
    """The error that asking caused is no failure of the job, also not in a file that came only then; a gap says so."""
    assert any("launch failure" in text for text in failures(incident(tmp_path / "before", asked=False)))
    place = incident(tmp_path / "asked")
    assert not any("launch failure" in text for text in failures(place))
    gaps = [gap.what for gap in load(place).gaps if "asked what they run" in gap.why]
    assert len(gaps) == 2
    assert any(what.startswith("the end of") for what in gaps)


def test_nor_from_an_archive_and_a_bundle(tmp_path: Path) -> None:
    """Packed by hand or by us, the evidence is the same."""
    place = incident(tmp_path / "asked")
    with tarfile.open(tmp_path / "by_hand.tar.gz", "w:gz") as archive:
        archive.add(place, "job")
    write_bundle(place, tmp_path / "bundle.tar.gz")
    for packed in ("by_hand.tar.gz", "bundle.tar.gz"):
        assert not any("launch failure" in text for text in failures(tmp_path / packed)), packed


def cores_in(place: Path) -> dict[int | None, list[str]]:
    return {found.rank: [kernel.title for kernel in found.kernels] for found in load(place).facts.gpu_cores}


def test_a_core_that_the_driver_wrote_is_read_by_its_content(tmp_path: Path) -> None:
    """Its name tells the rank, or the process where a node's file knows that one; else it is a gap."""
    place = incident(tmp_path / "i")
    (place / "nodes" / "a" / "core.101").write_bytes(core([Kernel(SPIN)]))
    (place / "nodes" / "a" / "job.rank_0.core").write_bytes(core([Kernel(ALL_REDUCE)]))
    (place / "nodes" / "a" / "core.4711").write_bytes(core([]))
    assert cores_in(place) == {0: ["ncclDevKernel_AllReduce_Sum_f32_RING_LL"], 1: ["at::cuda::spin_kernel"]}
    assert [gap.what for gap in load(place).gaps if "whose it is" in gap.why] == [
        f"GPU core {place}/nodes/a/core.4711",
    ]


def test_a_damaged_core_is_a_gap_and_a_compiled_kernel_nothing(tmp_path: Path) -> None:
    """Half a core does not say that nothing ran; a cubin beside the evidence is none."""
    place = incident(tmp_path / "i")
    whole = core([Kernel(SPIN)])
    (place / "nodes" / "a" / "core.100").write_bytes(whole[: len(whole) // 2])
    (place / "nodes" / "a" / "kernels.cubin").write_bytes(elf([Section(".text.k", b"x")]))
    assert cores_in(place) == {}
    about: list[Gap] = [gap for gap in load(place).gaps if gap.what.startswith("GPU core")]
    assert ["core.100" in gap.what for gap in about] == [True]


@pytest.mark.parametrize("grids", [None, {}, "x"])
def test_a_table_without_grids_says_nothing(tmp_path: Path, grids: object) -> None:
    """A table that was broken is no GPU on which nothing runs."""
    place = incident(tmp_path / "i")
    table = {"schema": "hangscope.gpu/1", "rank": 0, "grids": grids}
    (place / "nodes" / "a" / "gpu" / "rank_0.json").write_text(json.dumps(table))
    assert cores_in(place) == {}


def test_recorded_cores_alone_name_the_kernels(tmp_path: Path) -> None:
    """Real cores of an H200, without anything else: one in NCCL, one that spins, each with its name."""
    recorded = Path(__file__).parents[1] / "recorded_gpu"
    for name in ("spin.rank_0", "spin.rank_2"):
        (tmp_path / f"{name}.core").write_bytes(lzma.decompress((recorded / f"{name}.core.xz").read_bytes()))
    found = diagnose(tmp_path)
    assert [(culprit.rank, str(found.kind), found.confidence) for culprit in found.culprits] == [(2, "gpu", "low")]
    assert "rank 2's GPU runs at::cuda::spin_kernel" in found.headline
