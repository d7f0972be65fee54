"""Tries the wheel for aarch64 on this machine: an arm64 Python from Debian's packages, under qemu's user emulation."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from say import Missing, run, say
from verdicts import same_verdicts, verdicts

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "native"
QEMU = "qemu-aarch64"
SYSROOT = ROOT / "build" / "arm64"
"""Kept between runs: some 55 MB."""
PYTHON = "3.11"
PACKAGES = (
    *(f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib"),
    *("libc6", "libexpat1", "zlib1g", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libgcc-s1", "libstdc++6"),
    *("libuuid1", "libcrypt1"),
)
"""Of Debian 12."""
TARGET = "aarch64-linux-gnu.2.17"


def try_emulated(wheel: Path, cases: Sequence[str]) -> None:
    """The same verdicts, the same decoded dumps and the same black boxes as on this machine."""
    qemu = shutil.which(QEMU)
    if qemu is None:
        raise Missing(f"{wheel.name} was not tried: there is no {QEMU} here (apt-get install qemu-user)")
    say(f"trying {wheel.name} under qemu")
    emulated = [qemu, "-L", str(sysroot())]
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(folder)
        if shutil.which("cc") is None:
            raise Missing("black boxes and the decoder were not compared with aarch64's: there is no C compiler here")
        compare_layouts(emulated, programs)
        compare_decoders(emulated, programs)
        site = Path(folder, "site")
        install(wheel, site)
        python = [*emulated, "-E", f"PYTHONPATH={site}", str(SYSROOT / "usr" / "bin" / f"python{PYTHON}")]
        used = run([*python, "-c", "from hangscope.reader.dumps import decoder as d; print(d.in_use())"], cwd=folder)
        assert used.strip() == "True", "the C decoder is not in use on aarch64"
        same_verdicts(verdicts(python, cases), verdicts([sys.executable], cases))


def sysroot() -> Path:
    """An arm64 system with Python, out of Debian's packages, fetched by an apt that knows arm64 alone."""
    if (SYSROOT / "usr" / "bin" / f"python{PYTHON}").exists():
        return SYSROOT
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Missing("the wheel for aarch64 was not tried: an arm64 Python comes from Debian's packages")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("lists/partial", "cache/archives/partial", "debs"):
            Path(folder, name).mkdir(parents=True)
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "Dir::State::lists": f"{folder}/lists",
            "Dir::Cache": f"{folder}/cache",
            "Dir::State::status": "/dev/null",
        }
        apt = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        try:
            run([*apt, "update"])
            run([*apt, "download", *PACKAGES], cwd=Path(folder, "debs"))
        except SystemExit as error:
            raise Missing(f"the wheel for aarch64 was not tried: {str(error)[:300]}") from None
        SYSROOT.mkdir(parents=True, exist_ok=True)
        for package in sorted(Path(folder, "debs").iterdir()):
            run(["dpkg", "-x", package, SYSROOT])
    return SYSROOT


def install(wheel: Path, site: Path) -> None:
    """The wheel and what it needs, as pip would on such a machine."""
    platforms = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--target", site]
    chosen = [word for name in platforms for word in ("--platform", name)]
    run([*pip, "--only-binary=:all:", "--python-version", PYTHON, *chosen, wheel])


# ---- the layout of black boxes ---------------------------------------------------------------------------------------


def compare_layouts(emulated: Sequence[str], programs: Programs) -> None:
    """Every field of a black box lies where it lies on this machine, whatever `char` and alignment are there."""
    source = programs.folder / "layout.c"
    source.write_text(layout_program())
    here = run([programs.build("here", source)]).splitlines()
    there = run([*emulated, programs.build("aarch64", source)]).splitlines()
    assert here[1:] == there[1:] != [], "black boxes are laid out differently"
    say(f"  black boxes: {len(here) - 1} places are the same; {there[0]} there, {here[0]} here")


def compare_decoders(emulated: Sequence[str], programs: Programs) -> None:
    """The decoder makes the same of every recorded dump, and of each one's beginnings."""
    sources = (NATIVE / "dump_decoder.c", ROOT / "tests" / "native" / "decode_files.c")
    dumps = sorted((ROOT / "tests" / "cases").rglob("nccl_trace_rank_*[0-9]"))
    here = run([programs.build("here", *sources), *dumps])
    there = run([*emulated, programs.build("aarch64", *sources), *dumps])
    assert here == there, f"the decoder: {here} here, {there} on aarch64"
    say(f"  the decoder: the same out of {len(dumps)} dumps, whole and cut")


class Programs:
    """C programs, compiled for this machine and for aarch64."""

    def __init__(self, folder: str) -> None:
        zig = [sys.executable, "-m", "ziglang", "cc"]
        self.folder = Path(folder)
        self._compilers = {"here": [shutil.which("cc") or "cc"], "aarch64": [*zig, "-target", TARGET]}

    def build(self, machine: str, *sources: Path) -> Path:
        program = self.folder / f"{sources[-1].stem}-{machine}"
        environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig")}
        flags = ("-std=gnu11", "-O2", f"-I{NATIVE}")
        run([*self._compilers[machine], *flags, *sources, "-lm", "-o", program], env=environ)
        return program


def layout_program() -> str:
    """A C program that prints whether `char` has a sign, and where every field of every struct lies."""
    text = re.sub(r"/\*.*?\*/", "", (NATIVE / "blackbox_layout.h").read_text(), flags=re.DOTALL)
    lines = ['printf("char is %s\\n", (char)-1 < 0 ? "signed" : "unsigned");']
    lines.append('unsigned short one = 1; printf("little endian %d\\n", *(unsigned char *)&one);')
    for struct, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
        lines.append(f'printf("{struct} %zu %zu\\n", sizeof(struct {struct}), _Alignof(struct {struct}));')
        for declaration in body.split(";"):
            field = re.search(r"(\w+)\s*(\[[^;]*\])?\s*$", declaration.strip())
            if field:
                lines.append(f'printf("{struct}.{field[1]} %zu\\n", offsetof(struct {struct}, {field[1]}));')
    body = "\n  ".join(lines)
    included = "".join(f"#include {name}\n" for name in ("<stddef.h>", "<stdio.h>", '"blackbox_layout.h"'))
    return f"{included}int main(void) {{\n  {body}\n  return 0;\n}}\n"
