"""More of what people write, one rank of which goes wrong: groups, callbacks, metrics, pools, locks, FSDP2, DTensor.

`habits.py FAULT [--rank R]`, under torchrun with as many ranks as run.py says. The last ones are healthy.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from common import FOREVER_S, culprit, join, say_fault
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.extra = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, with_extra=True):
        x = self.second(self.first(x).relu())
        return self.extra(x) if with_extra else x


def setup(given, **more):
    join(given)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), **more)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(model, optimizer, **more):
    loss = model(torch.randn(8, 16), **more).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    return loss.detach()


def train(given, count=40, **more):
    model, optimizer = setup(given, **more)
    for _ in range(count):
        train_step(model, optimizer)
    return model, optimizer


# ---- groups ----------------------------------------------------------------------------------------------------------


def members_only(given):
    """`if rank in members: new_group(members)`: every rank has to make every group."""
    model, optimizer = train(given)
    members = [0, 1]
    if dist.get_rank() in members:
        say_fault()
        dist.new_group(members)
    pair = dist.new_group([0, 2])
    for _ in range(20):
        train_step(model, optimizer)
        dist.all_reduce(torch.ones(1), group=pair)


def other_order(given):
    """Two groups, which half of the ranks make in the other order."""
    train(given)
    pairs = [[0, 1, 2, 3], [0, 2]]
    if dist.get_rank() in (2, 3):
        say_fault()
        pairs.reverse()
    groups = {len(pair): dist.new_group(pair) for pair in pairs}
    for _ in range(20):
        dist.all_reduce(torch.ones(8), group=groups[4])


def other_mesh(given):
    """One rank reads another layout from its configuration."""
    from torch.distributed.device_mesh import init_device_mesh

    train(given)
    odd = culprit(given)
    if odd:
        say_fault()
    mesh = init_device_mesh("cpu", (4, 1) if odd else (2, 2), mesh_dim_names=("dp", "tp"))
    for _ in range(20):
        dist.all_reduce(torch.ones(8), group=mesh.get_group("dp"))


# ---- a branch on the rank --------------------------------------------------------------------------------------------


class Callbacks:
    def __init__(self, given):
        self.given = given

    def on_epoch_end(self):
        if culprit(self.given):
            say_fault()
            self.save()

    def save(self):
        dist.barrier()


def callback_barrier(given):
    """A callback of one rank alone waits for all."""
    model, optimizer = train(given)
    Callbacks(given).on_epoch_end()
    for _ in range(20):
        train_step(model, optimizer)


def callback_fails(given):
    """A callback of one rank raises, is told of in a line, and the collective in it is left out."""
    train(given)
    try:
        if culprit(given):
            say_fault()
            raise KeyError(60)
        reduce_metric()
    except KeyError as error:
        print(f"callback MetricSync failed: {error!r}", flush=True)
    dist.barrier()


def reduce_metric():
    dist.all_gather_object([None] * dist.get_world_size(), {"loss": 1.0})


def metric_missing(given):
    """Each rank reduces the metrics that it has, and one has one less."""
    model, optimizer = setup(given)
    for step in range(60):
        loss = train_step(model, optimizer)
        metrics = {"loss": loss, "accuracy": loss, "scores": torch.zeros(7)}
        if step == 40 and culprit(given):
            say_fault()
            del metrics["accuracy"]
        for metric in metrics.values():
            dist.all_reduce(metric)


def unused_on_one(given):
    """One rank's batch takes a branch in which a layer is not used."""
    model, optimizer = setup(given)
    for step in range(60):
        odd = step == 40 and culprit(given)
        if odd:
            say_fault()
        train_step(model, optimizer, with_extra=not odd)


def object_left_out(given):
    """One rank thinks it has the configuration already."""
    model, optimizer = train(given)
    if culprit(given):
        say_fault()
    else:
        share_config()
    for _ in range(20):
        train_step(model, optimizer)


def share_config():
    dist.broadcast_object_list([{"lr": 0.1} if dist.get_rank() == 0 else None], src=0)


def finally_barrier(given):
    """An exception at one rank, and a barrier in `finally`: the exception is not printed before the barrier ends."""
    model, optimizer = setup(given)
    try:
        for step in range(60):
            train_step(model, optimizer)
            if step == 40 and culprit(given):
                say_fault()
                raise ValueError("no such column: text")
    finally:
        dist.barrier()


