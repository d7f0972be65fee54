"""A first look over the evidence: which users it gives away, and which words are host names."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from hangscope.bundle.aliases import is_host, is_word
from hangscope.bundle.edits import back_over
from hangscope.bundle.redact import user_names
from hangscope.safeio.file_magic import is_gzip
from hangscope.safeio.safe_files import open_file

_CHUNK = 4 << 20
_OVERLAP = 512
_RATIO = 150
_RATIO_FROM = 64 << 20

_HOMES = tuple(re.compile(word) for word in (rb"/home/", rb"/homes/", rb"/Users/", rb"/users/"))
_ACCOUNTS = tuple(re.compile(word) for word in (rb"USER", rb"LOGNAME"))
_SHARED = tuple(re.compile(word) for word in (rb"/u/", rb"/afs/", rb"torchinductor_"))
_NUMBERS = tuple(re.compile(word) for word in (rb"uid=", rb"gid="))
"""One expression a word, because a search for one fixed word is many times faster than one for several."""

_NCCL = re.compile(rb" NCCL (?:INFO|WARN|CALL|TRACE)")
_NCCL_FRONT = re.compile(rb"(?P<h>[A-Za-z0-9][\w.-]{0,252}):\d{1,8}:\d{1,8}(?= |\Z)")
_NAME = rb"[A-Za-z][A-Za-z0-9-]{1,62}(?:\.[A-Za-z0-9-]{1,63}){0,8}"
_VARIABLES = tuple(
    re.compile(word + rb"=[\"']?(?P<h>[A-Za-z][\w.-]{0,252})")
    for word in b"HOSTNAME hostname HOST NODENAME NODE_NAME MASTER_ADDR POD_NAME TOPOLOGY_ADDR".split()
)
_FIELDS = tuple(
    re.compile(word + rb"_?(?:name)?[\"']\s{0,3}:\s{0,3}[\"'](?P<h>[\w.-]{1,253})[\"']")
    for word in (rb"host", rb"node")
)
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        rb"host\s{1,10}:\s(?P<h>[\w.-]{2,253})",  # torchrun's report of a failure
        rb"\[(?P<h>" + _NAME + rb")\]:\d{2,5}(?!\d)",  # c10d's sockets
        rb"\((?P<h>" + _NAME + rb"), \d{2,5}\)",
        rb"master[_-]addr(?:ess)?[= ][\"']?(?P<h>" + _NAME + rb")(?=[\s\"',;:)]|\Z)",  # options of launchers
        rb"rdzv[_-]endpoint[= ][\"']?(?P<h>" + _NAME + rb")(?=[\s\"',;:)]|\Z)",
        rb"(?P<h>ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3})(?![\w-])",  # how AWS calls its hosts
        rb"ssh (?:-\S+ (?:[\w=./]+ )?){0,6}(?:[\w.-]{1,32}@)?(?P<h>" + _NAME + rb"\d)(?= |\Z|\n)",
        rb"Connection to (?P<h>" + _NAME + rb") closed",
    )
)
"""Places in lines of logs where host names are. What is a word there may be one of a sentence, and is not learnt."""
_INNER_DOMAINS = tuple(b".internal .local .lan .corp .intranet .localdomain .private .cluster".split())
"""Domains that no public host is in: what stands in front of one is a host, wherever it is."""
_INNER_HOST = re.compile(rb"(?<![\w.@/-])[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.){1,6}[a-z]{3,12}\Z")
_KERNEL = re.compile(rb"[ T]\d\d:\d\d:\d\d\S* (?P<h>[A-Za-z][\w.-]{1,252})\Z")
"""In front of ` kernel: ` in a system's log."""
_NO_STEM = frozenset(
    b"rank ranks gpu gpus cuda layer layers expert experts device devices step steps shard shards core cpu cpus".split()
)
_ADDRESS = re.compile(
    rb"[A-Za-z][A-Za-z0-9+.-]{1,15}://(?:[^\s/@\"'<>]{1,200}@)?(?P<h>" + _NAME + rb")(?=[:/\s\"',;)\]]|\Z)"
)
"""Hosts of web addresses, stores and rendezvous. Those that the whole world knows are nobody's secret."""
_PUBLIC = re.compile(
    rb"(?:^|\.)(?:pytorch\.org|github\.com|githubusercontent\.com|nvidia\.com|python\.org|pypi\.org|huggingface\.co|"
    rb"readthedocs\.io|wikipedia\.org|google\.com|kernel\.org|example\.(?:com|org|net)|localhost|wandb\.ai)$"
)
_BRACKETS = re.compile(
    rb"(?<![\w.\[-])(?P<stem>[A-Za-z][A-Za-z0-9-]{1,30}?[A-Za-z-])\[(?P<list>\d{2,6}-\d{2,6}[\d,-]{0,400}|(?<=-\[)\d{1,6}[-,]\d[\d,-]{0,400})\]"
    rb"(?P<more>(?:,[A-Za-z][\w-]{0,62}\d(?=[,:\s\"']|\Z)){0,60})"
)
"""`dgx[001-004]` and `node-[1-3,7]`, wherever they stand, with what follows in the list. An index of a list has no
range of several digits behind a word, and no dash in front."""
_POD = re.compile(rb"(?:\[pod/|\bpods?/|\bpod[ =:]{1,2}[\"']?)(?P<h>[a-z][a-z0-9-]{2,62}[a-z0-9])(?=[/\s\"',\]]|\Z)")
_PORT = re.compile(rb"<\d{1,5}>")  # behind NCCL's peers
_PEER = re.compile(rb"(?<![\w.:-])[A-Za-z][A-Za-z0-9.-]{2,252}\Z")
_LISTS = (re.compile(rb"NODELIST"), re.compile(rb"nodelist"), re.compile(rb"node_list"))
_LIST = re.compile(
    rb"(?:NODELIST|nodelist|node_list)[\"']?\s{0,2}[=:]\s{0,2}[\"']?(?P<list>[A-Za-z][\w.,\[\]-]{1,4000})"
)
_LISTED = re.compile(rb"([A-Za-z][A-Za-z0-9.-]{0,62}?)\[([\d,-]{1,2000})\]|([A-Za-z][\w.-]{0,252})")
_FILE = re.compile(r"(?:^|/)nccl[._-](?P<h>[A-Za-z0-9][\w-]*(?:\.[A-Za-z][\w-]*)*)\.\d+\.")


