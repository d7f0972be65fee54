"""Small training jobs as people write them: DDP, FSDP2, DTensor, Accelerate, Lightning, Ray; healthy or hung.

`frameworks.py KIND [--hang|--raises|--killed] [--rank R] [--steps N] [--spawn N]`: with --hang, rank R waits in
`read_batch` for ever; it raises there with --raises, and ends there by SIGKILL with --killed.
"""

import argparse
import os
import signal
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def read_batch(given, rank, step):
    """A loader: with --hang, one rank's storage does not answer any more."""
    if (given.hang or given.raises or given.killed) and rank == given.rank and step == given.at:
        os.write(1, f"fault at {time.time():.3f}\n".encode())
        if given.raises:
            raise ValueError("loss is NaN")
        if given.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
    time.sleep(given.pause)
    return torch.randn(8, 16), torch.randn(8, 16)


def network():
    return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16))


def loop(given, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(given.steps):
        x, y = read_batch(given, dist.get_rank(), step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def steps(given, model):
    loop(given, model)
    dist.destroy_process_group()


def ddp(given):
    dist.init_process_group("gloo")
    steps(given, nn.parallel.DistributedDataParallel(network()))


def fsdp2(given):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model, mesh = network(), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    steps(given, fully_shard(model, mesh=mesh))


def dtensor(given):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    steps(given, parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def accelerate(given):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = network(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(given.steps):
        x, y = read_batch(given, accelerator.process_index, step)
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
    accelerator.end_training()


def lightning(given):
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, index):
            x, y = read_batch(given, self.global_rank, index)
            return nn.functional.mse_loss(self.model(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.zeros(given.steps * int(os.environ["WORLD_SIZE"])), batch_size=1)
    pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Module(), data)


def ray(given):
    """As Ray Train does it: each worker trains in a thread of an actor, whose main thread is in Ray's own loop."""
    import threading

    import ray

    @ray.remote(num_cpus=0)
    class Worker:
        def start(self, environ):
            os.environ.update(environ)
            self.thread = threading.Thread(target=ddp, args=(given,))
            self.thread.start()

        def finish(self):
            self.thread.join()

    ray.init("local", num_cpus=1, include_dashboard=False)
    workers = [Worker.remote() for _ in range(3)]
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": given.port}
    ray.get([worker.start.remote({**common, "RANK": str(rank)}) for rank, worker in enumerate(workers)])
    ray.get([worker.finish.remote() for worker in workers])


def ray_train(given):
    """Ray Train's own TorchTrainer, with three workers (`pip install "ray[train]"`)."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init("local", num_cpus=3, include_dashboard=False)
    TorchTrainer(
        train_func,
        train_loop_config=vars(given),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=3, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()


def train_func(config):
    from ray.train.torch import prepare_model

    given = argparse.Namespace(**config)
    loop(given, prepare_model(network()))


def spawned(index, given):
    os.environ.update(RANK=str(index), WORLD_SIZE=str(given.spawn), MASTER_ADDR="127.0.0.1", MASTER_PORT=given.port)
    KINDS[given.kind](given)


KINDS = {each.__name__: each for each in (ddp, fsdp2, dtensor, accelerate, lightning, ray, ray_train)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    for fault in ("--hang", "--raises", "--killed"):
        parser.add_argument(fault, action="store_true")
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--at", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--port", default="29511")
    given = parser.parse_args()
    if given.spawn:
        mp.spawn(spawned, (given,), nprocs=given.spawn)
    else:
        KINDS[given.kind](given)
