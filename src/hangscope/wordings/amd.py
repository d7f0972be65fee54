"""AMD's GPUs: HSA's own words in a process, and the amdgpu driver's in the kernel's log."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_PCI = r"amdgpu (?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:amdgpu: )?"

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.GPU_HANG,
        r"HW Exception by (?P<device>GPU node-\d{1,3})\b.{0,60}?reason ?: ?(?P<what>GPU Hang|[\w ]{1,40})",
        ("HW Exception by",),
        "HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang",
        "ROCm 6; ROCm#4021, #5259; 2024-2025",
        library="AMD",
        detail="{device}",
        explains=True,
        of_writer=True,
        page="hw-exception-by-gpu-node",
    ),
    Wording(
        FailureKind.CUDA_ERROR,
        r"Memory access fault by (?P<device>GPU node-\d{1,3}).{0,120}?Reason: (?P<what>[^.]{1,80})",
        ("Memory access fault by",),
        "Memory access fault by GPU node-2 (Agent handle: 0x55d4) on address 0x7f12a4000000. Reason: Page not present or "
        "supervisor privilege.",
        "ROCm 4-6; 2021-2026",
        library="AMD",
        detail="memory access fault on {device}: {what}",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.CUDA_ERROR,
        r"aborting with error ?: ?(?P<what>HSA_STATUS_ERROR_\w+)",
        ("HSA_STATUS_ERROR_",),
        ":0:rocdevice.cpp :2875: 1234567890 us: [pid:4242 tid:0x7f] Callback: Queue 0x7f0 aborting with error : "
        "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
        "ROCm 5-6; 2022-2026",
        library="AMD",
        detail="{what}",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.GPU_HANG,
        _PCI + r"(?P<what>GPU reset begin|GPU reset\(\d+\) failed|GPU reset end with ret = -\d+|ring \S+ timeout"
        r"|\[?drm\S* ?.{0,60}?ring \S+ timeout|.{0,40}?fence wait loop timeout expired"
        r"|GPU mode\d reset failed|ASIC reset failed with error, -\d{1,3})",
        ("GPU reset begin", "reset failed", "GPU reset(", "GPU reset end", " timeout, signaled", "fence wait loop"),
        "Apr 12 00:54:42 gpu-b12 kernel: amdgpu 0000:2f:00.0: amdgpu: GPU reset begin!",
        "Linux 5-6; ROCm#1724, libva-utils#291; 2018-2026",
        library="AMD",
        detail="{device}",
        explains=True,
        kernel=True,
    ),
    Wording(
        FailureKind.GPU_HANG,
        r"amdgpu_job_timedout.{0,60}?(?P<what>ring \S+ timeout)",
        ("amdgpu_job_timedout",),
        "Apr 12 00:54:42 gpu-b12 kernel: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled "
        "seq=159760, emitted seq=159762",
        "Linux 4-6; ROCm#1724; 2018-2026",
        library="AMD",
        detail="{what}",
        explains=True,
        kernel=True,
    ),
)
