"""Assignments: a name that says its value is secret, in the syntaxes in which evidence writes one.

`PASSWORD=x`, `"password": "x"`, the same inside a string with backslashes, `password: x`, `--password x`,
`'--password', 'x'`, `os.environ["TOKEN"] = "x"`, `("API_KEY", "x")`, `<password>x</password>`, `password | x` in a
table, `password ........ x` as Megatron prints its arguments, `password is x`, and Kubernetes' `name: TOKEN` with
`value: x` on the next line.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from hangscope.bundle.redact.log_prefixes import prefix_end
from hangscope.bundle.redact.random_words import is_random

NEEDLES = tuple(
    b"""pass pw secret key cred token kennwort contrasena cookie psk webhook sessionid session_id session-id sessid
    dockerc license connection_s connection-s connections connection.s conn_str connstr conn-str
    _pat tpat bpat rpat basic_auth basic-auth basicauth jwt phrase auth community p_seed a_seed""".split()
)
"""Parts by which names are found. `_pat`: personal access tokens, EXT_PAT, githubPat."""
FRONT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
"""What may stand in front of the needle and belongs to the name."""
FIRST_WORDS = tuple(
    word + b" "
    for word in b"""api access secret private auth account bearer refresh session kaggle wandb openai huggingface comet
    neptune datadog encryption signing license master deploy webhook storage service client app application
    subscription snmp erlang pass""".split()
)
"""In a sentence a name has two words: `API key: x`."""
LONGEST_FIRST_WORD = max(map(len, FIRST_WORDS))

_PASSWORD = (
    rb"pass(?:word|wd|[_. -]?phrase|code|wort|wrd)s?|pswd|kennwort|contrasena|"
    rb"(?:db|user|mysql|pg|postgres|redis|smtp|ftp|admin|root|login|auth|mail|proxy|ssh|sudo|jenkins|rabbitmq|store|key|zip|vnc|require|master|ldap|bind|http|svc|mongo)"
    rb"[_.-]?pass|(?:bind|root|user|admin|db|vnc|ssh|mail|smtp|redis|http|svc)pwd?"
    rb"|(?<![A-Za-z])(?:pwd?|psk)|(?-i:(?<=[a-z])P(?:wd?|W))"
    rb"|(?<![A-Za-z0-9_.-])pass"
    rb"|(?-i:(?<=_)PASS)|(?<=[a-z0-9][_-])pass"
)
_SECRET = rb"secrets?(?:[_. -]?(?:access)?[_. -]?keys?)?(?:[_.-]?(?:id|value|token))?"
_KEY = (
    rb"(?:api|access|account|private|encryption|signing|master|auth|subscription|deploy|license|app|application|"
    rb"ssh|gpg|pgp|hmac|webhook|consumer|kaggle|fernet|cipher|client|server|tls|ssl|host|service|session|aes|rsa|ecdsa|ed25519|"
    rb"jwt|storage|wandb|openai|huggingface|comet|neptune|datadog|dd)[_. -]?keys?(?:[_.-]?id)?(?:[_.-]?(?:value|\d))?"
)
_OTHER = (
    rb"credentials?|creds|webhook(?:[_.-]?ur[li])?|connection[_.-]?string|conn[_.-]?str|basic[_.-]?auth|cookies|"
    rb"(?<=[A-Za-z0-9][_. -])cookie|(?-i:(?<=[a-z])Cookies?)|"
    rb"(?:j|php|asp)?sess(?:ion)?[_-]?id|(?<=[A-Za-z0-9][_.-])auth|(?-i:(?<=[a-z])Auth)|"
    rb"snmp[_. -]?community|(?:otp|mfa)[_-]seed|"
    rb"dockerconfigjson|dockercfg|license|(?-i:(?<=_)PAT)|(?<=_)pat|(?-i:(?<=[a-z])Pat)"
)
_SUFFIX = rb"(?:[_.-](?:data|pem|json|b64|base64|contents?|raw|text|hash|prod|dev|staging|test|old|new|\d{1,3}))?"
"""What people put behind such a name: `client-key-data`, `PASSWORD_2`."""

REACH = 4096
"""How long a name with its value can be, so that no file makes looking for them slow."""

_NAME = (
    rb"(?P<name>(?P<flag>--?)?(?P<front>(?:(?:access|auth|bearer|refresh|session)[ ])?[A-Za-z0-9_.-]{0,64}?)"
    rb"(?:(?P<password>" + _PASSWORD + rb")|(?P<secret>" + _SECRET + rb")|(?P<key>" + _KEY + rb")"
    rb"|(?P<other>" + _OTHER + rb")|(?P<token>tokens?|jwts?)|(?P<anykey>keys?))" + _SUFFIX + rb")(?![A-Za-z0-9_.-])"
)
_ONLY_NAME = re.compile(_NAME, re.IGNORECASE)

_VALUE = re.compile(
    rb"(?P<close>\\{0,3}[\"']\]?|\]|\*\*|`)?"
    rb"(?P<sep>[ \t]{0,40}(?:=>|->|\xe2\x86\x92|:=|={1,3}(?!=)"
    rb"|:[ \t]?(?:&?(?:'static )?str|bytes|String|SecretStr|Optional\[\w{1,9}\]|str[ ]\|[ ]None)[ \t]?="
    rb"|:(?![:/\\])(?:[ \t]{1,3}[&!][\w!:./-]{1,60}(?=[ \t]))?|%3[dD])[ \t]{0,40}"
    rb"|[ \t]+(?:[vV]alue[ \t]?|a\d{1,3})=|(?P<list>[ \t]*,[ \t]*(?:\r?\n[ \t]*)?)|(?P<tag>>)(?=[^<\s])"
    rb"|[ ]\.{3,}[ ]"
    rb"|(?P<prose>[ \t]{0,40}(?:\||\xe2\x94\x82)[ \t]{1,3}"
    rb"|[ ](?:(?:is|was|been|now)[ ]){0,2}(?:set|changed|reset|updated|equal)[ ](?:by[ ]\w{1,16}[ ])?to[ ]"
    rb"|[ ](?:is|was|to)[ ])"
    rb"|(?P<paren>[ ]\()(?=[^\s()]{8,200}\))"
    rb"|</\w{1,16}>\s{0,80}<\w{1,16}>"
    rb"|(?P<blank>[ \t]+|\0))"
    rb"(?:(?:(?:SecretStr|SecretBytes|Secret|Some|Ok|Just|StrictStr|ApiKey|Token|Password)\(|0x[0-9a-f]{6,16}[ ])?"
    rb"[rbuf]{0,2}(?P<open>\\{0,3}[\"'`])(?P<quoted>(?:(?!(?P=open))(?:\\.|[^\\\r\n\0])){0,3800})"
    rb"(?:(?P=open)|(?=[\r\n\0]|\Z))"
    rb"|(?P<bare>(?![^\s<>]{1,200}</)(?=(?:[^\s\"'\\]{0,30}?[!@#$%^&*()+=<>?~;]){4})(?=[^\s\"'\\]{0,200}\d)(?=[^\s\"'\\]{0,200}[a-z])"
    rb"(?!\S{0,200}[,;&|?][A-Za-z_]{2,32}=)(?![A-Za-z_][\w.]{0,64}\()[^\s\"'\\{}\[\]\0]{16,200}(?=[\s\"'\0]|\Z)"
    rb"|(?=[^\s\"']{0,63}\d)(?=[^\s\"']{0,63}[A-Za-z])[({][^\s\"'\\,:=&|\[\]]{7,63}(?=[\s\"'\0]|\Z)"
    rb"|[^\s\"'\\,;&<>|(){}\[\]\0][^\s\"'\\,;&<>|)}\]\0]{0,3800}))",
    re.IGNORECASE,
)  # fmt: skip

LATEST = 48
"""From a part of a name by which it is found to its end."""
_LONGEST = 200
_KINDS = ("password", "secret", "key", "other", "token", "anykey")
_BEHIND = re.compile(rb"[A-Za-z0-9][_. -]\Z")
_BEHIND_PASS = re.compile(rb"=[^=]|\\{0,3}[\"']|:[ \t]")
_BEHIND_PAT = re.compile(rb"[\"' \t]*[:=,<>]")
"""`pass` alone, and `_pat`, are names only in front of these."""


class Name(NamedTuple):
    """What the name of a secret is made of."""

    text: bytes
    """Without the dashes of a flag."""
    flag: bool
    front: bytes
    """What is in front of the word that says so."""
    kind: str
    """What that word says: one of `_KINDS`."""
    word: bytes

    @property
    def upper(self) -> bool:
        return self.text.isupper()

    @property
    def ordinary(self) -> bool:
        """Whether it says that its value is no secret, whatever that is: numbers of tokens, keys of dictionaries."""
        if self.upper or self.flag:
            return False
        if self.kind == "token":
            return self.word.lower() == b"tokens" or _COUNTED_TOKEN.search(self.front) is not None
        return self.kind == "anykey" and _ORDINARY.search(self.front) is not None

    @property
    def sure(self) -> bool:
        """Whether it can mean nothing but a secret."""
        return self.kind in ("password", "secret")


class Assignment:
    """A name and the value that follows it in some bytes."""

    __slots__ = ("_match", "data", "name", "quoted", "start", "value")

    def __init__(self, name: Name, data: bytes, start: int, match: re.Match[bytes]) -> None:
        self.name = name
        self.data = data
        self.start = start
        self._match = match
        self.quoted = match["open"] is not None
        self.value: bytes = match["quoted" if self.quoted else "bare"]

    def __getitem__(self, part: str) -> bytes:
        """A part of what follows the name: `close` is the quote or bracket behind it, `sep` what comes then; `list`,
        `tag`, `prose`, `paren` and `blank` are separators of a kind. Empty where it is not there."""
        return self._match[part] or b""

    @property
    def end(self) -> int:
        return self._match.end()

    @property
    def span(self) -> tuple[int, int]:
        """Where the value is."""
        return self._match.span("quoted" if self.quoted else "bare")

    @property
    def before(self) -> bytes:
        """A little of what is in front of the name."""
        return self.data[max(0, self.start - 24) : self.start]

    @property
    def behind(self) -> bytes:
        """The byte behind the value."""
        return self.data[self.end : self.end + 1]

    @property
    def is_number(self) -> bool:
        return _NUMBER.fullmatch(self.value) is not None

    @property
    def is_keyish(self) -> bool:
        """Whether the value is no word of a sentence."""
        if _KEYISH.fullmatch(self.value):
            return True
        return self.name.kind == "password" and _CASES.match(self.value) is not None

    @property
    def begins_line(self) -> bool:
        """Whether nothing but blanks and a log's prefix are in front of the name."""
        if _BEGINS_LINE.search(self.data, max(0, self.start - 24), self.start):
            return True
        line = self.data.rfind(b"\n", 0, self.start) + 1
        return not self.data[prefix_end(self.data, line) : self.start].strip(b" \t")

    @property
    def alone_in_line(self) -> bool:
        return self.begins_line and _ENDS_LINE.match(self.data, self.end) is not None


