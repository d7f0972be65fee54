"""Stable aliases for host names, addresses and paths: the same thing has the same alias everywhere and every time.

An alias keeps the form of what it replaces, so that readers still recognise it: a host is `node-001`, an IPv4 address
lies in 198.18.0.0/15 (reserved for benchmarks, RFC 2544), an IPv6 address in 2001:db8::/32 (reserved for documents, RFC
3849), a directory is `/path-001`. File names stay: they are what a stack is read by.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from hangscope.bundle.edits import back_over
from hangscope.errors import DamagedError
from hangscope.incident.layout import write_json
from hangscope.sources import slices

MAP_SCHEMA = "hangscope.aliases/1"

# Each search begins with a fixed byte, because that is many times faster; what stands in front is looked at afterwards.
_IPV4_TAIL = re.compile(rb"\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w]|\.\d|-\d)")
_VERSION_FRONT = re.compile(rb"(?:version|ver|==|>=|v|driver|cuda|cudnn|release)[\s:='\"]{0,3}\Z", re.IGNORECASE)
_IPV6_MARK = re.compile(rb"::|:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:")
_IPV6 = re.compile(rb"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:\d{0,3}(?:\.\d{1,3}){3})?(?![\w:])")
_MAC = re.compile(
    rb"(?<![0-9A-Fa-f:.-])[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?:-[0-9A-Fa-f]{2}){5})(?![0-9A-Fa-f:-])"
)
_OTHER_MAC = re.compile(
    rb"(?<![\w.:-])(?=[\d.:]*[A-Fa-f])(?:[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}|[0-9a-f]{4}(?::[0-9a-f]{4}){3})"
    rb"(?![\w.:-])"
)
"""A switch's way to write one, and an InfiniBand GUID as /sys writes it, which is made of one."""
_WINDOWS_PATH = re.compile(rb"(?<![A-Za-z0-9])[A-Za-z]:(?P<folder>\\{1,4}(?:[^\\/\s:\"'<>|]{1,64}\\{1,4})+)")
_GID = re.compile(rb"GID -?\d{1,4} \((?P<high>[0-9A-Fa-f]{1,16})/(?P<low>[0-9A-Fa-f]{1,16})\)")
"""A port's address as NCCL prints it: both halves as numbers of the machine's byte order, which is little endian."""
_PATH = re.compile(rb"(?P<folder>/(?:[\w.+@%=~,#-]+/)+)(?P<name>[\w.+@%=~,#-]*)")
_PATH_FRONT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./<$}")
"""What in front of a slash says that no path begins there: `NET/IB/0`, `https://`, `transport/net.cc`."""
_LIBRARY = re.compile(rb"/(?:lib(?:32|64)?/python\d[\d.]*|(?:site|dist)-packages)/")
_SYSTEM = re.compile(
    rb"/(?:(?:usr|lib|lib32|lib64|bin|sbin|etc|proc|sys|dev|run|boot)/|var/(?:run|lib|log)/|tmp/\Z|opt/\Z|"
    rb"opt/(?:conda|venv|nvidia|pytorch|hpcx|amazon|mellanox|rocm|intel|slurm)(?:-[\d.]+)?/|"
    rb"pytorch/(?:torch|aten|c10|third_party)/)"  # where PyTorch itself was built, in its C++ stacks
)
_ALIASED = re.compile(rb"/path-\d{3,}/|/\Z")
_HOST_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NO_HOST = frozenset(["localhost", "localdomain", "ip6-localhost", "none", "null", "true", "false", "unknown"])
"""Words that are in places of host names and name no host."""
_PREFIXES = ("node-", "host-", "machine-", "alias-")
"""What host aliases begin with: the first that no true host begins with."""
_RANGE = re.compile(rb"\[(?P<list>\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]")
"""Slurm's way to name many hosts: `gpu-a[017-020,031]`."""


