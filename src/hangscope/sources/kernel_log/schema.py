"""Saved as nodes/<host>/kernel/messages.txt."""

FOLDER = "kernel"
KIND = "kernel"