def save_fails(given):
    """The save fails at one rank, is logged, and the barrier after it left out."""
    model, optimizer = train(given)
    try:
        if culprit(given):
            say_fault()
            raise OSError(28, "No space left on device", "/checkpoints/step-40.pt")
        dist.barrier()
    except OSError:
        logging.exception("cannot save")
    for _ in range(20):
        train_step(model, optimizer)


def all_raise(given):
    """Every rank raises at the same step."""
    model, optimizer = train(given)
    say_fault()
    parse_schedule("cosine:1e-4:x")
    train_step(model, optimizer)


def parse_schedule(text):
    return [float(part) for part in text.split(":")[1:]]


# ---- sends and receives ----------------------------------------------------------------------------------------------


def crossed_receives(given):
    """Ranks 1 and 2 exchange, and both receive first; the others are in the next step."""
    model, optimizer = train(given)
    other = {1: 2, 2: 1}.get(dist.get_rank())
    if other is not None:
        say_fault()
        exchange(other)
    for _ in range(20):
        train_step(model, optimizer)


def exchange(other):
    received = torch.zeros(8)
    dist.recv(received, src=other)
    dist.send(torch.ones(8), dst=other)


# ---- one rank does something else ------------------------------------------------------------------------------------


def full_pipe(given):
    """A child's output is never read, so it never ends."""
    model, optimizer = train(given)
    if culprit(given):
        say_fault()
        convert()
    train_step(model, optimizer)


def convert():
    words = (sys.executable, "-c", "print('x' * 1_000_000)")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        child.wait()


def pool_in_pool(given):
    """A task of a pool waits for a task of the same pool."""
    model, optimizer = train(given)
    if culprit(given):
        say_fault()
        preprocess()
    train_step(model, optimizer)


def preprocess():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: pool.submit(int).result()).result()


def future_never_set(given):
    """A rank's event loop waits for an answer that nobody gives."""
    model, optimizer = train(given)
    if culprit(given):
        say_fault()
        asyncio.run(fetch_rewards())
    train_step(model, optimizer)


async def fetch_rewards():
    await asyncio.get_running_loop().create_future()


def database_locked(given):
    """A rank's results go into a file that another connection has locked."""
    model, optimizer = train(given)
    if culprit(given):
        say_fault()
        store_results()
    train_step(model, optimizer)


def store_results():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.db")
        first = sqlite3.connect(path)
        first.execute("create table t (x)")
        first.execute("begin exclusive")
        sqlite3.connect(path, timeout=FOREVER_S).execute("insert into t values (1)")


class Slow(torch.utils.data.Dataset):
    def __init__(self, given):
        self.given = given

    def __len__(self):
        return 320

    def __getitem__(self, index):
        if index == 160 and culprit(self.given):
            say_fault()
            time.sleep(FOREVER_S)
        return torch.randn(16)


def loader_times_out(given):
    """A DataLoader's worker does not come back, and the loader has a timeout."""
    model, optimizer = setup(given)
    for _ in torch.utils.data.DataLoader(Slow(given), batch_size=8, num_workers=1, timeout=3):
        train_step(model, optimizer)


# ---- FSDP2, DTensor --------------------------------------------------------------------------------------------------


def fsdp_model():
    from torch.distributed.fsdp import fully_shard

    model = Net()
    for layer in (model.first, model.second, model.extra):
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def fsdp_eval_on_one(given):
    """One rank alone runs a sharded model."""
    join(given)
    model, optimizer = fsdp_model()
    for step in range(60):
        train_step(model, optimizer)
        if step == 40 and culprit(given):
            say_fault()
            sample(model)


def sample(model):
    with torch.no_grad():
        return model(torch.randn(1, 16))


def dtensor_on_one(given):
    """One rank alone distributes a tensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    model, optimizer = train(given)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for _ in range(5):
        train_step(model, optimizer)
    if culprit(given):
        say_fault()
        distribute_tensor(torch.ones(16, 16), mesh, [Replicate()])
    for _ in range(20):
        train_step(model, optimizer)


# ---- frameworks ------------------------------------------------------------------------------------------------------


def accelerate_gather(given):
    """One rank alone gathers its loss, to print it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step in range(60):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        time.sleep(0.05)
        if step == 40 and culprit(given):
            say_fault()
            print_loss(accelerator, loss)
    accelerator.end_training()


