"""Saved as nodes/<host>/gpu/nvidia-smi.txt."""

FOLDER = "gpu"
KIND = "gpu"
NAME = f"{FOLDER}/nvidia-smi.txt"
