"""Which groups are one, and whose dump it is."""

from __future__ import annotations

from kits.small_dumps import T0, as_json, call, entry, group, job, of, operations, packed, read, top

# ---- groups ----------------------------------------------------------------------------------------------------------


def test_one_name_on_disjoint_members_is_two_groups() -> None:
    """split_group gives one name to several groups: members tell them apart."""
    raws = [read(top([of("tp", "", 1)], group("tp", "", *((0, 1) if rank < 2 else (2, 3)))), rank) for rank in range(4)]
    assembled = job(*raws)
    assert [entry.members for entry in assembled.groups] == [(0, 1), (2, 3)]
    assert [row.group.members for row in assembled.ops] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert not assembled.gaps


def test_members_are_lent_by_a_peer_that_lists_this_rank() -> None:
    """A table that was not filled yet on one rank is taken from a peer's, where that names the rank."""
    raws = [
        read(top([of("7", "dp", 1)], group("7", "dp", 0, 2)), 0),
        read(top([of("7", "dp", 1)], group("7", "dp", 1, 3)), 1),
        read(top([of("7", "dp", 2)]), 2),
    ]
    assembled = job(*raws)
    assert operations(assembled, 2)[0].group.members == (0, 2)
    assert not operations(assembled, 2)[0].group.members_seen


def test_tables_that_disagree_are_a_conflict() -> None:
    """Two tables of one name that overlap without being equal are both kept, and the conflict is told."""
    raws = [
        read(top([of("1", "a", 1)], group("1", "a", 0, 1, 2)), 0),
        read(top([of("1", "a", 1)], group("1", "a", 0, 1)), 1),
    ]
    assembled = job(*raws)
    assert len(assembled.groups) == 2
    assert any("conflict: members of group 1" in gap.what for gap in assembled.gaps)


def test_a_group_without_entries_is_still_a_group() -> None:
    """A group that is in the table alone exists, with its members."""
    config = {**group("0", "default_pg", 0, 1), **group("5", "ckpt", 0, 9)}
    assembled = job(read(top([entry(0, 1)], config), 0))
    assert [(entry.label, entry.members) for entry in assembled.groups] == [("default_pg", (0, 1)), ("ckpt", (0, 9))]
    assert assembled.ranks == (0, 1, 9)


def test_a_restart_within_the_process_makes_a_new_group_of_the_old_name() -> None:
    """Two process groups of one name in one process have counters of their own: the older one is kept apart."""
    entries = [of("0", "default_pg", 0, 0, 40), of("0", "default_pg", 1, 1, 1)]
    replaced = [of("0", "default_pg", 0, 0, 1)]
    config = group("0", "default_pg", 0, 1)
    assembled = job(read(top(entries, config), 0), read(top(replaced, config), 1))
    assert len(assembled.groups) == 2
    assert operations(assembled, 0)[1].group == operations(assembled, 1)[0].group
    assert operations(assembled, 0)[0].group != operations(assembled, 0)[1].group


def test_status_follows_the_entries_and_not_the_table() -> None:
    """pg_status is keyed by the process's own numbers, which the entries translate."""
    config = {**group("0", "default_pg", 0, 1), **group("12", "dp", 0, 1), **group("3", "tp", 0, 1)}
    line = {"last_enqueued_collective": 4, "last_started_collective": 4, "last_completed_collective": 3}
    raw = read(top([entry(0, 1), of("3", "tp", 1, 1)], config, pg_status={"0": line, "1": line, "2": line}), 0)
    assembled = job(raw)
    named = {assembled.groups[index].desc for _, index in assembled.status}
    assert named == {"default_pg", "tp", "dp"}


def test_status_that_fits_nothing_is_dropped() -> None:
    """A number that no entry names and that could mean several groups is left out, not guessed."""
    config = {**group("0", "default_pg", 0, 1), **group("x", "dp", 0, 1), **group("y", "tp", 0, 1)}
    line = {"last_enqueued_collective": 4, "last_started_collective": 4, "last_completed_collective": 3}
    assembled = job(read(top([entry(0, 1)], config, pg_status={"0": line, "1": line}), 0))
    assert {assembled.groups[index].desc for _, index in assembled.status} == {"default_pg"}


# ---- whose dump it is ------------------------------------------------------------------------------------------------


