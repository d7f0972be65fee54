"""The command line: one thin file a verb, each with a click command named `command`; main.py puts them together.

The only place that prints, exits or reads arguments.
"""