@lru_cache(maxsize=50_000)
def _name(word: bytes, behind: bytes) -> Name | None:
    """What a secret's name is made of; None of other words. What each file calls its own is looked at once."""
    found = _ONLY_NAME.match(behind + word + b'="', len(behind)) if len(word) <= _LONGEST else None
    if found is None or found.end() != len(behind + word):
        return None
    kind = next(kind for kind in _KINDS if found[kind])
    name = Name(found["name"].lstrip(b"-"), bool(found["flag"]), found["front"], kind, found[kind])
    return None if name.ordinary else name


def is_name(data: bytes, start: int, end: int) -> bool:
    """Whether what is there could be the name of a secret, or the end of one, whatever follows it."""
    if data[start:end] != b"key":
        return _name(data[start:end], b"a ") is not None or begin_of_name(data, start, end) < start
    before = data[start - 1 : start]  # a word of every other sentence
    if before == b" ":
        return data[max(0, start - LONGEST_FIRST_WORD) : start].lower().endswith(FIRST_WORDS)
    return before in (b"?", b"&")


def begin_of_name(data: bytes, start: int, end: int) -> int:
    """Where a name begins that has other words in front of it."""
    while (front := data[max(0, start - LONGEST_FIRST_WORD) : start].lower()).endswith(FIRST_WORDS):
        first = start - next(len(word) for word in FIRST_WORDS if front.endswith(word))
        if _name(data[first:end], b"\n") is None:
            break
        start = first
    return start


