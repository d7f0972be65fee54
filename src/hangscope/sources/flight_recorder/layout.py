"""What a layout of the recorder is: where each field lies in its objects, and what shows that it is so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

ABSENT = 0xFFFF
"""In place of an offset: this release has no such field."""


class Proof(NamedTuple):
    """What a layout was made from."""

    torch: str
    wheel: str
    header: str
    """The beginning of the digest of its FlightRecorder.hpp."""
    symbols: tuple[str, ...]
    """By which recorders are found in the wheel's libraries."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes by field; `size` is that of the whole object."""

    machine: str
    dump_version: str
    recorder: Mapping[str, int]
    entry: Mapping[str, int]
    status: Mapping[str, int]
    traceback: Mapping[str, int]
    dtypes: tuple[str, ...]
    proofs: tuple[Proof, ...]

    def is_of(self, release: tuple[int, ...]) -> bool:
        return any(release_of(proof.torch) == release for proof in self.proofs)


def release_of(version: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    numbers = version.partition("+")[0].split(".")[:2]
    return tuple(int(each) for each in numbers if each.isdigit())
