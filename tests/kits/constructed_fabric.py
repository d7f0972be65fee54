"""An InfiniBand hang, CONSTRUCTED: no such machine was at hand, so nothing here was recorded.

Eight ranks on four nodes, two GPUs and two adapters each. Rank 3 on gpu-worker-7 is stuck in an all-reduce that the
others have finished; they wait at the next barrier. NCCL's log is in the wording of its documentation and source
(2.28), the counters are trees as /sys has them, replayed through the recorder. What varies is what a network does to
mislead. `python tests/kits/constructed_fabric.py DIR` writes the plain case.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.sources.net_counters import capture as sys_counters

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script

from kits.job_files import Call, Job

WORLD, STEPS = 8, 120
NODES = ("gpu-worker-6", "gpu-worker-7", "gpu-worker-8", "gpu-worker-9")
RINGS = ((0, 1, 3, 2, 4, 5, 7, 6), (1, 0, 2, 3, 5, 4, 6, 7))
"""Per channel; over the network 1 -> 3 and 5 -> 7 use the second adapter, 2 -> 4 and 6 -> 0 the first, and so on."""
SENDER, RECEIVER = 1, 3
COMM = 0x5EED0FAB51C00001
T0 = 1_790_000_000_000_000_000
START, STALL = "2026-09-21T13:54:20.000Z", "2026-09-21T14:25:20.000Z"
PORT_FILES = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
QUIET = {
    "counters": ("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_wait"),
    "hw_counters": ("local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "req_transport_retries_exceeded"),
}
FAULTY = {"link_downed": 2, "symbol_error": 1841, "local_ack_timeout_err": 56}
Moves = dict[tuple[str, str], dict[str, int]]


def node_of(rank: int) -> str:
    return NODES[rank // 2]


@dataclass
class Fabric:
    """The plain case, and what is different in others. `moved` is by (node, adapter)."""

    moved: Moves = field(default_factory=lambda: {("gpu-worker-7", "mlx5_1"): dict(FAULTY)})
    layer: str = "IB"
    fused: bool = False
    pxn: bool = False
    logs: tuple[int, ...] = tuple(range(WORLD))
    ring_lines: bool = True
    sampled: tuple[str, ...] = NODES
    start: bool = True
    trees: bool = False
    """Copy the trees as they are, in place of the recorder's samples."""
    boxes: bool = False
    down: tuple[str, str] | None = None
    before: dict[str, int] = field(default_factory=lambda: {"symbol_error": 7, "link_downed": 1})
    """What the counters had since boot."""
    everyone_inside: bool = False
    timed: bool = True

    def write(self, folder: Path) -> Path:
        (folder / "CONSTRUCTED.md").write_text("This case was constructed, not recorded.\n")
        manifest = {"schema": "hangscope.incident/1", "job": "4711", "attempt": "0", "world_size": WORLD}
        manifest |= {"captured_at": STALL, "reason": "stall"}
        (folder / "incident.json").write_text(json.dumps(manifest))
        job = self._job()
        for rank in range(WORLD):
            place = folder / "nodes" / node_of(rank)
            (place / "dumps").mkdir(parents=True, exist_ok=True)
            (place / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(self._dump(job, rank))
            if rank in self.logs:
                (place / "logs").mkdir(exist_ok=True)
                name = f"nccl.{node_of(rank)}.{1000 + rank}.log"
                (place / "logs" / name).write_text("".join(self._log(rank)))
            if self.boxes:
                (place / "blackbox").mkdir(exist_ok=True)
                (place / "blackbox" / f"{node_of(rank)}.{1000 + rank}.ncclbb").write_bytes(box(rank))
        for number, node in enumerate(NODES):
            place = folder / "nodes" / node
            rows = [
                {"rank": rank, "local_rank": rank % 2, "pid": 1000 + rank, "state": "S", "exit_status": None}
                for rank in (2 * number, 2 * number + 1)
            ]
            (place / "node.json").write_text(json.dumps({"schema": "hangscope.node/1", "node": node, "ranks": rows}))
            if node in self.sampled:
                self._counters(place, node)
        return folder

    # ---- dumps -------------------------------------------------------------------------------------------------------

    def _job(self) -> Job:
        job, state = Job(WORLD, STEPS), "started"
        for rank in range(WORLD):
            stuck = self.everyone_inside or rank == RECEIVER
            job.calls[rank].append(Call(STEPS + 0.001 * rank, state=state if stuck else "completed", line=41))
            if not stuck:
                job.calls[rank].append(Call(STEPS + 0.1, "barrier", state=state, line=42))
        return job

    def _dump(self, job: Job, rank: int) -> bytes:
        value = pickle.loads(job.dump(rank))
        for entry in value["entries"] if not self.timed else ():  # as TORCH_NCCL_ENABLE_TIMING=0 leaves it
            entry["time_discovered_started_ns"] = None
            entry["state"] = "scheduled" if entry["state"] == "started" else entry["state"]
        return pickle.dumps(value)

    # ---- NCCL's log --------------------------------------------------------------------------------------------------

    def _log(self, rank: int) -> list[str]:
        node, at = node_of(rank), "[2026-09-21T14:13:05.120] "
        p = f"{at}{node}:{1000 + rank}:{1000 + rank} [{rank % 2}] NCCL INFO "
        init = (
            f"comm 0xa0 rank {rank} nranks {WORLD} cudaDev {rank % 2} nvmlDev {rank % 2} busId 9b000 commId {COMM:#x}"
        )
        address = f"10.0.0.{6 + rank // 2}"
        lines = ["NCCL version 2.28.9+cuda13.0\n", f"{p}Bootstrap: Using eth0:{address}<0>\n"]
        for number in (0, 1):
            lines.append(
                f"{p}NET/IB: [{number}] mlx5_{number}:uverbs{number}:1/{self.layer} provider=Mlx5 speed=400000 "
                f"context=0x5{number} pciPath=/sys/devices/pci0000:37/0000:37:01.0/0000:3{number}:00.0 ar=1\n"
            )
            lines.append(f"{p}NET/IB : Made virtual device [{number}] name=mlx5_{number} speed=400000 ndevs=1\n")
        lines.append(
            f"{p}NET/IB : Using [0]mlx5_0:1/{self.layer} [1]mlx5_1:1/{self.layer} [RO]; OOB eth0:{address}<0>\n"
        )
        if self.fused:
            lines.append(f"{p}NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n")
        lines.append(f"{p}ncclCommInitRankConfig {init} - Init START\n")
        if self.ring_lines:
            for channel, ring in enumerate(RINGS):
                at_ring = ring.index(rank)
                before, after = ring[at_ring - 1], ring[(at_ring + 1) % WORLD]
                lines.append(f"{p}Ring {channel:02d} : {before} -> {rank} -> {after}\n")
            lines.append(f"{p}Trees {' '.join(_tree(rank, channel) for channel in (0, 1))}\n")
        lines.append(f"{p}ncclCommInitRankConfig {init} - Init COMPLETE\n")
        for channel, ring in enumerate(RINGS):
            at_ring = ring.index(rank)
            before, after = ring[at_ring - 1], ring[(at_ring + 1) % WORLD]
            lines.append(self._channel(p, channel, before, rank, "receive"))
            lines.append(self._channel(p, channel, rank, after, "send"))
        for number in (0, 1):
            lines.append(
                f"{p}NET/IB: NCCL Dev {number} IbDev {number} Port 1 qpn 13{rank} mtu 5 {self._ids(rank, number)}\n"
            )
        return [line for line in lines if line]

    def _ids(self, rank: int, number: int) -> str:
        if self.layer == "IB":
            return f"LID {lid(node_of(rank), number)} subnet-prefix 254  FLID 0 fifoRkey=0x1 fifoLkey=0x2"
        low = bytes((0, 0, 0xFF, 0xFF, 10, 1, number, 6 + rank // 2))
        return f"GID 3 (0/{int.from_bytes(low, 'little'):X}) fifoRkey=0x1 fifoLkey=0x2"

    def _channel(self, p: str, channel: int, sender: int, receiver: int, side: str) -> str:
        if node_of(sender) == node_of(receiver):
            return (
                f"{p}Channel {channel:02d}/0 : {sender}[{sender % 2}] -> {receiver}[{receiver % 2}] via P2P/CUMEM\n"
                if side == "send"
                else ""
            )
        device, proxy = str(sender % 2), ""
        if self.fused:
            device = "2"
        elif self.pxn and side == "send" and (sender, receiver) == (SENDER, RECEIVER):
            device, proxy = "0", "(0)"
        return (
            f"{p}Channel {channel:02d}/0 : {sender}[{sender % 2}] -> {receiver}[{receiver % 2}] [{side}] via "
            f"NET/IB/{device}{proxy}/GDRDMA\n"
        )

    # ---- counters ----------------------------------------------------------------------------------------------------

    def _counters(self, place: Path, node: str) -> None:
        for name, at, moved in (("start", START, False), ("stall", STALL, True)):
            if name == "start" and not self.start:
                continue
            tree = place / f"sys.{name}"
            self._tree(tree, node, moved)
            if not self.trees:
                sample = {**sys_counters.snapshot(sys_counters.classes({sys_counters.ROOT: str(tree)})), "at": at}
                (place / "counters").mkdir(exist_ok=True)
                (place / "counters" / f"{name}.json").write_text(json.dumps(sample))
                _remove(tree)

    def _tree(self, tree: Path, node: str, moved: bool) -> None:
        for number in (0, 1):
            device = f"mlx5_{number}"
            port = tree / "class" / "infiniband" / device / "ports" / "1"
            rise = self.moved.get((node, device), {}) if moved else {}
            for folder, names in QUIET.items():
                (port / folder).mkdir(parents=True)
                for counter in names:
                    value = max(0, self.before.get(counter, 0) + rise.get(counter, 0))
                    (port / folder / counter).write_text(f"{value}\n")
            for name, text in PORT_FILES.items():
                (port / name).write_text(
                    "1: DOWN\n" if moved and name == "state" and self.down == (node, device) else f"{text}\n"
                )
            (port / "link_layer").write_text("InfiniBand\n" if self.layer == "IB" else "Ethernet\n")
            (port / "lid").write_text(f"{lid(node, number) if self.layer == 'IB' else 0:#x}\n")
            if self.layer == "RoCE":
                (port / "gid_attrs" / "ndevs").mkdir(parents=True)
                (port / "gid_attrs" / "ndevs" / "0").write_text(f"ens{number}np0\n")
                (port / "gids").mkdir()
                (port / "gids" / "0").write_text("fe80:0000:0000:0000:0000:0000:0000:0001\n")
                (port / "gids" / "3").write_text(
                    f"0000:0000:0000:0000:0000:ffff:0a01:0{number}{6 + NODES.index(node):02x}\n"
                )


def lid(node: str, number: int) -> int:
    return 100 + 10 * NODES.index(node) + number


def _tree(rank: int, channel: int) -> str:
    """Within a node the even rank is above the odd one; node 0 is the root of all."""
    if rank % 2:
        return f"[{channel}] -1/-1/-1->{rank}->{rank - 1}"
    below = [f"{rank + 1}", *([f"{rank + 2}"] if rank + 2 < WORLD else [])]
    return f"[{channel}] {'/'.join([*below, '-1', '-1'][:3])}->{rank}->{rank - 2 if rank else -1}"


def _remove(tree: Path) -> None:
    for path in sorted(tree.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    tree.rmdir()


# ---- black boxes, after docs/blackbox.md -----------------------------------------------------------------------------

_TABLES = [(1024, 768, 4), (4096, 192, 8), (5632, 64, 4), (5888, 384, 4), (7424, 32, 8)]
_BARRIER, _REDUCE = STEPS + 2, STEPS + 1


def box(rank: int) -> bytes:
    """Rank 1 has handed step 5 over, rank 3 waits for it; the others have nothing under way but the barrier."""
    data, pid, start = bytearray(7680), 1000 + rank, T0
    now, mono = T0 + (STEPS + 600) * 10**9, 1000 + (STEPS + 600) * 10**9
    since = 1000 + (STEPS + 1) * 10**9

    def put(at: int, form: str, *values: int | bytes) -> None:
        struct.pack_into("<" + form, data, at, *values)

    put(0, "8sIIQ", b"\xffHSNCCLB", 1, 576, len(data))
    put(24, "IiiiIIQQ", pid, rank, rank % 2, WORLD, 22809, 5, start, 1000)
    put(64, "64s", node_of(rank).encode())
    put(208, "Q", now)
    for number, (offset, size, slots) in enumerate(_TABLES):
        put(128 + 16 * number, "IIII", offset, size, slots, 0)
    put(256, "QQQ", mono - 100_000_000, now - 100_000_000, 2)
    put(320, "Q", 1)
    put(1024, "IIQQiiiIQQQQ56s", 2, 1, 40, COMM, rank, WORLD, len(NODES), 0, 1500, 0, 1, 0, b"")
    put(1024 + 128, "16sQQQ", b"AllReduce", _REDUCE if rank == RECEIVER else _BARRIER, 41, since)
    if rank not in (SENDER, RECEIVER):
        return bytes(data)
    sends, peer, state = (1, RECEIVER, 9) if rank == SENDER else (0, SENDER, 10)
    put(4096, "IIQQQQQiBBHQQ16s16s16s16sII", 2, 2, 41, 50, 40, _REDUCE, 4096, 0, 2, 16, 0, since, since + 1,
        b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE", 1, 0)  # fmt: skip
    put(5632, "IIQiiHHiQQQQ", 2, 1, 40, peer, rank, 0, sends, pid, STEPS + 1, STEPS, 60, since)
    put(5888, "IIQQQQQiiihhiiiiIiq16sQQ", 2, 1, 60, 41, 50, 40, _REDUCE, pid, rank, peer, 0, sends, 16, 4096, 6, 5, 19,
        0, STEPS, b"AllReduce", since, since)  # fmt: skip
    for slot in range(8):
        put(5888 + 128 + 32 * slot, "iIQQQ", -1, 0, 0, 0, 0)
    put(5888 + 128 + 32 * 5, "iIQQQ", 5, state, 4096, since, since)
    return bytes(data)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    print(Fabric().write(target))
