"""NVRx's answers about the corpus: the flight recorder attribution of nvidia-resiliency-ext, where it is installed.

PyPI's releases up to 0.4 do not have it: install from the repository. Asked as its command line is, without an LLM; the
ranks of its "hanging ranks" (or "missing ranks") count as accused.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from answering import Answer, write_answers

MODULE = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
LIMIT_S = 60
try:
    there = importlib.util.find_spec(MODULE) is not None
except ModuleNotFoundError:
    there = False
if not there:
    sys.exit("nvidia-resiliency-ext with its trace_analyzer is not installed here")


def ask(folder: Path) -> Answer:
    with tempfile.TemporaryDirectory() as scratch:
        for file in sorted(folder.rglob("*")):
            match = re.search(r"rank_(\d+)$", file.name)
            if match and file.is_file():
                shutil.copy(file, Path(scratch) / f"_dump_{match[1]}")
        command = [sys.executable, "-m", MODULE, "--fr-path", scratch, "-p", "_dump_*", "--emit-stdout"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return None
    return None if done.returncode else {"culprits": sorted(ranks_named(done.stdout))}


def ranks_named(text: str) -> set[int]:
    """The ranks behind ``hanging_ranks`` or ``missing ranks``, however it writes a list."""
    found: set[int] = set()
    for listed in re.findall(r"(?:hanging|missing)[_ ]ranks\W*[:=]\W*([\d, ]+)", text, re.IGNORECASE):
        found.update(int(rank) for rank in re.findall(r"\d+", listed))
    return found


if __name__ == "__main__":
    sys.exit(write_answers("NVRx", ask))
