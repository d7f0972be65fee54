"""Jobs on a Ray cluster that runs, each healthy or hung in one way: `ray_jobs.py NAME`, with RAY_ADDRESS set.

Written as people write them, before hangscope was asked about any. Each prints READY when its fault is there.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray


def ready(after=0.0):
    """Says so when the fault is there, from a thread beside the one that will wait."""

    def say():
        time.sleep(after)
        os.write(1, b"READY\n")

    threading.Thread(target=say, daemon=True).start()


def mark():
    """The file that a worker writes when its fault is there: imports take long where a machine is busy."""
    return os.environ["RAY_JOBS_STORAGE"] + ".ready"


@ray.remote(num_cpus=0)
class Learner:
    def __init__(self, number):
        self.number = number

    def step(self, stuck):
        if self.number == stuck:
            return self.wait_for_batch()
        time.sleep(0.1)
        return self.number

    def wait_for_batch(self):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # nobody gives it back


def plain_actor():
    """Three learners; the one called learner-2 waits for a lock for ever."""
    learners = [Learner.options(name=f"learner-{n}").remote(n) for n in range(3)]
    ready(5)
    for step in range(100):
        ray.get([each.step.remote(2 if step == 3 else None) for each in learners])


@ray.remote(num_cpus=0)
def preprocess(shard):
    while shard == 5:
        time.sleep(3600)
    return shard


def stuck_task():
    """Eight tasks; that of shard 5 sleeps."""
    ready(6)
    ray.get([preprocess.remote(shard) for shard in range(8)])


@ray.remote(num_cpus=0)
class Loader:
    def fetch(self):
        read_end, _ = os.pipe()
        return os.read(read_end, 1)


@ray.remote(num_cpus=0)
class Buffer:
    def __init__(self, loader):
        self.loader = loader

    def sample(self):
        return ray.get(self.loader.fetch.remote())


@ray.remote(num_cpus=0)
class Optimizer:
    def __init__(self, buffer):
        self.buffer = buffer

    def update(self):
        batch = self.buffer.sample.remote()
        return ray.get(batch)


def chain():
    """Driver waits for Optimizer, it for Buffer, it for Loader, which reads from a pipe that nobody writes to."""
    loader = Loader.remote()
    buffer = Buffer.remote(loader)
    ready(5)
    ray.get(Optimizer.remote(buffer).update.remote())


@ray.remote(num_cpus=0)
class Peer:
    def meet(self, other):
        self.other = other

    def ask(self):
        time.sleep(1)
        return ray.get(self.other.answer.remote())

    def answer(self):
        return 1


def deadlock():
    """Two actors each wait for an answer that the other cannot give while it waits."""
    left, right = Peer.options(name="left").remote(), Peer.options(name="right").remote()
    ray.get([left.meet.remote(right), right.meet.remote(left)])
    ready(5)
    ray.get([left.ask.remote(), right.ask.remote()])


@ray.remote(num_cpus=2)
class Hog:
    def ping(self):
        return 1


def starved():
    """The fourth actor of two cores each finds no node on a cluster of three with two cores each."""
    hogs = [Hog.remote() for _ in range(4)]
    ready(6)
    ray.get([each.ping.remote() for each in hogs])


def train_worker(config):
    import torch
    import torch.distributed as dist
    from ray import train

    rank = train.get_context().get_world_rank()
    for step in range(10_000):
        if step == 20 and rank == (config["stuck"] or 0):
            Path(config["mark"]).write_text("READY")
        if step == 20 and rank == config["stuck"]:
            load_next_shard()
        dist.all_reduce(torch.ones(4))
        time.sleep(0.1)


def load_next_shard():
    time.sleep(3600)


def trainer(stuck):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        train_worker,
        train_loop_config={"stuck": stuck, "mark": mark()},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=os.environ["RAY_JOBS_STORAGE"]),
    ).fit()


def train_hung():
    """Ray Train with three workers over Gloo: rank 1 stays away from the all_reduce."""
    trainer(1)


def train_healthy():
    """The same, and nobody stays away."""
    trainer(None)


def objective(config):
    from ray import tune

    for step in range(10_000):
        if config["seed"] == 2 and step == 5:
            Path(config["mark"]).write_text("READY")
            wait_for_license()
        time.sleep(0.1)
        tune.report({"loss": 1.0 / (step + 1)})


def wait_for_license():
    threading.Event().wait()


def tune_hung():
    """Three trials; that with seed 2 waits for ever."""
    from ray import tune

    tune.Tuner(
        tune.with_resources(objective, {"cpu": 1}),
        param_space={"seed": tune.grid_search([1, 2, 3]), "mark": mark()},
        run_config=tune.RunConfig(storage_path=os.environ["RAY_JOBS_STORAGE"]),
    ).fit()


@ray.remote(num_cpus=0)
class Store:
    def pid(self):
        return os.getpid()

    def keep(self):
        time.sleep(3600)


@ray.remote(num_cpus=0)
class Reader:
    def read(self, store):
        while True:
            try:
                return ray.get(store.keep.remote())
            except ray.exceptions.RayActorError:
                time.sleep(5)


def killed():
    """An actor is killed by SIGKILL; the one that needs it tries again and again."""
    store = Store.options(name="store").remote()
    pid = ray.get(store.pid.remote())
    waiting = Reader.remote().read.remote(store)
    time.sleep(2)
    os.kill(pid, signal.SIGKILL)
    ready(4)
    ray.get(waiting)


@ray.remote(num_cpus=0)
class Simulator:
    def pid(self):
        return os.getpid()

    def roll(self):
        count = 0
        while True:
            count += 1


def stopped():
    """An actor gets SIGSTOP in the middle of its work."""
    _, second = (Simulator.options(name=f"sim-{n}").remote() for n in range(2))
    pid = ray.get(second.pid.remote())
    waiting = second.roll.remote()
    time.sleep(2)
    os.kill(pid, signal.SIGSTOP)
    ready(3)
    try:
        ray.get(waiting)
    finally:
        os.kill(pid, signal.SIGCONT)


@ray.remote(num_cpus=0)
class Router:
    async def route(self, number):
        if number == 3:
            self.call_backend()
        await asyncio.sleep(0.1)
        return number

    def call_backend(self):
        import socket

        ends = socket.socketpair()
        return ends[0].recv(1)


def async_blocked():
    """An async actor calls something that blocks its event loop: all later calls stay where they are."""
    router = Router.remote()
    ready(5)
    ray.get([router.route.remote(number) for number in range(6)])


@ray.remote(num_cpus=0, max_concurrency=2)
class Cache:
    def get(self, key):
        time.sleep(0.05)
        return key

    def refresh(self):
        return self.read_source()

    def read_source(self):
        threading.Event().wait()


def threaded():
    """A threaded actor: one call of two hangs, the other answers."""
    cache = Cache.options(name="cache").remote()
    refreshed = cache.refresh.remote()
    for key in range(20):
        ray.get(cache.get.remote(key))
    ready(5)
    ray.get(refreshed)


@ray.remote(num_cpus=0)
class Counter:
    def work(self, seconds):
        until = time.monotonic() + seconds
        total = 0
        while time.monotonic() < until:
            total += 1
        return total


def healthy_plain():
    """Short calls of two actors, one after the other: nothing hangs."""
    counters = [Counter.remote() for _ in range(2)]
    ready(5)
    while True:
        ray.get([each.work.remote(0.05) for each in counters])
        time.sleep(0.2)


def healthy_long_call():
    """One call that computes for minutes: the driver waits, and nothing hangs."""
    ready(8)
    ray.get(Counter.options(name="cruncher").remote().work.remote(600))


@ray.remote(num_cpus=0)
class SlowStart:
    def __init__(self):
        self.load_weights()

    def load_weights(self):
        threading.Event().wait()

    def ping(self):
        return 1


def stuck_constructor():
    """The call waits for an actor whose constructor never ends."""
    ready(8)
    ray.get(SlowStart.options(name="model").remote().ping.remote())


@ray.remote(num_cpus=0)
def read_part(number):
    if number == 1:
        threading.Lock().acquire()
        os.read(os.pipe()[0], 1)
    return number


@ray.remote(num_cpus=0)
def merge(*parts):
    return sum(parts)


def arguments():
    """The driver waits for a task whose arguments another task does not give."""
    parts = [read_part.remote(number) for number in range(3)]
    ready(8)
    ray.get(merge.remote(*parts))


@ray.remote(num_cpus=0)
class Proxy:
    def __init__(self, backend):
        self.backend = backend

    async def handle(self):
        return await self.backend.answer.remote()


@ray.remote(num_cpus=0)
class Backend:
    def answer(self):
        threading.Event().wait()


def awaited():
    """An async actor awaits a ref of another actor, which does not answer."""
    proxy = Proxy.remote(Backend.options(name="backend").remote())
    ready(8)
    ray.get(proxy.handle.remote())


@ray.remote(num_cpus=0)
class Consumer:
    def __init__(self, queue):
        self.queue = queue

    def consume(self):
        while True:
            self.queue.get()


def empty_queue():
    """An actor takes from a queue of Ray's that nobody fills any more."""
    from ray.util.queue import Queue

    queue = Queue()
    consumer = Consumer.options(name="consumer").remote(queue)
    queue.put(1)
    ready(8)
    ray.get(consumer.consume.remote())


