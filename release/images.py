"""The images of containers/Containerfile, by buildah: `python release/images.py`, or `make images`.

Where a registry is in reach, `--base NAME@sha256:…` takes a base from there. Where none is, a base is made of Debian's
packages by debootstrap (as root). The wheel comes out of dist/ (`make wheel`), what it needs from the index, and is put
into the context, so that the build itself needs no network. Each image then diagnoses a recorded job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from say import run, say

ROOT = Path(__file__).parents[1]
DEBIAN = "bookworm"
PYTHON = "3.11"
"""Of that Debian."""
MIRROR = "http://deb.debian.org/debian"
TARGETS = ("hangscope", "server", "sidecar")
HERE = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
"""Works in a sandbox too, without overlays and namespaces."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="an image with Python, by its digest; else one is made by debootstrap")
    parser.add_argument("--python", default=PYTHON, help="the version of Python in it")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel lies")
    options = parser.parse_args()
    needed = ("buildah",) if options.base else ("buildah", "debootstrap")
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        say(f"note: no image was built: {', '.join(missing)} is missing (apt-get install {' '.join(missing)})")
        return 0
    os.environ.update({name: os.environ.get(name, value) for name, value in HERE.items()})
    wheels = sorted(options.dist.glob("hangscope-*-abi3-*x86_64.whl"))
    if not wheels:
        raise SystemExit(f"error: there is no wheel in {options.dist}\nhint: make wheel")
    with tempfile.TemporaryDirectory(prefix="hangscope-images-") as folder:
        context = Path(folder)
        fetch_wheels(wheels[-1], context / "wheels", options.python)
        base = options.base or debian_base(context / "root")
        for target in TARGETS:
            say(f"building {target}")
            file = ROOT / "containers" / "Containerfile"
            words = ["--build-arg", f"BASE={base}", "--target", target, "--tag", f"localhost/{target}"]
            run(["buildah", "build", *words, "--timestamp", "0", "--file", file, context])
            try_image(f"localhost/{target}")
    return 0


def fetch_wheels(wheel: Path, folder: Path, python: str) -> None:
    """The wheel and all that it needs, for the Python of the base."""
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    chosen = [word for name in platforms for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "-d", folder]
    run(
        [
            *pip,
            "--only-binary=:all:",
            "--python-version",
            python,
            *chosen,
            f"{wheel}[capture,objectstore,serve]",
            "s3fs",
        ]
    )


def debian_base(root: Path) -> str:
    """An image of Debian's packages with Python, without a registry."""
    say("making a base of Debian's packages")
    include = "--include=python3-minimal,python3-venv"
    run(["debootstrap", "--variant=minbase", include, DEBIAN, root, MIRROR])
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)
    container = run(["buildah", "from", "scratch"]).strip()
    run(["buildah", "add", "-q", container, root, "/"])
    run(["buildah", "commit", "-q", "--rm", container, "localhost/debian-python"])
    shutil.rmtree(root)
    return "localhost/debian-python"


def try_image(image: str) -> None:
    """A recorded job is diagnosed in it, by a user that is not root."""
    container = run(["buildah", "from", image]).strip()
    try:
        volume = f"{ROOT / 'tests' / 'cases'}:/cases:ro"
        said = run(
            ["buildah", "run", "--volume", volume, container, "--", "hangscope", "diagnose", "/cases/mesh_absent"],
            allowed=(1,),
        )
        assert said.startswith("HANG   rank 6"), said
        user = run(["buildah", "run", container, "--", "/usr/bin/id", "-u"]).strip()
        assert user == "10001", user
    finally:
        run(["buildah", "rm", container])
    say(f"{image}: diagnoses as user {user}")


if __name__ == "__main__":
    sys.exit(main())
