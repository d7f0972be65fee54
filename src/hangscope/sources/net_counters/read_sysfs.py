"""A copied /sys tree: counters and ports as files, for folders that somebody put together by hand (``cp -rL``).

A path says what a file is: ``…/infiniband/mlx5_0/ports/1/counters/link_downed``. What comes before is the tree, and
which of a node's trees was taken first is said by their names, or by the counters themselves, which only grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hangscope.model import Source
from hangscope.model.numbers import COUNTER_DIGITS, integer, is_number
from hangscope.sources.net_counters.read import Snapshot

MAX_BYTES = 4096
MAX_VALUES = 20_000
"""Of one tree: more are not kept."""
_ABOVE = ("class", "sys")
_LAYERS = {"InfiniBand": "IB", "Ethernet": "RoCE"}
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


@dataclass
class Tree:
    parts: tuple[str, ...]
    values: dict[str, int] = field(default_factory=dict)
    ports: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def snapshot(self, file: str) -> Snapshot:
        return Snapshot(None, None, self.values, Source(file), tuple(self.ports.values()))


def place_of(parts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """(the tree, the path below it) of a file that is one of a port's or an interface's; None for any other file."""
    for at in range(len(parts) - 2, -1, -1):
        below = parts[at:]
        counter = len(below) == 6 and below[4] in ("counters", "hw_counters", "gids")
        of_port = below[0] == "infiniband" and below[2:3] == ("ports",) and (counter or len(below) == 5)
        of_interface = below[0] == "net" and (
            (len(below) == 4 and below[2] == "statistics") or (len(below) == 3 and below[2].startswith("carrier_"))
        )
        if of_port or of_interface:
            top = at
            while top and parts[top - 1] in _ABOVE:
                top -= 1
            return parts[:top], below
    return None


def add(tree: Tree, below: tuple[str, ...], raw: bytes) -> bool:
    """Put one file's content where a sample of the recorder would have it; False where it is no such content."""
    text = raw[:MAX_BYTES].decode("utf-8", "replace").strip()
    if below[0] == "net" or below[-2].endswith("counters"):
        return _add_counter(tree, below, text)
    if len(tree.ports) < MAX_VALUES:
        _add_to_port(tree, below, text)
    return True


def _add_counter(tree: Tree, below: tuple[str, ...], text: str) -> bool:
    device = below[1]
    port = below[3] if below[0] == "infiniband" else ""
    if not is_number(text, COUNTER_DIGITS):
        return below[0] == "infiniband"
    if len(tree.values) < MAX_VALUES and device != "lo":
        tree.values[f"{device}/{port}/{below[-1]}"] = integer(text, COUNTER_DIGITS)
    return True


def _add_to_port(tree: Tree, below: tuple[str, ...], text: str) -> None:
    _, device, _, port, what, *_ = below
    row = tree.ports.setdefault((device, port), {"name": device, "port": port})
    if what == "gids" and text.strip("0:"):
        if not row.get("gid") or text.startswith(_IPV4):
            row["gid"] = text
    elif what == "state":
        row["state"] = text.partition(": ")[2]
    elif what == "link_layer":
        row["layer"] = _LAYERS.get(text)
    elif what == "lid" and len(text) <= 6:
        row["lid"] = _number(text)


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None
