"""What the agent knows, as the numbers that its metrics show."""

from __future__ import annotations

import time
from collections import Counter

from hangscope.recorder.agent.incidents import Incidents
from hangscope.recorder.agent.metrics import Numbers
from hangscope.recorder.live.polling import Polling


def numbers(polling: Polling, incidents: Incidents, *, ended: bool) -> Numbers:
    living = [rank for rank in polling if not rank.ended]
    ages = [each.age_s(time.time_ns()) for rank in living if (each := rank.progress.oldest()) is not None]
    moved = [each.since for rank in living for each in rank.progress.counters.values()]
    announced = [size for rank in polling if (size := rank.process.local_world_size) is not None]
    return Numbers(
        expected=max(announced, default=None),
        watched=len(living),
        ended=len(polling.ranks) - len(living),
        waiting=len(ages),
        last_progress_at=time.time() - (time.monotonic() - max(moved)) if moved else None,
        oldest_s=max(ages, default=0.0),
        threshold_s=polling.threshold(),
        incidents=Counter(str(each["reason"]) for each in incidents.log),
        verdicts=incidents.verdicts,
        pauses=incidents.pauses,
        job_ended=ended,
    )
