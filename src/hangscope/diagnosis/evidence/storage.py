"""Which file each rank is blocked on, and which ranks are blocked on the same mount.

A call that is seen once may be one of many: it counts where the thread did not come back from it between two looks.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from hangscope.diagnosis.evidence.training_thread import Stacks
from hangscope.model import FileWait, Job

Mounted = tuple[str, ...]


class Storage:
    """The files that keep ranks from going on."""

    def __init__(self, job: Job, stacks: Stacks) -> None:
        self._job = job
        self._stacks = stacks

    def of(self, rank: int) -> FileWait | None:
        """What keeps a rank: its main thread's call, or that of the process or thread that it waits for."""
        return self._all.get(rank)

    def mount(self, rank: int) -> Mounted | None:
        """The mount that a rank is blocked on: a server's is the same on all nodes, a disk is its node's own."""
        wait = self.of(rank)
        if wait is None or wait.type is None or wait.source is None:
            return None
        if ":" in wait.source or wait.source.startswith("//") or "fuse" in wait.type:
            return wait.type, wait.source
        return wait.type, wait.source, self._job.nodes.get(rank, "")

    def same_mount(self, ranks: Iterable[int]) -> bool:
        """Whether all of these are blocked on one mount."""
        mounts = {self.mount(rank) for rank in ranks}
        return len(mounts) == 1 and None not in mounts

    def beside(self, rank: int) -> list[int]:
        """Every rank that is blocked on the same mount, this one among them."""
        mine = self.mount(rank)
        return [other for other in self.ranks if mine is not None and self.mount(other) == mine]

    @property
    def ranks(self) -> list[int]:
        """Every rank that is blocked on a file."""
        return sorted(self._all)

    @cached_property
    def _all(self) -> dict[int, FileWait]:
        return {rank: wait for rank in self._job.processes if (wait := self._chosen(rank)) is not None}

    def _chosen(self, rank: int) -> FileWait | None:
        process = self._job.processes[rank]
        blocked = [wait for wait in process.file_waits or () if wait.for_s is not None]
        own = [wait for wait in blocked if wait.pid in (None, process.pid)]
        of_main = next((wait for wait in own if wait.main), None)
        return of_main or self._awaited(rank, blocked) or self._beside_main(rank, own)

    def _awaited(self, rank: int, blocked: Sequence[FileWait]) -> FileWait | None:
        """What the process is blocked on that the rank waits for."""
        where = self._stacks.where(rank) if blocked else None
        child = where.stack.pid if where is not None and where.stack.child else None
        return next((wait for wait in blocked if wait.main and child is not None and wait.pid == child), None)

    def _beside_main(self, rank: int, own: Sequence[FileWait]) -> FileWait | None:
        """What a thread of the rank's own is blocked on, where another than the main one trains."""
        trains = self._stacks.main(rank) if own else None
        return own[0] if trains is not None and not trains.main else None
