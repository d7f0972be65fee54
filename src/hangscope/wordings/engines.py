"""Inference engines, where one line says all. What goes on over several lines is read by `reader.logs.engine_lines`."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_DIED = r"Worker (?P<what>\w{1,40}) pid (?P<pid>\d{1,9}) died, exit code: (?P<code>"

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.SIGNAL,
        _DIED + r"-(?:15|2|1))\b",
        ("died, exit code: ",),
        "ERROR 07-04 23:23:23 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 3283517 died, exit code: -15",
        "vLLM 0.4-0.8; vllm#6145, #15295; 2024-2025",
        library="vLLM",
        effect=True,
    ),
    Wording(
        FailureKind.SIGNAL,
        _DIED + r"-\d{1,3})\b",
        ("died, exit code: ",),
        "ERROR 07-04 23:23:23 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 3283517 died, exit code: -9",
        "vLLM 0.4-0.8; 2024-2025",
        library="vLLM",
    ),
    Wording(
        FailureKind.EXIT,
        _DIED + r"[1-9]\d{0,2})\b",
        ("died, exit code: ",),
        "ERROR 07-04 23:23:23 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 3283517 died, exit code: 1",
        "vLLM 0.4-0.8; 2024-2025",
        library="vLLM",
    ),
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
