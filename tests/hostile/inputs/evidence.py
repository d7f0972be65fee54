"""Honest evidence to begin with: most hostile things are put beside some, so that the reports have something to say."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parents[2]


SMALL = ("pair_absent", "skipped", "pair_frozen", "deadlock2", "p2p", "dtype_mismatch", "exception", "mesh_absent")


def honest(rng: Random, root: Path, *names: str) -> Path:
    source = HERE / "cases" / rng.choice(names or SMALL)
    shutil.copytree(source, root, dirs_exist_ok=True)
    return root


def incident(rng: Random, root: Path) -> Path:
    names = sorted(path.name for path in (HERE / "incidents").iterdir() if path.is_dir())
    shutil.copytree(HERE / "incidents" / rng.choice(names), root, dirs_exist_ok=True)
    return root


def dumps_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"\x80")


def jsons_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.json") if path.name not in ("truth.json", "verdict.json"))


def packed(rng: Random, whole: Any) -> bytes:
    if rng.random() < 0.35:
        try:
            return json.dumps(whole, default=repr).encode()
        except (TypeError, ValueError, RecursionError):
            pass
    return pickle.dumps(whole, rng.randrange(6))