_FOLDERS = frozenset(
    (
        *b"nodes logs dumps stacks blackbox gpu".split(),
        *(schema.FOLDER.encode() for schema in slices.found("schema", "FOLDER")),
    )
)
"""What incidents call their own folders."""
_HOST_LISTS = re.compile(
    rb"[\"'](?:nodes|hosts|nodes_expected|nodes_present|nodes_missing)[\"']\s{0,3}:\s{0,3}\[(?P<list>[^\]]{1,4000000})\]"
)
"""Arrays of host names in JSON."""
_NAMED_PLACES = tuple(
    (re.compile(front + rb"\Z"), re.compile(behind))
    for front, behind in (
        (rb"", rb":\d{1,8}:\d{1,8}(?:[ \]]|\Z)"),  # NCCL's prefix
        (rb"", rb"<\d{1,5}>"),  # NCCL's peers
        (rb"(?:\A|[/\s\"'=(])nodes/", rb"[/\s\"',:)]|\Z"),
        (rb"nccl[._-]", rb"\.\d"),
        (rb"://", rb"[:/\s\"',)]|\Z"),
        (rb"\w@", rb"[:\s\"']|\Z"),
        (rb"\[", rb"\]:\d{2,5}(?!\d)"),  # c10d's sockets
        (rb"\(", rb", \d{2,5}\)"),
        (rb"(?:HOST|HOSTNAME|hostname|NODENAME|NODE_NAME|NODELIST|POD_NAME|TOPOLOGY_ADDR)=[\"']?", rb"(?![\w(])"),
        (rb"(?i:NODELIST=[\"']?[\w.,\[\]-]{0,60},)", rb"(?![\w(])"),
        (rb"(?i:master[_-]addr(?:ess)?|rdzv[_-]endpoint)[= ][\"']?", rb"(?![\w(])"),
        (
            rb"[\"'](?i:host|host_?name|node|node_?name|peer_node|by|HOST|MASTER_ADDR|SLURMD_NODENAME|\w*NODELIST)"
            rb"\\{0,3}[\"']\s{0,3}:\s{0,3}\\{0,3}[\"']",
            rb"\\{0,3}[\"']",
        ),
        (rb"\bhost\s{1,10}:\s", rb"(?![\w(])"),  # torchrun's report of a failure
        (rb"[ T]\d\d:\d\d:\d\d\S{0,16} ", rb" (?:kernel|[\w.-]{1,40}(?:\[\d+\])?): "),  # a system's log
        (rb"\b[Rr]anks? \d[\d, and-]{0,60}(?: \([^()]{0,60}\))? on ", rb"(?!\w)"),  # hangscope's own sentences
        (rb"\b(?:process|pid \d{1,8}|port [^,;.]{1,40}|first by rank \d{1,8}) (?:on|of) ", rb"(?!\w)"),
        (rb"\b(?:the clock|kernel) of ", rb"(?!\w)"),
        (rb"\bdrain ", rb"(?!\w)"),
        (rb"\bnode ", rb"[,;:.)]|\Z"),
    )
)
"""What is in front of and behind a host's name where nothing but one can be."""
_REACH = 128