def _hits(words: tuple[re.Pattern[bytes], ...], data: bytes) -> Iterator[int]:
    for word in words:
        if word.pattern in data:  # looking whether it is there at all is many times faster than a search
            for hit in word.finditer(data):
                yield hit.start()


def home_owners(data: bytes) -> set[bytes]:
    """The user names that `data` gives away in a home directory."""
    found: set[bytes] = set()
    for at in _hits(_HOMES, data):
        if match := user_names.HOME.match(data, at):
            found.add(match["s"])
    for at in _hits(_SHARED, data):
        match = user_names.SHARED_HOME.match(data, at)
        if match and match["s"].lower() not in user_names.FOLDERS:
            found.add(match["s"])
    return found - user_names.GENERIC


def users_in(data: bytes) -> set[bytes]:
    """The user names that `data` gives away in a home directory or an assignment."""
    found = home_owners(data)
    for at in _hits(_ACCOUNTS, data):
        if match := user_names.VARIABLE.match(data, back_over(data, at, user_names.VARIABLE_FRONT, 40)):
            found.add(match["s"])
    for at in _hits(_NUMBERS, data):
        if match := user_names.NUMBERED.match(data, at):
            found.add(match["s"])
    return found - user_names.GENERIC


def hosts_in(data: bytes) -> set[str]:
    """The host names in a log: in prefixes and variables any, in other places those that are no word."""
    found = _in_prefixes(data) | _in_lists(data)
    for pattern in _VARIABLES:
        found.update(match["h"] for match in pattern.finditer(data))
    other = _in_addresses(data) | _in_ranges(data) | _by_domain(data) | _in_system_logs(data) | _of_peers(data)
    for pattern in (*_FIELDS, *_PLACES):
        other.update(match["h"] for match in pattern.finditer(data))
    if b"pod" in data:
        other.update(match["h"] for match in _POD.finditer(data))
    sure = _hosts(name.decode("ascii", "replace").rstrip(".") for name in found)
    others = _hosts(name.decode("ascii", "replace").rstrip(".") for name in other)
    return sure | {name for name in others if not is_word(name.partition(".")[0])}


def hosts_of_node(data: bytes) -> set[str]:
    """The host names in a node's own description, whose fields say which they are."""
    named = {match["h"].decode("ascii", "replace") for pattern in _FIELDS for match in pattern.finditer(data)}
    return _hosts(named) | hosts_in(data)


def _in_prefixes(data: bytes) -> set[bytes]:
    """In front of NCCL's lines."""
    found: set[bytes] = set()
    for hit in _NCCL.finditer(data):
        line = data[max(data.rfind(b"\n", 0, hit.start()) + 1, hit.start() - 512) : hit.start()]
        if match := _NCCL_FRONT.search(line):
            found.add(match["h"])
    return found


