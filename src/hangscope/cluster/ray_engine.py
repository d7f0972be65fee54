"""`--engine ray`: which task runs on which machine, and what is in flight at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hangscope.__about__ import __version__
from hangscope.cluster import ray_tasks
from hangscope.cluster.packed_columns import unpack_dump
from hangscope.cluster.ray_tasks import Far
from hangscope.errors import NotFoundError, SettingsError
from hangscope.model import Gap
from hangscope.reader.dumps import ring_history
from hangscope.reader.find_files import Found
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.reading_progress import Progress

_BATCH_BYTES = 64 << 20
"""Of one task: large enough that starting it costs nothing beside it, small enough that every core gets some."""
_BATCH_FILES = 256
_AHEAD = 3
"""Tasks a core that are started before the first result is taken."""


class RayEngine:
    """Reads evidence by tasks of a Ray cluster. Paths: of a file system that all nodes see, ``NODE:/path``, URLs."""

    def __init__(self, address: str | None = None) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise SettingsError(
                "--engine ray needs Ray, which is not installed here", hint="pip install 'hangscope[ray]'"
            ) from None
        if not self._ray.is_initialized():
            self._connect(address)
        self._list, self._look, self._read = map(
            self._ray.remote, (ray_tasks.list_files, ray_tasks.look_at, ray_tasks.read)
        )
        self._nodes = self._names()

    def _connect(self, address: str | None) -> None:
        """To the cluster that is named or running here; without one, to one of this machine's own."""
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        given = address or os.environ.get("RAY_ADDRESS")
        try:
            try:
                self._ray.init(address=given or "auto", log_to_driver=False, logging_level="ERROR")
            except ConnectionError:
                if given:
                    raise
                self._ray.init(**quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SettingsError(
                f"no Ray cluster answers at {given or 'this machine'}: {error}",
                hint="`ray status` says whether it runs; --ray-address or RAY_ADDRESS names it",
            ) from None

    def find(self, paths: Sequence[str | Path], gaps: list[Gap]) -> list[Found]:
        """Every file under the paths, sorted, with its first bytes."""
        places = [_place(path, self._nodes) for path in paths]
        found: dict[tuple[str, str], Far] = {}
        for listed in self._in_order([(self._list, where, (path, where)) for path, where in places]):
            if listed.version != __version__:
                raise SettingsError(
                    f"the cluster's nodes have hangscope {listed.version}, this machine has {__version__}",
                    hint="install the same version on both",
                )
            if listed.problem:
                raise NotFoundError(listed.problem, hint=listed.hint)
            gaps.extend(listed.gaps)
            for item in listed.items:
                found.setdefault((item.where, item.address), item)
        items = sorted(found.values(), key=lambda item: item.file)
        batches = list(_batches([(item.where, 0, item) for item in items]))
        looks = self._in_order([(self._look, batch[0].where, (batch,)) for batch in batches])
        return sorted((item for batch in looks for item in batch), key=lambda item: item.file)

    def read(self, items: Sequence[Found], known: int, full: bool, progress: Progress | None) -> Iterator[Evidence]:
        """What each file says, in their order. `known`: how many dumps there are beside these."""
        work = [(item.where, item.size, (n, item)) for n, item in enumerate(items) if isinstance(item, Far)]
        keep = None if full else ring_history.share(known + sum(bool(one[2][1].form) for one in work))
        total = sum(size for _, size, _ in work)
        done = 0
        batches = list(_batches(work))
        found: dict[int, Evidence] = {}
        results = self._in_order([(self._read, batch[0][1].where, (batch, keep)) for batch in batches])
        for batch, result in zip(batches, results, strict=True):
            found.update(result)
            done += sum(item.size for _, item in batch)
            if progress is not None:
                progress(done, total, batch[-1][1].file)
        for _, evidence in sorted(found.items()):
            for dump in evidence.dumps:
                unpack_dump(dump)
            yield evidence

    def _in_order(self, calls: Sequence[tuple[Any, str, tuple[Any, ...]]]) -> Iterator[Any]:
        """The results of tasks, with so many in flight as keep every core busy."""
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        ahead: deque[Any] = deque()
        try:
            for function, where, given in calls:
                if len(ahead) >= _AHEAD * cores:
                    yield self._ray.get(ahead.popleft())
                ahead.append(self._task(function, where).remote(*given))
            while ahead:
                yield self._ray.get(ahead.popleft())
        except self._ray.exceptions.RayError as error:
            raise NotFoundError(
                f"a task of the Ray cluster failed: {str(error).splitlines()[-1] if str(error) else error!r}",
                hint="hangscope has to be installed on its nodes, and a node that was named must be alive",
            ) from None

    def _task(self, function: Any, where: str) -> Any:
        if not where:
            return function
        strategies = import_module("ray.util.scheduling_strategies")
        strategy = strategies.NodeAffinitySchedulingStrategy(self._nodes[where], soft=False)
        return function.options(scheduling_strategy=strategy)

    def _names(self) -> dict[str, str]:
        """Name, short name and address of every node that is alive → Ray's id of it."""
        found: dict[str, str] = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                host = node["NodeManagerHostname"]
                for name in (node.get("NodeName"), node["NodeManagerAddress"], host, host.partition(".")[0]):
                    if name:
                        found.setdefault(name, node["NodeID"])
        return found


def _place(path: str | Path, nodes: dict[str, str]) -> tuple[str, str]:
    """A path as a machine opens it, and the machine where only one does."""
    text = str(path)
    node, colon, rest = text.partition(":")
    if "://" in text:
        return text, ""
    if colon and rest.startswith("/"):
        if node in nodes:
            return rest, node
        if not os.path.exists(text):
            known = ", ".join(sorted(nodes)[:6])
            raise NotFoundError(f"{text}: there is no node {node} in the Ray cluster", hint=f"it has {known}")
    return str(Path(text)), ""


def _batches(work: Sequence[tuple[str, int, Any]]) -> Iterator[list[Any]]:
    """Work of one place, in order, in parts of a size."""
    parts: dict[str, list[Any]] = {}
    sizes: dict[str, int] = {}
    for where, size, one in work:
        mine = parts.setdefault(where, [])
        if mine and (sizes[where] + size > _BATCH_BYTES or len(mine) >= _BATCH_FILES):
            yield parts.pop(where)
            mine = parts[where] = []
        sizes[where] = (sizes.get(where, 0) if mine else 0) + size
        mine.append(one)
    yield from (mine for mine in parts.values() if mine)
