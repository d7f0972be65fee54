"""Redacting one file, whatever is in it, without holding it in memory.

Text is done in pieces of whole lines, a dump string by string, a compressed file inside. What cannot be looked into is
left out: a bundle must not carry what nobody could check.
"""

from __future__ import annotations

import gzip
import mmap
import os
import re
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, BinaryIO

from hangscope.bundle.aliases import Aliases
from hangscope.bundle.edits import Edit
from hangscope.bundle.redact import rewrite_pickle
from hangscope.bundle.redact import secret_forms as forms
from hangscope.bundle.redact.assignments import secret_name
from hangscope.bundle.redact.find_secrets import Secrets
from hangscope.incident.layout import as_bytes
from hangscope.safeio import file_magic
from hangscope.safeio.tar_stream import is_header
from hangscope.sources.black_box import schema as blackbox_layout

_CHUNK = 1 << 20
_IN_MEMORY = 8 << 20
_BEFORE = 32 << 10
_AHEAD = 80 << 10
"""How much around a line is at hand when it is judged: more than any structure that is followed, or a private key."""
_HEAD = 64 << 10
_MAX_UNPACKED = 16 << 30
RATIO = 150
RATIO_FROM = 64 << 20
"""Logs pack some fifty times. What unpacks to more than this is a file of zeros, or a trap."""
_CACHED = 200_000
_GONE = "…".encode()
_SECRET = "[redacted:secret]"
_PACKED = ((file_magic.ZIP, "zip"), (file_magic.XZ, "xz"), (file_magic.ZSTD, "zstd"), (file_magic.BZIP2, "bzip2"))
_BINARY = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")


class CannotRedact(Exception):
    """The file cannot be made safe, or nothing of it may stay; says why."""


Keep = Callable[[str, IO[bytes], IO[bytes]], "int | None"]
"""Writes what of a file may stay, by its name, and says how many lines may not; None where nothing may."""


