"""Several jobs in one folder are found apart and never mixed; one job in many folders stays one."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope import SeveralJobsError
from hangscope.cli.main import main
from hangscope.simulate import Spec, simulate

TESTS = Path(__file__).parents[2]
CASES = TESTS / "cases"
NODES = ("node-a", "node-b", "node-c", "node-d")


def side_by_side(folder: Path, cases: Sequence[Path]) -> Path:
    for case in cases:
        shutil.copytree(case, folder / case.name)
    return folder


def found_in(path: Path) -> list[str]:
    with pytest.raises(SeveralJobsError) as raised:
        hangscope.load(path)
    return sorted(job.name for job in raised.value.jobs)


@pytest.mark.parametrize(
    "names",
    [
        ("mesh_absent", "sigkill", "log_only"),
        ("deadlock3", "healthy8_mesh", "straggler"),
        ("link_stall8", "gather_link", "pair_absent"),
    ],
)
def test_three_cases_side_by_side_are_three_jobs(names: tuple[str, ...], tmp_path: Path) -> None:
    """They are listed, none is diagnosed unasked, and each one by its name gives the verdict that it gives alone."""
    parent = side_by_side(tmp_path, [CASES / name for name in names])
    assert found_in(parent) == sorted(names)
    for name in names:
        alone, chosen = hangscope.diagnose(CASES / name), hangscope.diagnose(parent, job_name=name)
        assert (chosen.headline, chosen.confidence) == (alone.headline, alone.confidence)
        assert set(chosen.job.nodes.values()) == set(alone.job.nodes.values())


def test_logs_alone_are_told_apart_too(tmp_path: Path) -> None:
    """By what each rank reports, where there is neither dump nor roster."""
    for name in ("mesh_absent", "sigkill8"):
        for log in (CASES / name).rglob("rank_*.log"):
            target = tmp_path / name / log.parent.name / log.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, target)
    assert found_in(tmp_path) == ["mesh_absent", "sigkill8"]


def test_incidents_of_several_jobs_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """Their manifests say whose they are, and `--job` takes that name."""
    parent = side_by_side(tmp_path, [TESTS / "incidents" / name for name in ("kill", "sleep", "stop")])
    names = {path.parent.name: json.loads(path.read_text())["job"] for path in parent.glob("*/incident.json")}
    assert found_in(parent) == sorted(names.values())
    for folder, name in names.items():
        chosen = hangscope.diagnose(parent, job_name=name)
        assert chosen.headline == hangscope.diagnose(TESTS / "incidents" / folder).headline


def test_an_incident_beside_a_folder_of_dumps_is_another_job(tmp_path: Path) -> None:
    """Where one has a manifest and the other has none."""
    parent = side_by_side(tmp_path, [TESTS / "incidents" / "kill", CASES / "mesh_absent"])
    assert len(found_in(parent)) == 2
    assert (
        hangscope.diagnose(parent, job_name="mesh_absent").headline
        == hangscope.diagnose(CASES / "mesh_absent").headline
    )


def test_incidents_of_two_jobs_and_a_folder_without_one_are_three(tmp_path: Path) -> None:
    """What lies beside incidents is a job of its own too, and can be chosen."""
    places = [TESTS / "incidents" / "sleep", TESTS / "incidents" / "stop", CASES / "mesh_absent"]
    parent = side_by_side(tmp_path, places)
    assert len(found_in(parent)) == 3
    chosen = hangscope.diagnose(parent, job_name="mesh_absent")
    assert chosen.headline == hangscope.diagnose(CASES / "mesh_absent").headline


def test_jobs_in_an_archive_are_told_apart(tmp_path: Path) -> None:
    """As in the folder that was packed."""
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        for name in ("mesh_absent", "sigkill"):
            archive.add(CASES / name, f"all/{name}")
    assert found_in(tmp_path / "all.tar.gz") == ["mesh_absent", "sigkill"]
    chosen = hangscope.diagnose(tmp_path / "all.tar.gz", job_name="sigkill")
    assert chosen.headline == hangscope.diagnose(CASES / "sigkill").headline


def test_jobs_at_different_depths_are_told_apart(tmp_path: Path) -> None:
    """Folders are put together from the innermost outwards: a job's nodes meet before its neighbours do."""
    for name, place in (("mesh_absent", "monday/a"), ("sigkill", "monday/b"), ("deadlock3", "tuesday")):
        shutil.copytree(CASES / name, tmp_path / place)
    assert found_in(tmp_path) == ["monday/a", "monday/b", "tuesday"]


