"""On disk: the layout of an incident, bringing nodes together, the support bundle and its redaction.

Standard library only; nothing here judges.
"""