class Redactor:
    """Redacts files and texts, all with the same users and aliases, and counts what it replaced."""

    def __init__(self, users: Iterable[bytes] = (), aliases: Aliases | None = None, keep: Keep | None = None) -> None:
        self.secrets = Secrets(users)
        self._keep = keep
        self.aliases = aliases
        self.lines_left_out: Counter[str] = Counter()
        """Name of a log → how many of its lines may not stay."""
        self._strings: dict[bytes, tuple[bytes, Counter[str]] | None] = {}
        self._again: Counter[str] = Counter()
        self._keys: dict[bytes, bool] = {}

    @property
    def counts(self) -> Counter[str]:
        """How many things of each kind were replaced so far."""
        return self.secrets.counts + (self.aliases.counts if self.aliases else Counter()) + self._again

    def text(self, data: bytes) -> bytes:
        data = self.secrets.clean(data)
        return self.aliases.clean(data) if self.aliases else data

    def host(self, name: bytes) -> bytes:
        """A host's name by itself."""
        name = self.secrets.clean(name)
        return self.aliases.host(name) if self.aliases else name

    def string(self, data: bytes) -> bytes:
        """One string of a dump; dumps of all ranks hold much the same ones."""
        try:
            found = self._strings[data]
        except KeyError:
            before = self.counts
            cleaned = self.secrets.clean(self._first_line(data))
            if self.aliases:
                cleaned = self.aliases.clean(cleaned, whole=True)
            if len(self._strings) > _CACHED:
                self._strings.clear()
            found = self._strings[data] = None if cleaned is data else (cleaned, self.counts - before)
            if found is not None:
                self._again.subtract(found[1])  # counted by now; what follows counts each time
        if found is None:
            return data
        self._again.update(found[1])
        return found[0]

    def _first_line(self, data: bytes) -> bytes:
        """Names and sentences have one line; what is below it in a dump or a manifest is no evidence."""
        if self._keep is None or b"\n" not in data:
            return data
        return data.partition(b"\n")[0] + _GONE

    def first_lines(self, value: Any) -> Any:
        """The same for every string of a JSON value."""
        if isinstance(value, str):
            return self._first_line(as_bytes(value)).decode("utf-8", "surrogateescape")
        if isinstance(value, (list, tuple)):
            return [self.first_lines(item) for item in value]
        if isinstance(value, Mapping):
            return {self.first_lines(str(key)): self.first_lines(item) for key, item in value.items()}
        return value

    def strings(self, value: Any) -> Any:
        """A JSON value with each of its strings redacted by itself, and those whole whose key says so."""
        if isinstance(value, str):
            return self.text(as_bytes(value)).decode("utf-8", "replace")
        if isinstance(value, (list, tuple)):
            return [self.strings(item) for item in value]
        if isinstance(value, Mapping):
            return {key: _SECRET if self.secret_key(str(key).encode()) else self.strings(value[key]) for key in value}
        return value

    def touches(self, data: bytes) -> bool:
        """Whether `string` might replace something in it. Gives no alias, and counts nothing."""
        return bool(self.secrets.edits(data)) or (self.aliases is not None and self.aliases.touches(data))

    def secret_key(self, text: bytes) -> bool:
        """Whether a string, as the key of a dictionary, makes the value behind it secret."""
        known_already = self._keys.get(text)
        if known_already is None:
            if len(self._keys) > _CACHED:
                self._keys.clear()
            known_already = self._keys[text] = secret_name(text)
        return known_already

    def name(self, path: str) -> str:
        """A file's path inside the bundle."""
        given = f"/{path}".encode("utf-8", "surrogateescape")
        raw = self.secrets.clean(given)
        if raw.count(b"/") != given.count(b"/"):  # something in it looked like a secret as a whole: part by part then
            raw = b"/".join(self.secrets.clean(part) for part in given.split(b"/"))
        if self.aliases:
            parts = raw.split(b"/")
            if parts[1] == b"nodes" and len(parts) > 5:  # nodes/<host>/logs/<the path it had there>
                raw = b"/".join(parts[:4]) + self.aliases.clean(b"/" + b"/".join(parts[4:]), whole=True)
            raw = self.aliases.rename(raw)
        return raw.decode("utf-8", "surrogateescape")[1:]

    def file(self, source: IO[bytes], out: IO[bytes], name: str = "") -> None:
        """Write `source`, redacted, to `out`. Raises CannotRedact where that cannot be done safely."""
        head = source.read(_HEAD)
        source.seek(0)
        if file_magic.is_gzip(head):
            self._gzip(source, out, name)
        elif head.startswith(blackbox_layout.MAGIC):
            self._black_box(source, out)
        elif rewrite_pickle.is_pickle(head):
            self._pickle(source, out)
        elif is_header(head[:512]):
            raise CannotRedact("an archive inside another")
        elif packed := next((name for magic, name in _PACKED if head.startswith(magic)), None):
            raise CannotRedact(f"packed with {packed}, which hangscope cannot look into")
        elif head.startswith(file_magic.UTF16):
            raise CannotRedact("text in UTF-16, which hangscope cannot redact")
        elif len(_BINARY.findall(head)) * 100 > len(head):
            if self._keep is not None:
                raise CannotRedact("no evidence that hangscope knows")
            self._binary(source, out)
        elif self._keep is not None:
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as kept:
                left = self._keep(name, source, kept)
                if left is None:
                    raise CannotRedact("no evidence that hangscope knows")
                if left:
                    self.lines_left_out[name] = left
                kept.seek(0)
                self._text(kept, out)
        else:
            self._text(source, out)

    def _text(self, source: IO[bytes], out: IO[bytes]) -> None:
        """In windows: a little of what was written already, what is written now, and a look ahead behind it."""
        before = ahead = b""
        while True:
            chunk = source.read(_CHUNK)
            last = len(chunk) < _CHUNK  # a file, or a copy of one: it gives less only at its end
            window = before + ahead + chunk
            begin = len(before)
            edits = self.secrets.edits(window)
            cut = len(window) if last else _cut(window, begin, edits)
            piece = self.secrets.replaced(window, edits, begin, cut) if edits else window[begin:cut]
            out.write(self.aliases.clean(piece) if self.aliases else piece)
            if last:
                return
            before = window[max(0, cut - _BEFORE) : cut]
            ahead = window[cut:]

    def _pickle(self, source: IO[bytes], out: IO[bytes]) -> None:
        try:
            if source.seek(0, os.SEEK_END) <= _IN_MEMORY:
                source.seek(0)
                out.writelines(rewrite_pickle.rewrite(source.read(), self))
                return
            with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
                out.writelines(rewrite_pickle.rewrite(data, self))
        except rewrite_pickle.Unwalkable as error:
            raise CannotRedact(f"not a pickle of plain values ({error}): it cannot be redacted safely") from None

    def _black_box(self, source: IO[bytes], out: IO[bytes]) -> None:
        """Numbers at fixed places, and two kinds of text: the host's name, and the communicators' names.

        Each text stays within its field; nothing else of the file can hold a name (docs/blackbox.md).
        """
        data = bytearray(source.read(blackbox_layout.MAX_BYTES + 1))
        if not blackbox_layout.LEAST_BYTES <= len(data) <= blackbox_layout.MAX_BYTES:
            raise CannotRedact("a black box of a size that none has")
        offset, size, slots, _ = struct.unpack_from("<4I", data, blackbox_layout.TABLES_AT)
        fields = [(blackbox_layout.HOST_AT, blackbox_layout.HOST_BYTES)]
        if size == blackbox_layout.COMM_BYTES and offset + size * slots <= len(data):
            first = offset + blackbox_layout.COMM_NAME_AT
            fields += [(first + size * slot, blackbox_layout.COMM_NAME_BYTES) for slot in range(slots)]
        for at, room in fields:
            name = bytes(data[at : at + room]).partition(b"\0")[0]
            if name:
                named = self.host(name) if at == blackbox_layout.HOST_AT else self.string(name)
                data[at : at + room] = named[: room - 1].ljust(room, b"\0")
        out.write(data)

    def _binary(self, source: IO[bytes], out: IO[bytes]) -> None:
        overlap = forms.PRIVATE_KEY_BYTES
        carry = b""
        while True:
            chunk = source.read(4 * _CHUNK)
            data = carry + chunk
            if self.aliases and self.aliases.clean(data) is not data:
                raise CannotRedact("a binary file that names hosts, addresses or paths, which have no room for others")
            masked = self.secrets.mask(data)
            keep = overlap if chunk and len(data) > overlap else 0
            out.write(masked[: len(masked) - keep])
            carry = masked[len(masked) - keep :] if keep else b""
            if not chunk:
                return

    def _gzip(self, source: IO[bytes], out: IO[bytes], name: str) -> None:
        with tempfile.TemporaryFile() as inner, tempfile.TemporaryFile() as redacted:
            try:
                _unpack(source, inner)
            except (gzip.BadGzipFile, zlib.error, EOFError) as error:
                raise CannotRedact(f"broken compression ({error})") from None
            inner.seek(0)
            self.file(inner, redacted, name)
            redacted.seek(0)
            with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed:
                while chunk := redacted.read(_CHUNK):
                    packed.write(chunk)


