"""Dumps that are meant to be slow: groups, members, peers, states, frames and positions that differ wherever they can."""

# ruff: noqa: E501 - one family stands in one line, as what it writes does

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hostile.slow_families import FAMILIES
from kits.small_dumps import as_json, entry, group, top

NAMES = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "reduce")
STATES = ("scheduled", "started", "completed")
UNFINISHED: dict[str, Any] = {
    "state": "scheduled",
    "retired": False,
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
}

Entry = Callable[[int, random.Random], dict[str, Any]]
Config = Callable[[int], Iterable[dict[str, Any]]]


def world(ranks: int) -> list[dict[str, Any]]:
    return [group("0", "default_pg", *range(ranks))]


def one(name: str, make: Entry, config: Config = lambda count: world(8), each: int = 560, packs: int = 2) -> None:
    """Register a dump of one rank, as pickle and as JSON; `each` is about how many bytes an entry takes in JSON, `packs`
    how many times smaller it is as a pickle."""

    def value(rng: random.Random, size: int) -> dict[str, Any]:
        count = size // each
        return top([make(n, rng) for n in range(count)], *config(count))

    def as_pickle(folder: Path, rng: random.Random, size: int) -> None:
        (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(value(rng, size * packs), protocol=2))

    def json_form(folder: Path, rng: random.Random, size: int) -> None:
        (folder / "nccl_trace_rank_0.json").write_bytes(as_json(value(rng, size)))

    FAMILIES[f"dump_{name}"] = as_pickle
    FAMILIES[f"dump_{name}_json"] = json_form


def many(
    name: str, ranks: int, entries: Callable[[int, int, random.Random], list[dict[str, Any]]], config: Config = world
) -> None:
    """Register dumps of many ranks: `entries(rank, how many fit, rng)`."""

    def write(folder: Path, rng: random.Random, size: int) -> None:
        room = max(1, (size // ranks - 300) // 150)
        for rank in range(ranks):
            value = top(entries(rank, room, rng), *config(ranks))
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, protocol=4))

    FAMILIES[f"ranks_{name}"] = write


def own_group(n: int, **changes: Any) -> dict[str, Any]:
    return entry(n, 1, process_group=(str(n), f"g{n}"), pg_id=n, **changes)


def send(n: int, source: int, target: int, **changes: Any) -> dict[str, Any]:
    name = f"nccl:send {source}->{target}" if n % 2 else f"nccl:recv {source}<-{target}"
    return entry(n, 5, name, p2p_seq_id=n, is_p2p=True, **changes)


# ---- one rank --------------------------------------------------------------------------------------------------------

one("each_entry_in_its_own_group", lambda n, _: own_group(n, **UNFINISHED))
one("each_entry_in_its_own_group_done", lambda n, _: own_group(n))
one("own_groups_with_members", lambda n, _: own_group(n, **UNFINISHED),
    lambda count: [group(str(n), f"g{n}", 0, n + 1) for n in range(count)])  # fmt: skip
one("own_groups_of_many", lambda n, rng: own_group(n, **UNFINISHED),
    lambda count: [group(str(n), f"g{n}", 0, *range(n, n + 90)) for n in range(count)], 1400, 1)  # fmt: skip
one("groups_with_huge_member_lists", lambda n, _: entry(n, n, process_group=(str(n % 20), "g"), pg_id=n % 20, **UNFINISHED),
    lambda count: [group(str(n), "g", *range(n, n + 15_000)) for n in range(20)], 5600, 1)  # fmt: skip
