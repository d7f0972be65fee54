"""Files that are neither a dump nor a log nor of a slice (`hangscope.sources`): each module reads one kind, by content.

Rosters, the descriptions that an incident has of itself and of its nodes, agents' last status, torchrun's error files.
Which rank a file is about is resolved later, in `join/`.
"""