def print_loss(accelerator, loss):
    print(accelerator.gather(loss.detach()).mean())


def lightning_callback(given):
    """A callback of one rank alone calls the strategy's barrier."""
    import lightning as pl

    class Saves(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 40 and trainer.global_rank == given.rank:
                say_fault()
                self.save(trainer)

        def save(self, trainer):
            trainer.strategy.barrier()

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Net()

        def training_step(self, batch, index):
            time.sleep(0.05)
            return self.model(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    world = int(os.environ["WORLD_SIZE"])
    data = torch.utils.data.DataLoader(torch.randn(60 * 8 * world, 16), batch_size=8)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(accelerator="cpu", devices=world, strategy="ddp", max_epochs=1, callbacks=[Saves()], **quiet).fit(
        Module(), data
    )


def trainer_callback(given):
    """A callback of transformers' Trainer lets one rank alone reduce its loss."""
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.net = Net()
            self.post_init()

        def _init_weights(self, module):
            pass

        def forward(self, x):
            time.sleep(0.05)
            return {"loss": self.net(x).square().mean()}

    class Logs(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 40 and args.process_index == given.rank:
                say_fault()
                self.log_all()

        def log_all(self):
            dist.all_gather_object([None] * dist.get_world_size(), "loss")

    data = [{"x": torch.randn(16)} for _ in range(8 * 60 * int(os.environ["WORLD_SIZE"]))]
    with tempfile.TemporaryDirectory() as folder:
        wanted = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(folder, num_train_epochs=1, per_device_train_batch_size=8, **wanted)
        Trainer(Model(PretrainedConfig()), arguments, train_dataset=data, callbacks=[Logs()]).train()


def deepspeed_branch(given):
    """DeepSpeed's engine, and a norm that one rank alone asks for."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    model = Net()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.01}}},
    )
    for step in range(60):
        loss = engine(torch.randn(8, 16)).square().mean()
        engine.backward(loss)
        engine.step()
        time.sleep(0.05)
        if step == 40 and culprit(given):
            say_fault()
            log_norm()


def log_norm():
    import deepspeed

    deepspeed.comm.barrier()


# ---- healthy ---------------------------------------------------------------------------------------------------------


def accumulates(given):
    """Gradient accumulation, as in DDP's documentation."""
    model, optimizer = setup(given)
    for step in range(int(given.seconds / 0.06)):
        with model.no_sync() if step % 4 else contextlib.nullcontext():
            train_step(model, optimizer)


def overlaps(given):
    """Two groups, and collectives in flight on both."""
    join(given)
    groups = [dist.new_group() for _ in range(2)]
    for _ in range(int(given.seconds / 0.05)):
        works = [dist.all_reduce(torch.ones(1024), group=group, async_op=True) for group in groups]
        time.sleep(0.04)
        for work in works:
            work.wait()


def sleeps_together(given):
    """Every rank waits for the same service, outside of any collective."""
    model, optimizer = train(given)
    time.sleep(given.seconds)
    for _ in range(20):
        train_step(model, optimizer)


def short_evaluations(given):
    """Rank 0 evaluates now and then for a few seconds, while the others wait in a barrier."""
    model, optimizer = setup(given)
    for _ in range(4):
        for _ in range(20):
            train_step(model, optimizer)
        if dist.get_rank() == 0:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                model.module(torch.randn(64, 16))
        dist.barrier()


def background_group(given):
    """A thread that reports over a group of its own, beside the training."""
    model, optimizer = setup(given)
    group = dist.new_group()
    thread = threading.Thread(target=report, args=(group, given))
    thread.start()
    for _ in range(int(given.seconds / 0.06)):
        train_step(model, optimizer)
    thread.join()


def report(group, given):
    for _ in range(int(given.seconds / 2)):
        dist.all_reduce(torch.ones(1), group=group)
        time.sleep(2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a job that does not hang")
    parsed = parser.parse_args()
    globals()[parsed.fault](parsed)
