"""UCX and libfabric (EFA): transfers that nobody acknowledged."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_WHO = r"\[?(?P<node>[\w.-]{1,64}):(?P<pid>\d{1,9})(?::[\w]+)?:\d+\]\s+"

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.IB_ERROR,
        _WHO
        + r"\S+\s+(?P<what>Transport retry count exceeded|[\w ]{1,40}error|Remote \w[\w ]{1,40}) on (?P<device>\w+:\d+)/\w+",
        ("ib_mlx5_log.c",),
        "[gpu-07:157231:0:157231] ib_mlx5_log.c:147  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 "
        "hw_synd 0/0)\n[gpu-07:157231:0:157231] ib_mlx5_log.c:147  DCI QP 0x3d04 wqe[96]: SEND s-e [rqpn 0x5fa2 rmac "
        "02:00:00:00:20:63 sgix 3 dgid ::ffff:10.150.0.7 tc 106] [inl len 26]\n",
        "UCX 1.6-1.15; ucx#6522, #5199, #9590; 2019-2024",
        library="UCX",
        detail="{device}: {what}",
        below=r"dgid ::ffff:(?P<peer_node>[\d.]+)|rlid (?P<lid>\d+)",
        most_below=1,
        explains=True,
        page="transport-retry-count-exceeded",
    ),
    Wording(
        FailureKind.IB_ERROR,
        r"\[(?P<node>[\w.-]{1,64}):(?P<pid>\d{1,9})\s*:\d+\]\s+\S+\s+UCX\s+ERROR Error on QP \S+ wqe\[\d+\]: (?P<what>[\w ]{1,60}) \(synd",
        ("Error on QP",),
        "[1516700569.600192] [clx-010:31714:0]    ib_mlx5_log.c:113  UCX  ERROR Error on QP 0x61f5 wqe[0]: Transport retry "
        "count exceeded (synd 0x15 vend 0x81) opcode SEND",
        "UCX 1.3-1.5; ucx#1920, #1956; 2017-2018",
        library="UCX",
        detail="{what}",
        explains=True,
    ),
    Wording(
        FailureKind.SOCKET_ERROR,
        r"\[(?P<node>[\w.-]{1,64}):(?P<pid>\d{1,9})\s*(?::\w+){1,2}\]\s+\S+\s+UCX\s+(?:ERROR|Fatal:?) .{0,80}?(?P<what>Endpoint "
        r"timeout|Connection reset by remote peer|Destination is unreachable|Endpoint is not connected)",
        ("UCX",),
        "[1564069506.097666] [dgx15:34226:0]     ucp_worker.c:505  UCX  ERROR error 'Endpoint timeout' will not be handled for "
        "ep 0x7fb7fd48f120 - rc_mlx5/mlx5_3:1",
        "UCX 1.3-1.22; ucx-py#131, ucx#3087; 2018-2026",
        library="UCX",
        detail="{what}",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.IB_ERROR,
        r"libfabric:(?P<pid>\d+):.{0,120}?err: (?P<code>\d+), message: (?P<what>.{1,120}?) My EFA addr.{0,120}?My host id: "
        r"(?P<node>[\w-]+).{0,160}?Peer host id: (?P<peer_node>[\w-]+)",
        ("Peer host id:",),
        "libfabric:451707:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 15, message: Unresponsive receiver My "
        "EFA addr: fi_addr_efa://[fe80::13]:0:1072483550 My host id: i-0db7083f3fcbebb65 Peer EFA addr: "
        "fi_addr_efa://[fe80::b8]:0:947699476 Peer host id: i-0ce6d3d57139f053c (15)",
        "libfabric 1.18-2.0; aws-ofi-nccl#346; 2024-2026",
        library="EFA",
        detail="{what}",
        explains=True,
    ),
)
