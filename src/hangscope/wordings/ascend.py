"""Ascend: HCCL's and HCCP's codes, the root fault that every rank prints, and devices that are lost.

HCCL knows a device by its host's address and its number there; `RankID` is torch's rank. The remote rank of EI0002 is
counted in its group. Read from torch_npu 2.14, hiascend's HCCL guide and public threads.
"""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_PLACE = r"\[(?P<node>[\w.:-]{1,64}?)/(?P<device>\d{1,3})\]"
_LOCATION = rf"Cluster Exception Location(?:\[IP/ID\])?: ?{_PLACE}.{{0,200}}?ExceptionType: ?\["

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.HEARTBEAT_LOST,
        _LOCATION + r"(?P<what>Heartbeat Lost Occurred)\]",
        ("Cluster Exception Location",),
        "[ERROR] HCCL(835695,python):2025-10-23-17:27:02.118.501 [task_exception_handler.cc:610][835695][TaskExecStage]"
        "[HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[10.31.4.17/5], Arrival Time:[Thu Oct 23 17:25:58 2025], "
        "Discoverer:[10.31.4.17/6], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process has exited, 2. "
        "Network Disconnected",
        "CANN 8; hiascend hcclug_000055; 2024-2026",
        library="Ascend",
        detail="NPU {device}",
        explains=True,
    ),
    Wording(
        FailureKind.IB_ERROR,
        _LOCATION + r"(?P<what>Error cqe Occurred)\]",
        ("Cluster Exception Location",),
        "Cluster Exception Location[IP/ID]:[10.31.4.18/2], Arrival Time:[Thu Oct 23 17:25:58 2025], Discoverer:[10.31.4.17/6], "
        "ExceptionType:[Error cqe Occurred], Possible Reason:1. Network Disconnected, 2. Remote device failure",
        "CANN 8; hiascend hcclug_000055; 2024-2026",
        library="Ascend",
        detail="NPU {device}",
        explains=True,
    ),
    Wording(
        FailureKind.HANG_REPORTED,
        _LOCATION + r"(?P<what>Stuck Occurred)\]",
        ("Cluster Exception Location",),
        "Cluster Exception Location[IP/ID]:[10.31.4.18/2], Arrival Time:[Thu Oct 23 17:25:58 2025], Discoverer:[10.31.4.17/6], "
        "ExceptionType:[Stuck Occurred], Possible Reason:1. Host process is stuck, 2. Device task is stuck",
        "CANN 8; hiascend hcclug_000055; 2024-2026",
        library="Ascend",
        detail="HCCL: NPU {device} of {node} is stuck",
        explains=True,
    ),
    Wording(
        FailureKind.HEARTBEAT_LOST,
        rf"rank \[[\w.:-]+/\d+\]: rank {_PLACE} status\[LOST\]",
        ("status[LOST]",),
        "[HCCL_TRACE]rank [10.31.4.17/1]: rank [10.31.4.17/5] status[LOST] by rank [10.31.4.17/1]",
        "CANN 7-8, run/plog; 2024-2026",
        library="Ascend",
        detail="NPU {device}",
        explains=True,
    ),
    Wording(
        FailureKind.MISMATCH,
        r"EI0005.{0,80}?arguments for collective communication are inconsistent.{0,40}?(?:parameter ?\[(?P<what>[^\]]{1,80}))?",
        ("EI0005",),
        "EI0005: 2025-03-01-10:11:12.000.001 The arguments for collective communication are inconsistent between ranks: tag "
        "[AllReduce_10.0.0.1], parameter [count], local [1024], remote [2048]",
        "CANN 7-8; hiascend's list of errors",
        library="Ascend",
        detail="{what}",
        explains=True,
    ),
    Wording(
        FailureKind.DEVICE_BUSY,
        r"EJ0001: .{0,60}?Failed to initialize the HCCP process",
        ("EJ0001",),
        "EJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process "
        "is running.",
        "CANN 7-8; LlamaFactory#3839; 2024",
        library="Ascend",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.GPU_LOST,
        r"[Dd]evice ?\[(?P<device>\d{1,3})\] lost heartbeat|EL0001\)?: (?:.{0,40}?)Device not found or invalid"
        r"|The task scheduler loses the heartbeat",
        ("lost heartbeat", "EL0001", "loses the heartbeat"),
        "        Device[1] lost heartbeat.[FUNC:SyncTask][FILE:direct_hwts_engine.cc][LINE:407]",
        "CANN 8; vllm-ascend#8186; 2026",
        library="Ascend",
        detail="NPU {device}",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"\[LinkEstablish\]wait socket establish timeout, role\[\d+\] rank\[(?P<inside>\d+)\] timeout\[(?P<s>\d+)",
        ("wait socket establish timeout",),
        "[ERROR] HCCL(2717288,python3):2025-07-23-03:49:57.177.194 [hccl_socket_manager.cc:778] [2734049][Wait][LinkEstablish]"
        "wait socket establish timeout, role[1] rank[12] timeout[120]",
        "CANN 8; vllm-ascend#1955; 2025",
        library="Ascend",
        detail="number {inside} of its group, for {s} s",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.SOCKET_ERROR,
        r"createLink para:rank\[\d+\].{0,60}?localIpAddr\[(?P<node>[\w.:]+)/\d+\], remoteRank\[\d+\].{0,60}?"
        r"remoteIpAddr\[(?P<peer_node>[\w.:]+)/(?P<device>\d+)\]",
        ("createLink para",),
        "[ERROR] HCCL(80812,):2026-06-17-02:21:43.853.333 [transport_manager.cc:954] [86231][InitChannelStage][RunFailed]"
        "Transport init error! createLink para:rank[7]-localUserrank[7]-localIpAddr[80.5.5.39/7], remoteRank[15]-"
        "remoteUserrank[15]-remoteIpAddr[80.5.5.67/7], machineType[0]",
        "CANN 8; vllm-ascend#10591; 2026",
        library="Ascend",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.PORT_TAKEN,
        r"\[Listen\] ?.{0,40}?listen on ip\[(?P<node>[\w.:]+)\] and specific port\[(?P<port>\d+)\] fail",
        ("and specific port[",),
        "[ERROR] HCCL(2717288,python3):2025-07-23-03:47:57.070.463 [hccl_socket.cc:100] [2717288][HcclSocket][Listen] socket "
        "type[1], listen on ip[192.168.20.160] and specific port[16666] fail. Please check the port status",
        "CANN 8; vllm-ascend#1955; 2025",
        library="Ascend",
        detail="port {port}",
        explains=True,
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"NPU (?:function )?error.{0,120}?error code is (?P<code>107020|50701[49]|5070(?:46|48))\b",
        ("NPU error", "NPU function error"),
        "RuntimeError: npuSynchronizeDevice:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:479 NPU function error: "
        "AclrtSynchronizeDeviceWithTimeout, error code is 507048",
        "torch_npu 2.0-2.14: the codes of tasks that timed out; vllm-ascend#1443, LlamaFactory#975; 2023-2026",
        library="Ascend",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"EI0002: .{0,160}?times? out.{0,200}?remote rank:? ?\[(?P<inside>\w{1,12})\]"
        r"(?:.{0,200}?tag\[(?P<op>[A-Za-z]{3,24})_)?",
        ("EI0002",),
        "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times out. Reason: The "
        "Notify register has not received the Notify record from remote rank: [24]. base information: [streamID:[109], "
        "taskID[38], tag[AllReduce_group_name_1654]]",
        "CANN 6-8; vllm-ascend#3413, LlamaFactory#975; 2023-2026",
        library="Ascend",
        detail="number {inside} of its group",
        operation="{op}",
        effect=True,
        explains=True,
        page="ei0002",
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"EI0006\)?: .{0,80}?Getting socket times out",
        ("EI0006",),
        "EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the "
        "data in time. Please check the reason for the rank being stuck",
        "CANN 6-8; vllm-ascend#486, LlamaFactory#5071; 2024-2026",
        library="Ascend",
        detail="its peer's socket",
        effect=True,
        explains=True,
        page="ei0006",
    ),
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"EI0015\)?: .{0,120}?(?:timed? ?out|times out|not connected)",
        ("EI0015",),
        "EI0015: 2026-02-03-04:05:06.000.001 The ranks did not all connect to the root: topology detection timed out.",
        "CANN 8; hiascend's list of errors",
        library="Ascend",
        effect=True,
        explains=True,
    ),
)
