"""Stable aliases for host names, addresses and paths: the same thing has the same alias everywhere and every time.

An alias keeps the form of what it replaces, so that readers still recognise it: a host is `node-001`, an IPv4 address
lies in 198.18.0.0/15 (reserved for benchmarks, RFC 2544), an IPv6 address in 2001:db8::/32 (reserved for documents, RFC
3849), a directory is `/path-001`. File names stay: they are what a stack is read by.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hangscope.errors import DamagedError
from hangscope.incident.layout import write_json

MAP_SCHEMA = "hangscope.aliases/1"

_IPV4 = re.compile(rb"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d|-\d)")
_VERSION_FRONT = re.compile(rb"(?:version|ver|==|>=|v|driver|cuda|cudnn|release)[\s:='\"]{0,3}\Z", re.IGNORECASE)
_IPV6 = re.compile(rb"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:\d{0,3}(?:\.\d{1,3}){3})?(?![\w:])")
_PATH = re.compile(rb"(?<![\w.:/~<$}-])(?P<folder>/(?:[\w.+@%=~,#-]+/)+)(?P<name>[\w.+@%=~,#-]*)")
_LIBRARY = re.compile(rb"/(?:lib(?:32|64)?/python\d[\d.]*|(?:site|dist)-packages)/")
_SYSTEM = re.compile(
    rb"/(?:(?:usr|lib|lib32|lib64|bin|sbin|etc|proc|sys|dev|run|boot)/|var/(?:run|lib|log)/|tmp/\Z|opt/\Z|"
    rb"opt/(?:conda|venv|nvidia|pytorch|hpcx|amazon|mellanox|rocm|intel|slurm)(?:-[\d.]+)?/|"
    rb"pytorch/(?:torch|aten|c10|third_party)/)"  # where PyTorch itself was built, in its C++ stacks
)
_ALIASED = re.compile(rb"/path-\d{3,}/|/\Z")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NO_HOST = frozenset(
    word.decode()
    for word in b"""localhost localdomain ip6-localhost none null true false unknown node nodes host hostname rank
    master worker gpu cpu nccl all any default main head leader logs dumps stacks ras kernel counters blackbox tmp data
    train""".split()
)
"""Words that are no host's name, or would be found everywhere."""
_PREFIXES = ("node-", "host-", "machine-", "alias-")
"""What host aliases begin with: the first that no true host begins with."""
_RANGE = re.compile(
    rb"(?P<stem>[A-Za-z][A-Za-z0-9.-]{0,62}?)\[(?P<list>\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]"
)
"""Slurm's way to name many hosts: `gpu-a[017-020,031]`."""


