"""Network devices in NCCL's log: which index of a channel is which adapter and port, its LID or GID, its PCI address.

``via NET/IB/8`` counts virtual devices, ``Using`` lists the physical ones. Both are the same until NCCL fuses adapters:
2.20 to 2.23 say so in the list, later ones in a line of its own, which names adapters and no ports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from hangscope.model.numbers import integer
from hangscope.model.values import gid, pci_id

_USING = re.compile(r"^NET/(?P<net>[^:]+?) ?: Using (?P<list>.*)")
_DEVICE = re.compile(
    r"\[(?P<index>\d+)\](?:=?\{(?P<fused>[^}]*)\}"
    r"|\s?(?P<name>[A-Za-z][\w.+-]*)(?::(?P<port>\d+))?(?::[\w.-]*)*(?:/(?P<layer>IB|RoCE)\b)?)"
)
_FUSED = re.compile(r"\[\d+\]\s?(?P<name>[\w.+-]+):(?P<port>\d+)(?:/(?P<layer>IB|RoCE)\b)?")
_SOCKET_ITEM = re.compile(r"\[(?P<index>\d+)\](?P<name>[\w.@-]+):(?P<address>[\w.:%\[\]-]+?)<\d+>")
_VIRTUAL = re.compile(r"Made virtual device \[(?P<index>\d+)\] name=(?P<name>\S+)")
_OOB = re.compile(r"OOB (?P<interface>[\w.@-]+):(?P<address>[\w.:%\[\]-]+?)<\d+>")
# From 2.27 on, one line a device; its number counts what the verbs library lists, not what NCCL uses.
_FOUND = re.compile(
    r"^NET/\S+ ?: ?\[\d+\] (?P<name>[\w.+-]+):uverbs\d+:(?P<port>\d+)/(?P<layer>IB|RoCE)\b"
    r"(?:.{0,300}?pciPath=(?P<path>\S+))?"
)
# "qpn" up to 2.29, then "qp_num"; what stands between differs (mtu, ECE).
_QUEUE_PAIR = re.compile(
    r"\bIbDev (?P<index>\d+) Port (?P<port>\d+) (?:qpn|qp_num)\b.{0,400}?"
    r"(?:\bLID (?P<lid>\d+)|\bGID -?\d+ \((?P<high>[0-9A-Fa-f]{1,16})/(?P<low>[0-9A-Fa-f]{1,16})\))"
)


@dataclass(frozen=True, slots=True)
class Device:
    """A port of an adapter as one process saw it. `layer` is "IB" or "RoCE"."""

    name: str
    port: int | None = None
    layer: str | None = None
    lid: int | None = None
    gid: str | None = None
    pci: str | None = None


@dataclass
class Devices:
    """What one process said of its network devices."""

    names: dict[tuple[str, int], str] = field(default_factory=dict)
    """(net, index of a channel) → adapters, joined by ``+`` where they are fused; with ports where NCCL says them."""
    physical: dict[int, Device] = field(default_factory=dict)
    """By NCCL's own index."""
    found: dict[tuple[str, int | None], Device] = field(default_factory=dict)
    ids: dict[tuple[int, int], tuple[int | None, str | None]] = field(default_factory=dict)
    """(NCCL's index, port) → LID, GID."""
    _spelt: dict[str, str] = field(default_factory=dict)
    """Names with their ports, as far as they were asked for: a process has few devices and many channels."""

    def feed(self, message: str) -> list[str]:
        """Read one line that begins with ``NET/``; the IP addresses that it says are this process's."""
        self._spelt.clear()
        if match := _VIRTUAL.search(message):
            self.names.setdefault((message[4:].split(":")[0].strip(), integer(match["index"])), match["name"])
        elif match := _FOUND.match(message):
            pci = pci_id(match["path"].rpartition("/")[2]) if match["path"] else None
            device = Device(match["name"], integer(match["port"]), match["layer"], pci=pci)
            self.found[device.name, device.port] = device
        elif match := _QUEUE_PAIR.search(message):
            known = (integer(match["lid"]), None) if match["lid"] else (None, _gid(match["high"], match["low"]))
            self.ids[integer(match["index"]), integer(match["port"])] = known
        elif match := _USING.match(message):
            return self._using(match["net"].strip(), match["list"])
        return []

    def _using(self, net: str, listed: str) -> list[str]:
        addresses = []
        for item in _SOCKET_ITEM.finditer(listed):
            self.names[net, integer(item["index"])] = item["name"]
            addresses.append(item["address"])
        if oob := _OOB.search(listed):
            addresses.append(oob["address"])
            listed = listed[: oob.start()]
        if net != "Socket":
            for index, parts in split_devices(listed):
                self.names[net, index] = "+".join(map(_spelt, parts))
                for part in parts:
                    if part not in self.physical.values():
                        self.physical[len(self.physical)] = part
        return addresses

    def update(self, other: Devices) -> None:
        self._spelt.clear()
        self.names.update(other.names)
        self.physical.update(other.physical)
        self.found.update(other.found)
        self.ids.update(other.ids)

    def name(self, net: str, index: int) -> str | None:
        """The adapters behind a channel's index, each with its port as far as anything says it."""
        name = self.names.get((net, index))
        if name is None:  # IBext_v8 and other plugins list their devices as "NET/IB"
            names = {n for (_, known), n in self.names.items() if known == index}
            name = names.pop() if len(names) == 1 else None
        if name is not None and name not in self._spelt:
            self._spelt[name] = "+".join(self._with_ports(name.split("+")))
        return None if name is None else self._spelt[name]

    def _with_ports(self, parts: list[str]) -> list[str]:
        """Fused adapters are named without ports; both ports of one adapter are its name twice, in the list's order."""
        listed = {device.name: [d for d in self.ports if d.name == device.name] for device in self.ports}
        known = []
        for at, part in enumerate(parts):
            ports = listed.get(part, [])
            place = parts[:at].count(part)
            fits = len(ports) == parts.count(part)
            known.append(_spelt(ports[place]) if fits else part)
        return known

    @property
    def ports(self) -> list[Device]:
        """Every port that was listed, with what other lines add to it."""
        known = dict(self.found)
        for index, device in sorted(self.physical.items()):
            lid, gid = self.ids.get((index, device.port or 0), (None, None))
            pci = self.found[device.name, device.port].pci if (device.name, device.port) in self.found else None
            known[device.name, device.port] = replace(device, lid=lid, gid=gid, pci=pci)
        return list(known.values())


def split_devices(listed: str) -> list[tuple[int, list[Device]]]:
    """``[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE`` as index and ports; a fused device has several.

    NCCL 2.20-2.23 writes fused devices as ``[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}``.
    """
    found: list[tuple[int, list[Device]]] = []
    for match in _DEVICE.finditer(listed):
        if match["fused"] is not None:
            parts = [Device(m["name"], integer(m["port"]), m["layer"]) for m in _FUSED.finditer(match["fused"])]
        else:
            parts = [Device(match["name"], integer(match["port"]) if match["port"] else None, match["layer"])]
        found.append((integer(match["index"]), parts))
    return found


def _spelt(device: Device) -> str:
    return device.name if device.port is None else f"{device.name}:{device.port}"


def _gid(high: str, low: str) -> str | None:
    """NCCL prints both halves as numbers of this machine's byte order, which is little endian wherever it runs."""
    return gid(bytes.fromhex(high.zfill(16))[::-1] + bytes.fromhex(low.zfill(16))[::-1])
