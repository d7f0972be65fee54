"""Black boxes as files: hostile ones, cut ones, whose they are, how they are captured, redacted and switched on."""

from __future__ import annotations

import io
import random
import struct
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hangscope
from hangscope.bundle.aliases import Aliases
from hangscope.bundle.redact.redact_file import Redactor
from hangscope.diagnosis.waits import proxy_waits
from hangscope.errors import DamagedError
from hangscope.incident.node_dir import NodeDir
from hangscope.model import Source
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.doctor.examine import examine
from hangscope.recorder.setup import blackbox_library as library
from hangscope.recorder.setup.settings import SettingsPlan, plan, prepare
from hangscope.recorder.setup.torch_version import TorchInstall
from hangscope.sources.black_box import read as blackbox_file
from hangscope.sources.black_box import schema as blackbox_layout
from hangscope.sources.black_box.capture import copy_of, save
from hangscope.sources.black_box.schema import VARIABLE
from hangscope.sources.saving import Saving

HERE = Source("box")
TABLES = [(1024, 768, 4), (4096, 192, 8), (5632, 64, 4), (5888, 384, 4), (7424, 32, 8)]
SIZE = 7680


def put(data: bytearray, at: int, form: str, *values: int | bytes) -> None:
    struct.pack_into("<" + form, data, at, *values)


def made(*, rank: int = 3, pid: int = 77, host: bytes = b"gpu-a017", state: int = 9, start: int = 10**18) -> bytearray:
    """A small file by hand, after docs/blackbox.md: one communicator, one operation, one send in one step."""
    data = bytearray(SIZE)
    put(data, 0, "8sIIQ", b"\xffHSNCCLB", 1, 576, SIZE)
    put(data, 24, "IiiiIIQQ", pid, rank, 0, 8, 22809, 5, start, 1000)
    put(data, 64, "64s", host)
    for number, (offset, size, slots) in enumerate(TABLES):
        put(data, 128 + 16 * number, "IIII", offset, size, slots, 0)
    put(data, 256, "QQQ", 2000, start + 1000, 2)
    put(data, 320, "Q", 1)
    put(data, 1024, "IIQQiiiIQQQQ56s", 2, 1, 40, 0xBEEF, 3, 8, 8, 0, 1500, 0, 1, 0, b"pp")
    put(data, 1024 + 128, "16sQQQ", b"AllReduce", 7, 41, 1600)
    put(data, 4096, "IIQQQQQiBBHQQ16s16s16s16sII", 2, 2, 41, 50, 40, 7, 4096, 0, 2, 16, 0, 1600, 1601,
        b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE", 1, 0)  # fmt: skip
    put(data, 5632, "IIQiiHHiQQQQ", 2, 1, 40, 4, 3, 0, 1, pid, 5, 4, 60, 1700)
    put(data, 5888, "IIQQQQQiiihhiiiiIiq16sQQ", 2, 1, 60, 41, 50, 40, 7, pid, 3, 4, 0, 1, 16, 4096, 3, 2, 19, 0, 4,
        b"AllReduce", 1650, 1700)  # fmt: skip
    for slot in range(8):
        put(data, 5888 + 128 + 32 * slot, "iIQQQ", -1, 0, 0, 0, 0)
    put(data, 5888 + 128 + 32 * 2, "iIQQQ", 2, state, 4096, 1690, 1700)
    put(data, 7424, "QQIHHIi", 1, 1700, 16, 3, state, 0, 2)
    return data


def test_the_layout_is_what_the_page_says() -> None:
    """A file put together from the documented offsets alone is read as it was meant."""
    box, gaps = blackbox_file.read_box(bytes(made()), HERE)
    assert not gaps and box.torn == box.dropped == 0
    assert (box.host, box.pid, box.rank, box.nccl_version) == ("gpu-a017", 77, 3, "2.28.9")
    (comm,), (op,), (link,), (transfer,) = box.comms, box.ops, box.links, box.transfers
    assert (comm.hash, comm.rank, comm.size, comm.name) == ("0xbeef", 3, 8, "pp")
    assert comm.last == {"AllReduce": (7, 10**18 + 600)}
    assert (op.func, op.seq, op.algorithm, op.proxies, op.proxies_done) == ("AllReduce", 7, "RING", 1, 0)
    assert (link.peer, link.sends, link.ops, link.ops_done) == (4, True, 5, 4)
    assert (transfer.peer, transfer.sends, transfer.ordinal, transfer.in_progress) == (4, True, 4, True)
    assert [(s.step, s.state, s.bytes, s.changed_ns) for s in transfer.live] == [(2, "SendWait", 4096, 10**18 + 700)]
    assert box.last_event_ns == 10**18 + 700


def test_the_shared_layout_is_the_readers() -> None:
    """What the recorder writes into a copy and redaction exchanges in it lies where the reader finds it."""
    header = blackbox_file._HEADER.fields
    assert header is not None
    places = {name: header[name][1] for name in ("version", "host", "tables", "copied")}
    assert places == {
        "version": blackbox_layout.VERSION_AT,
        "host": blackbox_layout.HOST_AT,
        "tables": blackbox_layout.TABLES_AT,
        "copied": blackbox_layout.COPIED_AT,
    }
    assert header["host"][0].itemsize == blackbox_layout.HOST_BYTES
    assert len(blackbox_file._TABLES) == blackbox_layout.TABLES
    comm = blackbox_file._COMM
    assert comm.itemsize == blackbox_layout.COMM_BYTES
    assert comm.fields is not None
    assert comm.fields["name"][1] == blackbox_layout.COMM_NAME_AT
    assert comm.fields["name"][0].itemsize == blackbox_layout.COMM_NAME_BYTES


def test_a_torn_slot_is_passed_over_and_counted() -> None:
    """A slot whose lock is odd, or differs in a second copy, says nothing; the others still do."""
    data = made()
    put(data, 5888, "I", 3)
    box, _ = blackbox_file.read_box(bytes(data), HERE)
    assert not box.transfers and box.torn == 1 and box.ops
    later = made()
    put(later, 4096, "I", 4)
    box, _ = blackbox_file.read_box(bytes(made()), HERE, bytes(later))
    assert not box.ops and box.torn == 1 and box.transfers


@pytest.mark.parametrize("cut", [0, 7, 100, 575, 576, 1024, 2000, 5900, 7424, SIZE - 1])
def test_a_cut_file_gives_what_is_whole(cut: int) -> None:
    """Every length gives the whole slots and a gap, or a clear error where not even the header is there."""
    data = bytes(made())[:cut]
    if cut < 576:
        with pytest.raises(DamagedError, match="header"):
            blackbox_file.read_box(data, HERE)
        return
    box, gaps = blackbox_file.read_box(data, HERE)
    assert box.rank == 3 and gaps
    assert all("ends before" in gap.why for gap in gaps)


def test_another_layout_is_refused_by_name() -> None:
    """A file of a later version is not guessed at."""
    data = made()
    put(data, 8, "I", 9)
    with pytest.raises(DamagedError, match="layout 9"):
        blackbox_file.read_box(bytes(data), HERE)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(8, SIZE - 1), st.integers(0, 255)), max_size=60), st.integers(0, SIZE))
