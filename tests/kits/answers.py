"""What hangscope says of a folder, so that it can be compared byte by byte: neither place nor time shows in it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import hangscope
from hangscope.errors import HangscopeError
from hangscope.report.export import to_json
from hangscope.report.terminal import render_text

WHEN = 1_790_000_000
"""The time of every file: a checkout or an unpacked archive gives them the time of the day."""
NAME = "job"
"""What every folder is called."""


@dataclass(frozen=True)
class Words:
    """All that was said: as JSON, and as text."""

    json: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.blake2b(f"{self.json}\0{self.text}".encode(), digest_size=12).hexdigest()

    @property
    def short(self) -> str:
        """In one line."""
        value = json.loads(self.json)
        if "error" in value:
            return f"refused: {value['error']}"
        accused = ",".join("?" if culprit["rank"] is None else str(culprit["rank"]) for culprit in value["culprits"])
        return f"{value['outcome']} {value['kind']} [{accused}] {value['confidence']}: {value['headline']}"


@dataclass(frozen=True)
class Answer:
    """A verdict, or the error of evidence that was refused."""

    verdict: hangscope.Diagnosis | HangscopeError
    words: Words


def answer(folder: Path) -> Answer:
    """Read and diagnose a folder that is called NAME; the times of its files become WHEN."""
    assert folder.name == NAME
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (WHEN, WHEN))
    before = Path.cwd()
    os.chdir(folder.parent)
    try:
        found = hangscope.diagnose(hangscope.load([NAME]))
    except HangscopeError as error:
        return Answer(error, Words(json.dumps({"error": str(error), "hint": error.hint}, indent=1), ""))
    finally:
        os.chdir(before)
    return Answer(found, Words(_without_retry(to_json(found)), render_text(found, width=100, verbose=True)))


def _without_retry(text: str) -> str:
    """The JSON as it was stored before it had `retry`, which follows from the rest (tests/diagnosis/test_retry.py)."""
    value = json.loads(text)
    del value["retry"]
    return json.dumps(value, indent=1) + "\n"