def test_a_manifest_comes_before_the_name() -> None:
    """The rank that a manifest gives is used whatever the file is called."""
    assert set(job(read(top([entry(0, 1)]), file="nccl_trace_rank_3", hint_rank=8)).dumps) == {8}


def test_content_tells_the_rank_where_the_name_does_not() -> None:
    """The own side of its sends, or the one member that all its groups share, is certain."""
    config = {**group("0", "default_pg", 0, 1, 2, 3), **group("1", "tp", 2, 3), **group("2", "dp", 1, 3)}
    shared = job(read(top([entry(0, 1)], config), file="a.pickle"))
    assert set(shared.dumps) == {3}
    sends = job(read(top([call(0, "send 2->0", 1)], group("0", "default_pg", 0, 1, 2, 3)), file="b.pickle"))
    assert set(sends.dumps) == {2}


def test_a_dump_of_nobody_is_a_gap() -> None:
    """A dump whose rank nothing tells is not used, and the gap names the file."""
    assembled = job(read(top([entry(0, 1)], group("0", "default_pg", 0, 1)), file="dump.pickle"))
    assert not assembled.dumps
    (gap,) = assembled.gaps
    assert str(gap.source) == "dump.pickle"


def test_ranks_that_start_at_zero_in_a_subgroup_are_conflicts() -> None:
    """Files of several hosts that all count from 0 are told apart by their groups, and the conflict is told."""
    raws = [
        read(top([entry(0, 1)], group("0", "default_pg", *members)), file=f"{host}/nccl_trace_rank_{number}")
        for host, members in (("a", (0, 1)), ("b", (2, 3)))
        for number in (0, 1)
    ]
    assembled = job(*raws)
    assert set(assembled.dumps) == {0, 1, 2, 3}
    assert [gap.what for gap in assembled.gaps if gap.what.startswith("conflict")] == [
        "conflict: the file's name says rank 0, but its first group has ranks 2, 3; read as rank 2, number 0 of that "
        "group",
        "conflict: the file's name says rank 1, but its first group has ranks 2, 3; read as rank 3, number 1 of that "
        "group",
    ]


def test_a_name_that_the_content_denies_is_a_conflict() -> None:
    """A file name that contradicts the content certainly is not believed, and that is told."""
    config = {**group("1", "tp", 2, 3), **group("2", "dp", 1, 3)}
    assembled = job(read(top([of("1", "tp", 0)], config), file="nccl_trace_rank_1"))
    assert set(assembled.dumps) == {3}
    assert "says rank 1, its content says rank 3" in assembled.gaps[0].what


def test_two_dumps_of_one_rank_are_a_conflict() -> None:
    """Two recordings that claim one rank: the newer one is used, the other is named."""
    older = read(top([entry(0, 1)]), 3, file="a/nccl_trace_rank_3")
    newer = read(top([entry(0, 1, time_created_ns=T0 + 60 * 10**9)]), 3, file="b/nccl_trace_rank_3")
    assembled = job(older, newer)
    assert [dump.file for dump in assembled.dumps[3]] == ["b/nccl_trace_rank_3"]
    (gap,) = assembled.gaps
    assert gap.what == "conflict: another dump of rank 3"
    assert gap.source is not None and gap.source.file == "a/nccl_trace_rank_3"
    assert "b/nccl_trace_rank_3" in gap.why


def test_a_copy_is_no_conflict() -> None:
    """The same bytes under two paths are one dump."""
    data = packed(top([entry(0, 1)]))
    assembled = job(read(data, 3, file="a/rank_3"), read(data, 3, file="b/rank_3"))
    assert len(assembled.ops) == 1
    assert not assembled.gaps
    assert assembled.duplicates == (("b/rank_3", "a/rank_3"),)


def test_a_poll_serves_only_where_there_is_no_dump() -> None:
    """The last answer of a live poll is used for a rank without a dump, and gives way to one."""
    poll = read(as_json(top([entry(9, 10, state="started")])), 0, file="last_rank_0.json", role="poll")
    assert job(poll).dumps[0][0].role == "poll"
    assert job(poll).first_kept == {(0, 0): 10}
    full = read(top([entry(number, number + 1) for number in range(10)]), 0)
    assert [dump.role for dump in job(poll, full).dumps[0]] == ["dump"]
    assert not job(poll, full).gaps
