"""torchfrtrace's answers about the corpus, of the torch that is installed: `python answer_torchfrtrace.py -o FILE`.

Taken generously: every rank that it calls a culprit or missing counts as accused, and only that is scored. Where it
refuses because dumps are missing, it is asked again with --allow-incomplete-ranks. What ends with an error, or has no
dumps for it, is no answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from answering import Answer, write_answers

try:
    import torch
    from torch.distributed.flight_recorder.fr_trace import main as torchfrtrace
except ImportError:
    sys.exit("torch with torchfrtrace is not installed here")

LIMIT_S = 20


def ask(folder: Path) -> Answer:
    with tempfile.TemporaryDirectory() as scratch:
        for file in sorted(folder.rglob("*")):
            match = re.search(r"rank_(\d+)$", file.name)
            if match and file.is_file():
                shutil.copy(file, Path(scratch) / f"nccl_trace_rank_{match[1]}")
        arguments = [scratch, "-p", "nccl_trace_rank_"]
        status, text = forked(arguments)
        if status != 0:
            status, text = forked([*arguments, "--allow-incomplete-ranks"])
    if status != 0:
        return None
    named = {int(rank) for rank in re.findall(r"Culprit rank (\d+)", text)}
    for ranks in re.findall(r"missing ranks: \{([\d, ]+)\}", text):
        named |= {int(rank) for rank in ranks.split(",")}
    return {"culprits": sorted(named)}


def forked(arguments: list[str]) -> tuple[int, str]:
    """In a process of its own: it may end the interpreter, or take for ever."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                signal.alarm(LIMIT_S)
                torchfrtrace(arguments)
                sys.stdout.flush()
                status = 0
            os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return status, output.read().decode(errors="replace")


if __name__ == "__main__":
    sys.exit(write_answers(f"torchfrtrace, torch {torch.__version__.partition('+')[0]}", ask))