def assignment(data: bytes, start: int, end: int) -> Assignment | None:
    """The name between `start` and `end`, with the value that follows it."""
    name = _name(data[start:end], b"a " if _BEHIND.search(data, max(0, start - 2), start) else b"\n")
    if name is None:
        return None
    if name.kind == "password" and len(name.word) == 4 and not name.front and not _BEHIND_PASS.match(data, end):
        return None
    if name.kind == "other" and len(name.word) == 3 and name.word != b"PAT" and not _BEHIND_PAT.match(data, end):
        return None
    value = _VALUE.match(data, end, start + REACH)
    return Assignment(name, data, start, value) if value else None


MORE = re.compile(rb"(?!</)[,;&|(){}\[\]<>]+[^\s,;&|\"'=:<>\0]{1,64}(?=[\s,;&|<>()\"'\0]|\Z)")
"""What follows a bare password behind a sign that may end it or be a part of it; not where another name follows."""

PLAIN_SCALAR = re.compile(rb"[ \t]+(?P<s>[^\s\"'{\[|>&*#$][^\r\n]*)")
"""The rest of a YAML line: a password may have blanks in it."""

PAIR_FRONT = re.compile(rb"(?:name|key|Name|Key)(?:\\{0,3}[\"'])?\s*[:=]\s*(?:\\{0,3}[\"'])?\Z")
PAIR_TAIL = re.compile(
    rb"(?:\\{0,3}[\"'])?\s*,?\s*(?:\n\s*)?(?:\\{0,3}[\"'])?[vV]alue(?:\\{0,3}[\"'])?\s*[:=][ \t]*"
    rb"(?:(?P<open>\\{0,3}[\"'])(?P<quoted>(?:(?!(?P=open))(?:\\.|[^\\\r\n])){0,3800})|(?P<bare>(?!\[redacted)[^\s,}\]\"'][^\r\n,}\]]{0,3800}))"
)

