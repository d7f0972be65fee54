"""Container images without a registry or a builder, as `ctr images import` takes them.

The trainer's image is almost empty: its programs, Python and torch are this machine's, which pods mount read-only.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

BOX = "docker.io/library/busybox:latest"
PAUSE = "hangscope.local/pause:1"
TRAIN = "hangscope.local/train:1"
_FOLDERS = ("dev", "etc", "proc", "root", "sys", "tmp")
_APPLETS = (
    "sh",
    "sleep",
    "cat",
    "tar",
    "stat",
    "ls",
    "mkdir",
    "cksum",
    "wc",
    "head",
    "tail",
    "dd",
    "id",
    "find",
    "sort",
)
_ETC = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": b"root:x:0:\n",
    "etc/nsswitch.conf": b"hosts: files dns\n",
}


def write_all(folder: Path) -> None:
    busybox = Path(str(shutil.which("busybox"))).read_bytes()
    box = {"bin/busybox": busybox, **{f"bin/{name}": "busybox" for name in _APPLETS}, **_ETC}
    merged = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}  # /usr comes from this machine
    _write(folder / "box.tar", BOX, box, ["sh"])
    _write(folder / "pause.tar", PAUSE, box, ["sleep", "1000000000"])
    _write(folder / "train.tar", TRAIN, {**merged, **_ETC}, ["sh"])


def _write(file: Path, name: str, content: Mapping[str, bytes | str], entrypoint: list[str]) -> None:
    """One layer: bytes are a program or file, a string is where a link leads."""
    layer = _tar({**{f"{folder}/": b"" for folder in _FOLDERS}, **content})
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    packed = json.dumps(config).encode()
    named = f"{hashlib.sha256(packed).hexdigest()}.json"
    manifest = [{"Config": named, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    parts = {named: packed, f"{digest}/layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    file.write_bytes(_tar(parts))


def _tar(content: Mapping[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, value in content.items():
            entry = tarfile.TarInfo(path.rstrip("/"))
            entry.mode = 0o1777 if path == "tmp/" else 0o755
            if path.endswith("/"):
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            elif isinstance(value, str):
                entry.type = tarfile.SYMTYPE
                entry.linkname = value
                archive.addfile(entry)
            else:
                entry.size = len(value)
                archive.addfile(entry, io.BytesIO(value))
    return out.getvalue()
