"""Transfers of KV caches: Mooncake's engine. NIXL's own errors are read with the engines that print them."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.KV_TRANSFER,
        r"Process failed for slice \(.{0,300}?local_nic: (?P<device>[\w.-]+), peer_nic: (?P<peer_node>[\w.-]+):\d+@(?P<nic>[\w.-]+).{0,80}?\): (?P<what>.{1,80})",
        ("Process failed for slice",),
        "E0325 09:33:41.551047  8274 worker_pool.cpp:294] Worker: Process failed for slice (opcode: 1, source_addr: 0x7ef7, "
        "length: 65536, dest_addr: 0x7f30, local_nic: mlx5_9, peer_nic: 10.121.129.7:15867@mlx5_9, dest_rkey: 2491916, "
        "retry_cnt: 0): transport retry counter exceeded",
        "Mooncake 0.1-0.3; Mooncake#35, #507, sglang#21395; 2024-2026",
        library="Mooncake",
        detail="{what} ({device} to {nic})",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.KV_TRANSFER,
        r"_transport\.cpp:\d+\] ?(?P<what>Failed to connect to (?:target|segment)):? \[?(?P<peer_node>[\w.-]{1,255}):\d+",
        ("Failed to connect to target", "Failed to connect to segment"),
        "E1210 03:24:54.778028 2548307 ascend_direct_transport.cpp:820] Failed to connect to target: 172.16.100.99:25389, "
        "status: 103900",
        "Mooncake 0.3 on Ascend; vllm-ascend#4866; 2025-2026",
        library="Mooncake",
        detail="it could not connect to {peer_node}",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.KV_TRANSFER,
        r"(?:Mooncake|KV|Decode|Prefill) transfer failed for request (?P<name>\S{1,100})",
        ("transfer failed for request",),
        "(Worker_DP0_TP5 pid=2543213) ERROR 12-10 03:24:54 [mooncake_connector.py:410] Mooncake transfer failed for request "
        "cmpl-09be0283-0",
        "vllm-ascend 0.9-0.18, SGLang 0.5; vllm-ascend#4866, #7846, Mooncake#851; 2025-2026",
        library="Mooncake",
        detail="of request {name}",
        effect=True,
    ),
    Wording(
        FailureKind.KV_TRANSFER,
        r"Failed to complete transfers after (?P<s>\d+) seconds for batch",
        ("Failed to complete transfers",),
        "E1120 11:10:27.133715 203020 transfer_task.cpp:305] Failed to complete transfers after 60 seconds for batch 2586731328",
        "Mooncake 0.3; Mooncake#1088; 2025",
        library="Mooncake",
        detail="not completed after {s} s",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.KV_TRANSFER,
        r"remote agent '(?P<peer_node>[\w.:-]{1,80})' was disconnected",
        ("was disconnected",),
        "E0818 10:00:00.000001 91 nixl_agent.cpp:981] postXferReq: remote agent 'decode-1' was disconnected after transfer "
        "request creation",
        "NIXL 0.6-1.5; nixl#1868; 2026",
        library="NIXL",
        detail="the remote agent was disconnected",
        effect=True,
        explains=True,
    ),
)