def test_hostile_files_are_harmless(changes: list[tuple[int, int]], cut: int) -> None:
    """Any bytes anywhere behind the magic are read or refused with a reason, and judged without an exception."""
    data = made()
    for at, value in changes:
        data[at] = value
    try:
        box, _ = blackbox_file.read_box(bytes(data[: max(cut, 8)]), HERE)
    except DamagedError as error:
        assert str(error)
        return
    other, _ = blackbox_file.read_box(bytes(made(rank=4, pid=78, host=b"gpu-a018")), HERE)
    assert isinstance(proxy_waits.root([box, other]), proxy_waits.Root)


def test_random_bytes_are_harmless() -> None:
    """Whole files of noise behind a good header, too."""
    rng = random.Random(1)
    for _ in range(100):
        data = made()
        data[1024:] = rng.randbytes(SIZE - 1024)
        box, _ = blackbox_file.read_box(bytes(data), HERE)
        assert isinstance(proxy_waits.root([box]), proxy_waits.Root)


# ---- whose it is -----------------------------------------------------------------------------------------------------


def test_a_folder_of_black_boxes_is_a_job(tmp_path: Path) -> None:
    """Files are recognised by content under any name, and joined to ranks by what they say themselves."""
    for rank in range(3):
        (tmp_path / f"x{rank}").write_bytes(made(rank=rank, pid=70 + rank, host=b"gpu-a%d" % rank))
    (tmp_path / "old").write_bytes(made(rank=1, pid=5, host=b"gpu-a1", start=10**17))
    job = hangscope.load(tmp_path)
    assert [box.rank for box in job.facts.blackboxes] == [0, 1, 2]
    assert [box.pid for box in job.facts.blackboxes] == [70, 71, 72]
    assert job.nodes == {0: "gpu-a0", 1: "gpu-a1", 2: "gpu-a2"}
    assert any("newer" in gap.why for gap in job.gaps)