def test_two_runs_of_the_same_program_are_attempts(tmp_path: Path) -> None:
    """The newest is read, all of it and nothing else, and a gap names the other."""
    spec = Spec(ranks=4, culprits=(1,), fault="absent", seed=3, entries=60)
    older, newer = tmp_path / "all" / "b", tmp_path / "all" / "a"
    simulate(spec).write(older)
    simulate(Spec(ranks=4, culprits=(2,), fault="absent", seed=4, entries=60)).write(newer)
    jobs = [job.name for job in _jobs_or_none(tmp_path / "all")]
    assert jobs in ([], ["a", "b"])  # never one verdict out of both
    if not jobs:
        found = hangscope.diagnose(tmp_path / "all")
        assert any(gap.what.startswith("an older attempt in") for gap in found.job.gaps)


def _jobs_or_none(path: Path) -> list[Any]:
    try:
        hangscope.load(path)
    except SeveralJobsError as error:
        return sorted(error.jobs, key=lambda job: job.name)
    return []


# ---- one job ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["dp=2,tp=4", "dp=4,pp=2", "dp=8"])
def test_a_job_whose_nodes_lie_in_folders_of_their_own_is_one(layout: str, tmp_path: Path) -> None:
    """Also where the folders have no common name, and logs lie apart from dumps."""
    sizes: dict[str, Any] = {part.split("=")[0]: int(part.split("=")[1]) for part in layout.split(",")}
    spec = Spec(ranks=8, culprits=(5,), fault="absent", seed=7, gpus_per_node=2, **sizes)
    simulate(spec).write(tmp_path / "whole")
    apart = tmp_path / "apart"
    for number, file in enumerate(sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file())):
        digits = "".join(c for c in file.name if c.isdigit())
        node = NODES[int(digits or number) % 4]
        kind = "dumps" if "trace" in file.name else "logs"
        target = apart / node / kind / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    assert [culprit.rank for culprit in hangscope.diagnose(apart).culprits] == [5]


@pytest.mark.parametrize("name", ["mesh_absent", "link_stall8", "sigkill8", "ddp_shift"])
def test_nodes_given_one_by_one_are_one_job(name: str) -> None:
    """Several paths of one job on the command line."""
    paths = sorted(path for path in (CASES / name).iterdir() if path.name != "truth.json")
    assert hangscope.diagnose(paths).headline == hangscope.diagnose(CASES / name).headline


def test_a_copy_is_not_another_job(tmp_path: Path) -> None:
    """The same recordings twice are the same processes."""
    for name in ("first", "again"):
        shutil.copytree(CASES / "mesh_absent", tmp_path / name)
    assert hangscope.diagnose(tmp_path).headline == hangscope.diagnose(CASES / "mesh_absent").headline


def test_one_dump_that_an_earlier_run_left_makes_no_second_job(tmp_path: Path) -> None:
    """A few files of another run in a node's folder are stale, and no job of their own."""
    shutil.copytree(CASES / "sigkill8", tmp_path / "job")
    old = next((CASES / "straggler8").rglob("nccl_trace_rank_0"))
    node = next(path.parent for path in (tmp_path / "job").rglob("nccl_trace_rank_*") if "rank_0" not in path.name)
    left = node / "old" / "nccl_trace_rank_0"
    left.parent.mkdir()
    shutil.copy(old, left)
    assert len(hangscope.load(tmp_path).groups) == len(hangscope.load(CASES / "sigkill8").groups)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_command_lists_the_jobs_and_takes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each with status 2; `diagnose`, `report`, `show` and `bundle` take `--job`."""
    parent = side_by_side(tmp_path / "all", [CASES / name for name in ("mesh_absent", "sigkill")])
    for verb in ("diagnose", "show"):
        assert main([verb, str(parent)]) == 2
        said = capsys.readouterr().err
        assert "evidence of 2 jobs" in said and "--job NAME" in said
        assert "\n  sigkill      4 ranks; gpu-worker-6, gpu-worker-7; until 2026-11-15" in said
    assert main(["diagnose", str(parent), "--job", "sigkill"]) == 1
    assert "SIGKILL" in capsys.readouterr().out.splitlines()[0]
    assert main(["show", str(parent), "--job", "mesh_absent", "--rank", "7", "--last", "1"]) == 0
    assert main(["report", str(parent), "--job", "sigkill", "-o", str(tmp_path / "x.md")]) == 1
    assert main(["bundle", str(parent), "-o", str(tmp_path / "a.tar.gz")]) == 2
    assert main(["bundle", str(parent), "--job", "sigkill", "-o", str(tmp_path / "b.tar.gz")]) == 0
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "gpu-worker-12" in name]
    assert main(["diagnose", str(parent), "--job", "nonsense"]) == 2
    assert "there is no job 'nonsense' among" in capsys.readouterr().err
