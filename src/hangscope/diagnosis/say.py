"""An accusation in words: those of its cause, of a rank that is at work, or of a pause where the job went on by itself;
and what to do next."""

from dataclasses import replace
from itertools import islice
from typing import Any

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.at_work import ANNOUNCE, is_at_work, with_polls, with_work
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.causes import CAUSE_OF
from hangscope.diagnosis.causes.shared.advice import (
    SAME_GROUPS,
    SWITCH_ON,
    recorder_was_off,
    recording_would_tell,
    switch_on,
)
from hangscope.diagnosis.causes.shared.storage_words import storage_findings, storage_step
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.printed_errors import with_printed
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits import program_waits
from hangscope.model import ClaimedGroup
from hangscope.text import duration, sentence

_MOST_CHAINS = 4
_OF_GROUPS = (CauseKind.ABSENT, CauseKind.MISMATCH, CauseKind.DEADLOCK, CauseKind.UNKNOWN)


def say(case: Case, accusation: Accusation[Any]) -> Words:
    """The words for one accusation."""
    words = _with_storage(case, accusation, CAUSE_OF[accusation.grounds].words(case, accusation))
    words = _with_groups(case, accusation, words)
    words = _with_programs(case, accusation, with_printed(case, accusation, words))
    if case.job.recovered_s is not None:
        return _pause(case, accusation, words, case.job.recovered_s)
    return with_work(case, accusation, words) if is_at_work(case, accusation) else with_polls(case, accusation, words)


def _with_storage(case: Case, accusation: Accusation[Any], words: Words) -> Words:
    """Where a rank that others wait for is blocked on a file: what the kernel says about it, and the mount to check."""
    if accusation.kind not in (CauseKind.ABSENT, CauseKind.FROZEN):
        return words
    step = storage_step(case, accusation.ranks)
    if step is None:
        return words
    return replace(words, why=[*words.why, *storage_findings(case, accusation.ranks)], steps=[step, *words.steps])


def _with_groups(case: Case, accusation: Accusation[Any], words: Words) -> Words:
    """Where ranks did not make their groups alike: what each says of the same one."""
    if accusation.kind not in _OF_GROUPS or not accusation.hang or not case.groups_apart:
        return words
    found = [
        Finding(f"group {apart.one.name} is {_claimed(apart.one)} and {_claimed(apart.other)}", sources)
        for apart in case.groups_apart
        for sources in [(apart.one.source, apart.other.source)]
    ]
    steps = words.steps if SAME_GROUPS in words.steps else [SAME_GROUPS, *words.steps]
    return replace(words, why=[*found, *words.why], steps=steps)


def _claimed(claim: ClaimedGroup) -> str:
    return f"made of {ranks_text(claim.members)} on {ranks_text(claim.ranks)}"


def _with_programs(case: Case, accusation: Accusation[Any], words: Words) -> Words:
    """Where an accused rank waits itself for a program that is no rank: for which, and what that one does."""
    ranks = program_waits.who_may_wait(case.job, accusation.kind, accusation.ranks, hang=accusation.hang)
    keys = case.programs.store_keys(program_waits.who_may_ask_the_store(case.job, accusation.kind, accusation.ranks))
    words = replace(words, why=[*words.why, *keys]) if keys else words
    chains = dict(islice(case.programs.of(ranks).items(), _MOST_CHAINS))
    if not chains:
        return words
    said = [text for rank, chain in chains.items() if (text := program_waits.summary(rank, chain))]
    return replace(
        words,
        summary=" ".join([words.summary, *(f"{sentence(text)}." for text in dict.fromkeys(said))]),
        why=[*words.why, *(case.programs.finding(rank, chain) for rank, chain in chains.items())],
        steps=[*(program_waits.step(rank, chain) for rank, chain in chains.items()), *words.steps],
    )


def _pause(case: Case, accusation: Accusation[Any], words: Words, for_s: float) -> Words:
    """The same stall of a job that went on by itself: who held it up, where and for how long."""
    ranks = accusation.ranks if accusation.hang else ()
    held = f"{ranks_text(ranks)} held the job up" if ranks else "the job stalled"
    inside = f" in {case.names.wait(accusation.wait)}" if accusation.wait is not None else ""
    where = case.stacks.where(ranks[0]) if len(ranks) == 1 else None
    if where is not None:
        inside = f" in {where.text}"
    text = f"{held} for {duration(for_s)}{inside}, then it resumed"
    return replace(
        words,
        headline=text,
        summary=f"{sentence(text)}.",
        each=dict.fromkeys(accusation.ranks, f"held the others up for {duration(for_s)}"),
        steps=[ANNOUNCE],
    )


def next_steps(case: Case, accusation: Accusation[Any], words: Words) -> tuple[str, ...]:
    """What to do next, each step once; where nothing is known, recording comes first."""
    recorder = [SWITCH_ON] if recorder_was_off(case) else []
    steps = [*recorder, *words.steps] if accusation.kind is CauseKind.UNKNOWN else [*words.steps, *recorder]
    printed = () if case.job.under_run else case.job.facts.printed_verdicts
    saved = [verdict.incident for verdict in printed if verdict.incident]
    steps += [f"diagnose what was saved at the time: {incident}" for incident in saved[:1]]
    useful = not (case.job.under_run or saved) and recording_would_tell(case, hang=accusation.hang)
    wanted = (step for step in dict.fromkeys(steps) if step is not SWITCH_ON or useful)
    return tuple(dict.fromkeys(switch_on(case) if step is SWITCH_ON else step for step in wanted))
