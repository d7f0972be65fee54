"""NVRx's answers about the corpus: `python answer_nvrx.py -o FILE`, with nvidia-resiliency-ext 0.5 or later.

Its flight recorder attribution needs no torch, no GPU and no LLM. The wheels are tagged for glibc 2.39, though it is
plain Python; where pip finds none for this machine:

    pip install --no-deps --target nvrx --only-binary=:all: --platform manylinux_2_39_x86_64 --python-version 3.12 \\
        nvidia-resiliency-ext==0.7.0
    PYTHONPATH=nvrx python answer_nvrx.py -o nvrx.json

The ranks in its own answer, "hanging ranks", count as accused. What ends with an error, or has no dumps for it, is no
answer.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from answering import Answer, write_answers

MODULE = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
LIMIT_S = 60
ASK = f"""
import sys
from {MODULE} import CollectiveAnalyzer
asked = {{"fr_path": sys.argv[1], "pattern": "_dump_*"}}
(said, _) = CollectiveAnalyzer(asked).run_sync(asked)
print(said["hanging_ranks"])
"""
"""What its command line does; that prints the table alone, from which `hanging_ranks` is read."""


def version() -> str | None:
    """The release that is installed, where it has the attribution."""
    try:
        there = importlib.util.find_spec(MODULE) is not None
    except ModuleNotFoundError:
        return None
    return importlib.metadata.version("nvidia-resiliency-ext") if there else None


def ask(folder: Path) -> Answer:
    with tempfile.TemporaryDirectory() as scratch:
        for file in sorted(folder.rglob("*")):
            match = re.search(r"rank_(\d+)$", file.name)
            if match and file.is_file():
                shutil.copy(file, Path(scratch) / f"_dump_{match[1]}")
        if not any(Path(scratch).iterdir()):
            return None
        command = [sys.executable, "-c", ASK, scratch]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return None
    ranks = ranks_named(done.stdout)
    return None if done.returncode or ranks is None else {"culprits": ranks}


def ranks_named(said: str) -> list[int] | None:
    """The ranks of ``hanging ranks: [2, 3]``; None where it does not say that."""
    listed = re.search(r"^hanging ranks: (\[[\d, ]*\])$", said, re.MULTILINE)
    return sorted(json.loads(listed[1])) if listed else None


if __name__ == "__main__":
    found = version()
    if found is None:
        sys.exit("nvidia-resiliency-ext with its trace_analyzer is not installed here")
    sys.exit(write_answers(f"NVRx {found}", ask))
