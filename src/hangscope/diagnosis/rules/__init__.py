"""The rules, one file each. A rule looks at a case and returns what it concludes, or None.

They are asked in this order, and the first that concludes wins: what is directly seen comes before what is inferred.
"""

from hangscope.diagnosis.rules.alone import alone, alone_among_guessed
from hangscope.diagnosis.rules.deadlock import deadlock
from hangscope.diagnosis.rules.departed import departed
from hangscope.diagnosis.rules.died import died
from hangscope.diagnosis.rules.mismatch import hung_mismatch, silent_mismatch
from hangscope.diagnosis.rules.network import network
from hangscope.diagnosis.rules.nothing import nothing, undetermined
from hangscope.diagnosis.rules.other_root import other_root, silent_root
from hangscope.diagnosis.rules.peers import wrong_peer
from hangscope.diagnosis.rules.reported import only_silent, ran_ahead, reported_mismatch
from hangscope.diagnosis.rules.roots import roots
from hangscope.diagnosis.rules.sizes import other_size
from hangscope.diagnosis.rules.slow import slow
from hangscope.diagnosis.rules.stacks import apart, only_stacks

HANG_RULES = (
    alone_among_guessed,
    hung_mismatch,
    reported_mismatch,
    other_size,
    ran_ahead,
    wrong_peer,
    other_root,
    roots,
    departed,
    deadlock,
    died,
    alone,
    network,
    only_silent,
    apart,
    undetermined,
)
NO_HANG_RULES = (silent_mismatch, silent_root, slow, nothing, only_stacks)

__all__ = ["HANG_RULES", "NO_HANG_RULES"]
