"""Two ranks, of which one leaves early and takes long to end: a handler that was registered before torch was imported.

`lingers.py SECONDS [--after]`: with --after, both have finished, and only its end is late. As `ray::Worker`, both end
with status 1 when all is done, as Ray ends its actors.
"""

import atexit
import os
import sys
import time


def upload():
    time.sleep(float(sys.argv[1]) if os.environ["RANK"] == "1" else 0.0)


atexit.register(upload)

import torch  # noqa: E402 -- handlers at exit run in the reverse order, and this one is to be the last
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo")
for step in range(10_000):
    if step == 40 and ("--after" in sys.argv or dist.get_rank() == 1):
        break
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
if "--after" in sys.argv:
    dist.destroy_process_group()
if "--actor" in sys.argv:
    time.sleep(2)
    os._exit(1)
