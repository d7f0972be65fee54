"""Exceptions that a rank printed and lived on after: caught and skipped, raised in a thread, or on the way to where it
waits now. Such a one is often how a hang began, and it is in the log long before anybody looks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.evidence.code_lines import function_line, own_end, user_frame
from hangscope.diagnosis.evidence.process_ends import raised
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import CUT_OFF, FATAL_ERROR, GLOO_SIZE, LastWord, PythonError
from hangscope.reader.logs.tracebacks import of_launcher

_SAYS_NOTHING = ("KeyboardInterrupt", "SystemExit", FATAL_ERROR, CUT_OFF)
"""How somebody ended the job, and what has no name."""
_OF_CODE = (CauseKind.ABSENT, CauseKind.MISMATCH, CauseKind.DEADLOCK, CauseKind.UNKNOWN)
"""Kinds that a mistake in the code may lead to."""
_STALLS = ("stall", "watchdog", "dump-file")
_NO_REASON = (GLOO_SIZE, FATAL_ERROR)
"""What tells how a process was ended, and not why."""
_MOST = 3
_WORDS = 2


def with_printed(case: Case, accusation: Accusation[Any], words: Words) -> Words:
    """The words with those exceptions as findings, and the last of them as the first place to look."""
    cited = {source for finding in words.why for source in finding.sources}
    said = [word for word in _last_words(case, accusation) if word.source not in cited]
    if said:
        words = replace(words, why=[*words.why, *(Finding(_in_words(word), (word.source,)) for word in said)])
    errors = [error for error in _printed(case, accusation) if error.source not in cited]
    if not errors:
        return words
    found = [Finding(_text(error), (error.source,), own_end(error.frames)) for error in errors]
    steps = list(words.steps)
    where = user_frame(errors[0].frames[::-1])
    if accusation.kind in _OF_CODE and where is not None:
        steps.insert(0, f"code: {errors[0].type} in {function_line(where)} was printed before: look there first")
    return replace(words, why=[*words.why, *found], steps=steps)


def _last_words(case: Case, accusation: Accusation[Any]) -> list[LastWord]:
    """What speaks of trouble among the last lines of a job that was captured, the accused ranks' first: a message of
    the program's own is often how it began. Where a rank's own exception says why it ended, nothing is added to that.
    """
    errors = [case.liveness.of(each.rank).error for each in accusation.accused]
    known = any(error is not None and not error.consequence and error.type not in _NO_REASON for error in errors)
    if case.job.reason is None or accusation.kind not in (*_OF_CODE, CauseKind.DEAD) or known:
        return []
    ranks = set(accusation.ranks)

    def by_weight(word: LastWord) -> bool:
        return word.rank not in ranks and word.names not in ranks

    distinct = {(word.rank, word.text): word for word in case.job.facts.last_words}
    words = sorted(distinct.values(), key=by_weight)
    troubled = [word for word in words if word.of_trouble][:_WORDS]
    return troubled or _parting_words(case, words, accusation)


def _parting_words(case: Case, words: Sequence[LastWord], accusation: Accusation[Any]) -> list[LastWord]:
    """What ranks that ended printed last, where nothing else says why: their own log, or else the output of the only
    node, if the line speaks of no other rank."""
    if accusation.kind is not CauseKind.DEAD:
        return []
    ranks = set(accusation.ranks)
    own = [word for word in words if word.rank in ranks]
    one_node = len({process.node for process in case.job.processes.values()}) == 1
    shared = [word for word in words if word.rank is None and (word.names is None or word.names in ranks)]
    return (own or (shared if one_node else []))[:1]


def _in_words(word: LastWord) -> str:
    if word.rank is None:
        return f"the output has among its last lines: {word.text}"
    return f"rank {word.rank} printed among its last lines: {word.text}"


def _printed(case: Case, accusation: Accusation[Any]) -> Sequence[PythonError]:
    """The last one of each rank that lived on, the accused first; then of a rank that the log does not name."""
    if case.job.reason not in _STALLS or not accusation.hang:
        return ()
    last: dict[int | None, PythonError] = {error.rank: error for error in _of_ranks(case)}
    first = [rank for rank in (*accusation.ranks, None) if rank in last]
    others = [rank for rank in last if rank not in first]
    return [last[rank] for rank in (*first, *others)][:_MOST]


def _of_ranks(case: Case) -> Iterator[PythonError]:
    ended = {rank for rank, process in case.job.processes.items() if process.exit_status is not None}
    for error in case.job.facts.errors:
        says_nothing = error.consequence or error.type in _SAYS_NOTHING or of_launcher(error.frames)
        if not says_nothing and error.rank not in ended:
            yield error


def _text(error: PythonError) -> str:
    who = f"rank {error.rank}" if error.rank is not None else "a rank"
    on = f" on {error.node}" if error.rank is None and error.node is not None else ""
    thread = " in a thread" if any(frame.name == "_bootstrap_inner" for frame in error.frames) else ""
    which = "" if error.rank is not None else " (the log does not say which rank)"
    return f"{who}{on} printed {raised(error)}{thread}, and continued{which}"
