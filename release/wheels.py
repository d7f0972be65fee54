"""Builds what a release publishes into dist/, and tries it: `python release/wheels.py`, or `make wheel`.

* the source, and from it, and nothing else, the wheels:
* one for x86_64 and one for aarch64, for every Python from 3.10 on (abi3) and every Linux from glibc 2.17 on
  (manylinux2014). The compiler is zig's, from PyPI: it links against the glibc that it is told, for either machine, so
  that neither a container nor a cross compiler is needed;
* one without C for everything else (py3-none-any), which `hangscope doctor` calls slower.

auditwheel and abi3audit look at what was built. Each wheel is installed into an environment of its own and diagnoses
recorded jobs; that for aarch64 with a Python of Debian's under qemu, where the verdicts, the decoder's answers and the
layout of black boxes have to be the same, byte by byte, as here. What is missing for a step is said, and fails with
--strict. Two builds of one commit are the same bytes: every time stamp is SOURCE_DATE_EPOCH, by default the commit's.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aarch64
from say import Missing, run, say
from verdicts import same_verdicts, verdicts

ROOT = Path(__file__).parents[1]
GLIBC = "2.17"
"""What manylinux2014 (manylinux_2_17) has: RHEL 7 and all that came after it."""
TAG = "manylinux_2_17"
MACHINES = ("x86_64", "aarch64")
CASES = ("mesh_absent", "dtype_mismatch", "link_stall8", "sigkill8", "straggler8", "log_only")
"""Recorded jobs that every wheel has to diagnose as the tree does; `--all-cases` takes all of them."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where to (default: dist)")
    parser.add_argument("--no-try", action="store_true", help="build and audit, but install nothing")
    parser.add_argument("--all-cases", action="store_true", help="diagnose all recorded jobs (some minutes under qemu)")
    parser.add_argument("--twice", action="store_true", help="build twice, and compare")
    parser.add_argument("--strict", action="store_true", help="a step that cannot be done is an error")
    options = parser.parse_args(argv)
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
    shutil.rmtree(options.dist, ignore_errors=True)
    missing: list[str] = []
    built = build(options.dist, missing)
    if options.twice:
        attempt(missing, lambda: compare_with_second_build(built))
    if not options.no_try:
        try_all(built, missing, all_cases=options.all_cases)
    for path in sorted(options.dist.iterdir()):
        say(f"{path.stat().st_size:>9}  {path.name}")
    for what in missing:
        say(f"note: {what}")
    return 1 if missing and options.strict else 0


@dataclass
class Built:
    """What was made. A wheel that could not be made is None."""

    dist: Path
    sdist: Path
    wheels: dict[str, Path]


def attempt(missing: list[str], step: Callable[[], None]) -> None:
    """Do a step; where something that it needs is not here, remember what."""
    try:
        step()
    except Missing as error:
        missing.append(str(error))


def commit_time() -> str:
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "1700000000"


# ---- building --------------------------------------------------------------------------------------------------------


def build(dist: Path, missing: list[str]) -> Built:
    dist.mkdir(parents=True)
    built = Built(dist, make_sdist(dist), {})
    for kind in (*MACHINES, "pure"):
        attempt(missing, lambda kind=kind: built.wheels.update({kind: make_wheel(built.sdist, dist, kind)}))
    return built


def make_sdist(dist: Path) -> Path:
    """The source. setuptools writes the files' times and owners into it; they are taken out again."""
    if importlib.util.find_spec("build") is None:
        raise SystemExit("error: the package build is missing\nhint: pip install 'hangscope[release]'")
    say("the source")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        copy_tree(tree)
        run([sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder, tree])
        (made,) = Path(folder).glob("*.tar.gz")
        path = dist / made.name
        path.write_bytes(normalised(made.read_bytes()))
    return path


def copy_tree(tree: Path) -> None:
    """What is committed or would be, and nothing that was built."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)


def normalised(data: bytes) -> bytes:
    """A .tar.gz whose bytes depend on names, modes and contents alone."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch, compresslevel=9) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member)
            member.mtime = epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, content)
    return packed.getvalue()


def make_wheel(sdist: Path, dist: Path, kind: str) -> Path:
    say(f"the wheel: {kind}")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = Path(folder).iterdir()
        out = Path(folder, "out")
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, tree]
        run(command, env={**os.environ, **compiler(kind)})
        (made,) = out.glob("*.whl")
        if kind == "pure":
            return Path(shutil.copy(made, dist))
        if "-abi3-" not in made.name:
            raise SystemExit(f"error: no C part was built for {kind}: {made.name}")
        return audited(made, dist, kind)


