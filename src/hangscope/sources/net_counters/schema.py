"""Saved as nodes/<host>/counters/start.json and stall.json."""

FOLDER = "counters"
KIND = "counters"