one("one_group_of_all", lambda n, _: entry(n, n, **UNFINISHED), lambda count: world(200_000), 1200, 1)
one("sends_to_different_peers", lambda n, _: send(n, 0, n + 1, **UNFINISHED), lambda count: world(9000))
one("sends_of_a_batch", lambda n, _: send(n, 0, n % 7 + 1, **UNFINISHED))
one(
    "coalesced", lambda n, rng: entry(n, n // 50, "nccl:coalesced" if n % 50 == 49 else "nccl:all_gather", is_p2p=False)
)
one(
    "coalesced_sends",
    lambda n, _: (
        entry(n, 5, "nccl:coalesced", p2p_seq_id=n // 3, is_p2p=True, **UNFINISHED)
        if n % 3 == 2
        else send(n, 0, n % 7 + 1)
    ),
)
one("all_states", lambda n, rng: entry(n, n, state=rng.choice(STATES), retired=rng.random() < 0.5))
one("everything_unfinished", lambda n, _: entry(n, n, **UNFINISHED))
one("all_of_one_number", lambda n, rng: entry(n, 7, rng.choice(NAMES), **UNFINISHED))
one("numbers_at_random", lambda n, rng: entry(n, rng.randrange(1 << 60), **UNFINISHED))
one("times_at_random", lambda n, rng: entry(n, n, time_created_ns=rng.randrange(1 << 62)))
one(
    "deep_frames",
    lambda n, _: entry(n, n, frames=[{"name": f"f{n}_{i}", "filename": "/w/a.py", "line": i} for i in range(300)]),
    each=14_000,
    packs=1,
)
one("different_frames", lambda n, _: entry(n, n, frames=[{"name": f"f{n}", "filename": f"/w/{n}.py", "line": n}]))
one("different_sizes", lambda n, _: entry(n, n, input_sizes=[[n, n + 1]], output_sizes=[[n]]))
one(
    "long_sizes",
    lambda n, _: entry(n, n, input_sizes=[[i] for i in range(500)], input_dtypes=["Float"] * 500),
    each=8000,
    packs=1,
)
one("different_names", lambda n, _: entry(n, n, f"nccl:op_{n}", **UNFINISHED))
one("different_threads", lambda n, _: entry(n, n, thread_id=str(n), thread_name=f"t{n}"))
one(
    "many_config_groups",
    lambda n, _: entry(n, n),
    lambda count: [group(str(n), f"g{n}", *range(0, 60, n % 7 + 1)) for n in range(4900)],
    packs=1,
)


def with_status(folder: Path, rng: random.Random, size: int) -> None:
    counts = {
        str(n): {"last_enqueued_collective": n + 9, "last_started_collective": n + 8, "last_completed_collective": n}
        for n in range(4900)
    }
    config = [group(str(n), f"g{n}", 0, n + 1) for n in range(4900)]
    entries = [own_group(n, **UNFINISHED) for n in range(min(4900, size // 900))]
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(top(entries, *config, pg_status=counts)))


FAMILIES["dump_status_of_many_groups"] = with_status

# ---- many ranks ------------------------------------------------------------------------------------------------------

few: Config = lambda ranks: [{"0": {"name": "0", "desc": "default_pg", "ranks": ""}}]  # noqa: E731

many("each_in_its_own_operation", 1000, lambda r, k, _: [entry(0, 1000 + r, **UNFINISHED)], few)
many("each_in_its_own_group", 1000, lambda r, k, _: [own_group(r, **UNFINISHED)], few)
many("each_sends_to_the_next", 1000, lambda r, k, _: [send(1, r, (r + 1) % 1000, **UNFINISHED)], few)
many(
    "each_sends_to_anybody",
    1000,
    lambda r, k, rng: [send(n, r, rng.randrange(1000), **UNFINISHED) for n in range(k)],
    few,
)
many("each_with_another_size", 1000, lambda r, k, _: [entry(0, 7, input_sizes=[[r]], **UNFINISHED)], few)
many("each_with_another_name", 1000, lambda r, k, _: [entry(0, 7, f"nccl:op_{r}", **UNFINISHED)], few)
many(
    "each_in_two_groups",
    1000,
    lambda r, k, _: [
        entry(0, 7, process_group=(str(r), "a"), pg_id=1, **UNFINISHED),
        entry(1, 7, process_group=(str((r + 1) % 1000), "a"), pg_id=2, **UNFINISHED),
    ],
    few,
)
many("nothing_but_status", 1000, lambda r, k, _: [], few)
many(
    "operations_at_random",
    8,
    lambda r, k, rng: [entry(n, n, f"nccl:{rng.choice(NAMES)}", input_sizes=[[rng.randrange(9)]]) for n in range(k)],
)
many("operations_at_random_of_64", 64, lambda r, k, rng: [entry(n, n, f"nccl:{rng.choice(NAMES)}") for n in range(k)])
many("numbers_shifted", 16, lambda r, k, rng: [entry(n, n + r * 3, f"nccl:{NAMES[n * n % 5]}") for n in range(k)])
many(
    "groups_at_random",
    16,
    lambda r, k, rng: [
        entry(n, n, process_group=(str(g := rng.randrange(300)), f"g{g}"), pg_id=g, **(UNFINISHED if n % 3 else {}))
        for n in range(k)
    ],
)
many(
    "same_groups_other_members",
    100,
    lambda r, k, rng: [own_group(n, **UNFINISHED) for n in range(k)],
    lambda ranks: [group(str(n), "tp", *range(n, n + 8)) for n in range(40)],
)
many(
    "groups_of_one_description",
    64,
    lambda r, k, rng: [entry(n, 3, process_group=(str(r * 100 + n), "tp"), pg_id=n, **UNFINISHED) for n in range(k)],
)
many(
    "sends_at_random_of_16",
    16,
    lambda r, k, rng: [send(n, r, rng.randrange(16), **(UNFINISHED if rng.random() < 0.3 else {})) for n in range(k)],
)
many(
    "batches_of_16",
    16,
    lambda r, k, rng: [
        entry(n, 5, "nccl:coalesced", p2p_seq_id=n // 3, is_p2p=True) if n % 3 == 2 else send(n, r, rng.randrange(16))
        for n in range(k)
    ],
)
many(
    "two_sides",
    64,
    lambda r, k, rng: [
        entry(n, n, "nccl:all_reduce" if (n + r) % 2 else "nccl:broadcast", **(UNFINISHED if n > k - 3 else {}))
        for n in range(k)
    ],
)
many("times_at_random", 32, lambda r, k, rng: [entry(n, n, time_created_ns=rng.randrange(1 << 61)) for n in range(k)])
many(
    "slow_ranks",
    32,
    lambda r, k, rng: [entry(n, n, time_created_ns=10**18 + n * 10**9 + rng.randrange(10**9)) for n in range(k)],
)


def one_rank_many_dumps(folder: Path, rng: random.Random, size: int) -> None:
    for n in range(1000):
        (folder / str(n)).mkdir()
        value = top([entry(rng.randrange(99), n + i) for i in range(max(1, size // 1000 // 400))], *world(8))
        (folder / str(n) / "nccl_trace_rank_0").write_bytes(pickle.dumps(value, protocol=4))


def versions(folder: Path, rng: random.Random, size: int) -> None:
    for rank in range(1000):
        value = top(
            [entry(0, 7, state=rng.choice(STATES))], *world(8), version=f"2.{rank}", comm_lib_version=f"2.{rank}.1"
        )
        (folder / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps(value, protocol=rank % 4 + 2)[: max(900, size // 900)]
        )


def polls(folder: Path, rng: random.Random, size: int) -> None:
    del size
    for rank in range(1000):
        value = top(
            [own_group(rng.randrange(400), **UNFINISHED) for _ in range(3)], *world(8), rank=rank, polled_at=1.7e9
        )
        (folder / f"last_rank_{rank}.json").write_bytes(as_json(value))


FAMILIES["ranks_one_of_them_many_dumps"] = one_rank_many_dumps
FAMILIES["ranks_of_many_versions"] = versions
FAMILIES["ranks_polled"] = polls
