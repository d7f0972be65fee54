"""The task that runs on each node of a Ray cluster, and the code that it carries there.

Nothing of hangscope is imported by the task: it travels by value, unpacks the recorder into a folder of its own, runs
it as a process of its own, and hands back what that saved. The job's workers are not touched.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

_ROOMS = ("recorder", "sources", "processes", "incident", "safeio", "wordings", "push")
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from hangscope.recorder.ray.ray_node import main; main()"
MOST_BYTES = 512 << 20


def packed_recorder() -> bytes:
    """The parts of hangscope that capture a node, as a zip, with the py-spy that is installed here."""
    from hangscope.processes.programs import py_spy

    package = Path(__file__).resolve().parents[1]
    files = [*package.glob("*.py"), *(file for room in _ROOMS for file in (package / room).rglob("*.py"))]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(files):
            archive.write(file, str(file.relative_to(package.parent)))
        program = py_spy()
        if program is not None:
            archive.write(program, f"bin/{os.uname().machine}/py-spy")
    return held.getvalue()


def on_node(package: bytes, asked: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Run the recorder on this node. `tar` in the answer is what it saved."""
    import json
    import shutil
    import subprocess
    import sys
    import tarfile
    import tempfile

    folder = tempfile.mkdtemp(prefix="hangscope-ray-")
    try:
        code = os.path.join(folder, "code")
        with zipfile.ZipFile(io.BytesIO(package)) as archive:
            archive.extractall(code)
        spy = os.path.join(code, "bin", os.uname().machine)
        environ = dict(os.environ)
        if os.path.exists(os.path.join(spy, "py-spy")):
            os.chmod(os.path.join(spy, "py-spy"), 0o755)
            environ["PATH"] = f"{environ.get('PATH', '')}{os.pathsep}{spy}"
        saved = os.path.join(folder, "saved")
        os.mkdir(saved)
        raylet = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())
        request = {**asked, "raylet": raylet, "without": [os.getpid()], "folder": saved}
        words = [sys.executable, "-I", "-c", _PROGRAM, code]
        done = subprocess.run(
            words, input=json.dumps(request), capture_output=True, text=True, timeout=limit_s, env=environ
        )
        if done.returncode != 0:
            return {"problem": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:500]}
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w", format=tarfile.USTAR_FORMAT) as archive_of_saved:
            archive_of_saved.add(saved, arcname=".")
        if held.tell() > MOST_BYTES:
            return {"problem": f"it saved {held.tell() >> 20} MiB, more than is sent"}
        answer["tar"] = held.getvalue()
        return answer
    except subprocess.TimeoutExpired:
        return {"problem": f"its capture was not done within {limit_s:g} s"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
