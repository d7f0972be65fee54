"""What NCCL's RAS said while the jobs hung, as answers: `python answer_ras.py -o ras.json`.

RAS answers live jobs only, so its answers were recorded with the cases (ras.txt, ras*.txt). Taken generously: each rank
that it lists with another count of operations than most, or as missing, dead or unresponsive, counts as accused, in a
communicator of all ranks by its own number. A case without a recorded answer is no answer.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from answering import Answer, write_answers

LISTED = re.compile(r"^\s*Ranks? (\d+(?:[-,]\s*\d+)*) (?:has|have) launched up to operation", re.MULTILINE)
LOST = re.compile(
    r"^\s*(?:Missing|Dead|Unresponsive)?\s*[Rr]ank (\d+)\b.*(?:missing|dead|unresponsive|NO RESPONSE)", re.M
)


def ask(folder: Path) -> Answer:
    texts = [path.read_text(errors="replace") for path in sorted(folder.rglob("ras*.txt"))]
    texts = [text for text in texts if "Communicators" in text]
    if not texts:
        return None
    named: set[int] = set()
    for listed in [*LISTED.findall(texts[-1]), *LOST.findall(texts[-1])]:
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed):
            named.update(range(int(first), int(last or first) + 1))
    return {"culprits": sorted(named)}


if __name__ == "__main__":
    sys.exit(write_answers("NCCL RAS", ask))
