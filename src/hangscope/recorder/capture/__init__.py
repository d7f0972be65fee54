"""Saving evidence: one file a source that a live node has, the capture of a whole node, and a snapshot on request.

Every source has a deadline, and what cannot be had is a gap.
"""
