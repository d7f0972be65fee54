"""Where the evidence of a hung test goes, and who of several ranks of one job takes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from hangscope.incident.layout import safe_name
from hangscope.safeio.safe_files import make_folder, make_one

VERDICT = "pytest.json"
"""What was found, for pytest; written last."""
SAME_HANG_S = 120.0
"""A capture of a test by another rank is of the same hang for so long."""
_MOST = 1000
_RANK = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)
_RUN = ("HANGSCOPE_DIR", "HANGSCOPE_SOCKETS")


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process of ours beside a rank: it must be taken for no rank, and for nobody's run."""
    return {name: value for name, value in environ.items() if name not in (*_RANK, *_RUN)}


def folder_name(nodeid: str) -> str:
    """A test's folder: its file and its name."""
    return safe_name(nodeid.rpartition("/")[2].replace("::", "-").lstrip("-"))


def claim(base: Path, name: str, *, shared: bool) -> tuple[Path, bool]:
    """A folder for the evidence of test `name`, and whether the capture is ours to take. `shared`: other ranks of the
    same job run the same test, and the first of them takes it for all."""
    make_folder(base, wary=False)
    for number in range(1, _MOST):
        folder = base / (name if number == 1 else f"{name}-{number}")
        try:
            make_one(folder)
            return folder, True
        except FileExistsError:
            if shared and _is_fresh(folder):
                return folder, False
    raise FileExistsError(f"{base / name}: no free name")


def _is_fresh(folder: Path) -> bool:
    for path in (folder / VERDICT, folder):
        try:
            return time.time() - path.stat().st_mtime < SAME_HANG_S
        except OSError:
            continue
    return False
