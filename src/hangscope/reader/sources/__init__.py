"""Files that are neither a dump nor a log: each module reads one kind, by its content, and knows nothing of the others.

Rosters, hangscope's own incident files, torchrun's error files, stacks, RAS answers, black boxes, counters and copied
/sys trees, learnt call sites. Which rank a file is about is resolved later, in `join/`.
"""
