"""Where the fault strikes: for every kind a planner that changes what one rank, GPU or link does.

What comes of it is for the engine to find out. A plan that did not work out (nobody waits, or the job went on
elsewhere) is thrown away and another place is tried.
"""
