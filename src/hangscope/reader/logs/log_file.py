"""Any text file, read once: every reader of log lines looks at every line, because nobody knows what shares a file.

A training log may hold NCCL's lines, a launcher's summary, a crash handler's stacks and kernel messages.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

from hangscope.errors import contained
from hangscope.model import FailureKind, Gap, Source
from hangscope.model.numbers import Unreadable
from hangscope.model.ranks_in_paths import rank_of_log
from hangscope.reader.logs.error_lines import ErrorLog
from hangscope.reader.logs.fabric_counters import FabricCounters
from hangscope.reader.logs.failure_line import FailureLine, make_failure
from hangscope.reader.logs.framework_logs import FrameworkLog
from hangscope.reader.logs.kernel_log import KernelLog
from hangscope.reader.logs.last_words import LastWords
from hangscope.reader.logs.launchers.launcher_logs import LauncherLog
from hangscope.reader.logs.launchers.own_lines import OURS, PrintedVerdicts
from hangscope.reader.logs.line_prefixes import split_line
from hangscope.reader.logs.line_writers import Writers
from hangscope.reader.logs.log_lines import Line, LineBudget, LineShapes, raw_lines
from hangscope.reader.logs.nccl_logs import NcclLog
from hangscope.reader.logs.progress_lines import ProgressLine, moves, progress_lines, stalled
from hangscope.reader.logs.quoted_lines import QuotedLines
from hangscope.reader.logs.stack_dumps import StackText
from hangscope.reader.logs.torch_logs import TorchLog
from hangscope.reader.logs.tracebacks import MOST_CHAINED, of_torchrun
from hangscope.reader.logs.unwrap import FAILING, PLAIN, unwrapped
from hangscope.reader.logs.worded_lines import WordedLog
from hangscope.safeio.evidence_names import WORDS

HEAD_BYTES = 64 << 20
TAIL_BYTES = 192 << 20
"""Of a larger file the beginning (NCCL's setup) and the end (what went wrong) are read; the middle is skipped."""

HEAD_LINES = 400
TAIL_LINES = 60
"""Lines at both ends of a file that are kept to make_failure what it shows of the job."""

_WORDS = (*WORDS, b"[rank")
"""A stretch of a long log without any of these is passed over."""


_WORD = re.compile(r"[A-Za-z]{2,}")
_WORDS_OF_A_LINE = 3
_KERNEL_NAME = re.compile(r"^kernel/|(?:^|/)(?:dmesg|kern(?:el)?)\b[^/]*$", re.IGNORECASE)
_NO_KERNEL = KernelLog("")
_NO_PORTS = FabricCounters("")
_NO_FRAMEWORK = FrameworkLog("")
_NOT_PRINTED = PrintedVerdicts("")
_NO_ERRORS = ErrorLog("")
_NOT_WORDED = WordedLog("")
_NO_STACKS = StackText()


class TextFile:
    """One text file and everything that was found in it."""

    def __init__(self, file: str, parts: tuple[str, ...] | None = None, node: str | None = None) -> None:
        self.file = file
        self.parts = parts or tuple(file.split("/"))
        self.node = node
        """The host whose directory it lies in."""
        self.name_rank = rank_of_log(self.parts)
        self.writers = Writers()
        self.torch = TorchLog(file, self.writers)
        self.nccl = NcclLog(file, self.writers)
        self.launcher = LauncherLog(file, self.writers)
        self.kernel = KernelLog(file, sure=_KERNEL_NAME.search("/".join(self.parts[-2:])) is not None)
        self.fabric = FabricCounters(file)
        self.framework = FrameworkLog(file)
        self.printed = PrintedVerdicts(file)
        self.errors = ErrorLog(file)
        self.words = LastWords()
        self.worded = WordedLog(file)
        self.stacks = StackText()
        self.tail: tuple[str, ...] = ()
        """The last lines as they stand in the file, for whoever asks whether it shows the end."""
        self.head: list[str] = []
        self.quotes = QuotedLines()
        """Lines that may be evidence, for whoever shows them."""
        self.progress: list[ProgressLine] = []
        """Lines at both ends by which a trainer or server shows that it goes on."""
        self.lines = 0
        self.whole_last_line = True
        self.gaps: list[Gap] = []
        self._unread: dict[str, list[int]] = {}
        """Why lines were not read → the number of the first of them, and how many they are."""
        self._waiting = False
        """Whether somebody is in the middle of a message of several lines."""
        self.rank: int | None = None
        """The rank whose file it is, once the whole input is known."""

    def read(self, stream: BinaryIO, size: int, budget: LineBudget | None = None) -> None:
        """Read it, all of it or as far as the budget goes."""
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
        number = 0
        tail: deque[tuple[int, str]] = deque(maxlen=TAIL_LINES)
        head: list[tuple[int, str]] = []
        shapes = LineShapes()
        for number, raw, use in unwrapped(raw_lines(stream, skip=skip, words=_WORDS, shapes=shapes), shapes):
            tail.append((number, raw))
            if number <= HEAD_LINES:
                head.append((number, raw))
            if budget is not None:
                budget.left -= 1
                if budget.left < 0:
                    why = "not read: more lines than real archives of this size hold; if it is real, unpack it yourself"
                    self.gaps.append(Gap(f"{self.file} from line {number} on", why, source=Source(self.file)))
                    break
            try:
                self._take(number, raw, use)
            except Exception as error:
                self._not_read(number, error)
        self.lines = number
        self.head = [raw for _, raw in head]
        self.tail = tuple(raw for _, raw in tail)
        self._read_progress([*head, *((number, raw) for number, raw in tail if number > HEAD_LINES)])
        if shapes.passed:
            what = f"{shapes.passed} lines of {self.file}"
            why = f"not read: each is like {LineShapes.MOST_ALIKE} before it but for its numbers"
            self.gaps.append(Gap(what, why, source=Source(self.file)))
        stream.seek(max(size - 1, 0))
        self.whole_last_line = stream.read(1) in {b"\n", b""}
        for finish in (
            self._finish_torch,
            *(each.finish for each in (self.nccl, self.framework, self.errors, self.stacks)),
        ):
            try:
                finish()
            except Exception as error:
                self._not_read(number, error)
        self._name_unread()
        if self.torch.chained_too_long:
            what = f"{self.torch.chained_too_long:,} exceptions of {self.file}"
            why = f"not kept: they stand in chains of more than {MOST_CHAINED}"
            self.gaps.append(Gap(what, why, source=Source(self.file)))
        self.let_go()

    def _read_progress(self, lines: list[tuple[int, str]]) -> None:
        try:
            self.progress = progress_lines(lines)
        except Exception as error:
            self._not_read(lines[0][0], error)
        for shown in self.progress:
            self.quotes.add(shown.number, shown.text)

    def _finish_torch(self) -> None:
        self.torch.finish()
        if any(of_torchrun(traceback.frames) for traceback in self.torch.tracebacks):
            self.launcher.elastic = self.writers.launcher = True

    def _not_read(self, number: int, error: Exception) -> None:
        """A line that has a value which it cannot have, or at which a reader raises, costs itself alone."""
        why = str(error) if isinstance(error, Unreadable) else contained(error)
        first_and_count = self._unread.setdefault(why, [number, 0])
        first_and_count[1] += 1

    def _name_unread(self) -> None:
        for why, (number, count) in self._unread.items():
            what = f"line {number} of {self.file}" if count == 1 else f"{count:,} lines of {self.file}"
            self.gaps.append(Gap(what, f"not read: {why}", source=Source(self.file, f"line {number}")))
        self._unread.clear()

    def _take(self, number: int, raw: str, use: int) -> None:
        """Give one line to everybody who may know it."""
        known = self.kernel.feed(number, raw) or self.fabric.feed(number, raw)
        plain = use == PLAIN and not self._waiting
        if known or not plain:
            self.quotes.add(number, raw)
        for line in split_line(number, raw):
            if plain:
                self.writers.add(line)
                self.words.plain(line)
            else:
                self._feed(line, use == FAILING)

    def let_go(self) -> None:
        """Readers that found nothing, or never will, go: a hundred thousand logs of a large job say little each."""
        if not (self.kernel.messages or self.kernel.hosts):
            self.kernel = _NO_KERNEL
        if not self.fabric.failures:
            self.fabric = _NO_PORTS
        if not (self.framework.failures or self.framework.statements):
            self.framework = _NO_FRAMEWORK
        if not self.errors.failures:
            self.errors = _NO_ERRORS
        if not self.worded.failures:
            self.worded = _NOT_WORDED
        if not (self.printed.found or self.printed.ended_at or self.printed.world_size):
            self.printed = _NOT_PRINTED
        if not (self.stacks.captures or self.stacks.dedicated):
            self.stacks = _NO_STACKS
        self.words.let_go()

    def _feed(self, line: Line, failing: bool) -> None:
        self.writers.add(line)
        if line.text.startswith(OURS):
            self.printed.feed(line)
            if self.printed.ended_at == line.number:
                self.launcher.slurm.stop_after_hang(line)
            return
        if self.stacks.feed(line.number, line.text, line.tag, line.stream):
            self._waiting = True
            return
        self.nccl.feed(line)
        in_traceback = self.torch.feed(line, failing=failing)
        self.launcher.feed(line, failing=failing)
        known = (failing or self.worded.waiting) and self.worded.feed(line)
        known = ((failing or self.framework.waiting) and self.framework.feed(line)) or known
        if (failing or self.errors.waiting) and not known:
            self.errors.feed(line, in_traceback=in_traceback)
        recognised = known or in_traceback or self._recognised(line.number)
        self.words.feed(line, known=recognised, plain=False)
        readers = (self.torch, self.stacks, self.framework, self.worded, self.errors)
        self._waiting = any(reader.waiting for reader in readers)

    def _recognised(self, number: int) -> bool:
        """Whether a reader made a failure of the line that was read last."""
        ends = (found[-1].failure.source.line for found in (self.errors.failures, self.launcher.failures) if found)
        return number in ends

    @property
    def failure_lines(self) -> list[FailureLine]:
        """Every line of failure, of all readers."""
        return [
            *self.launcher.failures,
            *self.framework.failures,
            *self.worded.failures,
            *self.errors.failures,
            *self._stalled(),
        ]

    def _stalled(self) -> Iterator[FailureLine]:
        """That a server has requests and generates nothing, where its last lines say so."""
        shown = stalled(self.progress)
        if shown is not None:
            line = Line(shown.number, shown.text)
            detail = "requests run, and it generates nothing"
            yield FailureLine(make_failure(self.file, line, FailureKind.ENGINE_STUCK, effect=True, detail=detail), line)

    @property
    def has_sentences(self) -> bool:
        """Whether its ends hold a line of several words, or one that counts steps, as a log's do."""
        return bool(self.progress) or any(
            len(_WORD.findall(raw)) >= _WORDS_OF_A_LINE for raw in (*self.head, *self.tail)
        )

    @property
    def useful(self) -> bool:
        """Whether anything in it was recognised."""
        return bool(
            self.torch
            or self.nccl.processes
            or self.launcher.statements
            or self.failure_lines
            or self.kernel.messages
            or self.fabric.failures
            or self.stacks.captures
            or self.writers.tags
            or moves(self.progress)
            or self.printed.found
        )

    @property
    def is_rank_log(self) -> bool:
        """Whether it is some rank's output, and not a file of NCCL's lines, of stacks or of kernel messages alone."""
        if self.writers.tags or self.torch:
            return True
        if self.stacks.dedicated or self.kernel.messages or self.nccl.starts_with_nccl:
            return False
        return self.name_rank is not None or self.rank is not None
