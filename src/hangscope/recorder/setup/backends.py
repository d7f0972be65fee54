"""What a backend's name stands for in a given torch, and what its recorder can do there.

Families: ``nccl`` is ProcessGroupNCCL, the only one with a watchdog's cross-rank signal, a pipe and a heartbeat;
``nccl2`` its successor, what the name nccl means from torch 2.15 on; ``gloo``, ``xccl``, ``hccl``; ``other`` the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from hangscope.recorder.setup.variables import FIRST_RECORDER, Release

_NAMES = {"nccl-legacy": "nccl", "rccl": "nccl", "nccl2": "nccl2", "gloo": "gloo", "xccl": "xccl", "hccl": "hccl"}
_NCCL2_DEFAULT: Release = (2, 15)
_NCCL2_EXISTS: Release = (2, 14)

GLOO_RECORDED_SINCE: Release = (2, 8)
WORKER_SERVER_SINCE: Release = (2, 4)


def families(backend: str | None, release: Release | None, environ: Mapping[str, str]) -> frozenset[str]:
    """The families that a job with this backend may use. An unknown backend may be NCCL or Gloo.

    `backend` is what init_process_group takes: ``nccl``, ``gloo``, ``cpu:gloo,cuda:nccl``; None where nobody knows.
    """
    parts = [part.rpartition(":")[2].strip().lower() for part in (backend or "").split(",")]
    names = [part for part in parts if part and part != "undefined"] or ["nccl", "gloo"]
    found: set[str] = set()
    for name in names:
        if name != "nccl":
            found.add(_NAMES.get(name, "other"))
        elif release is None:
            found |= {"nccl", "nccl2"}
        else:
            found.add("nccl2" if nccl_means_nccl2(release, environ) else "nccl")
            if backend is None and release >= _NCCL2_DEFAULT:
                found |= {"nccl", "nccl2"}  # code may still ask for nccl-legacy by name
    return frozenset(found)


def nccl_means_nccl2(release: Release, environ: Mapping[str, str]) -> bool:
    """In 2.14 nccl2 is chosen with TORCH_DIST_USE_NCCL2=1, from 2.15 on it is left with TORCH_DIST_USE_NCCL2=0."""
    chosen = environ.get("TORCH_DIST_USE_NCCL2", "").strip()
    if release >= _NCCL2_DEFAULT:
        return chosen != "0"
    return release >= _NCCL2_EXISTS and chosen == "1"


def records(family: str, release: Release | None) -> bool:
    """Whether operations of this family reach the recorder at all."""
    if release is None:
        return True
    if family == "nccl2":
        return release >= (2, 15)  # 2.14 has the backend, but nothing attaches the recorder to it
    if family == "gloo":
        return release >= GLOO_RECORDED_SINCE
    if family == "other":
        return release >= (2, 15)
    if family == "xccl":
        return release >= (2, 9)  # its recorder landed in July 2025, after 2.8 was cut
    return release >= FIRST_RECORDER


def writes_file(family: str, release: Release | None) -> bool:
    """Whether a hung collective can leave a dump file. Gloo never does, in any release; XCCL has a pipe only."""
    return family in ("nccl", "nccl2", "hccl", "other") and records(family, release)
