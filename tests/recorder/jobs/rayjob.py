"""Training as Ray Train runs it: in a thread of an actor, whose main thread is in Ray's own loop."""

import os
import sys
import threading
import time

import ray


def stuck_in_loader():
    time.sleep(1000)


def train_loop():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(10_000):
        if step == 20 and dist.get_rank() == 1:
            stuck_in_loader()
        dist.all_reduce(torch.ones(4))
        time.sleep(0.1)


@ray.remote(num_cpus=0)
class Trainer:
    def start(self, environ):
        os.environ.update(environ)
        threading.Thread(target=train_loop, daemon=True).start()


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
    trainers = [Trainer.remote() for _ in range(2)]
    ray.get([each.start.remote({**common, "RANK": str(rank)}) for rank, each in enumerate(trainers)])
    time.sleep(1000)