def _unpack(source: IO[bytes], target: BinaryIO | IO[bytes]) -> None:
    total = 0
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    with gzip.GzipFile(fileobj=source, mode="rb") as packed:
        while chunk := packed.read(_CHUNK):
            total += len(chunk)
            if total > _MAX_UNPACKED:
                raise CannotRedact("a compressed file that unpacks to more than 16 GiB")
            if total > RATIO_FROM and total > RATIO * size:
                raise CannotRedact(f"a compressed file that unpacks to more than {RATIO} times its size")
            target.write(chunk)
    target.flush()


def _cut(window: bytes, begin: int, edits: list[Edit]) -> int:
    """Up to where a window can be written: whole lines, no secret cut in two, and enough left to look ahead."""
    most = len(window) - _AHEAD
    if most <= begin:
        return begin
    cut = window.rfind(b"\n", begin, most) + 1
    if cut <= begin:
        # One endless line: between two values, where no name is parted from what it names.
        near = max(begin, most - _BEFORE)
        cut = max(window.rfind(mark, near, most) + len(mark) for mark in (b"},", b", ", b",", b" ", b";"))
        cut = cut if cut > near else most
    for edit in edits:
        if edit.start < cut < edit.end:
            cut = edit.start if edit.start > begin else min(edit.end, len(window))
    return cut
