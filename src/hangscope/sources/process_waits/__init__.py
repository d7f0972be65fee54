"""What each thread of a job's processes waits for, out of the kernel's own books, in whatever language it is written.

    schema.py   what is saved of a node: processes and waits
    proc.py     /proc as text, bounded
    tables.py   the machine's tables: descriptors and their holders, sockets and their other ends, locks
    calls.py    one thread: the call it is blocked in, and what that call is about
    capture.py  two looks at a job's processes and at all that they wait for
    chains.py   from one process along its waits to what does not move

Nothing is attached to, stopped or asked: /proc and the kernel's socket diagnostics alone.
"""