class Aliases:
    """Gives and remembers aliases. `hosts` are the names to look for; others of the same form are found with them."""

    def __init__(self, hosts: Iterable[str] = (), *, known: dict[str, dict[str, str]] | None = None) -> None:
        known = known or {}
        self.counts: Counter[str] = Counter()
        self.hosts: dict[str, str] = dict(known.get("hosts", {}))
        self.addresses: dict[str, str] = dict(known.get("addresses", {}))
        self.paths: dict[str, str] = dict(known.get("paths", {}))
        self._domains: set[str] = set()
        self._folders: dict[bytes, bytes] = {}
        self._given = set(self.addresses.values())
        names = sorted({*hosts, *self.hosts}, key=_natural)
        used = next(iter(self.hosts.values()), "")
        free = (prefix for prefix in _PREFIXES if not any(name.lower().startswith(prefix) for name in names))
        self._prefix = re.sub(r"\d+$", "", used) or next(free, "alias-")
        self._is_alias = re.compile(re.escape(self._prefix) + r"\d{3,}")
        for name in names:
            self._learn(name)
        self._lower = {name.lower(): name for name in self.hosts}
        self._regex = self._compile()

    @classmethod
    def load(cls, file: Path, hosts: Iterable[str] = ()) -> Aliases:
        """With the aliases that an earlier bundle's map gave, where there is one."""
        if not file.exists():
            return cls(hosts)
        try:
            value = json.loads(file.read_bytes())
            if value["schema"] != MAP_SCHEMA:
                raise ValueError(f"schema is {value['schema']!r}")
            known = {key: {str(a): str(b) for a, b in value[key].items()} for key in ("hosts", "addresses", "paths")}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"not a map of aliases ({error})", file=str(file)) from None
        return cls(hosts, known=known)

    def save(self, file: Path) -> None:
        """Write the map, for the owner's eyes only."""
        value = {"schema": MAP_SCHEMA, "hosts": self.hosts, "addresses": self.addresses, "paths": self.paths}
        write_json(file, value)
        os.chmod(file, 0o600)

    def clean(self, data: bytes, *, whole: bool = False) -> bytes:
        """`data` with aliases; the same object where nothing is replaced. `whole`: it is one string, maybe one path."""
        before = data
        if self._regex is not None:
            data = _RANGE.sub(self._range, data) if b"[" in data else data
            data = self._regex.sub(self._host, data)
        if b"." in data:
            data = _IPV4.sub(self._ipv4, data)
        if b":" in data:
            data = _IPV6.sub(self._ipv6, data)
        if b"/" in data:
            if whole and data.startswith(b"/") and b"\n" not in data:
                folder, slash, name = data.rpartition(b"/")
                data = self._folder(folder + slash) + name
            else:
                data = _PATH.sub(lambda match: self._folder(match["folder"]) + match["name"], data)
        return before if data == before else data

    def touches(self, data: bytes) -> bool:
        """Whether `clean` might replace something. Gives no alias."""
        patterns = (self._regex, _IPV4, _IPV6, _PATH)
        return data.startswith(b"/") or any(pattern.search(data) for pattern in patterns if pattern is not None)

    def rename(self, path: bytes) -> bytes:
        """A path inside an incident: its parts are names of hosts, or have them inside; its folders stay."""
        parts = path.split(b"/")
        for index, part in enumerate(parts):
            known = self._lower.get(part.decode("utf-8", "replace").lower())
            if known is not None:
                parts[index] = self.hosts[known].encode()
            elif self._regex is not None:
                parts[index] = self._regex.sub(self._host, part)
            parts[index] = _IPV4.sub(self._ipv4, parts[index])
        return b"/".join(parts)

    # ---- hosts -------------------------------------------------------------------------------------------------------

    def _learn(self, name: str) -> None:
        short, _, domain = name.partition(".")
        if not is_host(short):
            return
        if domain:
            self._domains.add(domain)
        if not self._is_alias.fullmatch(short):
            self._new_host(short)

    def _new_host(self, name: str) -> str:
        return self.hosts.setdefault(name, f"{self._prefix}{len(self.hosts) + 1:03d}")

    def _compile(self) -> re.Pattern[bytes] | None:
        """One expression for all hosts: their names with numbers for numbers, and the domains behind them."""
        if not self.hosts:
            return None
        names = sorted(self.hosts, key=lambda name: (-len(name), name))
        numbered = "|".join(dict.fromkeys(_form(name) for name in names if re.search(r"\d", name)))
        plain = "|".join(re.escape(name) for name in names if not re.search(r"\d", name))
        # A name without a number may be a word: it must stand alone.
        both = [rf"(?<![A-Za-z0-9])(?:{numbered})(?![A-Za-z0-9])" if numbered else ""]
        both.append(rf"(?<![\w./-])(?:{plain})(?![\w/-]|\.\w)" if plain else "")
        domains = "|".join(re.escape(domain) for domain in sorted(self._domains, key=lambda d: (-len(d), d)))
        behind = rf"(?:\.(?:{domains})(?![\w-]))?" if domains else ""
        return re.compile(f"(?P<host>{'|'.join(part for part in both if part)}){behind}".encode(), re.IGNORECASE)

    def _host(self, match: re.Match[bytes]) -> bytes:
        name = match["host"].decode()
        if self._is_alias.fullmatch(name):
            return match.group()
        self.counts["host"] += 1
        return self._new_host(self._lower.setdefault(name.lower(), name)).encode()

    def _range(self, match: re.Match[bytes]) -> bytes:
        assert self._regex is not None
        stem, names = match["stem"], []
        for part in match["list"].split(b","):
            first, _, last = part.partition(b"-")
            numbers = range(int(first), int(last or first) + 1)
            if len(numbers) > 100_000:
                return match.group()
            names += [stem + str(number).zfill(len(first)).encode() for number in numbers]
        if not names or not self._regex.fullmatch(names[0]):
            return match.group()
        return b",".join(names)

    # ---- addresses ---------------------------------------------------------------------------------------------------

    def _ipv4(self, match: re.Match[bytes]) -> bytes:
        text = match.group().decode()
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return match.group()
        if address.is_loopback or address.is_unspecified or address.is_multicast or text.startswith("255."):
            return match.group()
        if text in self._given or _VERSION_FRONT.search(match.string[max(0, match.start() - 16) : match.start()]):
            return match.group()
        self.counts["address"] += 1
        known = self.addresses.get(text)
        if known is None:
            number = sum("." in alias for alias in self.addresses.values()) + 1
            known = self.addresses[text] = str(ipaddress.IPv4Address("198.18.0.0") + number)
            self._given.add(known)
        return known.encode()

    def _ipv6(self, match: re.Match[bytes]) -> bytes:
        text = match.group().decode()
        if "::" not in text and text.count(":") != 7:
            return match.group()  # a time of day, a PCI address
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return match.group()
        if address.is_loopback or address.is_unspecified or address.ipv4_mapped is not None or text in self._given:
            return match.group()
        self.counts["address"] += 1
        key = address.compressed
        known = self.addresses.get(key)
        if known is None:
            number = sum(":" in alias for alias in self.addresses.values()) + 1
            known = self.addresses[key] = str(ipaddress.IPv6Address("2001:db8::") + number)
            self._given.add(known)
        return known.encode()

    # ---- paths -------------------------------------------------------------------------------------------------------

    def _folder(self, folder: bytes) -> bytes:
        """The alias of a directory, with its slashes. Of an installed library only what is in front of it."""
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = self._new_folder(folder)
        if known is not folder:
            self.counts["path"] += 1
        return known

    def _new_folder(self, folder: bytes) -> bytes:
        if _ALIASED.match(folder) or _SYSTEM.match(folder):
            return folder
        library = _LIBRARY.search(folder)
        front, rest = (folder[: library.start()], folder[library.start() :]) if library else (folder.rstrip(b"/"), b"/")
        if not front:
            return folder
        key = front.decode("utf-8", "surrogateescape")
        alias = self.paths.setdefault(key, f"/path-{len(self.paths) + 1:03d}")
        return alias.encode() + rest


def _form(name: str) -> str:
    """A pattern for a host and its neighbours: `gpu-a017` also stands for gpu-a018. `a1` stands for itself alone,
    because A100 is a GPU."""
    escaped = re.escape(name)
    return re.sub(r"\d+", r"\\d+", escaped) if len(re.sub(r"\d", "", name)) > 3 else escaped


def is_host(name: str) -> bool:
    """Whether a word can be taken for the name of a host everywhere it stands."""
    return (
        _HOST.fullmatch(name) is not None
        and len(name) > 1
        and name.lower() not in _NO_HOST
        and not name.isdigit()
        and not re.fullmatch(r"\d+(?:\.\d+)*", name)
    )


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
