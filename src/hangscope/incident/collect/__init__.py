"""Bringing every node's evidence into one incident, from directories, over ssh, srun and kubectl, and object stores.

`fetch_sources` says what a source is; `gather` lists them all, plans with `fetch_plan`, and fetches in parallel.
Nothing is ever deleted or changed where it comes from.
"""

from hangscope.incident.collect.fetch_sources import Source
from hangscope.incident.collect.gather import Collected, NodeResult, collect

__all__ = ["Collected", "NodeResult", "Source", "collect"]
