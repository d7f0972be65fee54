"""Network counters from /sys: every port of every InfiniBand or RoCE device, every network interface."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SYS = Path("/sys/class")
MAX_FILES = 20_000


def snapshot(root: Path = SYS) -> dict[str, Any]:
    """All counters now, keyed `<device>/<port>/<counter>`."""
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
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"at": at, "counters": counters}


def ports(root: Path = SYS) -> list[dict[str, Any]]:
    """The InfiniBand and RoCE ports: state, rate and PCI address."""
    found = []
    for device in _names(root / "infiniband"):
        folder = root / "infiniband" / device
        pci = os.path.basename(os.path.realpath(folder / "device"))
        for port in _names(folder / "ports"):
            found.append(
                {
                    "name": device,
                    "port": int(port) if port.isdigit() else None,
                    "state": _text(folder / "ports" / port / "state").partition(": ")[2] or None,
                    "rate": _text(folder / "ports" / port / "rate") or None,
                    "pci": pci if pci != "device" else None,
                }
            )
    return found


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
