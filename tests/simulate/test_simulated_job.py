"""A spec in, files out: any fault, the same bytes again, and mistakes with their cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hangscope.cli.verbs.simulate import command
from hangscope.errors import SettingsError
from hangscope.simulate import Spec, random_spec, simulate
from hangscope.simulate.spec.job_spec import FAULTS
from kits.simulated_dumps import SMALL


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_variant_of_every_fault_can_be_simulated(fault: str) -> None:
    """A layout with all kinds of groups has a place for every variant, and the truth names it."""
    for variant in FAULTS[fault]:
        spec = Spec(ranks=32, tp=2, pp=4, ep=2, fault=fault, variant=variant, seed=5, entries=400)
        job = simulate(spec)
        assert (job.truth["kind"], job.truth["variant"]) == (fault, variant)
        hangs = fault not in ("none", "slow", "shift")
        assert job.truth["hang"] is hangs or variant in ("name", "size", "dtype", "root")
        assert bool(job.truth["culprits"]) is (fault not in ("none", "network")) or job.truth["link"]


def test_the_same_seed_gives_the_same_bytes() -> None:
    """A job is a function of its spec, including its evidence; another seed is another job."""
    spec = random_spec(11)
    assert dict(simulate(spec).files()) == dict(simulate(spec).files())
    assert random_spec(11) == spec
    assert random_spec(12) != spec
    files = [dict(simulate(Spec(**SMALL, fault="absent", seed=seed)).files()) for seed in (1, 2)]  # type: ignore[arg-type]
    assert files[0] != files[1]


def test_no_evidence_means_dumps_and_truth_alone() -> None:
    """Without evidence there is nothing but what PyTorch itself writes."""
    names = [name for name, _ in simulate(Spec(ranks=8, fault="dead", evidence=False, entries=60)).files()]
    assert all(name == "truth.json" or "trace_rank_" in name for name in names)
    assert len(names) == 8


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ranks": 16, "tp": 3}, "do not make 16 ranks"),
        ({"ranks": 16, "dp": 3, "tp": 4}, "do not make 16 ranks"),
        ({"ranks": 8, "ep": 3}, "ep=3 does not divide dp=8"),
        ({"fault": "flood"}, "fault 'flood' is not known"),
        ({"fault": "mismatch", "variant": "loader"}, "variant of mismatch 'loader' is not known"),
        ({"culprits": (9,)}, "there is no rank 9"),
        ({"torch": "2.4", "form": "json"}, "torch 2.4 has no JSON form"),
        ({"torch": "2.7", "backend": "gloo"}, "Gloo records nothing in torch 2.7"),
        ({"ranks": 1}, "ranks=1 is too small"),
    ],
)
def test_impossible_jobs_are_refused_with_a_cure(wrong: dict[str, Any], words: str) -> None:
    """A spec that cannot be is refused when it is made, with a hint."""
    with pytest.raises(SettingsError, match=words) as raised:
        Spec(**wrong)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("fault", "variant", "layout"),
    [("mismatch", "split", {"ep": 1}), ("deadlock", "cycle", {"tp": 4}), ("deadlock", "cycle", {"tp": 1})],
)
def test_a_fault_without_a_place_is_refused(fault: str, variant: str, layout: dict[str, Any]) -> None:
    """A wrong split needs an all_to_all, a cycle a square of ranks: without one the error says what to change."""
    with pytest.raises(SettingsError, match=f"found no place for {fault} {variant}") as raised:
        simulate(Spec(ranks=4, fault=fault, variant=variant, entries=50, **layout))
    assert raised.value.hint


def test_the_command_writes_a_directory_and_says_the_truth(tmp_path: Path) -> None:
    """`simulate -o DIR` writes dumps, evidence and truth; the answer is on stdout."""
    target = tmp_path / "job"
    arguments = ["-o", str(target), "--ranks", "16", "--layout", "tp=4,pp=2", "--fault", "absent", "--culprit", "5"]
    result = CliRunner().invoke(command, [*arguments, "--torch", "2.5", "--entries", "80"])
    assert result.exit_code == 0, result.output
    assert "rank 5" in result.stdout
    truth = json.loads((target / "truth.json").read_text())
    assert truth["culprits"] == [5]
    assert len(list(target.glob("*/nccl_trace_rank_*"))) == 16
    again = CliRunner().invoke(command, arguments)
    assert isinstance(again.exception, SettingsError)


def test_the_commands_help_has_an_example_that_runs(tmp_path: Path) -> None:
    """The example in --help is a command line that works."""
    text = CliRunner().invoke(command, ["--help"]).output
    example = " ".join(text[text.index("Example:") :].split()).partition("hangscope simulate ")[2]
    arguments = example.replace("/tmp/job", str(tmp_path / "job")).split()
    assert CliRunner().invoke(command, arguments).exit_code == 0
