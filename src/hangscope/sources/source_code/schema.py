"""Saved as nodes/<host>/source/lines.json."""

FOLDER = "source"
NAME = f"{FOLDER}/lines.json"
KIND = "other"
SCHEMA = "hangscope.source/1"
