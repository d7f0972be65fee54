"""One node of a Ray cluster, captured from inside it: `ray_node` is what a task of Ray's starts there.

`ray_processes` says which processes count, `ray_stacks` where each stands and what it waits for, `process_memory` what
only a process's memory tells: its environment as it is now, and the object refs that it waits for.
"""