PART_TAIL = re.compile(
    rb"[\"']\r?\n(?:[^\r\n]{1,200}\r?\n){0,3}?\s{0,8}\n[ \t]*(?P<bare>(?!\[redacted)[^\s][^\r\n]{0,3800})"
)
"""Behind the name of a part of a form: its headers, an empty line, and the value."""

_COUNTED = b"""num nums max min n total per avg mean eos bos eot eod pad padding unk unknown mask cls sep special
    next prev previous first last new image img audio video vision input output prompt completion generated reasoning
    thinking stop end start begin decode decoded prefill sub text vocab added additional extra drop dropped tool cached
    train eval valid global local batch chunk sequence seq expert routed target source draft class register latent
    query word char byte position pos all of in by token tokens""".split()
_COUNTED_TOKEN = re.compile(rb"(?:^|[_.-])(?:" + b"|".join(_COUNTED) + rb")[_.-]?$", re.IGNORECASE)
"""Language models have tokens too: `max_tokens`, `eos_token`."""

_WORDS = b"""null none nil true false yes no on off undefined str int bool bytes float string any self required missing
    unset empty redacted hidden invalid expired incorrect is was for and or the not has from in to with must should of
    at""".split()
_PROSE = re.compile(
    rb"(?:your|my|his|their|our|log|use|access|wrong|correct|needed|valid|set|ok|too|be|been|a|an|it|this|that|used|given|known|unknown|here|there|also|only)",
    re.IGNORECASE,
)
"""How sentences about passwords go on."""
_HARMLESS = re.compile(
    rb"(?:" + b"|".join(_WORDS) + rb"|(?:optional|union|list)(?:\[.*)?|not[ _]set|\*+|x+|\.\.\.|-+|"
    rb"(?-i:\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+))|\$\{[^}]*\}?|\$\(.*|%[sdr]|%\(\w+\)[sdr]|%\{[^}]*\}?|\{+[^}]*\}+|<[^>]*>|"
    rb"!!\w+|(?:self|cls|args|config|cfg|os|settings|opt|options)\.[\w.]+|\[redacted.*|0x[0-9a-f]{1,8}|-?\d+(?:\.\d+)?(?:e-?\d+)?)",
    re.IGNORECASE,
)
"""Types, placeholders, references to variables, and the words that follow in a sentence."""

