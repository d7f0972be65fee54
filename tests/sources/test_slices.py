"""The recipe for a source: one new folder below sources/, and it is captured, read, listed, bundled and examined."""

from __future__ import annotations

import importlib
import json
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hangscope
from hangscope import sources
from hangscope.bundle import shrink
from hangscope.cli.main import main
from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.doctor.examine import examine
from hangscope.sources import slices

SLICE = {
    "__init__.py": '"""What ibstat prints of this node\'s ports."""',
    "schema.py": 'FOLDER = "ibstat"\nKIND = "counters"\nFIRST_LINE = b"# ibstat of a node"\n',
    "settings.py": (
        "from hangscope.sources.checks import Checked\n"
        "def check(examined):\n"
        '    yield Checked("ibstat", False, "ibstat is not there", "no states of ports", "install it")\n'
    ),
    "capture.py": (
        "from hangscope.sources.ibstat.schema import FIRST_LINE, FOLDER\n"
        'WHAT = "ibstat"\n'
        "def save(node, sample):\n"
        '    node.write(f"{FOLDER}/ports.txt", FIRST_LINE + b"\\nmlx5_0 port 1: Down\\n")\n'
    ),
    "read.py": (
        "from hangscope.model import Failure, FailureKind, Source\n"
        "from hangscope.sources.ibstat.schema import FIRST_LINE\n"
        "from hangscope.sources.report import SourceReport\n"
        "def recognise(head):\n"
        "    return head.startswith(FIRST_LINE)\n"
        "def read(data, file):\n"
        "    line = data.decode().splitlines()[1]\n"
        '    source = Source(file, "line 2")\n'
        "    return SourceReport(failures=(Failure(FailureKind.PORT_ERRORS, line, source, None, None, detail=line),))\n"
    ),
}


@pytest.fixture
def ibstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of a new source, as its author would add it."""
    folder = tmp_path / "slices" / "ibstat"
    folder.mkdir(parents=True)
    for name, text in SLICE.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(folder.parent)])
    slices.found.cache_clear()
    yield
    monkeypatch.undo()
    slices.found.cache_clear()
    for name in [name for name in sys.modules if name.startswith("hangscope.sources.ibstat")]:
        del sys.modules[name]


@pytest.mark.usefixtures("ibstat")
def test_a_source_is_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No other file has to know of it: a capture saves it, node.json lists it, `load` reads it, a bundle has it."""
    incident = tmp_path / "incident"
    node_dir = NodeDir(incident, incident / "nodes" / "n1")
    node = NodeFacts("n1", "j", "0", time.time())
    NodeCapture(node_dir, node, (), "stall", "", threading.Event()).take()
    listed = json.loads((incident / "nodes/n1/node.json").read_text())
    assert listed["sources"]["ibstat"] == ["ibstat/ports.txt"]
    assert {"kernel_log", "nccl_ras", "net_counters"} <= set(listed["sources"])
    failures = hangscope.load(incident).facts.failures
    assert [failure.detail for failure in failures] == ["mlx5_0 port 1: Down"]
    assert main(["bundle", str(incident), "-o", str(tmp_path / "b.tar.gz"), "--no-verdict"]) == 0
    with tarfile.open(tmp_path / "b.tar.gz") as packed:
        names = packed.getnames()
    assert any(name.endswith("nodes/n1/ibstat/ports.txt") for name in names)
    assert shrink.item("nodes/n1/ibstat/ports.txt", 9).kind == "counters"
    capsys.readouterr()


@pytest.mark.usefixtures("ibstat")
def test_doctor_asks_every_source() -> None:
    """What a source's `check` finds is a finding of doctor's."""
    assert "ibstat" in {finding.id for finding in examine(environ={}, torch=None).findings}


def test_the_slices_that_there_are_keep_to_the_shape() -> None:
    """Who captures says what a gap of it is called; who has a folder of an incident says which."""
    assert {slices.name_of(each) for each in slices.found("capture", "save")} >= {
        "kernel_log",
        "nccl_ras",
        "net_counters",
    }
    for capture in slices.found("capture", "save"):
        assert capture.WHAT
        assert importlib.import_module(capture.__name__.replace(".capture", ".schema")).FOLDER
