"""Whatever is exchanged for a link between a look and an opening, nothing outside is read, written or changed."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import hangscope
from hangscope.bundle.pack import write_bundle
from hangscope.cli.main import main
from hangscope.errors import HangscopeError
from hangscope.incident.collect.directories import Directory
from hangscope.incident.collect.gather import CollectOptions, collect
from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.launch import run_places
from hangscope.recorder.rundir import run_directory, tidy
from hangscope.recorder.rundir.job_identity import identify
from hangscope.safeio import beneath, held, safe_files
from hangscope.safeio.beneath import StrangeLink, by_steps, open_beneath, open_folder, open_named

SECRET = "TOP-SECRET-OF-ROOT"
LOG = "[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
_EXCHANGE = 2
_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine)


def exchange(one: Path, other: Path) -> None:
    """What has the one name gets the other, in one step."""
    done = _SYSCALL(_RENAMEAT2, -100, os.fsencode(one), -100, os.fsencode(other), _EXCHANGE)
    if done != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.fixture(params=["openat2", "by steps"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening: the kernel's own, and that of older kernels."""
    if request.param == "by steps":
        monkeypatch.setattr(beneath, "_openat2", lambda: None)
    elif beneath._openat2() is None:
        pytest.skip("this kernel has no openat2")
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An incident of somebody else's, and beside it what is not theirs."""
    root = tmp_path / "tree"
    for name in ("nodes/a/logs/rank_0.log", "nodes/a/logs/rank_1.log", "nodes/b/logs/rank_2.log", "top.log"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(LOG)
    outside = tmp_path / "outside"
    for name in ("logs/rank_0.log", "logs/rank_1.log", "a/logs/rank_0.log", "rank_0.log", "rank_1.log", "top.log"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(f"[rank0]: RuntimeError: {SECRET}\n")
    return root


# ---- one opening -----------------------------------------------------------------------------------------------------


def test_nothing_is_opened_that_is_not_below(tree: Path, each_way: str) -> None:
    """Links, at the end and on the way, magic links, .. and absolute paths are refused, files and folders not."""
    assert each_way
    (tree / "link").symlink_to("top.log")
    (tree / "folder").symlink_to("../outside")
    (tree / "magic").symlink_to("/proc/self/root/etc/passwd")
    handle = os.open(tree, os.O_RDONLY)
    try:
        for name, code in (
            ("link", errno.ELOOP),
            ("folder/top.log", errno.ELOOP),
            ("folder", errno.ELOOP),
            ("magic", errno.ELOOP),
            ("../outside/top.log", errno.EXDEV),
            ("nodes/../../outside/top.log", errno.EXDEV),
            ("/etc/passwd", errno.EXDEV),
            ("gone", errno.ENOENT),
            ("top.log/x", errno.ENOTDIR),
        ):
            with pytest.raises(OSError) as error:
                os.close(open_beneath(handle, name, os.O_RDONLY))
            assert error.value.errno == code, name
        for name in ("top.log", "nodes/a/logs/rank_0.log", "nodes/a", "."):
            os.close(open_beneath(handle, name, os.O_RDONLY))
        made = open_beneath(handle, "nodes/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        assert stat.S_IMODE(os.fstat(made).st_mode) == 0o600
        os.close(made)
    finally:
        os.close(handle)


def test_a_link_of_a_stranger_leads_only_to_what_is_theirs(tmp_path: Path) -> None:
    """On the way to what somebody named, links of ours and root's are followed, others only to their own, to read."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user beside")
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "file").write_text("x")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("x")
    for place in (theirs, theirs / "file"):
        os.chown(place, 12345, 12345)
    for name in ("ours", "theirs"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        os.chown(tmp_path / f"to-{name}", 12345, 12345, follow_symlinks=False)
        (tmp_path / f"own-{name}").symlink_to(tmp_path / name)
    for good in ("own-ours", "own-theirs", "ours", "theirs"):
        os.close(open_folder(tmp_path / good))
    with pytest.raises(StrangeLink, match="user 12345"):
        open_folder(tmp_path / "to-ours", to_read=True)
    with pytest.raises(StrangeLink, match="user 12345"):
        open_folder(tmp_path / "to-theirs")
    os.close(open_folder(tmp_path / "to-theirs", to_read=True))
    os.close(open_named(tmp_path / "to-theirs/file", os.O_RDONLY))
    with pytest.raises(StrangeLink):
        open_named(tmp_path / "to-ours/file", os.O_RDONLY)
    with pytest.raises(safe_files.Refused, match="another user's link"):
        safe_files.read_file(tmp_path / "to-ours/file", 10)
    with pytest.raises(StrangeLink):
        open_folder(tmp_path / "to-ours" / "new", make=True)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """Forty links are enough."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for act in (lambda: open_folder(tmp_path / "a"), lambda: open_named(tmp_path / "a", os.O_RDONLY)):
        with pytest.raises(OSError) as error:
            act()
        assert error.value.errno == errno.ELOOP


def test_a_directory_that_is_held_stays_the_same(tree: Path, tmp_path: Path, each_way: str) -> None:
    """Its name may go to something else: what is read and written below that name goes to the one that was opened."""
    assert each_way
    with held.held(tree, to_read=False):
        tree.rename(tmp_path / "moved")
        tree.symlink_to(tmp_path / "outside")
        assert SECRET.encode() not in safe_files.read_file(tree / "top.log", 1000)
        safe_files.write_below(tree, "nodes/new.json", b"{}")
        safe_files.append_below(tree, "log").close()
        safe_files.close_to_others(tree / "nodes")
        assert [each.name for each in safe_files.listing(tree)] == ["log", "nodes", "top.log"]
    assert (tmp_path / "moved/nodes/new.json").read_text() == "{}"
    assert stat.S_IMODE((tmp_path / "moved/nodes").stat().st_mode) == 0o700
    assert not (tmp_path / "outside/nodes").exists()
    assert SECRET.encode() in safe_files.read_file(tree / "top.log", 1000)  # held no more


# ---- every opening of a verb -----------------------------------------------------------------------------------------


def bundled(tree: Path, out: Path) -> bytes:
    target = out / "b.tar.gz"
    write_bundle(tree, target, redact=False)
    with tarfile.open(target) as archive:
        return b"".join(f.read() for m in archive if (f := archive.extractfile(m)) is not None)


def collected(tree: Path, out: Path) -> bytes:
    collect(out / "collected", [Directory(tree)], options=CollectOptions(retries=0))
    return b"".join(path.read_bytes() for path in (out / "collected").rglob("*") if path.is_file())


def diagnosed(tree: Path, out: Path) -> bytes:
    job = hangscope.load(tree)
    (out / "said").write_text(repr(job.facts) + repr(hangscope.diagnose(job)))
    return (out / "said").read_bytes()


def reported(tree: Path, out: Path) -> bytes:
    outputs = [word for name in ("v.json", "v.txt", "v.html") for word in ("-o", str(out / name))]
    main(["report", str(tree), *outputs])
    return b"".join(path.read_bytes() for path in out.iterdir())


VERBS: dict[str, Callable[[Path, Path], bytes]] = {
    "bundle": bundled,
    "collect": collected,
    "diagnose": diagnosed,
    "report": reported,
}
SWAPPED = ("top.log", "nodes", "nodes/a", "nodes/a/logs", "nodes/a/logs/rank_0.log")


def decoy(tree: Path, name: str) -> Path:
    """A link beside the tree that leads outside, to be exchanged with `name`."""
    link = tree.parent / "decoy"
    outside = tree.parent / "outside"
    link.symlink_to(outside / {"nodes": "", "nodes/a": ""}.get(name, name.removeprefix("nodes/a/")))
    return link


@contextmanager
def at_every_call(act: Callable[[], None]) -> Iterator[Callable[[int], None]]:
    """Run `act` right before the n-th call that opens, lists or looks at something, whichever that is."""
    state = {"left": -1, "busy": False}
    names = ["open", "scandir", "stat", "lstat", "listdir", "mkdir", "replace", "link", "unlink", "rmdir", "fchmod"]
    real = {name: getattr(os, name) for name in names}
    real_beneath = beneath.open_beneath

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            if not state["busy"]:
                state["left"] -= 1
                if state["left"] == 0:
                    state["busy"] = True
                    act()
                    state["busy"] = False
            return call(*args, **kwargs)

        return wrapped

    patch = pytest.MonkeyPatch()
    for name in names:
        patch.setattr(os, name, counted(real[name]))
    for module in (held, safe_files):
        patch.setattr(module, "open_beneath", counted(real_beneath))

    def start(count: int) -> None:
        state["left"] = count

    try:
        yield start
    finally:
        patch.undo()


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("verb", VERBS)
def test_a_swap_before_any_call_shows_nothing_from_outside(tree: Path, tmp_path: Path, verb: str, name: str) -> None:
    """At each opening, listing and look of a verb in turn, a file or folder becomes a link that leads outside."""
    link = decoy(tree, name)
    swapped = [False]

    def swap() -> None:
        exchange(tree / name, link)
        swapped[0] = not swapped[0]

    number = 0
    while True:
        number += 1
        out = tmp_path / f"out-{number}"
        out.mkdir()
        with at_every_call(swap) as start:
            start(number)
            try:
                said = VERBS[verb](tree, out)
            except (HangscopeError, OSError):
                said = b""  # all of it was exchanged: there was nothing left to say
        assert SECRET.encode() not in said, f"at call {number}"
        if not swapped[0]:
            break  # the verb has fewer calls than that
        swap()
        if number > 25:
            number += 9  # the passes over the files are alike
    assert number > 5


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["nodes/a", "nodes/a/logs/rank_0.log"])
def test_two_hundred_races_show_nothing_from_outside(tree: Path, tmp_path: Path, verb: str, name: str) -> None:
    """The same with somebody beside who exchanges both as fast as possible, two hundred times over."""
    link = decoy(tree, name)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            exchange(tree / name, link)

    beside = threading.Thread(target=swap)
    beside.start()
    try:
        for number in range(200 if verb == "collect" else 40):
            out = tmp_path / f"out-{number}"
            out.mkdir()
            try:
                said = VERBS[verb](tree, out)
            except (HangscopeError, OSError):
                continue
            assert SECRET.encode() not in said
    finally:
        done.set()
        beside.join()


def everything(folder: Path) -> list[tuple[str, int, bytes]]:
    """Each file and folder below, with its mode and what it holds."""
    return sorted(
        (str(path), path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    )


def written(root: Path, temporary: Path) -> None:
    """What `run` and `snapshot` do with a directory, one after the other."""
    identity = identify({}, job="j", attempt="0", node="n")
    with ExitStack() as kept:
        folders, _ = run_places.claim(root, identity, {"TMPDIR": str(temporary)}, lambda _: None, kept)
        folders.write("status.json", {"node": "n", "live": [], "ended": 0})
        node_dir = NodeDir(folders.root, folders.own)
        node_dir.write("dumps/rank_0", b"dump")
        node_dir.write_json("node.json", {})
        safe_files.append_below(folders.root, "nodes/n/logs/rank_0.log").close()
        later = run_directory.incident(folders.root, "hang", 2)
        run_directory.mark(later, node="n", reason="stall", detail="d")
        NodeDir(later, later / "nodes/n").write("node.json", "{}")
        tidy.remove(folders.root)
    with ExitStack() as kept, suppress(OSError):
        private, _ = run_directory.claim(root.with_name("snapshot"), identity, kept=kept, private=True)
        NodeDir(private, private / "nodes/n").write("node.json", "{}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")
@pytest.mark.parametrize(
    "name", ["hangscope", "hangscope/j", "hangscope/j/0", "hangscope/j/0/nodes", "hangscope/j/snapshot"]
)
def test_a_swap_before_any_call_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    """The same while `run` and `snapshot` make, write and tidy up: nothing elsewhere is made, changed or gone."""
    name = f"hangscope{name}"
    outside = tmp_path / "outside"
    for inside in ("j/0/nodes/n/logs", "0/nodes/n", "nodes/n", "n", "snapshot", "hang-2", "0/hang-2", "j/0/hang-2"):
        (outside / inside).mkdir(parents=True)
        (outside / inside / "agent.json").write_text("{}")
    before = everything(outside)
    done = 0
    number = 0
    while True:
        number += 1
        shared = tmp_path / f"shared-{number}"
        (shared / name).mkdir(parents=True)
        shared.chmod(0o777)
        link = tmp_path / f"link-{number}"
        link.symlink_to(outside)
        os.chown(link, 12345, 12345, follow_symlinks=False)
        swapped: list[bool] = []

        def swap(shared: Path = shared, link: Path = link, swapped: list[bool] = swapped) -> None:
            swapped.append(True)
            with suppress(OSError):  # it is not there yet, or no more
                exchange(shared / name, link)

        with at_every_call(swap) as start, suppress(OSError, HangscopeError):
            start(number)
            written(shared / "hangscope/j/0", tmp_path / "tmp")
        assert everything(outside) == before, f"at call {number}"
        done += 1
        if not swapped:
            break
        number += 6  # a hundred calls and more: each seventh, from another one on for each name
    assert done > 5


def test_the_way_by_steps_is_as_the_kernels(tree: Path) -> None:
    """A folder that may be searched and not read is passed through, by both."""
    handle = os.open(tree, beneath.ONLY_PLACE)
    try:
        for act in (open_beneath, by_steps):
            inner = act(handle, "nodes/a/logs", beneath.FOLDER)
            assert os.fstat(inner).st_ino == (tree / "nodes/a/logs").stat().st_ino
            os.close(inner)
    finally:
        os.close(handle)
