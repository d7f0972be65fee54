"""Scripts that call `hangscope.watch()`, for `test_watch_process.py`: `python watched_job.py HOW FOLDER`."""

import os
import sys
import threading
import time

import hangscope


def stuck_in_loader():
    time.sleep(1000)


def train(rank=None, meets=None, world=2):
    import torch
    import torch.distributed as dist

    if rank is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=meets, rank=rank, world_size=world)
    for _ in range(4):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        stuck_in_loader()
    dist.all_reduce(torch.ones(4))


def child(rank, meets):
    print("child", hangscope.watch(), flush=True)
    train(rank, meets)


def state():
    """What this process has: threads, open files, children."""
    children = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as stream:
            children += stream.read().split()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), children, threading.active_count()


def main(how, folder):
    if how == "silent":
        os.environ["HANGSCOPE"] = "off"
        print(hangscope.watch(folder), flush=True)
        return
    if how == "refused":
        print(hangscope.watch(folder, on_hang="no-such-program"), flush=True)
        time.sleep(2)
        return
    before = state()
    print(hangscope.watch(folder, stall_after=3), hangscope.watch(folder), flush=True)
    print("nothing stays" if state() == before else f"{before} became {state()}", flush=True)
    print("torch" if "torch" in sys.modules else "no torch", flush=True)
    if how == "ranks":
        train()
    elif how == "forked":
        if os.fork() == 0:
            print("forked", hangscope.watch(folder), flush=True)
            os._exit(0)
        os.wait()
    elif how == "notebook":
        import torch.multiprocessing as mp

        mp.spawn(child, args=(f"file://{folder}.store",), nprocs=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