_KEYISH = re.compile(
    rb"(?:(?=[^\s]*\d)(?=[^\s]*[A-Za-z])|(?=[^\s]*[!@#$%^*+]\w))(?!.*/.*/)"
    rb"(?!.*\.(?:pem|key|json|ya?ml|txt|crt|py|pub)\Z)[^\s:]+"
)
"""A word that may be a key: letters and digits, or signs; and no path."""
_CASES = re.compile(rb"(?:[^a-z\s]*[a-z]+(?=[A-Z])){2}\S*\Z")
"""Large and small letters that take turns: behind a password's name no word of a sentence."""
_PATH = re.compile(rb"[~.]?(?:/[A-Za-z0-9_.-]+)+/?")

_NUMBER = re.compile(rb"-?[\d.,_]+[kKmMgGbB%]?")
_BETWEEN = re.compile(rb"[\s,:;{}()\[\]]+")
_MEASURED = re.compile(rb"-?[\d.,_]+[A-Za-z%/]{0,8}")
_RAN = re.compile(
    rb"(?:forward|backward|fwd|bwd|first|second|third|last|next|one|two|single|multi|each|per|by|low|high|band|"
    rb"num|n|render|optim|optimizer|warmup|eval|train|test|did|to|compiler?|fx|graph)[_.-]\Z",
    re.IGNORECASE,
)
"""In front of `pass`: a pass over something, and no password."""
_ORDINARY = re.compile(
    rb"(?:\A|[_.-]|(?<=[a-z])(?=[A-Z]))(?:cache|hash|sort|order|primary|foreign|partition|store|state|dict|lookup|"
    rb"group|comm|map|row|column|public|pub|pubkey|prefix|index|idx|unique|dedup|object|file|path|data|dataset|sample|"
    rb"shard|bucket|tensor|param|parameter|module|kernel|graph|compile|autotune|mesh|config|env|json|query|qkv|metric|log|"
    rb"entry|item|event|trace|span|node|rank|any|this|that|missing|unexpected|idempotency|translation|video|key|s3|tag)"
    rb"[_.-]?\Z",
    re.IGNORECASE,
)
"""In front of `key`: what something is found by, and no secret."""
_USING = re.compile(
    rb"\b(?:using|with|use|got|entered|tried|sent|wrong|bad|invalid)[ ](?:\w+[ ]){0,3}\Z", re.IGNORECASE
)
_HEX_KEY = re.compile(rb"[0-9a-f]{32,}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_SETS = re.compile(rb"(?:\bENV|\bsetenv|\bset(?:[ \t]+-{1,2}[A-Za-z]+)+)[ \t]+\Z")
"""Commands that part a variable from its value by a blank: Docker's `ENV`, csh's `setenv`, fish's `set -gx`."""
_BEGINS_LINE = re.compile(rb"(?:\A|\n|[\]:|>-][ \t])[ \t]*\Z")


_ENDS_LINE = re.compile(rb"[ \t]*(?:[\r\n\"'\\]|\Z)")
_CODE = re.compile(
    rb"(?=[A-Za-z_.]+\d{0,4}[A-Za-z_.]*[(\[])(?:[A-Za-z_][a-z0-9_]*|(?:[A-Z][a-z0-9]+)+|[A-Z_]+)(?:\.\w+)*[(\[].*"
)
"""A call, or an index; a password with a bracket in it has other letters in front."""


_REFERENCE = re.compile(rb"(?:image_?)?pull_?secrets?\Z", re.IGNORECASE)
"""Names of Kubernetes' secrets, and not what is in them."""


_SURELY = re.compile(rb"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[^\s/,]{16}")
_DOTTED = re.compile(rb"[a-z_]+\d*(?:[./][a-z_]*\d*){2,}")
"""A tensor's or a module's name."""
_IDENTIFIER = re.compile(rb"[a-z]+(?:[_-][a-z0-9]+)+")
_GIVES = re.compile(rb"(?:setdefault|getenv|setenv|putenv|\.get)\(\s*[bru]?\\{0,3}[\"']\Z")
"""A call with a name and the value that goes with it."""
_TUPLE = re.compile(rb"\(b?\\{0,3}[\"']\Z")
_MIXED = re.compile(rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)")


def kind_of(a: Assignment) -> str | None:
    """The kind of secret that an assignment gives away, or None where its name or value is harmless."""
    if not _is_assigned(a) or _is_harmless(a):
        return None
    if a.name.kind == "password":
        return "password" if _is_password(a) else None
    if a.name.kind == "secret":
        return None if _REFERENCE.search(a.name.text) else "secret"
    if a.name.kind == "other":
        return "credentials" if len(a.value) >= _least_credentials(a) and not a.is_number else None
    if a.name.kind == "anykey":
        return "api-key" if _is_any_key(a) else None
    if a.name.kind == "key":
        return "api-key" if _is_key(a) else None
    return "token" if _is_token(a) else None


# ---- is it an assignment at all --------------------------------------------------------------------------------------


def _is_assigned(a: Assignment) -> bool:
    """Whether what is between name and value makes it an assignment, and not a sentence or a list of words."""
    if a["blank"]:
        return _is_behind_blank(a)
    if a["paren"]:
        return a.name.upper and (_KEYISH.fullmatch(a.value) is not None or _is_odd_password(a))
    if a["prose"]:
        telling = a.name.upper or a.name.sure or (len(a.value) >= 8 and _KEYISH.fullmatch(a.value) is not None)
        return telling and not _PROSE.fullmatch(a.value)
    if a["list"]:
        return _is_in_list(a)
    return True


def _is_behind_blank(a: Assignment) -> bool:
    """`--password x`, `ENV NAME x`, `using session token x`, and other values with nothing but a blank in front."""
    if a.name.flag:
        return not a.value.startswith(b"-")
    if a["blank"] == b"\0":
        return False
    if _SETS.search(a.before) or _is_quoted_value(a) or _is_used(a):
        return True
    if a.before.endswith(b"(") and a.behind == b")":  # `(db_password x)`
        return len(a.value) >= 6 and (a.is_keyish or _is_odd_password(a))
    if a.name.kind == "password" and a.alone_in_line:  # `password x`: .netrc
        return len(a.value) >= 6 and (a.is_keyish or (a.name.upper and len(a["blank"]) > 1))
    return _is_in_column(a)


def _is_quoted_value(a: Assignment) -> bool:
    """`PASSWORD 'x'` of SQL, `using db_password 'x'`."""
    if not a.quoted:
        return False
    if a.name.upper and a.name.kind == "password" and len(a.value) >= 4:
        return True
    named = a.name.sure or a.name.kind == "key" or b"_" in a.name.front
    return named and len(a.value) >= 8 and b" " not in a.value


def _is_used(a: Assignment) -> bool:
    """`using session token x`, `tried admin pw x`: by what the value is, or by the word in front."""
    if a.name.kind != "anykey" and _is_sure(a.value):
        return True
    return a.name.kind == "password" and a.is_keyish and len(a.value) >= 8 and _USING.search(a.before) is not None


def _is_in_column(a: Assignment) -> bool:
    """Columns, and Docker's `ENV NAME value`: no sentence goes on with letters and digits in one word."""
    column = len(a["blank"]) > 1 or b"\t" in a["blank"] or a.name.upper or a.name.kind == "key"
    telling = a.name.upper or a.name.sure or (a.name.kind == "key" and len(a.value) >= 20)
    return column and telling and len(a.value) >= 6 and a.is_keyish


def _is_in_list(a: Assignment) -> bool:
    """`('--token', 'x')`, `("API_KEY", "x")`, and a line of a table with commas."""
    if a.name.upper and not a.quoted and not a["close"]:
        return a.alone_in_line and len(a.value) >= 8 and _KEYISH.fullmatch(a.value) is not None
    if not a["close"] or not a.quoted:
        return False
    return a.name.flag or a.name.upper or a.name.kind == "password" or _is_value_of_pair(a)


def _is_value_of_pair(a: Assignment) -> bool:
    """Whether what follows a secret's name in a list is its value, and not the next of many names."""
    telling = a.name.kind in ("secret", "key", "other") or (a.name.kind == "token" and bool(a.name.front))
    pair = _TUPLE.search(a.before) is not None and a.behind == b")"
    if telling and (pair or _GIVES.search(a.before)):
        return True
    if pair and is_random(a.value.replace(b"/", b"")):
        return True
    least = 8 if telling or pair else 16
    return len(a.value) >= least and _KEYISH.fullmatch(a.value) is not None and not _IDENTIFIER.fullmatch(a.value)


def _is_sure(value: bytes) -> bool:
    """Whether a word is random, a hash, or has signs in it that no word of a sentence, no path and no list has."""
    if _SURELY.match(value) is None:
        return False
    signs = len(value) - len(value.translate(None, b"!@#$%^&*()+=~{}"))
    if signs >= (1 if _MIXED.match(value) else 3):
        return True
    return _HEX_KEY.fullmatch(value) is not None or is_random(value)


def _is_odd_password(a: Assignment) -> bool:
    return a.name.kind == "password" and not a.value.isalpha()


# ---- is the value a secret -------------------------------------------------------------------------------------------


def _is_harmless(a: Assignment) -> bool:
    """Types, placeholders, references to variables, code, and what is between two strings."""
    if not a.value or (a.quoted and _BETWEEN.fullmatch(a.value)):
        return True
    if _HARMLESS.fullmatch(a.value):
        return not (a.is_number and a.name.kind == "password")
    return not a.quoted and not a.name.upper and _CODE.fullmatch(a.value) is not None


def _is_password(a: Assignment) -> bool:
    word = a.name.word.lower()
    if a.name.word == b"pass" and not _may_pass(a):
        return False  # the first pass: done
    if a.is_number and (word == b"pass" or (word in (b"pw", b"pwd") and len(a.value) < 4)):
        return False  # forward pass=3
    directory = a.value[:1] in b"/~." or a.value[1:3] in (b":\\", b":/")
    return not (word == b"pwd" and directory)


def _may_pass(a: Assignment) -> bool:
    """Whether `pass` is a password's name here, and not one pass of many."""
    keyish = a.is_keyish and not _MEASURED.fullmatch(a.value)
    if a.name.front:
        return not _RAN.search(a.name.front) and (keyish or (a.quoted and len(a.value) >= 6))
    return a.quoted or b":" not in a["sep"] or keyish


def _least_credentials(a: Assignment) -> int:
    """How long a value is at least, by what its name says."""
    name = a.name.text.lower()
    if b"cred" in name:
        return 4
    if name.endswith((b"auth", b"community", b"seed")) and _KEYISH.fullmatch(a.value):
        return 6
    return 8 if b"sess" in name else 12


def _is_any_key(a: Assignment) -> bool:
    """Whether a name that ends in `key` and says no more gives a secret away: by its value, and by where it is."""
    if _DOTTED.fullmatch(a.value) or not (_KEYISH.fullmatch(a.value) or is_random(a.value)):
        return False
    if a.name.flag or a.name.upper:
        return len(a.value) >= (6 if a.name.flag else 16)
    if len(a.value) < (12 if _MIXED.match(a.value) else 16):
        return False
    if a.name.front:
        return not _ORDINARY.search(a.name.front)
    return a.before[-1:] in (b"?", b"&")  # `?key=…`


def _is_key(a: Assignment) -> bool:
    if a.is_number or len(a.value) < (4 if a.name.upper else 6):
        return False
    return _PATH.fullmatch(a.value) is None or is_random(a.value)


def _is_token(a: Assignment) -> bool:
    if _COUNTED_TOKEN.search(a.name.front) or a.is_number or a.value.startswith((b"<", b"/")):
        return False
    if a.name.word.lower() == b"tokens" and not a.name.upper:
        return False
    return len(a.value) >= (4 if a.name.upper or a.name.flag else 8)


# ---- names alone -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def secret_name(name: bytes) -> bool:
    """Whether a name alone, as a key of a dictionary or in a list of pairs, says that its value is secret."""
    if len(name) > 128 or b":" in name:
        return False
    probe = assignment(name + b'="Xq7-probe-value-8Zt"', 0, len(name))
    if probe is None or (probe.name.kind == "anykey" and not name.isupper()):
        return False  # a `pg_key`: only a value that looks like one is a secret
    return kind_of(probe) is not None


@lru_cache(maxsize=20_000)
def plain_kind(name: bytes) -> str | None:
    """The kind that a name gives to every long value of letters and digits; None where it depends on more."""
    probe = assignment(name + b"=Xq7probe8Zt\n", 0, len(name))
    return kind_of(probe) if probe is not None and probe.name.kind != "anykey" else None
