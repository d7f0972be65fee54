"""Which ranks work together: the process groups of a job that is parallel in up to four ways.

Ranks are laid out as Megatron-LM and a DeviceMesh ("pp", "dp", "tp") do it: tensor-parallel neighbours are next to each
other, pipeline stages far apart. Expert-parallel groups are slices of the data-parallel ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hangscope.errors import SettingsError

WORLD, DP, TP, PP, EP = range(5)
ROLES = ("world", "dp", "tp", "pp", "ep")

DESCRIPTIONS = {
    "mesh": ("default_pg", "mesh_dp", "mesh_tp", "mesh_pp", "mesh_ep"),
    "megatron": (
        "default_pg",
        "DATA_PARALLEL_GROUP",
        "TENSOR_MODEL_PARALLEL_GROUP",
        "PIPELINE_MODEL_PARALLEL_GROUP",
        "EXPERT_MODEL_PARALLEL_GROUP",
    ),
    "plain": ("default_pg", "undefined", "undefined", "undefined", "undefined"),
}
"""What the groups are called, by the framework that made them. "plain": made by new_group without a description."""

NAMINGS = ("numbers", "shared", "hashes")

CREATION = {"mesh": (PP, DP, TP, EP), "megatron": (DP, TP, PP, EP), "plain": (TP, DP, PP, EP)}
"""In which order a framework makes its groups: it decides their numbers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ways the job is split. dp x tp x pp ranks; ep divides dp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "ep"):
            if getattr(self, name) < 1:
                raise SettingsError(f"layout: {name}={getattr(self, name)} is less than 1", hint="leave it out for 1")
        if self.dp % self.ep:
            raise SettingsError(
                f"layout: ep={self.ep} does not divide dp={self.dp}",
                hint="expert groups are slices of the data-parallel groups: choose an ep that divides dp",
            )

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        """(dp, tp, pp) coordinates of a rank."""
        rest, tp = divmod(rank, self.tp)
        pp, dp = divmod(rest, self.dp)
        return dp, tp, pp

    def rank(self, dp: int, tp: int, pp: int) -> int:
        return tp + self.tp * (dp + self.dp * pp)

    def __str__(self) -> str:
        return ",".join(f"{name}={getattr(self, name)}" for name in ("dp", "tp", "pp", "ep") if getattr(self, name) > 1)


@dataclass(frozen=True, slots=True)
class GroupDef:
    """One process group as PyTorch knows it. `index` is ours; `name` is PyTorch's, a number as a string."""

    index: int
    role: int
    name: str
    desc: str
    members: tuple[int, ...]


class Groups:
    """All groups of a job: who is in which, under which name and which local number."""

    def __init__(self, layout: Layout, *, style: str = "mesh", naming: str = "numbers") -> None:
        """`naming`: "numbers" (every `new_group` call of the job takes the next one on all ranks), "shared" (groups of
        one kind have one number) or "hashes" (of the members, as PyTorch names communicators that are split off)."""
        descriptions = DESCRIPTIONS[style]
        self.all: list[GroupDef] = []
        self.of: list[list[int]] = [[-1] * len(ROLES) for _ in range(layout.ranks)]
        """rank → role → index of its group in `all`, -1 where it has none."""
        self.local_id: list[dict[int, int]] = [{} for _ in range(layout.ranks)]
        """rank → group index → `pg_id`, the number by which that process knows the group."""
        self._add(WORLD, tuple(range(layout.ranks)), "0", descriptions[WORLD])
        number = 0
        for role in CREATION[style]:
            if self._size(layout, role) == 1:
                continue
            number += naming == "shared"
            for members in self._members(layout, role):
                number += naming == "numbers"
                name = str(number)
                if naming == "hashes":
                    text = f"{role}_{'_'.join(map(str, members))}"
                    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
                self._add(role, members, name, descriptions[role])

    def _add(self, role: int, members: tuple[int, ...], name: str, desc: str) -> None:
        group = GroupDef(len(self.all), role, name, desc, members)
        self.all.append(group)
        for rank in members:
            self.of[rank][role] = group.index
            self.local_id[rank][group.index] = len(self.local_id[rank])

    @staticmethod
    def _size(layout: Layout, role: int) -> int:
        return (layout.ranks, layout.dp, layout.tp, layout.pp, layout.ep)[role]

    @staticmethod
    def _members(layout: Layout, role: int) -> list[tuple[int, ...]]:
        dps = range(layout.dp)
        tps = range(layout.tp)
        pps = range(layout.pp)
        if role == TP:
            return [tuple(layout.rank(d, t, p) for t in tps) for p in pps for d in dps]
        if role == PP:
            return [tuple(layout.rank(d, t, p) for p in pps) for d in dps for t in tps]
        width = layout.ep if role == EP else layout.dp
        slices = [range(first, first + width) for first in range(0, layout.dp, width)]
        return [tuple(layout.rank(d, t, p) for d in part) for p in pps for part in slices for t in tps]
