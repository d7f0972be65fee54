"""Where evidence of a live process comes from, without touching it: its memory, read from outside.

`flight_recorder/` reads torch's flight recorder, `stacks` the frames of its threads. Standard library alone. What a
process holds is its own word: each size, count and address is bounded, and nothing is believed that does not prove
itself.
"""
