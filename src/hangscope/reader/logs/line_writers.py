"""Who wrote what in a file that several processes share."""

from __future__ import annotations

from collections.abc import Callable

from hangscope.reader.logs.log_lines import Line

MOST_WRITERS = 100_000
"""Prefixes of one file that are remembered."""


class Writers:
    """Which rank wrote what in one file, learnt from the tags that PyTorch put on some of the lines."""

    __slots__ = (
        "_bare",
        "_by_pid",
        "_by_stream",
        "_hosted",
        "_last",
        "_lines",
        "_named",
        "_nodes",
        "_pid_streams",
        "_previous",
        "_rising",
        "_tasks",
        "launcher",
        "nccl_pids",
        "pids",
        "tags",
    )

    def __init__(self) -> None:
        self.tags: dict[int, int] = {}
        """Rank in PyTorch's tag → the last line that has it."""
        self._by_stream: dict[str, set[int]] = {}
        self._tasks: dict[str, int] = {}
        self._last: dict[str, int] = {}
        """Prefix with a task number → the last line that has it."""
        self._nodes: dict[str, str] = {}
        """Prefix → the host in it."""
        self._hosted = 0
        self._previous = self._rising = 0
        self._named: set[tuple[int | None, int | None, int | None]] = set()
        self._lines = self._bare = 0
        self.pids: dict[int, set[int]] = {}
        """pid in a prefix (Ray) → tags seen behind it."""
        self._pid_streams: dict[str, tuple[str, int]] = {}
        """Prefix with a pid (Ray) → the host in it, and that pid."""
        self._by_pid: dict[str, int] = {}
        """Prefix with a pid → the rank that this process is, by other evidence."""
        self.nccl_pids: set[tuple[str, int]] = set()
        """(host, pid) of NCCL's own lines in this file."""
        self.launcher = False
        """Whether a torchrun wrote into this file: then it is a node's log, and task numbers are nodes."""

    def add(self, line: Line) -> None:
        if line.tag is not None:
            self.tags[line.tag] = line.number
            self._by_stream.setdefault(line.stream, set()).add(line.tag)
            if line.pid is not None:
                self.pids.setdefault(line.pid, set()).add(line.tag)
        self._lines += bool(line.text)
        if line.stream:
            if line.bare and line.task is not None:
                self._bare += 1
                self._rising += line.task == self._previous + 1
                self._previous = line.task
            if line.task is not None and (line.stream in self._tasks or len(self._tasks) < MOST_WRITERS):
                self._tasks.setdefault(line.stream, line.task)
                self._last[line.stream] = line.number
            if line.pid is not None and (line.stream in self._pid_streams or len(self._pid_streams) < MOST_WRITERS):
                self._pid_streams.setdefault(line.stream, (line.host, line.pid))
                self._last[line.stream] = line.number
            if line.host:
                self._hosted += 1
                if len(self._nodes) < MOST_WRITERS:
                    self._nodes.setdefault(line.stream, line.host)
            if len(self._named) < 2:
                self._named.add((line.task, line.local_rank, line.pid))
                self._named.discard((None, None, None))

    def learn_pids(self, rank_of: Callable[[str | None, int | None], int | None], node: str | None) -> None:
        """Take from whoever knows the processes which ranks wrote behind a pid, on `node` where no other is named."""
        for stream, (host, pid) in self._pid_streams.items():
            rank = rank_of(host or node, pid)
            if rank is not None:
                self._by_pid[stream] = rank

    @property
    def shared(self) -> bool:
        """Whether more than one process wrote here, so that an untagged line belongs to nobody in particular."""
        # one writer behind a prefix of its own, and a tag that stands behind none
        besides = bool(self._named) and bool(self._by_stream.get(""))
        several = (len(self._named) > 1 or besides) and self._labelled
        return len(self.tags) > 1 or several or len(self.nccl_pids) > 1 or self.launcher

    @property
    def _labelled(self) -> bool:
        """Bare numbers in front are a launcher's only if nearly every line has one, and they do not count the lines."""
        if self._bare > 16 and self._rising * 10 >= self._bare * 9:
            return False
        return self._bare == 0 or self._bare * 5 >= self._lines * 4

    def rank_of(self, tag: int | None, stream: str, file_rank: int | None) -> int | None:
        """The rank that wrote a line with this tag and prefix."""
        if tag is not None:
            return tag
        if stream and self._names_a_writer(stream):
            seen = self._by_stream.get(stream, set())
            if len(seen) == 1 and not self.launcher:
                return next(iter(seen))
            if not seen and stream in self._tasks and self._tasks_are_ranks():
                return self._tasks[stream]
            if not seen and stream in self._by_pid:
                return self._by_pid[stream]
            if not seen and self._by_stream:
                return None  # others are known by their prefix, and this is none of them
        if not self.shared:
            return file_rank
        return None

    def _names_a_writer(self, stream: str) -> bool:
        """Whether a prefix is a launcher's. A bare number or a word in front of few lines is the text's own."""
        if stream in self._tasks and not self._labelled:
            return False
        return stream not in self._nodes or self.node_of(stream) is not None

    def _tasks_are_ranks(self) -> bool:
        """A task number is a rank unless a tag, or a torchrun in the same file, says otherwise."""
        if self.launcher:
            return False
        return all(
            self._by_stream[stream] == {task} for stream, task in self._tasks.items() if stream in self._by_stream
        )

    def node_of(self, stream: str) -> str | None:
        """The host in front of a line, where nearly every line has one: ``step1: loss`` names no host."""
        return self._nodes.get(stream) if self._hosted * 5 >= self._lines * 4 else None

    def last_lines(self) -> dict[int, int]:
        """Rank → the last line of its own, for the ranks whose lines can be distinguished."""
        found = dict(self.tags)
        if self._labelled and self._tasks_are_ranks():
            for stream, task in self._tasks.items():
                if stream not in self._by_stream:
                    found[task] = max(found.get(task, 0), self._last[stream])
        for stream, rank in self._by_pid.items():
            found[rank] = max(found.get(rank, 0), self._last[stream])
        return found

    def own_rank(self, hint: int | None) -> int | None:
        """The one rank whose file this is: by its tags, else by the hint; None where several ranks share it."""
        if self.shared:
            return None
        return next(iter(self.tags)) if self.tags else hint
