"""What the task on a node of Ray carries there: all of hangscope that it imports, for a Python that has none of it."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from hangscope.cluster import ray_node_task

CAPTURE = """
import pkgutil, sys
from importlib import import_module
sys.path[:] = [sys.argv[1], *(path for path in sys.path if "site-packages" not in path)]
import_module("hangscope.recorder.ray.ray_node")
slices = import_module("hangscope.sources.slices")
for part in ("capture", "settings", "schema"):
    assert slices.found(part, "__name__")
for room in ("recorder.capture", "recorder.ray", "processes", "incident", "safeio"):
    package = import_module(f"hangscope.{room}")
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        import_module(each.name)
strangers = {name: module.__file__ for name, module in sys.modules.items() if name.startswith("hangscope")
             and not str(module.__file__).startswith(sys.argv[1])}
assert not strangers, strangers
"""


def test_the_task_carries_all_that_it_imports(tmp_path: Path) -> None:
    """A room that the recorder was moved to, and that is left behind, is a node of which nothing is seen."""
    with zipfile.ZipFile(io.BytesIO(ray_node_task.packed_recorder())) as archive:
        archive.extractall(tmp_path)
    words = [sys.executable, "-I", "-c", CAPTURE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
