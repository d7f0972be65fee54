"""One walker and one list of what is skipped, for whoever reads, collects or bundles a tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangscope.bundle.pack import write_bundle
from hangscope.incident.collect import collect
from hangscope.incident.collect.directories import Directory
from hangscope.safeio import limits
from hangscope.safeio.evidence_names import is_evidence, is_read, is_walked
from hangscope.safeio.walk import counted, evidence_tree, survey

LOG = "gpu-a017:1:1 [0] NCCL INFO x\n"


def _put(path: Path, text: str = LOG) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


EVIDENCE = ("rank_0.log", "wandb/run-1/files/output.log", "job.o", "a/b/c/rank_1.log", "nccl_trace_rank_2")
NO_EVIDENCE = (
    *("train.py", "model.ckpt", "model.safetensors", "data.parquet", "torch.whl", "page.html", "rank_3.log.part"),
    *("venv/lib/x.txt", "node_modules/x.json", "__pycache__/x.log", ".git/logs/HEAD", ".config/x.log"),
    *("wandb/run-1/run-1.wandb", "picture.PNG"),
)


def test_what_is_no_evidence_is_skipped_by_all(tmp_path: Path) -> None:
    """Programs, models, data, pictures, hidden folders and half-written files are neither read nor collected nor
    bundled; everything that is read is collected and bundled too."""
    tree = tmp_path / "in"
    for name in (*EVIDENCE, *NO_EVIDENCE):
        _put(tree / name)
    read = {os.path.relpath(path, tree) for path, _ in evidence_tree(tree).files}
    collected = {name.removeprefix("files/in/") for name in collect(tmp_path / "out", [Directory(tree)]).manifest.files}
    bundled = set(write_bundle(tree, tmp_path / "b.tar.gz", redact=False).manifest.files)
    assert read == set(EVIDENCE)
    assert collected == set(EVIDENCE)
    assert bundled == set(EVIDENCE)


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_name_alone_decides(name: str) -> None:
    """What the walker takes, whoever has only a path takes as well."""
    *folders, last = name.split("/")
    assert is_evidence(name)
    assert is_read(last)
    assert all(is_walked(folder) for folder in folders)


def test_documents_are_bundled_and_not_read(tmp_path: Path) -> None:
    """A note may quote a log line without being evidence; support may want to read it."""
    _put(tmp_path / "in/notes.md")
    _put(tmp_path / "in/rank_0.log")
    assert [Path(path).name for path, _ in evidence_tree(tmp_path / "in").files] == ["rank_0.log"]
    made = write_bundle(tmp_path / "in", tmp_path / "b.tar.gz", redact=False)
    assert "notes.md" in made.manifest.files


def test_a_dump_below_the_cache_is_evidence_for_whoever_lists_it() -> None:
    """PyTorch leaves dumps in ~/.cache/torch: a node that lists one is asked for it."""
    assert is_evidence("/home/u/.cache/torch/comm_lib_trace_rank_0")
    assert not is_evidence("/home/u/.ssh/comm_lib_trace_rank_0")


def test_a_link_inside_is_read_under_its_own_name_and_bundled_once(tmp_path: Path) -> None:
    """The reader takes the file that a link of the same tree leads to, and takes it once; a survey has it once."""
    _put(tmp_path / "in/logs/x")
    (tmp_path / "in/rank_3.log").symlink_to("logs/x")
    (tmp_path / "in/again").symlink_to("logs")
    tree = evidence_tree(tmp_path / "in")
    real = str((tmp_path / "in/logs/x").resolve())
    assert sorted(tree.files) == [(str(tmp_path / "in/logs/x"), real), (str(tmp_path / "in/rank_3.log"), real)]
    assert [name for name, _ in survey(tmp_path / "in").files] == ["logs/x"]
    assert not survey(tmp_path / "in").skipped


def test_names_are_as_the_user_wrote_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative root gives relative paths, the working directory paths without a dot in front."""
    _put(tmp_path / "in/a/rank_0.log")
    monkeypatch.chdir(tmp_path)
    assert [path for path, _ in evidence_tree(Path("in")).files] == ["in/a/rank_0.log"]
    monkeypatch.chdir(tmp_path / "in")
    assert [path for path, _ in evidence_tree(Path(".")).files] == ["a/rank_0.log"]
    assert survey(Path(".")).files == (("a/rank_0.log", "a/rank_0.log"),)


def test_a_tree_of_too_many_files_is_cut_and_said(tmp_path: Path) -> None:
    """Beyond the limit nothing is listed, and both walks say so."""
    for number in range(20):
        _put(tmp_path / "in" / f"rank_{number}.log")
    seen = survey(tmp_path / "in", most=10)
    assert len(seen.files) == 10
    assert seen.skipped == (("…", "more than 10 files; the rest was not looked at"),)
    tree = evidence_tree(tmp_path / "in", most=10)
    assert (len(tree.files), tree.whole) == (10, False)


def test_a_tree_that_is_too_deep_is_cut_and_said(tmp_path: Path) -> None:
    """Below a hundred directories nothing is looked for, and the directory is named."""
    _put(tmp_path / ("d/" * limits.TREE_LEVELS) / "rank_0.log")
    _put(tmp_path / ("d/" * (limits.TREE_LEVELS + 1)) / "rank_1.log")
    seen = survey(tmp_path)
    assert [name.rpartition("/")[2] for name, _ in seen.files] == ["rank_0.log"]
    assert [why for _, why in seen.skipped] == ["the directory cannot be read: more than 100 levels down"]
    assert [why for _, why in evidence_tree(tmp_path).skipped] == [why for _, why in seen.skipped]


def test_half_written_files_are_listed_apart(tmp_path: Path) -> None:
    """Whoever tidies up finds what an interrupted write left; nobody takes it for a file."""
    _put(tmp_path / "rank_0.log")
    left = _put(tmp_path / "a/.rank_1.log.0123456789abcdef.part")
    seen = survey(tmp_path)
    assert seen.half_written == (str(left),)
    assert [name for name, _ in seen.files] == ["rank_0.log"]
    assert not seen.skipped


def test_of_many_skipped_things_the_rest_is_a_number() -> None:
    """A thousand things of one reason are named, the others counted."""
    said = counted([(f"x{number:05}", "a pipe, not a file") for number in range(limits.TREE_SKIPPED + 7)])
    assert len(said) == limits.TREE_SKIPPED + 1
    assert said[-1] == ("7 more", "a pipe, not a file")
