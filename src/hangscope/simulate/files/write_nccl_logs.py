"""What NCCL itself prints: how its rings run, over which device, and the one warning that a dead link may leave."""

from __future__ import annotations

import random
from datetime import datetime, timezone

from hangscope.simulate.files.dump_formats import NCCL_OF_TORCH
from hangscope.simulate.spec.job_layout import GroupDef
from hangscope.simulate.spec.job_spec import Spec


def address(spec: Spec, rank: int) -> str:
    """The address of a rank's node on the management network."""
    node = rank // spec.gpus_per_node
    return f"10.{40 + node // 62500}.{node // 250 % 250}.{node % 250 + 1}"


def pid(spec: Spec, rank: int) -> int:
    return 2000 + (spec.seed * 31 + rank * 17) % 60_000


class NcclLogWriter:
    """One process's NCCL_DEBUG=INFO log, subsystems INIT, NET and GRAPH."""

    def __init__(self, spec: Spec, rank: int, at_ns: int) -> None:
        self.spec = spec
        self.rank = rank
        self.at_ns = at_ns
        self.host = spec.node(rank)
        self.pid = pid(spec, rank)
        self.device = rank % spec.gpus_per_node
        self.version = NCCL_OF_TORCH[spec.minor]
        self._release = tuple(int(part) for part in self.version.split("."))
        self.lines: list[str] = []
        using = "Bootstrap: Using" if self._release >= (2, 24) else "Bootstrap : Using"
        self.info(f"{using} eth0:{address(spec, rank)}<0>")
        self.info(f"NCCL version {self.version}+cuda12.8")
        devices = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(spec.gpus_per_node))
        self.info(f"NET/IB : Using {devices} [RO]; OOB eth0:{address(spec, rank)}<0>")

    @property
    def name(self) -> str:
        return f"nccl.{self.host}.{self.pid}.log"

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def _stamp(self) -> str:
        self.at_ns += 1_300_000
        at = datetime.fromtimestamp(self.at_ns // 10**9, timezone.utc)
        # NCCL before 2.26 has no time stamps.
        return f"[{at:%Y-%m-%dT%H:%M:%S}.{self.at_ns // 10**6 % 1000:03d}] " if self._release >= (2, 26) else ""

    def info(self, text: str) -> None:
        self.lines.append(f"{self._stamp()}{self.host}:{self.pid}:{self.pid} [{self.device}] NCCL INFO {text}")

    def communicator(self, group: GroupDef) -> None:
        """Its start-up: who it is there, and who its neighbours on the ring are."""
        members = group.members
        size = len(members)
        place = members.index(self.rank)
        rng = random.Random(f"communicator {self.spec.seed} {group.index}")
        hash_ = f"0x{rng.getrandbits(64):016x}"
        pointer = f"0x{0x10000000 + self.pid * 4096 + group.index * 256:x}"
        bus = f"{0x1A + 0x11 * self.device:x}000"
        who = (
            f"{self._init_call()}comm {pointer} rank {place} nranks {size} cudaDev {self.device} "
            f"nvmlDev {self.device} busId {bus} commId {hash_}"
        )
        self.info(f"{who} - Init START")
        before = (place - 1) % size
        after = (place + 1) % size
        for channel in range(2):
            self.info(f"Ring {channel:02d} : {before} -> {place} -> {after}")
        self.info(f"{who} - Init COMPLETE")
        for channel in range(2):
            for sender, receiver, way in ((before, place, "receive"), (place, after, "send")):
                self._channel(channel, members, sender, receiver, way)

    def _init_call(self) -> str:
        """The name of the function that made a communicator, which NCCL says from 2.21 on."""
        if self._release < (2, 21):
            return ""
        return "ncclCommInitRank " if self._release < (2, 23) else "ncclCommInitRankConfig "

    def _channel(self, channel: int, members: tuple[int, ...], sender: int, receiver: int, way: str) -> None:
        gpus = self.spec.gpus_per_node
        ends = f"{sender}[{members[sender] % gpus}] -> {receiver}[{members[receiver] % gpus}]"
        if self.spec.node(members[sender]) == self.spec.node(members[receiver]):
            if way == "send":
                self.info(f"Channel {channel:02d}/0 : {ends} via P2P/CUMEM")
            return
        self.info(f"Channel {channel:02d}/0 : {ends} [{way}] via NET/IB/{self.device}/GDRDMA")

    def completion_error(self, peer: int, at_ns: int) -> None:
        """The retries are used up: the line that names the node at the other end and the own device."""
        self.at_ns = max(self.at_ns, at_ns)
        at = datetime.fromtimestamp(self.at_ns // 10**9, timezone.utc)
        stamp = f"[{at:%Y-%m-%d %H:%M:%S}] " if self._release >= (2, 26) else ""
        thread = f"{self.host}:{self.pid}:{self.pid + 9} [{self.device}]"
        source = "transport/net_ib.cc:1315" if self._release < (2, 29) else "transport/net_ib/p2p.cc:691"
        text = self._completion_error_text(f"{address(self.spec, peer)}<{40_000 + peer % 20_000}>")
        self.lines += ["", f"{stamp}{thread} {source} NCCL WARN {text}"]

    def _completion_error_text(self, peer: str) -> str:
        release = self._release
        device = f"mlx5_{self.device}"
        if release < (2, 20):
            return f"NET/IB : Got completion from peer {peer} with error 12, opcode 0, len 0, vendor err 129 (Send)"
        if release < (2, 22):
            return f"NET/IB : Got completion from peer {peer} with status=12 opcode=0 len=0 vendor err 129 (Send)"
        if release < (2, 28, 7):
            return (
                f"NET/IB: Got completion from peer {peer} with status=12 opcode=0 len=0 vendor err 129 (Send)"
                f" hca {device}"
            )
        if release < (2, 29):
            return (
                f"NET/IB: Got completion from peer {peer} with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) "
                f"reqSize=0 vendor_err=129 req_type=Send hca {device}"
            )
        return (
            f"NET/IB: Got completion from peer {peer} with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) "
            f"vendor_err=129  hca {device}"
        )
