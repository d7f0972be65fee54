"""A small real job that goes wrong on request: `train.py`, and `follow`, which starts it under `hangscope run`."""