@ray.remote(num_cpus=0)
def outer():
    return ray.get(inner.remote())


@ray.remote(num_cpus=0)
def inner():
    threading.Event().wait()


def nested_polled():
    """The driver asks with ray.wait and a timeout, again and again, for a task that waits for a task that is stuck."""
    waiting = [outer.remote()]
    ready(8)
    while waiting:
        _, waiting = ray.wait(waiting, timeout=1.0)


def driver_stuck():
    """All actors are idle: the driver itself waits for a lock."""
    counter = Counter.remote()
    ray.get(counter.work.remote(0.1))
    ready(5)
    wait_in_driver()


def wait_in_driver():
    threading.Event().wait()


def impossible():
    """A task asks for a GPU on a cluster without any."""
    ready(8)
    ray.get(preprocess.options(num_gpus=1).remote(1))


def restarting():
    """An actor that is killed and restarted blocks again in the same call."""
    store = Store.options(name="store", max_restarts=-1, max_task_retries=-1).remote()
    pid = ray.get(store.pid.remote())
    waiting = store.keep.remote()
    time.sleep(2)
    os.kill(pid, signal.SIGKILL)
    ready(12)
    ray.get(waiting)


if __name__ == "__main__":
    ray.init(address=os.environ["RAY_ADDRESS"])
    globals()[sys.argv[1]]()