def _in_lists(data: bytes) -> set[bytes]:
    """In Slurm's variables."""
    found: set[bytes] = set()
    for at in _hits(_LISTS, data):
        if match := _LIST.match(data, at):
            for stem, numbers, single in _LISTED.findall(match["list"]):
                found.update([single] if single else (stem + number for number in _numbers(numbers)))
    return found


def _in_addresses(data: bytes) -> set[bytes]:
    """In addresses of stores, rendezvous and the web, but for those that everybody knows."""
    if b"://" not in data:
        return set()
    return {match["h"] for match in _ADDRESS.finditer(data) if not _PUBLIC.search(match["h"].lower())}


def _in_ranges(data: bytes) -> set[bytes]:
    found: set[bytes] = set()
    for match in _BRACKETS.finditer(data) if b"[" in data else ():
        if match["stem"].rstrip(b"-").lower() not in _NO_STEM:
            found.update(match["stem"] + number for number in _numbers(match["list"]))
            found.update(name for name in match["more"].split(b",") if name)
    return found


def _in_system_logs(data: bytes) -> set[bytes]:
    found: set[bytes] = set()
    for at in _hits((_KERNEL_SAYS,), data):
        if match := _KERNEL.search(data[max(0, at - 300) : at]):
            found.add(match["h"])
    return found


def _of_peers(data: bytes) -> set[bytes]:
    """In front of a port, as NCCL writes one."""
    found: set[bytes] = set()
    for port in _PORT.finditer(data):
        if match := _PEER.search(data[max(0, port.start() - 256) : port.start()]):
            found.add(match.group())
    return found


def _by_domain(data: bytes) -> set[bytes]:
    """Hosts by the domain behind them."""
    found: set[bytes] = set()
    for domain in _INNER_DOMAINS:
        at = data.find(domain)
        while at >= 0:
            end = at + len(domain)
            if _DOMAIN_END.match(data, end):
                match = _INNER_HOST.search(data[max(0, at - 253) : end])
                if match is not None:
                    found.add(match.group())
            at = data.find(domain, end)
    return found


_DOMAIN_END = re.compile(rb"(?![\w(/-]|\.\w)")
_KERNEL_SAYS = re.compile(rb" kernel: ")


def _numbers(ranges: bytes) -> list[bytes]:
    """The numbers of `001-004,017`; of a long list the first ones, which give the form of the rest."""
    found: list[bytes] = []
    for part in ranges.split(b","):
        low, _, high = part.partition(b"-")
        if low.isdigit() and (high or low).isdigit():
            last = min(int(high or low), int(low) + _MOST_HOSTS)
            found += [str(number).zfill(len(low)).encode() for number in range(int(low), last + 1)]
        if len(found) > _MOST_HOSTS:
            break
    return found[:_MOST_HOSTS]


_MOST_HOSTS = 4096


def hosts_of_names(names: Iterable[str]) -> set[str]:
    """The host names in an incident's own file names."""
    found: set[str] = set()
    for name in names:
        parts = name.split("/")
        if len(parts) > 2 and "nodes" in parts[:-2]:
            found.add(parts[parts.index("nodes") + 1])
        if match := _FILE.search(name):
            found.add(match["h"])
    return _hosts(found)


def hosts_of_manifest(raw: bytes) -> set[str]:
    """The nodes that a manifest expects, also those of which nothing is there."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return set()
    lists = [value.get("nodes_expected"), value.get("nodes_present")] if isinstance(value, dict) else []
    nodes = _hosts(name for item in lists if isinstance(item, list) for name in item if isinstance(name, str))
    return nodes | hosts_in(raw)  # and those in its sentences: who looks for the others elsewhere


def pieces(path: Path) -> Iterator[bytes]:
    """A file in pieces that overlap a little, so that nothing is lost at their ends; a compressed one unpacked."""
    with open_file(path) as raw:
        packed = is_gzip(raw.read(2))
        raw.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw, mode="rb") if packed else raw  # type: ignore[assignment]
        tail = b""
        try:
            total = 0
            size = os.fstat(raw.fileno()).st_size
            while chunk := stream.read(_CHUNK):
                total += len(chunk)
                if packed and total > _RATIO_FROM and total > _RATIO * size:
                    return  # whoever redacts it leaves it out
                yield tail + chunk
                tail = chunk[-_OVERLAP:]
        except (gzip.BadGzipFile, zlib.error, EOFError):
            return  # whoever redacts it will say so


def _hosts(names: Iterable[str]) -> set[str]:
    return {name for name in names if is_host(name.partition(".")[0])}
