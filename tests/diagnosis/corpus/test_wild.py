"""Evidence from the wild: folders that mislead, with the truth that an expert would state.

Nothing here was taken from a verdict. A folder's file is written, read and diagnosed as a user's would be.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import hangscope
from frozen import made, names, verdict
from hangscope.cli.main import main
from hangscope.errors import HangscopeError
from hangscope.simulate import Spec, simulate
from kits.older_dumps import older
from kits.verdict_words import sentences, slips
from kits.wild import folders

RANKING = ("low", "medium", "high")


def test_there_are_many_of_them() -> None:
    """No folder was lost on the way."""
    assert len(folders()) > 150


@pytest.mark.parametrize("name", names("wild"))
def test_the_verdict_is_what_an_expert_would_say(name: str) -> None:
    """Who, what and how sure are within what the evidence allows, in words that it bears out."""
    _is_right(name, verdict("wild", name).verdict)


def _is_right(name: str, verdict: hangscope.Diagnosis | HangscopeError) -> None:
    folder = folders()[name]
    if isinstance(verdict, HangscopeError):
        assert verdict.exit_status in folder.exits, verdict
        return
    accused = tuple(culprit.rank for culprit in verdict.culprits)
    line = f"{verdict.kind} {list(accused)} ({verdict.confidence}): {verdict.headline}"
    assert accused in folder.culprits, line
    assert verdict.kind in folder.kinds, line
    assert RANKING.index(verdict.confidence) <= RANKING.index(folder.at_most), line
    spoken = list(sentences(verdict))
    for pattern in folder.never:
        assert not [text for text in spoken if re.search(pattern, text)], line
    everything = "\n".join([*spoken, *(f.text for f in verdict.evidence), *(d for f in verdict.why for d in f.detail)])
    for pattern in folder.says:
        assert re.search(pattern, everything), f"{pattern} is nowhere: {line}"
    assert not {ruled.kind for ruled in verdict.ruled_out} & set(folder.not_ruled_out), verdict.ruled_out
    if folder.first_step:
        assert re.search(folder.first_step, verdict.next_steps[0], re.I), verdict.next_steps
    assert set(folder.gap_of) <= {gap.rank for gap in verdict.gaps}, verdict.gaps
    if folder.operation is not None:
        assert verdict.operation is not None
        assert verdict.operation.group == folder.operation
    assert not slips(verdict)
    assert verdict.exit_status in folder.exits, line
    assert verdict.outcome in folder.outcomes, line


@pytest.mark.parametrize("name", ["excerpt-all_reduce-out.log", "old-dump-beside-absent-63s-300-done", "running-4"])
def test_the_json_says_how_it_came_out(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command's JSON has the outcome and what else is possible, and its exit status is the verdict's."""
    folder = folders()[name]
    status = main(["diagnose", "--json", str(made("wild", name, tmp_path)[0])])
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] in folder.outcomes
    assert isinstance(said["also_possible"], list)
    assert status in folder.exits


def test_nothing_recognised_is_exit_2_and_says_what_was_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without any evidence is unusable input, not a healthy job."""
    (tmp_path / "data.bin2").write_bytes(b"\x01\x02\x03" * 100)
    assert main(["diagnose", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "dump" in said.err


def test_text_in_which_nothing_is_known_is_not_determined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is no unusable input: the verdict says what was looked for, and never that all is well."""
    (tmp_path / "notes.txt").write_text("meet at three\n")
    assert main(["diagnose", "--json", str(tmp_path)]) == 3
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["outcome"] == "unknown"
    assert not verdict["culprits"]
    assert verdict["why"]


@pytest.mark.parametrize("torch", ["2.3", "2.5", "2.7", "2.8", "2.11", "2.15"])
@pytest.mark.parametrize("seed", [901, 902, 903])
def test_a_missing_dump_accuses_nobody_against_evidence_on_another(torch: str, seed: int, tmp_path: Path) -> None:
    """Dumps alone of every version, one of an innocent rank missing: the rank that is seen to stay away is named."""
    job = simulate(Spec(ranks=8, fault="absent", variant="loader", torch=torch, entries=80, evidence=False, seed=seed))
    job.write(tmp_path)
    truth: dict[str, Any] = dict(job.truth)
    guilty = truth["culprits"]
    assert guilty
    innocent = next(rank for rank in job.dump_ranks if rank not in guilty)
    for path in tmp_path.rglob(f"*rank_{innocent}*"):
        path.unlink()
    verdict = hangscope.diagnose(hangscope.load([tmp_path]))
    assert [culprit.rank for culprit in verdict.culprits] == guilty, verdict.headline
    assert verdict.kind in ("absent", *truth.get("accept_kinds", ()))


@pytest.mark.parametrize("seed", [911, 912])
def test_old_dumps_of_a_node_do_not_outvote_the_rest(seed: int, tmp_path: Path) -> None:
    """Two of eight ranks have the dumps of an attempt an hour before, in which another rank was at fault."""
    now = simulate(Spec(ranks=8, fault="absent", culprits=(5,), entries=60, evidence=False, seed=seed))
    then = simulate(Spec(ranks=8, fault="absent", culprits=(2,), entries=60, evidence=False, seed=seed + 50))
    now.write(tmp_path)
    for rank in (0, 1):
        data = then.dump(rank)
        assert data is not None
        (path,) = (p for p in tmp_path.rglob(f"*rank_{rank}") if p.is_file())
        path.write_bytes(older(data, back_ns=3600 * 10**9))
    verdict = hangscope.diagnose(hangscope.load([tmp_path]))
    assert [culprit.rank for culprit in verdict.culprits] == [5], verdict.headline