def test_a_rank_is_found_by_host_and_pid(tmp_path: Path) -> None:
    """Where the environment had no RANK, a roster with the same host and pid tells whose box it is."""
    (tmp_path / "box").write_bytes(made(rank=-1, pid=77))
    (tmp_path / "roster.json").write_text('[{"rank": 6, "host": "gpu-a017", "pid": 77, "exit": null}]')
    assert [box.rank for box in hangscope.load(tmp_path).facts.blackboxes] == [6]


def test_a_damaged_box_is_a_gap(tmp_path: Path) -> None:
    """A box that cannot be read is told, and does not keep the others from being read."""
    (tmp_path / "a").write_bytes(made())
    (tmp_path / "b").write_bytes(bytes(made())[:200])
    job = hangscope.load(tmp_path)
    assert len(job.facts.blackboxes) == 1
    assert any(gap.what.endswith("/b") and "header" in gap.why for gap in job.gaps)


# ---- capture and redaction -------------------------------------------------------------------------------------------


def test_the_capture_stamps_its_copy(tmp_path: Path) -> None:
    """A copy carries the time at which it was taken, and is otherwise the file."""
    path = tmp_path / "gpu-a017.77.ncclbb"
    path.write_bytes(made())
    copied = copy_of(path)
    assert copied is not None
    box, _ = blackbox_file.read_box(copied, HERE)
    assert box.read_ns is not None and box.transfers
    assert copied[:208] == bytes(made())[:208] and copied[216:] == bytes(made())[216:]


def saving(node_dir: NodeDir, boxes: Path, *, pids: set[int], earlier: set[int] | None = None) -> Saving:
    return Saving(
        settings={},
        handlers=frozenset(),
        started_at=0.0,
        ended=threading.Event(),
        write=node_dir.write,
        gap=partial(node_dir.gap, "black boxes"),
        gap_of=node_dir.gap,
        pids=frozenset(pids),
        earlier=frozenset(earlier or ()),
        made={VARIABLE: str(boxes)},
    )


def test_only_the_ranks_own_boxes_are_saved(tmp_path: Path) -> None:
    """Boxes of the ranks' processes are saved; those of an earlier start beside them are not."""
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    for pid in (70, 71, 5):
        (boxes / f"gpu-a017.{pid}.ncclbb").write_bytes(made(pid=pid))
    (boxes / "gpu-a017.72.ncclbb").write_bytes(b"not one")
    node_dir = NodeDir(tmp_path / "incident", tmp_path / "incident" / "nodes" / "gpu-a017")
    save(saving(node_dir, boxes, pids={70, 71, 72}), 1)
    assert sorted(p.name for p in (node_dir.directory / "blackbox").iterdir()) == [
        "gpu-a017.70.ncclbb",
        "gpu-a017.71.ncclbb",
    ]
    assert [gap["what"] for gap in node_dir.gaps] == ["black box gpu-a017.72.ncclbb"]
    # No process of the new attempt has made one yet.
    again = NodeDir(tmp_path / "again", tmp_path / "again" / "nodes" / "gpu-a017")
    save(saving(again, boxes, pids={90, 91}, earlier={70, 71, 72, 5}), 1)
    assert not (again.directory / "blackbox").exists()
    save(saving(again, boxes, pids={90, 91}, earlier={70, 71, 72}), 1)
    assert [p.name for p in (again.directory / "blackbox").iterdir()] == ["gpu-a017.5.ncclbb"]


def test_a_capture_has_the_boxes_of_ranks_that_are_gone(tmp_path: Path) -> None:
    """A capture in which no rank lives any more still saves what they left."""
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    (boxes / "gpu-a017.77.ncclbb").write_bytes(made())
    node_dir = NodeDir(tmp_path / "incident", tmp_path / "incident" / "nodes" / "gpu-a017")
    node = NodeFacts("gpu-a017", "job", "0", time.time(), boxes=boxes)
    NodeCapture(node_dir, node, (), "rank-exit", "", threading.Event()).take()
    job = hangscope.load(tmp_path / "incident")
    assert [(box.rank, box.pid, box.read_ns is not None) for box in job.facts.blackboxes] == [(3, 77, True)]


