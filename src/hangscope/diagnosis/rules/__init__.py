"""The rules: a case in, accusations out. None words a headline, says how sure it is, asks another rule
or changes the case. `weigh.py` chooses among all that they propose; the order here only says who is first among equals.
"""

from hangscope.diagnosis.rules import alone, cycle, ended, failures, last_word, mismatch, peers, rooted, watchdog_lines
from hangscope.diagnosis.rules.blocking import blocking
from hangscope.diagnosis.rules.network import network
from hangscope.diagnosis.rules.one_call_more import one_call_more
from hangscope.diagnosis.rules.slow import slow
from hangscope.diagnosis.rules.transfers import transfers

_CALLS_DIFFER = (mismatch.hung_mismatch, watchdog_lines.reported_calls, ended.gloo_size)
_CALLS_MISSING = (watchdog_lines.went_past, one_call_more, rooted.other_root, blocking, ended.ended, alone.alone)
_WRONG_PEER = (peers.wrong_peer, peers.open_connection, peers.unusual_peer)
_WAIT_CYCLE = (cycle.call_order, cycle.deadlock, cycle.unusual_order)
_APART = (alone.odd_in_ras, alone.stands_apart)
_REPORTED = (failures.reported_mismatch, failures.reported_missing, failures.failure_line, *_APART)
_EVERYBODY_IN = (network, transfers, alone.only_one_without_timeout)
_HANGING = (*_CALLS_DIFFER, *_CALLS_MISSING, *_WRONG_PEER, *_WAIT_CYCLE, *_EVERYBODY_IN)

HANG_RULES = (*_HANGING, *_REPORTED, last_word.hang_unexplained)
_RUNNING = (mismatch.silent_mismatch, rooted.silent_root, slow, last_word.progress_seen)
RUNNING_RULES = (*_RUNNING, *_REPORTED, last_word.cannot_tell)

__all__ = ["HANG_RULES", "RUNNING_RULES"]
