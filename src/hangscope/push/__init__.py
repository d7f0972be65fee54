"""Sending to a `hangscope serve`: what cannot be sent now is kept on disk, within a bound, and sent later.

Standard library alone. Whoever trains never waits for any of this: `hangscope run` has it done by a process of its own.
"""