def test_a_redacted_box_names_nobody(tmp_path: Path) -> None:
    """Aliases replace the host's and the communicators' names within their fields; every number stays."""
    out = io.BytesIO()
    Redactor(aliases=Aliases(["gpu-a017"])).file(io.BytesIO(bytes(made())), out)
    assert len(out.getvalue()) == SIZE
    before, after = blackbox_file.read_box(bytes(made()), HERE)[0], blackbox_file.read_box(out.getvalue(), HERE)[0]
    assert b"gpu-a017" not in out.getvalue() and after.host not in ("", "gpu-a017")
    assert after.transfers == before.transfers and after.ops == before.ops


# ---- switching it on -------------------------------------------------------------------------------------------------


def planned(torch: str | None = "2.11.0", environ: dict[str, str] | None = None, **more: object) -> SettingsPlan:
    plugin = Path("/lib/libhangscope_blackbox.so")
    options: dict[str, object] = {"plugin": plugin, "directory": Path("/shared"), **more}
    return plan(
        torch_version=torch, backend="nccl", job="j", attempt="0", host="h",
        environ=environ or {}, **options,
    )  # type: ignore[arg-type]  # fmt: skip


def test_the_plugin_is_set_where_nccl_takes_it() -> None:
    """torch 2.7 and later gets the plugin and a folder for its files; an older one, or one without library, neither."""
    made_ = planned().variables
    assert made_[library.PLUGIN] == "/lib/libhangscope_blackbox.so"
    assert made_[library.FOLDER].endswith("/j.0/h/")
    assert library.PLUGIN in planned(None).variables
    for other in (planned("2.6.0"), planned(plugin=None)):
        assert not {library.PLUGIN, library.FOLDER} & other.variables.keys()


def test_start_events_are_on_only_where_somebody_wants_them() -> None:
    """They cost 23 µs an operation; nothing warns of their absence, and a choice of the user's stays."""
    for made_ in (planned(), planned(plugin=None), planned(None), planned("2.6.0")):
        assert "TORCH_NCCL_ENABLE_TIMING" not in made_.variables
        assert not [problem for problem in made_.warnings if "TIMING" in problem.variable]
    assert planned(timing=True).variables["TORCH_NCCL_ENABLE_TIMING"] == "1"
    for value in ("0", "1"):
        mine = planned(timing=True, environ={"TORCH_NCCL_ENABLE_TIMING": value})
        assert "TORCH_NCCL_ENABLE_TIMING" not in mine.variables
        assert mine.kept["TORCH_NCCL_ENABLE_TIMING"] == value


def test_another_profiler_plugin_that_shall_stay_alone_does(tmp_path: Path) -> None:
    """No plugin at all, or theirs and no other: neither is touched."""
    for environ in ({library.PLUGIN: "none"}, {library.PLUGIN: "/opt/theirs.so", library.NEXT: "none"}):
        made_ = planned(environ=environ)
        assert not {library.PLUGIN, library.FOLDER} & made_.variables.keys()


def test_a_folder_that_cannot_be_made_takes_the_plugin_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place for its files the plugin is not loaded, and a warning says why."""
    monkeypatch.setattr(library, "home", lambda environ: tmp_path / "file" / "below")
    (tmp_path / "file").touch()
    made_ = prepare(planned(directory=tmp_path))
    assert not {library.PLUGIN, library.FOLDER} & made_.variables.keys()
    assert any(problem.variable == library.FOLDER for problem in made_.warnings)


@pytest.mark.parametrize(
    ("environ", "torch", "nccl", "word"),
    [
        ({library.PLUGIN: "/opt/theirs.so", library.NEXT: "none"}, "2.11.0", "2.28.9", "/opt/theirs.so"),
        ({}, "2.6.0", "2.21.5", "2.26"),
        ({}, "2.11.0", "2.21.5", "2.26"),
        ({}, "2.11.0", "2.28.9", "compiler"),
    ],
)
def test_the_doctor_says_why_it_is_not_there(
    environ: dict[str, str], torch: str, nccl: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plugin, an old NCCL, or no compiler at installation: each is said, with what it costs."""
    monkeypatch.setattr(library, "library", lambda: None)
    found = examine(environ=environ, torch=TorchInstall(torch, Path("/t"), cuda="12.8", nccl=nccl))
    (finding,) = (finding for finding in found.findings if finding.id == "blackbox")
    assert word in finding.why and finding.severity == "note"


def test_the_doctor_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was built and nothing is in its way, that is said too."""
    monkeypatch.setattr(library, "library", lambda: Path("/lib/libhangscope_blackbox.so"))
    found = examine(environ={}, torch=TorchInstall("2.11.0", Path("/t"), cuda="12.8", nccl="2.28.9"))
    (finding,) = (finding for finding in found.findings if finding.id == "blackbox")
    assert finding.severity == "ok" and "set it" in finding.why
