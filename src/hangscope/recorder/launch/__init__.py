"""`hangscope run`: starting the job's command so that it runs as it would without hangscope, and its agent with it.

`relay` is a script of its own, which passes the output on and outlives everything else.
"""