def compiler(kind: str) -> dict[str, str]:
    """The environment in which setuptools builds for that machine."""
    if kind == "pure":
        return {"HANGSCOPE_PURE": "1"}
    if importlib.util.find_spec("ziglang") is None:
        raise Missing(f"no wheel for {kind}: the package ziglang is missing (pip install 'hangscope[release]')")
    zig = f"{sys.executable} -m ziglang cc -target {kind}-linux-gnu.{GLIBC} -g0 -fno-sanitize=all"
    return {
        "CC": zig,
        "LDSHARED": f"{zig} -shared -s",
        "LDFLAGS": "",
        "_PYTHON_HOST_PLATFORM": f"linux-{kind}",
        "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig"),
    }


def audited(wheel: Path, dist: Path, kind: str) -> Path:
    """The wheel under the name that an index takes, looked at by those who say what it means."""
    if importlib.util.find_spec("auditwheel") is None or importlib.util.find_spec("abi3audit") is None:
        shutil.copy(wheel, dist)
        raise Missing(f"the wheel for {kind} is not audited: auditwheel or abi3audit is missing (hangscope[release])")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--plat",
        "auto",
        "--only-plat",
        "--wheel-dir",
        dist,
        wheel,
    ]
    run(command, env=environ)
    (made,) = dist.glob(f"*-abi3-*_{kind}.whl")
    if f"{TAG}_{kind}" not in made.name:
        raise SystemExit(f"error: {made.name} needs a newer glibc than {GLIBC}: auditwheel show says which symbol")
    run([sys.executable, "-m", "abi3audit", "--strict", made])
    return made


def compare_with_second_build(built: Built) -> None:
    say("the same again")
    with tempfile.TemporaryDirectory() as folder:
        again = build(Path(folder, "dist"), [])
        for path in sorted(built.dist.iterdir()):
            if path.read_bytes() != (again.dist / path.name).read_bytes():
                raise SystemExit(f"error: two builds of {path.name} differ")
    say("two builds are the same bytes")


# ---- trying ----------------------------------------------------------------------------------------------------------


def try_all(built: Built, missing: list[str], *, all_cases: bool) -> None:
    cases = sorted(path.name for path in (ROOT / "tests" / "cases").iterdir() if path.is_dir()) if all_cases else CASES
    here = platform.machine()
    for kind, wheel in built.wheels.items():
        if kind in (here, "pure"):
            attempt(missing, lambda kind=kind, wheel=wheel: try_here(wheel, cases, native=kind != "pure"))
        elif kind == "aarch64":
            attempt(missing, lambda wheel=wheel: aarch64.try_emulated(wheel, cases))
        else:
            missing.append(f"the wheel for {kind} was not tried: this machine is {here}")
    attempt(missing, lambda: try_sdist(built.sdist))


def try_here(wheel: Path, cases: Sequence[str], *, native: bool) -> None:
    """In an environment of its own, with no compiler in reach."""
    say(f"trying {wheel.name}")
    with tempfile.TemporaryDirectory() as folder:
        python = fresh_environment(Path(folder), wheel)
        said = run([python, "-c", PARTS], cwd=folder)
        assert said.split() == [str(native)] * 3, f"C parts in use: {said}"
        same_verdicts(verdicts([python], cases), verdicts([sys.executable], cases))
        note = run([python, "-m", "hangscope", "doctor"], cwd=folder, allowed=(0, 1, 2, 3))
        assert native or "20 times" in note or "slower" in note, "doctor does not say that the C parts are missing"


def try_sdist(sdist: Path) -> None:
    """pip installs the source without a compiler, and it works."""
    say(f"trying {sdist.name} without a compiler")
    with tempfile.TemporaryDirectory() as folder:
        python = fresh_environment(Path(folder), sdist)
        assert run([python, "-c", PARTS], cwd=folder).split() == ["False"] * 3
        same_verdicts(verdicts([python], CASES), verdicts([sys.executable], CASES))


PARTS = (
    "from pathlib import Path; import hangscope; from hangscope.reader.dumps import decoder; "
    "from importlib.util import find_spec; print(decoder.in_use(), "
    "find_spec('hangscope.bundle.redact._scan') is not None, "
    "(Path(hangscope.__file__).parent / 'recorder' / 'setup' / 'libhangscope_blackbox.so').exists())"
)
"""Whether the decoder, the scanner and the black box are there."""


def fresh_environment(folder: Path, package: Path) -> Path:
    run([sys.executable, "-m", "venv", folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    environ = {**os.environ, "CC": "/nonexistent/cc"}
    environ.pop("PYTHONPATH", None)
    run([python, "-m", "pip", "--disable-pip-version-check", "install", "-q", package], env=environ, cwd=folder)
    return python


if __name__ == "__main__":
    sys.exit(main())
