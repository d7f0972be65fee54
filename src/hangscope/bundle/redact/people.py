"""Where programs print the name of an account: prompts, logins, lists of processes and jobs.

Each place has its needles, as in `patterns`. What it names is replaced there, and looked for nowhere else: an account
may be called like a word of the log. Accounts that name nobody stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangscope.bundle.redact.skip_prefixes import prefix_end

_NAME = rb"(?P<s>[A-Za-z_][\w.-]{1,31})"
_FAR = 160
_FIRST = rb"(?:[^\n]{0,160}?[\s\"'])?" + _NAME
"""The first word of a line, behind whatever a launcher put there."""


@dataclass(frozen=True, slots=True)
class Place:
    needles: tuple[bytes, ...]
    regex: re.Pattern[bytes]
    line: bool = False
    """Whether it is matched from the beginning of its line, behind the prefix of a log."""

    def find(self, data: bytes, at: int) -> re.Match[bytes] | None:
        if not self.line:
            return self.regex.match(data, at, at + 400)
        begin = data.rfind(b"\n", max(0, at - _FAR), at) + 1 or max(0, at - _FAR)
        return self.regex.match(data, begin, at + 200) or self.regex.match(data, prefix_end(data, begin), at + 200)


def _place(needles: tuple[bytes, ...], regex: bytes, *, line: bool = False) -> Place:
    return Place(needles, re.compile(regex, re.IGNORECASE), line)


_TIME = rb"(?:\d+-)?\d{1,2}:\d\d(?::\d\d)?"

PLACES = (
    _place((b"logged in as",), rb"logged in as:?\s+[\"'\x60]?" + _NAME),
    _place((b"~",), rb"~(?-i:(?P<s>[a-z_][a-z0-9_-]{1,31}))/"),
    _place((b"sudo:",), rb"sudo:\s+" + _NAME + rb"\s+:\s"),
    _place((b"session opened for", b"session closed for"), rb"session \w+ for user " + _NAME),
    _place((b"session ",), rb"session c?\d+ of user " + _NAME),
    _place(
        (b"accepted ", b"failed "), rb"\w+ (?:publickey|password|\S{3,30}) for (?:invalid user )?" + _NAME + rb" from "
    ),
    _place((b"invalid user ",), rb"invalid user " + _NAME + rb" from "),
    _place((b"su -", b"runuser -", b"sudo -u"), rb"(?:su|runuser|sudo)\s+-(?:l|u|-login)?\s+" + _NAME + rb"(?=\s|\Z)"),
    _place((b"chown ",), rb"chown\s+(?:-{1,2}[\w-]+\s+){0,4}" + _NAME + rb"(?=[:.]?[\w.-]*\s+\S)"),
    _place((b":x:",), rb"(?:[^\n]{0,160}?[\s\"'])?" + _NAME + rb":x:\d+:\d+:", line=True),
    _place((b"/var/spool/", b"/var/mail/"), rb"/var/(?:spool/)?(?:mail|cron(?:/crontabs|/tabs)?)/" + _NAME),
    _place((b"hdfs://", b"viewfs://"), rb"\w+://[^/\s\"']{0,200}/user/" + _NAME),
    _place(
        (b"s3://", b"s3a://", b"gs://", b"abfs://", b"abfss://", b"oss://", b"az://"),
        rb"\w+://[^\s\"']{1,200}?/(?:users?|home)/" + _NAME,
    ),
    _place((b") cmd (",), rb".{0,80}?\(" + _NAME + rb"\) CMD \(", line=True),
    _place((b"pts/", b"tty"), _FIRST + rb"\s+(?:pts/|tty)\d+\s", line=True),
    # ps aux and ps -ef: of the terminal's column most say `?`
    _place((b"? ", b"pts/"), _FIRST + rb"\+?\s+\d+\s+[\d.]+\s+[\d.]+\s+\d+\s+\d+\s+(?:\?|pts/\d+)\s", line=True),
    _place((b"? ", b"pts/"), _FIRST + rb"\+?\s+\d+\s+\d+\s+\d+\s+\S{4,5}\s+(?:\?|pts/\d+)\s", line=True),
    # squeue
    _place(
        (b"r  ", b"pd  ", b"cg  "),
        rb"[^\n]{0,160}?[\d_\[\]-]+\s+\S+\s+\S+\s+" + _NAME + rb"\s+(?:R|PD|CG)\s+" + _TIME + rb"\s+\d+\s",
        line=True,
    ),
)
