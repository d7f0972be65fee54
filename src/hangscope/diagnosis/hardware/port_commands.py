"""What a network team runs next, with the device and port in question filled in."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hangscope.diagnosis.hardware.port_paths import End, Path
from hangscope.model import NetworkPort

LOGS = (
    "next time collect NCCL's log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH (rings, channels, NICs), "
    "and the network counters from before and after"
)
SWAP = "if the ports look fine, swap one of the two nodes: the error follows the bad one"


def look_at(nodes: Iterable[str]) -> str:
    """Where nothing names a link: all ports of the nodes."""
    known = sorted(nodes)
    where = ", ".join(known[:8]) + (" …" if len(known) > 8 else "") if known else "the members' nodes"
    look = "rdma statistic, ibstat, ethtool -S, dmesg | grep -i -E 'mlx5|link|xid'"
    return f"network: look for port errors on {where}: {look}"


def steps(path: Path, suspects: Collection[NetworkPort] = ()) -> list[str]:
    """One step an end, the one with a suspect port first, then the fabric between them."""
    ends = sorted(
        ((path.sending, "sending"), (path.receiving, "receiving")),
        key=lambda end: not any(port in suspects for port in end[0].ports),
    )
    return [*(_at(end, word) for end, word in ends), *_between(path), SWAP]


def _at(end: End, word: str) -> str:
    node = end.node or f"the node of rank {end.rank}"
    nic = f" {end.nic}" if end.nic else ""
    ports = [port for port in end.ports if port.port is not None]
    if not ports:
        look = f"ethtool -S{nic}, ip -s link show{nic}" if nic else "ibstat, rdma statistic, ethtool -S"
        return f"link: check the {word} port{nic} on {node}: {look}, dmesg | grep -i link"
    look = "; ".join(command for port in ports for command in _commands(port))
    return f"link: check the {word} port{nic} on {node}: {look}; dmesg | grep -i -E 'mlx5|link'"


def _commands(port: NetworkPort) -> list[str]:
    """Cable and bit errors first, then the counters as the fabric's own tools read them."""
    physical = f"mlxlink -d {port.device} -p {port.port} -m -e -c"
    if port.layer == "RoCE":
        own = f"ethtool -S {port.interface}" if port.interface else "ethtool -S of its interface (rdma link)"
        return [physical, f"rdma statistic show link {port.device}/{port.port}", own]
    where = f"{port.lid} {port.port}" if port.lid else f"-C {port.device} -P {port.port}"
    return [physical, f"perfquery -x {where}", f"ibstat {port.device} {port.port}"]


def _between(path: Path) -> list[str]:
    ports = [port for port in path.ports if port.port is not None]
    if not ports:
        return []
    if any(port.layer == "RoCE" for port in ports):
        return ["network: PFC, ECN and drops on the switch ports of these two; ib_write_bw between them"]
    lids = ", ".join(str(port.lid) for port in ports if port.lid)
    find = f"the switch ports of LID {lids}" if lids else "their switch ports"
    tool = f"ibdiagnet -i {ports[0].device} --get_phy_info"
    return [f"network: {tool} and ibqueryerrors; iblinkinfo gives {find}; ib_write_bw between the two"]
