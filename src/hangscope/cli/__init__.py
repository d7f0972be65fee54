"""The command line: one thin file a verb in `verbs/`; main.py puts them together.

The only place that prints, exits or reads arguments.
"""
