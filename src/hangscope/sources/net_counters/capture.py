"""Network counters and ports from /sys: every port of every InfiniBand or RoCE device, every network interface.

Absolute values are since boot, so they are read twice: beside the start of the job, and when it stalls.
`HANGSCOPE_SYSFS` names another tree than /sys, so that one that was copied from a node can be replayed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from hangscope.incident import manifest
from hangscope.incident.layout import as_json
from hangscope.sources.net_counters.schema import FOLDER
from hangscope.sources.saving import Saving

WHAT = "network counters"

ROOT = "HANGSCOPE_SYSFS"
MAX_FILES = 20_000
MAX_GIDS = 16
_LAYERS = {"InfiniBand": "IB", "Ethernet": "RoCE"}


def save(node: Saving, sample: int) -> None:
    """All counters at the stall; those at the start were written when the job began."""
    del sample
    node.write(f"{FOLDER}/stall.json", as_json(snapshot()))


def classes(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that holds infiniband/ and net/: /sys/class, or in the tree that HANGSCOPE_SYSFS names."""
    root = Path(environ.get(ROOT) or "/sys")
    return root / "class" if (root / "class").is_dir() else root


def snapshot(root: Path | None = None) -> dict[str, Any]:
    """All counters now, keyed `<device>/<port>/<counter>`, and the ports in the state that they are in."""
    root = root or classes()
    counters: dict[str, int] = {}
    for device in _names(root / "infiniband"):
        for port in _names(root / "infiniband" / device / "ports"):
            for kind in ("counters", "hw_counters"):
                folder = root / "infiniband" / device / "ports" / port / kind
                for name in _names(folder):
                    _add(counters, f"{device}/{port}/{name}", folder / name)
    for interface in _names(root / "net"):
        if interface == "lo":
            continue
        folder = root / "net" / interface
        for name in _names(folder / "statistics"):
            _add(counters, f"{interface}//{name}", folder / "statistics" / name)
        for name in ("carrier_changes", "carrier_down_count"):
            _add(counters, f"{interface}//{name}", folder / name)
    return {"at": manifest.now(), "counters": counters, "ports": ports(root)}


def ports(root: Path | None = None) -> list[dict[str, Any]]:
    """The InfiniBand and RoCE ports: state, rate, PCI address, and by what the fabric knows them."""
    root = root or classes()
    found = []
    for device in _names(root / "infiniband"):
        folder = root / "infiniband" / device
        pci = os.path.basename(os.path.realpath(folder / "device"))
        for port in _names(folder / "ports"):
            place = folder / "ports" / port
            layer = _LAYERS.get(_text(place / "link_layer"))
            lid = _text(place / "lid")
            found.append(
                {
                    "name": device,
                    "port": int(port) if port.isdigit() else None,
                    "state": _text(place / "state").partition(": ")[2] or None,
                    "rate": _text(place / "rate") or None,
                    "pci": pci if pci != "device" else None,
                    "layer": layer,
                    "lid": int(lid, 0) if layer != "RoCE" and _is_number(lid) else None,
                    "gid": _gid(place) if layer == "RoCE" else None,
                    "interface": _text(place / "gid_attrs" / "ndevs" / "0")
                    or next(iter(_names(folder / "device" / "net")), None),
                }
            )
    return found


def _gid(port: Path) -> str | None:
    """The GID that leads to the port: the one that carries its IPv4 address, else the first that is set."""
    known = []
    for name in sorted(_names(port / "gids"), key=_number)[:MAX_GIDS]:
        with contextlib.suppress(ValueError):
            known.append(IPv6Address(_text(port / "gids" / name)))
    known = [gid for gid in known if int(gid)]
    # Dotted, so that redaction sees the address that it is.
    mapped = (f"::ffff:{gid.ipv4_mapped}" for gid in known if gid.ipv4_mapped)
    return next(mapped, next(map(str, known), None))


def _number(name: str) -> int:
    return int(name) if name.isdigit() else MAX_FILES


def _is_number(text: str) -> bool:
    try:
        return 0 <= int(text, 0) < 1 << 16
    except ValueError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _add(counters: dict[str, int], key: str, file: Path) -> None:
    text = _text(file)
    if len(counters) < MAX_FILES and text.lstrip("-").isdigit():
        counters[key] = int(text)
