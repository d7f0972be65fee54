"""What may be at fault in a hang, by kind and name: nodes, GPUs, ports, leaf switches, mounts, images, commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hangscope.server.intake import plain_values as plain

MOST_DEVICES = 64
"""GPUs, and ports, of one node."""
MOST_RANKS = 1024
"""Of one node."""
NODE = "node"
GPU = "gpu"
NIC = "nic"
LEAF = "leaf"
IMAGE = "image"
COMMIT = "commit"
VERSION = "version"
RANK = "rank"
LINK = "link"
MOUNT = "mount"
PLACES = frozenset((NODE, GPU, NIC, LEAF, LINK))
"""Kinds whose names are of one cluster: two clusters may each have a node042."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Something that may be at fault: a node, a GPU, a port, an image, a commit. `part_of` is where it is, as far as
    that is known, and no part of what it is."""

    kind: str
    name: str
    part_of: Entity | None = field(default=None, compare=False)


def of_node(name: str, node: Mapping[str, Any]) -> Iterator[tuple[Entity, tuple[int, ...]]]:
    """A node with its GPUs, ports and leaf switch, as a roster or a node.json lists them."""
    ranks = tuple(plain.items(node, "ranks", MOST_RANKS))
    numbers = tuple(rank for rank in (rank_number(each) for each in ranks) if rank is not None)
    leaf = plain.text(node, "leaf")
    here = Entity(NODE, name, Entity(LEAF, leaf) if leaf else None)
    yield here, numbers
    for gpu in plain.items(node, "gpus", MOST_DEVICES):
        if isinstance(gpu, dict) and (which := gpu_name(name, gpu)):
            yield Entity(GPU, which, here), ()
    for nic in plain.items(node, "nics", MOST_DEVICES):
        said = plain.text(nic, "name", 100) if isinstance(nic, dict) else plain.clean(str(nic), 100)
        if said:
            yield Entity(NIC, f"{name}/{said}", here), ()
    if leaf:
        yield Entity(LEAF, leaf), ()
    for mount in plain.items(node, "mounts", MOST_DEVICES):
        if isinstance(mount, str) and plain.clean(mount, 200):
            yield Entity(MOUNT, plain.clean(mount, 200)), ()


def gpu_name(node: str, gpu: Mapping[str, Any]) -> str:
    """A GPU is known by its UUID, wherever it is plugged in; else by its slot in its node."""
    if uuid := plain.text(gpu, "uuid", 80):
        return uuid
    slot = plain.text(gpu, "pci", 40)
    return f"{node}/{slot}" if slot else ""


def rank_number(value: object) -> int | None:
    """A rank, as a number or as an object that names it."""
    found = value.get("rank") if isinstance(value, dict) else value
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 24 else None
