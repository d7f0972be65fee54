"""Counters and ports of network devices, at the start of the job and at the stall."""
