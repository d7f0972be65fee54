"""hangscope names the rank, node, operation, code line and link that hung a distributed training job."""

from hangscope.__about__ import __version__

__all__ = ["__version__"]
