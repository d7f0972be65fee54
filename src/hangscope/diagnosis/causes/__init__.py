"""The rules: a case in, accusations out. None words a headline, says how sure it is, asks another rule
or changes the case. `weigh.py` chooses among all that they propose; the order here only says who is first among equals.
"""

from hangscope.diagnosis.causes import (
    deadlock,
    log_failure,
    mismatch,
    no_cause,
    odd_one_out,
    process_ended,
    watchdog_lines,
    wrong_peer,
    wrong_root,
)
from hangscope.diagnosis.causes.blocking import blocking
from hangscope.diagnosis.causes.network import network
from hangscope.diagnosis.causes.one_call_more import one_call_more
from hangscope.diagnosis.causes.slow_rank import slow
from hangscope.diagnosis.causes.stuck_transfer import transfers

_CALLS_DIFFER = (mismatch.hung_mismatch, watchdog_lines.reported_calls, process_ended.gloo_size)
_CALLS_MISSING = (
    watchdog_lines.went_past,
    one_call_more,
    wrong_root.other_root,
    blocking,
    process_ended.ended,
    odd_one_out.alone,
)
_WRONG_PEER = (wrong_peer.wrong_peer, wrong_peer.open_connection, wrong_peer.unusual_peer)
_WAIT_CYCLE = (deadlock.call_order, deadlock.deadlock, deadlock.unusual_order)
_APART = (odd_one_out.odd_in_ras, odd_one_out.stands_apart)
_REPORTED = (log_failure.reported_mismatch, log_failure.reported_missing, log_failure.failure_line, *_APART)
_EVERYBODY_IN = (network, transfers, odd_one_out.only_one_without_timeout)
_HANGING = (*_CALLS_DIFFER, *_CALLS_MISSING, *_WRONG_PEER, *_WAIT_CYCLE, *_EVERYBODY_IN)

HANG_RULES = (*_HANGING, *_REPORTED, no_cause.hang_unexplained)
_RUNNING = (mismatch.silent_mismatch, wrong_root.silent_root, slow, no_cause.progress_seen)
RUNNING_RULES = (*_RUNNING, *_REPORTED, no_cause.cannot_tell)

__all__ = ["HANG_RULES", "RUNNING_RULES"]
