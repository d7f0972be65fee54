"""hangscope's answers about the corpus: `python answer_hangscope.py -o hangscope.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from answering import Answer, write_answers

try:
    import hangscope
except ImportError:
    sys.exit("hangscope is not installed here: pip install hangscope")


def ask(folder: Path) -> Answer:
    try:
        verdict = hangscope.diagnose(folder)
    except hangscope.HangscopeError:
        return None
    link = verdict.link
    return {
        "hang": verdict.hang,
        "kind": str(verdict.kind),
        "culprits": [culprit.rank for culprit in verdict.culprits],
        "link": None if link is None else [link.sender.rank, link.receiver.rank],
        "confidence": verdict.confidence,
    }


if __name__ == "__main__":
    sys.exit(write_answers(f"hangscope {hangscope.__version__}", ask))
