"""Inference engines, where one line says all. What goes on over several lines is read by `reader.logs.engine_lines`."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.OTHER,
        r"Failed to load NCCL library from (?P<name>\S{1,300}?)\s?\. It is expected if you are not running on",
        ("Failed to load NCCL library",),
        "(VllmWorker rank=3 pid=44710) ERROR 08-20 09:48:31 [pynccl_wrapper.py:229] Failed to load NCCL library from "
        "/opt/nccl/libnccl.so.2.21.5 . It is expected if you are not running on NVIDIA/AMD GPUs.",
        "vLLM 0.4-0.21; trl#3925; 2024-2026",
        library="vLLM",
        detail="could not load NCCL's library {name}",
        explains=True,
        of_writer=True,
    ),
)
