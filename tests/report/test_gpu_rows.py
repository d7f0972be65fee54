"""What the GPUs ran, as people and programs see it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import jsonschema

from hangscope.diagnosis import diagnose
from hangscope.model import Facts, GpuCore, GpuKernel, Job, Source
from hangscope.report.export import to_dict
from hangscope.report.page.page_head import answer
from hangscope.report.page.render_page import render_page
from hangscope.report.terminal import render_text
from kits.small_jobs import START, Op, job

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
HOSTILE = "spin<script>hsx()</script>"


def made() -> Job:
    """All launched; rank 2's GPU runs something else, whose name is hostile."""
    ops = {rank: [Op("dp"), Op("dp", state="scheduled")] for rank in range(4)}
    cores = tuple(
        GpuCore(
            rank,
            (GpuKernel(HOSTILE if rank == 2 else NCCL, HOSTILE if rank == 2 else NCCL, 0, (2, 1, 1), (544, 1, 1), 2),),
            Source(f"nodes/a/gpu/rank_{rank}.json"),
            asked_ns=START,
        )
        for rank in range(4)
    )
    whole = job({"dp": range(4)}, ops, timing=False, facts=Facts(gpu_cores=cores))
    return replace(whole, reason="stall")


def test_the_json_has_each_ranks_kernels() -> None:
    """By rank, with dimensions, and as the schema says."""
    value = to_dict(diagnose(made()))
    schema = json.loads(resources.files("hangscope.report").joinpath("diagnosis.schema.json").read_text())
    jsonschema.validate(value, schema)
    assert [core["rank"] for core in value["gpu_cores"]] == [0, 1, 2, 3]
    assert value["gpu_cores"][0]["kernels"] == [
        {"name": NCCL, "device": 0, "grid": [2, 1, 1], "block": [544, 1, 1], "blocks": 2}
    ]
    assert value["completeness"]["gpu_cores"] == 4
    assert value["kind"] == "gpu"


def test_the_page_shows_the_accused_first_and_ranks_alike_as_one() -> None:
    """The rank whose GPU runs something else has its own row; a kernel's name is text and nothing else."""
    found = diagnose(made())
    rows = answer(found, made())["gpus"]
    assert [(row["ranks"], row["accused"]) for row in rows] == [("rank 2", True), ("ranks 0, 1, 3", False)]
    assert rows[1]["kernels"] == [(NCCL, "grid 2×1×1, blocks of 544×1×1, 2 on the GPU")]
    page = render_page(found, made())
    assert NCCL in page
    assert HOSTILE not in page


def test_the_terminal_counts_the_cores() -> None:
    """Beside dumps, stacks and logs."""
    assert "GPU cores 4/4" in render_text(diagnose(made()))
