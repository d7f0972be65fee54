"""Samples the space of jobs: sizes, layouts, faults, formats, rings, clocks and missing evidence."""

from __future__ import annotations

import random
from dataclasses import replace

from hangscope.simulate.spec.job_spec import TORCH, Spec

_SIZES = (8, 8, 8, 8, 12, 16, 16, 16, 24, 32, 32, 32, 48, 64, 64, 96, 128, 128, 256, 512, 1024)
"""Ranks; small ones more often, because a thousand jobs have to be run in minutes."""

_MOST_SHIFTED = 64

_FAULTS = (
    ("absent", 22),
    ("mismatch", 20),
    ("dead", 10),
    ("frozen", 8),
    ("gpu", 10),
    ("network", 10),
    ("deadlock", 8),
    ("slow", 6),
    ("none", 6),
)


def random_spec(seed: int) -> Spec:
    """One job, every choice drawn from the seed. It can always be simulated.

    The order of the draws belongs to the seed: a choice that is drawn elsewhere makes every job another one.
    """
    rng = random.Random(f"spec {seed}")
    fault = rng.choices([name for name, _ in _FAULTS], [weight for _, weight in _FAULTS])[0]
    backend, torch = _library(rng, fault)
    minor = int(torch.partition(".")[2])
    ranks, tp, pp, ep = _layout(rng, fault, backend)
    if minor == 2 and fault in ("mismatch", "deadlock", "network"):
        tp = pp = ep = 1  # that format does not say who is in which group
    timing = rng.random() < 0.75
    form = _form(rng, minor)
    several = _several_culprits(rng, fault, ranks)
    return Spec(
        ranks=ranks,
        tp=tp,
        pp=pp,
        ep=ep,
        gpus_per_node=rng.choice((4, 8, 8)),
        fault=fault,
        # Dumps of torch 2.2 do not say when they were written: a job that runs looks like one that hangs.
        variant="stopped" if fault == "none" and minor == 2 else "",
        culprit_count=rng.randint(2, 3) if several else 1,
        stale_dump=fault == "dead" and rng.random() < 0.25,
        steps=_steps(rng, backend),
        entries=_entries(rng, backend, ranks),
        data_parallel=rng.choice(("fsdp", "fsdp", "ddp", "coalesced")),
        plain_p2p=rng.random() < 0.3,
        overlap=rng.random() < 0.3,
        ahead=rng.choice((1, 2, 4, 8, 16)),
        torch=torch,
        backend=backend,
        form=form,
        gzip=rng.random() < 0.1,
        stacks=rng.random() < 0.92,
        timing=timing,
        style=rng.choice(("mesh", "mesh", "megatron", "plain")),
        naming=_naming(rng, backend),
        clock_skew_ms=rng.choice((0.0, 0.0, 2.0, 20.0, 400.0)),
        timeout_s=rng.choice((60.0, 600.0, 1800.0)),
        evidence=rng.random() < 0.7,
        nccl_warnings=rng.random() < 0.5,
        self_dump=_self_dump(rng, backend, minor),
        checkpoint_every=rng.choice((0, 0, 5, 50)),
        seed=seed,
        case=f"simulated-{seed}",
    )


def random_shift_spec(seed: int) -> Spec:
    """One job that comes apart without hanging, of up to 64 ranks: many steps of it are simulated one by one.

    Drawn beside `random_spec`, whose jobs stay what they are.
    """
    drawn = (random_spec(100 * seed + number) for number in range(100))
    spec = next((spec for spec in drawn if spec.ranks <= _MOST_SHIFTED), Spec(seed=seed))
    return replace(
        spec,
        fault="shift",
        variant="",
        culprit_count=1,
        stale_dump=False,
        self_dump=False,
        entries=max(spec.entries, 300),
        case=f"shifted-{seed}",
    )


def _form(rng: random.Random, minor: int) -> str:
    if minor >= 5 and rng.random() < 0.12:
        return "json"
    if rng.random() < 0.12:
        return rng.choice(("python3", "python4", "python5"))
    return "pickle"


def _several_culprits(rng: random.Random, fault: str, ranks: int) -> bool:
    return fault in ("absent", "dead", "frozen") and ranks >= 16 and rng.random() < 0.15


def _steps(rng: random.Random, backend: str) -> int:
    # torchcomms counts over all groups: only a ring that lost nothing can be taken apart again.
    return rng.randint(4, 12) if backend == "torchcomms" else 0


def _entries(rng: random.Random, backend: str, ranks: int) -> int:
    if backend == "torchcomms":
        return 5000
    return rng.choice((300, 500, 1000) if ranks > 128 else (200, 300, 600, 2000))


def _naming(rng: random.Random, backend: str) -> str:
    if backend in ("gloo", "torchcomms"):
        return rng.choice(("numbers", "hashes"))
    return rng.choice(("numbers", "numbers", "shared", "hashes"))


def _self_dump(rng: random.Random, backend: str, minor: int) -> bool:
    return (backend == "nccl2" or minor == 2) and rng.random() < 0.5


def _library(rng: random.Random, fault: str) -> tuple[str, str]:
    """backend, torch"""
    draw = rng.random()
    if draw < 0.02:
        return "torchcomms", rng.choice(("2.11", "2.13", "2.15"))
    if draw < 0.05 and fault in ("absent", "frozen", "slow", "none", "deadlock"):
        return "gloo", rng.choice(("2.13", "2.15"))
    if draw < 0.10:
        return "nccl2", "2.15"
    torch = rng.choice((*TORCH, "2.11"))
    if draw < 0.14 and torch not in ("2.2", "2.3"):
        return rng.choice(("rccl", "xccl")), torch
    return "nccl", torch


def _layout(rng: random.Random, fault: str, backend: str) -> tuple[int, int, int, int]:
    """ranks, tp, pp, ep"""
    for _ in range(100):
        ranks = rng.choice(_SIZES)
        tp = rng.choice((1, 1, 2, 2, 4, 8))
        pp = 1 if backend in ("gloo", "torchcomms") else rng.choice((1, 1, 1, 2, 4, 8))
        if ranks % (tp * pp):
            continue
        dp = ranks // (tp * pp)
        if dp * tp < 3 and fault in ("slow", "deadlock", "mismatch"):
            continue  # too few peers to tell who is different
        ep = rng.choice([ways for ways in (1, 1, 2, 4, 8) if dp % ways == 0])
        return ranks, tp, pp, ep
    raise AssertionError("a hundred layouts in a row did not fit")
