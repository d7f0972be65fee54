"""Everything that is neither a dump nor a log: rosters, stacks, RAS, black boxes, counters, learnt call sites."""