class Aliases:
    """Gives and remembers aliases. `hosts` are the names to look for; others of the same form are found with them.

    A host whose name is a word (`vm`, `next`) is replaced only where host names are: everywhere else it is the word.
    """

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
        self._words = self._compile_words()
        self._stems = [re.compile(re.escape(stem).encode()) for stem in _stems(self.hosts)]

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
        write_json(file, value, mode=0o600)

    def clean(self, data: bytes, *, whole: bool = False) -> bytes:
        """`data` with aliases; the same object where nothing is replaced. `whole`: it is one string, maybe one path."""
        before = data
        if self._regex is not None:
            data = _exchanged(data, self._ranges(data))
            data = _exchanged(data, self._host_edits(data))
        if self._words is not None:
            data = _exchanged(data, sorted(self._word_edits(data)))
        data = _exchanged(data, self._ipv4_edits(data))
        data = _exchanged(data, self._ipv6_edits(data))
        data = _exchanged(data, self._gid_edits(data))
        data = _exchanged(data, self._mac_edits(data))
        data = _exchanged(data, self._other_mac_edits(data))
        if b":\\" in data:
            data = _exchanged(data, self._windows_edits(data))
        if whole and data.startswith(b"/") and b"\n" not in data:
            folder, slash, name = data.rpartition(b"/")
            data = self._folder(folder + slash) + name
        else:
            data = _exchanged(data, self._path_edits(data))
        return before if data == before else data

    def touches(self, data: bytes) -> bool:
        """Whether `clean` might replace something. Gives no alias."""
        if data.startswith(b"/") or next(self._hosts_in(data), None) is not None:
            return True
        if next(self._words_in(data), None) is not None:
            return True
        return any(
            pattern.search(data) for pattern in (_IPV4_TAIL, _IPV6_MARK, _GID, _MAC, _OTHER_MAC, _WINDOWS_PATH, _PATH)
        )

    def host(self, name: bytes) -> bytes:
        """Something that is a host's name as a whole, or holds one."""
        known = self._lower.get(name.decode("utf-8", "replace").lower())
        if known is None:
            return self.clean(name)
        self.counts["host"] += 1
        return self.hosts[known].encode()

    def rename(self, path: bytes) -> bytes:
        """A path inside an incident: its parts are names of hosts, or have them inside; its folders stay."""
        parts = path.split(b"/")
        for index, part in enumerate(parts):
            below_nodes = index > 0 and parts[index - 1] == b"nodes"
            known = self._lower.get(part.decode("utf-8", "replace").lower())
            if known is not None and (below_nodes or part not in _FOLDERS):
                parts[index] = self.hosts[known].encode()
            elif self._regex is not None:
                parts[index] = self._regex.sub(self._host, part)
            parts[index] = _exchanged(parts[index], sorted(self._word_edits(parts[index])))
            parts[index] = _exchanged(parts[index], self._ipv4_edits(parts[index]))
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
        names = sorted((name for name in self.hosts if not is_word(name)), key=lambda name: (-len(name), name))
        if not names:
            return None
        numbered = "|".join(dict.fromkeys(_form(name) for name in names if re.search(r"\d", name)))
        plain = "|".join(re.escape(name) for name in names if not re.search(r"\d", name))
        # A name without a number may be a part of a word: it must be one by itself.
        both = [rf"(?<![A-Za-z0-9])(?:{numbered})(?![A-Za-z0-9])" if numbered else ""]
        both.append(rf"(?<![\w./-])(?:{plain})(?![\w/-]|\.\w)|(?<=://)(?:{plain})(?![\w-])" if plain else "")
        domains = "|".join(re.escape(domain) for domain in sorted(self._domains, key=lambda d: (-len(d), d)))
        behind = rf"(?:\.(?:{domains})(?![\w-]))?" if domains else ""
        return re.compile(f"(?P<host>{'|'.join(part for part in both if part)}){behind}".encode(), re.IGNORECASE)

    def _compile_words(self) -> re.Pattern[bytes] | None:
        """The hosts whose names are words."""
        names = sorted((name for name in self.hosts if is_word(name)), key=lambda name: (-len(name), name))
        if not names:
            return None
        domains = "|".join(re.escape(domain) for domain in sorted(self._domains, key=lambda d: (-len(d), d)))
        behind = rf"(?P<domain>\.(?:{domains})(?![\w-]))?" if domains else "(?P<domain>)"
        return re.compile(rf"(?<![\w-])(?P<host>{'|'.join(names)}){behind}(?![\w-])".encode())

    def _words_in(self, data: bytes) -> Iterator[re.Match[bytes]]:
        """Where a host is named whose name is a word."""
        if self._words is None:
            return
        for match in self._words.finditer(data):
            front = data[max(0, match.start() - _REACH) : match.start()]
            if match["domain"] or any(
                place.search(front) and follows.match(data, match.end()) for place, follows in _NAMED_PLACES
            ):
                yield match
        for names in _HOST_LISTS.finditer(data):
            yield from self._words.finditer(data, *names.span("list"))

    def _word_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in self._words_in(data):
            self.counts["host"] += 1
            yield match.start(), match.end(), self.hosts[match["host"].decode()].encode()

    def _hosts_in(self, data: bytes) -> Iterator[re.Match[bytes]]:
        """Where hosts are named: found by how their names begin, which few names do in a cluster."""
        if self._regex is None:
            return
        lower = data.lower()
        found = {hit.start() for stem in self._stems for hit in stem.finditer(lower)}
        for start in sorted(found):
            match = self._regex.match(data, start)
            if match is not None:
                yield match

    def _host_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in self._hosts_in(data):
            yield match.start(), match.end(), self._host(match)

    def _host(self, match: re.Match[bytes]) -> bytes:
        name = match["host"].decode()
        if self._is_alias.fullmatch(name):
            return match.group()
        self.counts["host"] += 1
        return self._new_host(self._lower.setdefault(name.lower(), name)).encode()

    def _ranges(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Lists of hosts, written out, so that each of them is found."""
        assert self._regex is not None
        for match in _RANGE.finditer(data):
            start = back_over(data, match.start(), _HOST_LETTERS, 63)
            stem = data[start : match.start()]
            first = match["list"].replace(b"-", b",").split(b",")[0]
            if not stem or not self._regex.fullmatch(stem + first):
                continue
            names: list[bytes] = []
            for part in match["list"].split(b","):
                low, _, high = part.partition(b"-")
                numbers = range(int(low), int(high or low) + 1)
                if len(names) + len(numbers) > 100_000:
                    break
                names += [stem + str(number).zfill(len(low)).encode() for number in numbers]
            else:
                yield start, match.end(), b",".join(names)

    # ---- addresses ---------------------------------------------------------------------------------------------------

    def _ipv4_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for tail in _IPV4_TAIL.finditer(data):
            start = back_over(data, tail.start(), b"0123456789", 4)
            front = data[max(0, start - 16) : start]
            if front[-1:].isalnum() or front[-1:] in (b".", b"-", b"_") or _VERSION_FRONT.search(front):
                continue
            text = data[start : tail.end()].decode()
            try:
                address = ipaddress.IPv4Address(text)
            except ValueError:
                continue
            kept = address.is_loopback or address.is_unspecified or address.is_multicast or text.startswith("255.")
            if not kept and text not in self._given:
                yield start, tail.end(), self._address(text, "198.18.0.0")

    def _ipv6_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for mark in _IPV6_MARK.finditer(data):
            start = back_over(data, mark.start(), b"0123456789abcdefABCDEF:", 40)
            if data[max(0, start - 1) : start].isalnum() or data[max(0, start - 1) : start] in (b".", b"_"):
                continue  # the tail of a word: c10d::ops
            match = _IPV6.match(data, start)
            text = match.group().decode() if match else ""
            if match is None or ("::" not in text and text.count(":") != 7):
                continue  # a time of day, a PCI address
            try:
                address = ipaddress.IPv6Address(text)
            except ValueError:
                continue
            if "." in text or (alias := self._alias_of(address)) is None:
                continue  # an IPv4 address in dots has its alias by now
            mapped = alias.ipv4_mapped is not None
            high, low = divmod(int(alias) & 0xFFFFFFFF, 1 << 16)
            short = f"::ffff:{high:x}:{low:x}" if mapped else alias.compressed
            yield start, match.end(), (alias.exploded if mapped and "::" not in text else short).encode()

    def _gid_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in _GID.finditer(data):
            halves = [bytes.fromhex(match[half].decode().zfill(16))[::-1] for half in ("high", "low")]
            alias = self._alias_of(ipaddress.IPv6Address(b"".join(halves)))
            if alias is not None:
                high, low = (int.from_bytes(half, "little") for half in (alias.packed[:8], alias.packed[8:]))
                yield match.start("high"), match.end("low"), b"%X/%X" % (high, low)

    def _alias_of(self, address: ipaddress.IPv6Address) -> ipaddress.IPv6Address | None:
        """The alias of an IPv6 address; of one that holds an IPv4 address the one that holds that one's alias."""
        mapped = address.ipv4_mapped
        text = str(mapped) if mapped else address.compressed
        if address.is_loopback or address.is_unspecified or text in self._given:
            return None
        alias = self._address(text, "198.18.0.0" if mapped else "2001:db8::").decode()
        return ipaddress.IPv6Address(f"::ffff:{alias}" if mapped else alias)

    def _mac_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in _MAC.finditer(data):
            text = match.group().decode().lower().replace("-", ":")
            if text not in self._given and text not in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
                yield match.start(), match.end(), self._mac(text).encode()

    def _mac(self, text: str) -> str:
        self.counts["address"] += 1
        known = self.addresses.get(text)
        if known is None:
            number = sum(alias.startswith("02:00:") for alias in self.addresses.values()) + 1
            known = ":".join(f"{byte:02x}" for byte in (2, 0, *number.to_bytes(4, "big")))
            self.addresses[text] = known
            self._given.add(known)
        return known

    def _other_mac_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in _OTHER_MAC.finditer(data):
            text = match.group().decode().lower()
            if text[:4] == "0200" and ":" in text:
                continue  # an alias, or one that says nothing
            digits = text.replace(".", "").replace(":", "")
            pairs = [digits[at : at + 2] for at in range(0, len(digits), 2)]
            if "." in text:  # the same port as where it is written with colons
                yield match.start(), match.end(), self._mac(":".join(pairs)).encode()
            else:  # ff:fe, or 03:00 with Mellanox, in the middle of a MAC
                mac = self._mac(":".join(pairs[:3] + pairs[5:])).split(":")
                guid = "".join([*mac[:3], "03", "00", *mac[3:]])
                yield match.start(), match.end(), ":".join(guid[at : at + 4] for at in range(0, 16, 4)).encode()

    def _windows_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in _WINDOWS_PATH.finditer(data):
            folder = match["folder"]
            slash = folder[: len(folder) - len(folder.lstrip(b"\\"))]
            plain = b"/" + re.sub(rb"\\+", b"/", folder).strip(b"/") + b"/"
            alias = self._folder(plain)
            if alias is not plain:
                yield match.start("folder"), match.end("folder"), alias.replace(b"/", slash)

    def _address(self, text: str, first: str) -> bytes:
        self.counts["address"] += 1
        known = self.addresses.get(text)
        if known is None:
            mark = ":" if ":" in first else "."
            number = sum(mark in alias and alias[2:3] != ":" for alias in self.addresses.values()) + 1
            known = self.addresses[text] = str(ipaddress.ip_address(first) + number)
            self._given.add(known)
        return known.encode()

    # ---- paths -------------------------------------------------------------------------------------------------------

    def _path_edits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        for match in _PATH.finditer(data):
            start = match.start()
            option = start > 1 and data[start - 2] == 45 and data[start - 1 : start].isalpha()  # -I/opt/x
            if start == 0 or option or data[start - 1] not in _PATH_FRONT:
                folder = match["folder"]
                alias = self._folder(folder)
                if alias is not folder:
                    yield start, start + len(folder), alias

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


def _exchanged(data: bytes, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """`data` with the edits made, of which those count that overlap none before them."""
    parts: list[bytes] = []
    position = 0
    for start, end, new in edits:
        if start >= position:
            parts += (data[position:start], new)
            position = end
    return b"".join([*parts, data[position:]]) if parts else data


def _stems(hosts: Iterable[str]) -> list[str]:
    """How hosts' names begin, but for those that are words: up to the first digit, or all of a name that has no more
    than two letters in front of it."""
    names = [name.lower() for name in hosts if not is_word(name)]
    stems = {name: re.split(r"\d", name, maxsplit=1)[0] for name in names}
    return sorted({stem if len(stem) > 2 else name for name, stem in stems.items()})


def _form(name: str) -> str:
    """A pattern for a host and its neighbours: `gpu-a017` also stands for gpu-a018. `a1` stands for itself alone,
    because A100 is a GPU."""
    escaped = re.escape(name)
    return re.sub(r"\d+", r"\\d+", escaped) if len(re.sub(r"\d", "", name)) > 3 else escaped


def is_host(name: str) -> bool:
    """Whether what is in the place of a host's name can be one."""
    if _HOST.fullmatch(name) is None or name.lower() in _NO_HOST:
        return False
    return re.fullmatch(r"[\d.]+", name) is None


def is_word(name: str) -> bool:
    """Whether a host's name is made of letters alone: a word of logs and programs, too."""
    return name.isalpha()


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
