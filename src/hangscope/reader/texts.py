"""Any text file, read once: every reader of log lines looks at every line, because nobody knows what shares a file.

A training log may hold NCCL's lines, a launcher's summary, a crash handler's stacks and kernel messages.
"""

from __future__ import annotations

import re
from typing import BinaryIO

from hangscope.model import Gap, Source
from hangscope.reader import kernel, launchers, torch_logs
from hangscope.reader.kernel import KernelLog
from hangscope.reader.launchers import LauncherLog
from hangscope.reader.lines import Writers, raw_lines, split_line
from hangscope.reader.nccl_logs import NcclLog
from hangscope.reader.stacks import StackText
from hangscope.reader.torch_logs import TorchLog

HEAD_BYTES = 64 << 20
TAIL_BYTES = 192 << 20
"""Of a larger file the beginning (NCCL's setup) and the end (what went wrong) are read; the middle is skipped."""

_WORDS = tuple(
    sorted(
        word.encode()
        for word in {
            *torch_logs.WORDS,
            *kernel.WORDS,
            *launchers.WORDS,
            "CCL version",
            "NCCL INFO",
            "NCCL WARN",
            "[rank",
            "Traceback (most recent",
            "(most recent call first)",
            "# hangscope stacks",
            "Process ",
            "Thread ",
        }
    )
)
_KERNEL_NAME = re.compile(r"^kernel/|(?:^|/)(?:dmesg|kern(?:el)?)\b[^/]*$", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:^|[^A-Za-z])rank[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def rank_in_path(parts: tuple[str, ...]) -> int | None:
    """The rank that a file's name gives, ``rank_3.log``, or else its directory's, ``rank_3/``."""
    hint = _RANK_IN_NAME.search(parts[-1]) or _RANK_IN_NAME.search("".join(parts[-2:-1]))
    return int(hint[1]) if hint else None


class TextFile:
    """One text file and everything that was found in it."""

    def __init__(self, file: str, parts: tuple[str, ...] | None = None, node: str | None = None) -> None:
        self.file = file
        self.parts = parts or tuple(file.split("/"))
        self.node = node
        """The host whose directory it lies in."""
        self.name_rank = rank_in_path(self.parts)
        self.writers = Writers()
        self.torch = TorchLog(file, self.writers)
        self.nccl = NcclLog(file, self.writers)
        self.launcher = LauncherLog(file, self.writers)
        self.kernel = KernelLog(file, sure=_KERNEL_NAME.search("/".join(self.parts[-2:])) is not None)
        self.stacks = StackText()
        self.gaps: list[Gap] = []
        self.rank: int | None = None
        """The rank whose file it is, once the whole input is known."""

    def read(self, stream: BinaryIO, size: int) -> None:
        skip = None
        if size > HEAD_BYTES + TAIL_BYTES:
            skip = (HEAD_BYTES, size - TAIL_BYTES)
            self.gaps.append(
                Gap(
                    f"the middle of {self.file}",
                    f"of its {size >> 20} MiB the first {HEAD_BYTES >> 20} and the last {TAIL_BYTES >> 20} were read",
                    source=Source(self.file),
                )
            )
        for number, raw in raw_lines(stream, skip=skip, words=_WORDS):
            self.kernel.feed(number, raw)
            for line in split_line(number, raw):
                self.writers.see(line)
                if self.stacks.feed(number, line.text, line.tag, line.stream):
                    continue
                self.nccl.feed(line)
                self.torch.feed(line)
                self.launcher.feed(line)
        self.torch.finish()
        self.nccl.finish()
        self.stacks.finish()

    @property
    def useful(self) -> bool:
        """Whether anything in it was recognised."""
        return bool(
            self.torch
            or self.nccl.processes
            or self.launcher.notes
            or self.kernel.messages
            or self.stacks.captures
            or self.writers.tags
        )

    @property
    def is_rank_log(self) -> bool:
        """Whether it is some rank's output, and not a file of NCCL's lines, of stacks or of kernel messages alone."""
        if self.writers.tags or self.torch:
            return True
        if self.stacks.dedicated or self.kernel.messages or self.nccl.starts_with_nccl:
            return False
        return self.name_rank is not None or self.rank is not None
