"""The words of a verdict: headline, summary, what each accused did, and what to do next. Nothing is decided here.

One function for each kind of grounds; `say` finds it.
"""

from collections.abc import Callable

from hangscope.diagnosis.accusation import Accusation, Basis
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.advice import SWITCH_ON
from hangscope.diagnosis.wording import blocking, calls, failures, network, others
from hangscope.diagnosis.wording.others import Words

_LINES = (Basis.REPORTED_MISMATCH, Basis.REPORTED_MISSING, Basis.FAILURE_LINE, Basis.FAILURE_OF_NOBODY)
_SAY: dict[Callable[[Case, Accusation], Words], tuple[Basis, ...]] = {
    calls.calls_differ: (Basis.CALLS_DIFFER, Basis.SPLITS_DIFFER, Basis.CALLS_DIFFER_SILENTLY),
    calls.ragged: (Basis.SPLITS_RAGGED,),
    calls.reported_calls: (Basis.REPORTED_CALLS_DIFFER,),
    calls.reported_size: (Basis.REPORTED_SIZE,),
    calls.went_past: (Basis.WENT_PAST,),
    calls.one_call_more: (Basis.ONE_CALL_MORE,),
    calls.other_peer: (Basis.PEER_ELSEWHERE, Basis.PEER_UNUSUAL),
    calls.open_connection: (Basis.OPEN_CONNECTION,),
    calls.other_line: (Basis.OTHER_LINE, Basis.OTHER_LINE_SILENTLY),
    calls.call_order: (Basis.CALL_ORDER,),
    calls.wait_cycle: (Basis.WAIT_CYCLE, Basis.ORDER_UNUSUAL),
    blocking.blocks: (Basis.BLOCKS_OTHERS, Basis.BLOCKS_UNSEEN),
    blocking.ended: (Basis.END_SEEN,),
    blocking.idle: (Basis.IDLE,),
    blocking.no_timeout: (Basis.NO_TIMEOUT,),
    blocking.not_collected: (Basis.NOT_COLLECTED,),
    network.gpu_error: (Basis.GPU_ERROR,),
    network.cut_off: (Basis.CUT_OFF,),
    network.transport_warning: (Basis.TRANSPORT_WARNING,),
    network.port_errors: (Basis.PORT_ERRORS,),
    network.pair: (Basis.PAIR,),
    network.link_stuck: (Basis.LINK_STUCK,),
    blocking.transfers: (Basis.TRANSFERS,),
    network.everybody_inside: (Basis.EVERYBODY_INSIDE,),
    network.everybody_launched: (Basis.EVERYBODY_LAUNCHED,),
    failures.failure: _LINES,
    others.slow: (Basis.SLOW_WORK, Basis.SLOW_LAUNCHES, Basis.SLOW_STAGE),
    others.progress_seen: (Basis.PROGRESS_SEEN,),
    others.apart: (Basis.STANDS_APART,),
    others.odd_in_ras: (Basis.ODD_IN_RAS,),
    others.hang_unexplained: (Basis.HANG_UNEXPLAINED,),
    others.nothing_to_tell: (Basis.NOTHING_TO_TELL,),
}
_WORDS_FOR = {basis: function for function, bases in _SAY.items() for basis in bases}


def say(case: Case, accusation: Accusation) -> Words:
    """The words for one accusation."""
    function = _WORDS_FOR[accusation.basis] if case.job.recovered_s is None else others.recovered
    return function(case, accusation)


def steps(case: Case, accusation: Accusation, words: Words) -> tuple[str, ...]:
    """What to do next, each step once; where nothing is known, recording comes first."""
    recorder = others.recorder_step(case)
    found = [*recorder, *words.steps] if accusation.kind == "unknown" else [*words.steps, *recorder]
    return tuple(step for step in dict.fromkeys(found) if step is not SWITCH_ON or not case.job.under_run)
