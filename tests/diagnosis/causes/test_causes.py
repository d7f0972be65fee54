"""A cause is one file, and nothing but what it proposes counts: not its place among the others."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hangscope
from hangscope.diagnosis.causes import CAUSE_OF, CAUSES
from hangscope.errors import HangscopeError
from hangscope.model import Job
from kits.knowable import SUITES
from kits.wild import folders

PACKAGE = Path(hangscope.__file__).parent
EXCERPTS = Path(__file__).parents[2] / "excerpts"
SEEDS = (1, 2, 3)

UNLUCKY = '''
"""unknown: a rank with an unlucky number."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.verdict import CauseKind, Finding

UNLUCKY = Grounds("unlucky", Layer.OTHER_CALLS, HIGH, "everybody knows that number")


@dataclass(frozen=True, slots=True)
class Unlucky:
    number: int


def propose(case: Case) -> Iterator[Accusation[Unlucky]]:
    accused = [Accused(2, CauseKind.UNKNOWN)]
    yield Accusation(UNLUCKY, CauseKind.UNKNOWN, Unlucky(13), accused, explains=case.waits.all)


def words(case: Case, accusation: Accusation[Unlucky]) -> Words:
    number = accusation.facts.number
    why = [Finding(f"{number} ranks sat at the table")]
    return Words("rank 2 has no luck", "Rank 2 has no luck.", why, {2: f"drew {number}"}, ["cross your fingers"])


CAUSE = Cause(propose, words, (UNLUCKY,))
'''
TELL = """
import hangscope
found = hangscope.diagnose(hangscope.load({case!r}))
print(found.kind, [c.why for c in found.culprits], found.confidence, found.confidence_rule, sep="|")
print(found.headline, found.summary, found.why[0].text, found.next_steps[0], sep="|")
"""


def test_a_new_file_is_a_new_cause(tmp_path: Path) -> None:
    """One file beside the others, and nothing else, gives a verdict with its grounds, its findings and its words."""
    shutil.copytree(PACKAGE, tmp_path / "hangscope", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "hangscope" / "diagnosis" / "causes" / "mismatch" / "unlucky.py").write_text(UNLUCKY)
    done = subprocess.run(
        [sys.executable, "-c", TELL.format(case=str(SUITES["nccl"] / "mesh_absent"))],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "unknown|['drew 13']|high|unknown: everybody knows that number",
        "rank 2 has no luck|Rank 2 has no luck.|13 ranks sat at the table|cross your fingers",
    ]


def test_every_file_is_a_cause_and_found() -> None:
    """Every file of causes/, but for those that causes share, is asked; and no two causes rest on the same grounds."""
    files = [path for path in (PACKAGE / "diagnosis" / "causes").glob("*/*.py") if path.parent.name != "shared"]
    assert len(CAUSES) == len([path for path in files if path.name != "__init__.py"])
    assert len(CAUSE_OF) == sum(len(cause.grounds) for cause in CAUSES)
    assert len({grounds.name for grounds in CAUSE_OF}) == len(CAUSE_OF)


# ---- the order in which causes are asked -----------------------------------------------------------------------------


def recorded(_: Path) -> Iterator[Path]:
    for suite in SUITES.values():
        yield from (truth.parent for truth in sorted(suite.glob("*/truth.json")))


def excerpts(_: Path) -> Iterator[Path]:
    yield from sorted(EXCERPTS.glob("*.txt"))


def wild(scratch: Path) -> Iterator[Path]:
    for folder in folders():
        for name, data in folder.files.items():
            (scratch / folder.name / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / folder.name / name).write_bytes(data)
        yield scratch / folder.name


def backwards(name: str) -> list[int]:
    """The alphabet the other way round."""
    return [-ord(letter) for letter in name]


def verdict(job: Job) -> object:
    """The whole of it; or what was said where there is none."""
    try:
        return hangscope.diagnose(job)
    except HangscopeError as error:
        return str(error)


@pytest.mark.parametrize("suite", [recorded, excerpts, wild])
def test_no_verdict_depends_on_the_order_or_names_of_causes(
    suite: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the causes are shuffled, and whatever their grounds are called, every verdict on recorded evidence is the
    same to the last word."""
    orders = [tuple(reversed(CAUSES)), *(tuple(random.Random(seed).sample(CAUSES, len(CAUSES))) for seed in SEEDS)]
    looked = 0
    for path in suite(tmp_path):  # type: ignore[operator]
        try:
            job = hangscope.load(path)
        except HangscopeError:
            continue
        monkeypatch.setattr("hangscope.diagnosis.CAUSES", CAUSES)
        expected = verdict(job)
        for order in orders:
            monkeypatch.setattr("hangscope.diagnosis.CAUSES", order)
            assert verdict(job) == expected, path.name
        with monkeypatch.context() as renamed:
            renamed.setattr(sys.modules["hangscope.diagnosis.weigh"], "_by_name", backwards)
            assert verdict(job) == expected, f"{path.name}: the alphabet decides"
        looked += 1
    assert looked > 30
