"""The parts of a node agent without a job: ranks that are this very process, and everything that is made from them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.processes.linux_process import ProcessHandle
from hangscope.recorder.agent.captures import Captures
from hangscope.recorder.agent.conclusions import Conclusions
from hangscope.recorder.agent.incidents import Incidents
from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.node_status import StatusWriter
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovery import Recovery
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.rank_activity import RankActivity
from hangscope.recorder.live.unfinished_ops import Unfinished
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir.run_directory import RunFolders


def rank(number: int, *, operation_age_s: float | None = None, **fields: Any) -> WatchedRank:
    """A rank whose process is ours; with an age, it is inside an all_reduce that it launched so long ago."""
    made = WatchedRank(RankProcess(os.getpid(), number), ProcessHandle(os.getpid()), **fields)
    if operation_age_s is not None:
        created_ns = time.time_ns() - int(operation_age_s * 1e9)
        made.progress.unfinished["gloo"] = [Unfinished("gloo", 7, "0", "default_pg", "all_reduce", 7, created_ns)]
    return made


@dataclass
class AgentParts:
    """As `Agent` puts them together, in `root`; `lines` is what they say."""

    root: Path
    stall_after: float | None = 30.0
    on_hang: OnHang = field(default_factory=OnHang)
    diagnose: bool = True

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self.folders = RunFolders(self.root, self.root / "nodes" / "n0")
        self.node = NodeFacts("n0", "j", "0", time.time())
        self.events = JobEvents()
        self.log = Incidents()
        self.polling = Polling(self.root / "sockets", self.stall_after)
        self.recovery = Recovery(self.polling)
        self.status = StatusWriter(
            self.folders,
            self.node,
            os.getpid(),
            polling=self.polling,
            activity=RankActivity(),
            events=self.events,
            log=self.log,
        )
        self.conclusions = Conclusions(
            self.folders,
            self.events.ended,
            self.log,
            self.recovery,
            self.status,
            on_hang=self.on_hang,
            diagnose=self.diagnose,
            say=self.lines.append,
        )
        self.captures = Captures(
            self.folders, self.node, self.events.ended, self.log, self.conclusions, say=self.lines.append
        )

    def add(self, *ranks: WatchedRank) -> None:
        self.polling.ranks.by_number.update({each.number: each for each in ranks})

    def wait(self, seconds: float = 60.0) -> None:
        """Until captures and corrections that are under way are done."""
        for thread in (self.captures._working, self.captures._correcting):
            if thread is not None:
                thread.join(seconds)
                assert not thread.is_alive()
