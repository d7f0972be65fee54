"""Intel: oneCCL, Level Zero's results, and the xe and i915 drivers."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_PCI = r"(?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): \[drm\] (?:\*ERROR\* )?(?:Tile\d+: )?(?:GT\d+: )?"

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.GPU_HANG,
        r"\bxe " + _PCI + r"(?P<what>Timedout job).{0,160}?(?: in (?P<name>[^\[]{1,40})\[(?P<pid>\d+)\])?\s*$",
        ("Timedout job",),
        "[ 2319.120702] xe 0000:03:00.0: [drm] GT0: Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=2, flags=0x0 "
        "in python3 [2390]",
        "Linux 6.8-7.0; intel/compute-runtime#962; 2025-2026",
        library="Intel",
        detail="{device}",
        explains=True,
        kernel=True,
    ),
    Wording(
        FailureKind.GPU_HANG,
        r"\bi915 " + _PCI + r"(?P<what>GPU HANG: ecode \S+?),? in (?P<name>[^\[]{1,40})\[(?P<pid>\d+)\]",
        ("GPU HANG",),
        "[10140.716808] i915 0000:03:00.0: [drm] GPU HANG: ecode 12:10:85defffa, in repro [7742]",
        "Linux 4-6; intel/compute-runtime#904; 2018-2026",
        library="Intel",
        detail="{device}",
        explains=True,
        kernel=True,
    ),
    Wording(
        FailureKind.GPU_HANG,
        r"\b(?:xe|i915) "
        + _PCI
        + r"(?P<what>Engine reset|Resetting chip for|.{0,20}reset request timed out|Engine memory CAT error)",
        ("Engine reset", "Resetting chip", "reset request timed", "Engine memory CAT"),
        "[ 2319.120331] xe 0000:03:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=2",
        "Linux 5-7; clearlinux#2907, llama.cpp#24810; 2023-2026",
        library="Intel",
        detail="{device}",
        explains=True,
        kernel=True,
    ),
    Wording(
        FailureKind.GPU_LOST,
        r"(?P<what>(?:UR|ZE)_RESULT_ERROR_DEVICE_LOST)",
        ("RESULT_ERROR_DEVICE_LOST",),
        "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        "oneAPI 2024-2026; torch-xpu-ops#5164, llm-scaler#152; 2025-2026",
        library="Intel",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.GPU_OOM,
        r"(?:UR|ZE)_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)",
        ("RESULT_ERROR_OUT_OF_",),
        "2024:05:29-19:16:18:(202165) |CCL_ERROR| worker.cpp:338 ccl_worker_func: worker 0 caught internal exception: oneCCL: "
        "ze_call.cpp:28 do_call: EXCEPTION: ze error at zeCommandQueueExecuteCommandLists, code: "
        "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "oneCCL 2021; intel-extension-for-pytorch#640; 2024",
        library="Intel",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"rank: (?P<rank>\d{1,6}) timeout while waiting for: (?P<what>[\w ]{1,40})|KVS get error: timeout limit",
        ("timeout while waiting for:", "KVS get error"),
        "2026:02:01-10:00:00:(812) |CCL_ERROR| [occp] rank: 3 timeout while waiting for: rendezvous",
        "oneCCL 2021-2022.2",
        library="Intel",
        effect=True,
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.EXCEPTION,
        r"\((?P<pid>\d+)\) \|CCL_ERROR\| \S+ (?P<what>.{1,200})",
        ("|CCL_ERROR|",),
        "2023:11:28-16:35:45:(35980) |CCL_ERROR| base_thread.cpp:36 start: error while creating worker thread #0 "
        "pthread_create returns 22",
        "oneCCL 2021; torch-ccl#54; 2023-2026",
        library="Intel",
        detail="oneCCL: {what}",
        of_writer=True,
    ),
)
