"""The corpus as others get it: complete, no answer in its evidence, scored by rules that anybody can read."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from corpus import pack_corpus, score

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cases() -> list[pack_corpus.Case]:
    return list(pack_corpus.cases())


def test_the_corpus_holds_every_case_and_no_answer(cases: list[pack_corpus.Case]) -> None:
    """All recorded jobs are in it with their truths; nothing in the evidence says or guesses the answer."""
    files = pack_corpus.contents(cases)
    truths = json.loads(files["truths.json"])["cases"]
    assert {name.partition("/")[0] for name in truths} == {"nccl", "gloo", "incidents", "links", "live"}
    assert sum(name.startswith("nccl/") for name in truths) == len(
        list((ROOT / "tests" / "cases").glob("*/truth.json"))
    )
    evidence = {path: data for path, data in files.items() if path.startswith("cases/")}
    assert not [path for path in evidence if pack_corpus.LEAKS.match(Path(path).name)]
    assert not [path for path, data in evidence.items() if b"confidence: high" in data]
    for line in files["SHA256SUMS"].decode().splitlines():
        checksum, _, path = line.partition("  ")
        assert hashlib.sha256(files[path]).hexdigest() == checksum
    for suite in ("nccl", "gloo", "incidents", "links", "live"):
        count = sum(name.startswith(f"{suite}/") for name in truths)
        assert f"| {suite} | {count} |" in files["DATASHEET.md"].decode()


def test_the_archive_stands_on_its_own(cases: list[pack_corpus.Case], tmp_path: Path) -> None:
    """Unpacked, its adapter and its scoring command give hangscope's row, with nothing else of the project."""
    chosen = [
        case for case in cases if case.id in ("nccl/pair_absent", "nccl/healthy", "incidents/kill", "gloo/deadlock2")
    ]
    for path, data in pack_corpus.contents(chosen).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    for command in (["answer_hangscope.py", "-o", "mine.json"], ["answer_ras.py", "-o", "ras.json"]):
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    command = [sys.executable, "score.py", "mine.json", "ras.json", "--misses"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    (row,) = re.findall(r"^all +hangscope \S+ +(.*)$", done.stdout, re.MULTILINE)
    assert row.split() == ["4/4", "4/4", "4/4", "-", "0/4", "0/4", "0/3", "0/1"]


TRUTH = {"hang": True, "kind": "absent", "culprits": [2], "accept": [[1, 2]], "accept_kinds": ["dead"], "link": None}
LINK = {"hang": True, "kind": "network", "culprits": [], "accept": [[2, 3]], "accept_kinds": [], "link": [2, 3]}
HEALTHY = {"hang": False, "kind": "none", "culprits": [], "accept": [], "accept_kinds": [], "link": None}


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        (TRUTH, {"culprits": [2], "kind": "absent", "confidence": "low"}, {"exact": True, "kind": True, "sure": False}),
        (TRUTH, {"culprits": [2, 1], "kind": "gpu"}, {"exact": True, "kind": False, "innocent": False}),
        (
            TRUTH,
            {"culprits": [3], "confidence": "high"},
            {"exact": False, "innocent": True, "sure": True, "kind": None},
        ),
        (TRUTH, {"culprits": []}, {"exact": False, "names nobody": True, "innocent": False, "sure": None}),
        (TRUTH, None, {"answered": False, "exact": False, "innocent": None, "names nobody": None}),
        (LINK, {"culprits": [], "link": [2, 3]}, {"exact": True, "link": True, "names nobody": False}),
        (LINK, {"culprits": [3, 2], "link": [3, 2]}, {"exact": True, "link": False}),
        (LINK, {"culprits": [2]}, {"exact": False, "link": None, "innocent": False}),
        (HEALTHY, {"culprits": []}, {"exact": True, "false alarm": False, "names nobody": None}),
        (HEALTHY, {"culprits": [0]}, {"exact": False, "false alarm": True, "innocent": True}),
    ],
)
def test_an_answer_counts_as_its_rule_says(truth: Any, answer: Any, expected: dict[str, bool | None]) -> None:
    """Each column counts what the help of the scoring command says; what a tool leaves out counts as nothing."""
    got = score.scored(truth, answer)
    assert {column: got[column] for column in expected} == expected


def test_answers_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    """A case that is not there, or ranks that are none, is an error that names it, and no lost point."""
    file = tmp_path / "answers.json"
    for answers, schema in (
        ({"nccl/none": None}, score.SCHEMA),
        ({"a/b": {"culprits": ["2"]}}, score.SCHEMA),
        ({}, "x"),
    ):
        file.write_text(json.dumps({"schema": schema, "tool": "t", "answers": answers}))
        with pytest.raises(SystemExit, match="error: "):
            score.read_answers(file, {"a/b": TRUTH})


def test_the_claim_of_the_docs_is_the_tables() -> None:
    """What docs/evidence.md says of the recorded cases, and of torchfrtrace on them, is in the archive's table."""
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| nccl \| (\w+)[^|]* \| \S+ \| (\d+)/(\d+) ", page, re.MULTILINE)
    exact = {tool: (int(right), int(count)) for tool, right, count in rows}
    evidence = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    claim = re.search(r"\| (\d+) of (\d+); torchfrtrace of torch \S+: (\d+) \|", evidence)
    assert claim is not None
    assert exact["hangscope"] == (int(claim[1]), int(claim[2]))
    assert exact["torchfrtrace"] == (int(claim[3]), int(claim[2]))


def test_the_readme_shows_the_same_as_the_page() -> None:
    """README's short table is made of the long one's rows: `make corpus` writes both, from the archive alone."""
    page, readme = (
        path.read_text(encoding="utf-8").partition(pack_corpus.BEGIN)[2].partition(pack_corpus.END)[0].lstrip("\n")
        for path in (ROOT / "docs" / "benchmark.md", ROOT / "README.md")
    )
    assert readme == pack_corpus.short_table(page)
    assert {"hangscope", "torchfrtrace,", "NVRx", "NCCL"} == {line.split()[1] for line in readme.splitlines()[2:]}


@pytest.mark.parametrize(
    ("said", "ranks"),
    [("args: {}\nhanging ranks: [3, 2]\n", [2, 3]), ("hanging ranks: []\n", []), ("Traceback: no files", None)],
)
def test_nvrx_is_taken_at_its_word(said: str, ranks: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of its own answer count; nobody is an answer too, and an error is none."""
    monkeypatch.syspath_prepend(pack_corpus.HERE)  # in the archive, the adapters lie side by side
    assert import_module("answer_nvrx").ranks_named(said) == ranks
