"""On disk: the layout of an incident, its manifest, and bringing nodes together.

Standard library only; nothing here judges.
"""
