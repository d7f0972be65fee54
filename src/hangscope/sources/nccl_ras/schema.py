"""Its answers in an incident: nodes/<host>/ras/ras.1.json, or .txt before NCCL 2.28.7."""

FOLDER = "ras"
KIND = "ras"
"""What a bundle that must become smaller calls these files."""
