"""Everything that touches a stranger's file: opening, walking, archives, JSON, with one set of limits.

Standard library only: it also runs in training images.
"""
