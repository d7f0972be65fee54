"""Assignments: a name that says its value is secret, in the syntaxes in which evidence writes one.

`PASSWORD=x`, `"password": "x"`, the same inside a string with backslashes, `password: x`, `--password x`,
`'--password', 'x'`, `os.environ["TOKEN"] = "x"`, `("API_KEY", "x")`, `<password>x</password>`, `password | x` in a
table, `password ........ x` as Megatron prints its arguments, `password is x`, and Kubernetes' `name: TOKEN` with
`value: x` on the next line.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from hangscope.bundle.redact.random_words import is_random
from hangscope.bundle.redact.skip_prefixes import prefix_end

NEEDLES: tuple[bytes, ...] = (b"pass", b"pw", b"secret", b"key", b"cred", b"token", b"kennwort", b"contrasena")
NEEDLES += (
    b"cookie",
    b"psk",
    b"webhook",
    b"sessionid",
    b"session_id",
    b"session-id",
    b"sessid",
    b"dockerc",
    b"license",
)
NEEDLES += (b"connection_s", b"connection-s", b"connections", b"connection.s", b"conn_str", b"connstr", b"conn-str")
NEEDLES += (b"_pat", b"tpat", b"bpat", b"rpat")  # personal access tokens: EXT_PAT, githubPat
NEEDLES += (
    b"basic_auth",
    b"basic-auth",
    b"basicauth",
    b"jwt",
    b"phrase",
    b"auth",
    b"community",
    b"p_seed",
    b"a_seed",
)
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

_LONGEST = 200
LATEST = 48
"""From a part of a name by which it is found to its end."""
_GROUPS = ("name", "flag", "front", "password", "secret", "key", "other", "token", "anykey")
_BEHIND = re.compile(rb"[A-Za-z0-9][_. -]\Z")
_BEHIND_PASS = re.compile(rb"=[^=]|\\{0,3}[\"']|:[ \t]")
_BEHIND_PAT = re.compile(rb"[\"' \t]*[:=,<>]")
"""`pass` alone, and `_pat`, are names only in front of these."""


class Assignment:
    """A name and its value: `name` and what it is made of, and from `close` on what follows it."""

    __slots__ = ("_name", "_start", "_value", "string")

    def __init__(self, name: dict[str, bytes | None], start: int, value: re.Match[bytes]) -> None:
        self._name, self._start, self._value, self.string = name, start, value, value.string

    def __getitem__(self, group: str) -> Any:
        return self._name[group] if group in self._name else self._value[group]

    def start(self) -> int:
        return self._start

    def end(self) -> int:
        return self._value.end()

    def span(self, group: str) -> tuple[int, int]:
        """Where the value is."""
        return self._value.span(group)


@lru_cache(maxsize=50_000)
def _name(word: bytes, behind: bytes) -> dict[str, bytes | None] | None:
    """What a secret's name is made of; None of other words. What each file calls its own is looked at once."""
    found = _ONLY_NAME.match(behind + word + b'="', len(behind)) if len(word) <= _LONGEST else None
    if found is None or found.end() != len(behind + word) or _is_ordinary(found):
        return None
    return {group: found[group] for group in _GROUPS}


def _is_ordinary(name: re.Match[bytes]) -> bool:
    """Whether a name says that its value is no secret, whatever that is: numbers of tokens, keys of dictionaries."""
    if name["name"].lstrip(b"-").isupper() or name["flag"]:
        return False
    if name["token"]:
        return name["token"].lower() == b"tokens" or _COUNTED_TOKEN.search(name["front"]) is not None
    return bool(name["anykey"] and name["front"] and _ORDINARY.search(name["front"]))


def is_name(data: bytes, start: int, end: int) -> bool:
    """Whether what is there could be the name of a secret, or the end of one, whatever follows it."""
    if end - start == 3 and data[start:end] == b"key":  # a word of every other sentence
        return data[start - 1 : start] in (b"?", b"&", b" ") and (
            data[start - 1 : start] != b" "
            or data[max(0, start - LONGEST_FIRST_WORD) : start].lower().endswith(FIRST_WORDS)
        )
    return _name(data[start:end], b"a ") is not None or whole(data, start, end) < start


def whole(data: bytes, start: int, end: int) -> int:
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
    if name["password"] and len(name["password"]) == 4 and not name["front"] and not _BEHIND_PASS.match(data, end):
        return None
    if name["other"] and len(name["other"]) == 3 and name["other"] != b"PAT" and not _BEHIND_PAT.match(data, end):
        return None
    value = _VALUE.match(data, end, start + REACH)
    return Assignment(name, start, value) if value else None


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

CONTINUES = re.compile(
    rb"(?P<s>(?=[^\n]{0,100}\d|(?:[^\n]{0,60}?[a-z][A-Z]){2})[A-Za-z0-9+/_~.-]{6,100}={0,2})"
    rb"[ \t]*(?=[\r\n\"'\\]|\Z)"
)
"""A line that can only be the rest of the value above it."""

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


def _begins_line(match: Assignment) -> bool:
    """Whether nothing but blanks and a log's prefix stand in front of a name."""
    data, at = match.string, match.start()
    if _BEGINS_LINE.search(data, max(0, at - 24), at):
        return True
    line = data.rfind(b"\n", 0, at) + 1
    return not data[prefix_end(data, line) : at].strip(b" \t")


_ENDS_LINE = re.compile(rb"[ \t]*(?:[\r\n\"'\\]|\Z)")
_CODE = re.compile(
    rb"(?=[A-Za-z_.]+\d{0,4}[A-Za-z_.]*[(\[])(?:[A-Za-z_][a-z0-9_]*|(?:[A-Z][a-z0-9]+)+|[A-Z_]+)(?:\.\w+)*[(\[].*"
)
"""A call, or an index; a password with a bracket in it has other letters in front."""


def kind_of(match: Assignment) -> str | None:
    """The kind of secret that an assignment gives away, or None where its name or value is harmless."""
    quoted = match["open"] is not None
    value: bytes = match["quoted"] if quoted else match["bare"]
    name = match["name"].lstrip(b"-")
    upper = name.isupper()
    if not _stands(match, value, upper=upper):
        return None
    number = _NUMBER.fullmatch(value) is not None
    if quoted and _BETWEEN.fullmatch(value):
        return None  # the name ends a string: what follows is between two of them
    if not value or (_HARMLESS.fullmatch(value) and not (number and match["password"])):
        return None
    if not quoted and not upper and _CODE.fullmatch(value):
        return None
    if match["password"]:
        if match["password"] == b"pass" and not _may_pass(match, value, quoted=quoted):
            return None  # the first pass: done
        return _password(match["password"].lower(), value, number=number)
    if match["secret"]:
        return None if _REFERENCE.search(name) else "secret"
    if match["other"]:
        short = name.lower().endswith((b"auth", b"community", b"seed")) and _KEYISH.fullmatch(value)
        least = 4 if b"cred" in name.lower() else 6 if short else 8 if b"sess" in name.lower() else 12
        return "credentials" if len(value) >= least and not number else None
    if match["anykey"]:
        return "api-key" if _is_key(match, value, upper=upper) else None
    if match["key"]:
        path = _PATH.fullmatch(value) and not is_random(value)
        return "api-key" if len(value) >= (4 if upper else 6) and not number and not path else None
    if _COUNTED_TOKEN.search(match["front"]) or number or value.startswith((b"<", b"/")):
        return None
    if match["token"].lower() == b"tokens" and not upper:
        return None
    return "token" if len(value) >= (4 if upper or match["flag"] else 8) else None


_REFERENCE = re.compile(rb"(?:image_?)?pull_?secrets?\Z", re.IGNORECASE)
"""Names of Kubernetes' secrets, and not what is in them."""


def _may_pass(match: Assignment, value: bytes, *, quoted: bool) -> bool:
    """Whether `pass` is a password's name here, and not one pass of many."""
    keyish = bool(_KEYISH.fullmatch(value) or _CASES.match(value)) and not _MEASURED.fullmatch(value)
    if match["front"]:
        return not _RAN.search(match["front"]) and (keyish or (quoted and len(value) >= 6))
    return quoted or b":" not in match["sep"] or keyish


def _is_key(match: Assignment, value: bytes, *, upper: bool) -> bool:
    """Whether a name that ends in `key` and says no more gives a secret away: by its value, and by where it stands."""
    if _DOTTED.fullmatch(value) or not (_KEYISH.fullmatch(value) or is_random(value)):
        return False
    if match["flag"] or upper:
        return len(value) >= (6 if match["flag"] else 16)
    asked = match.string[match.start() - 1 : match.start()] in (b"?", b"&") and not match["front"]  # `?key=…`
    least = 12 if _MIXED.match(value) else 16
    return len(value) >= least and (asked or bool(match["front"] and not _ORDINARY.search(match["front"])))


def _stands(match: Assignment, value: bytes, *, upper: bool) -> bool:
    """Whether what is between name and value makes it an assignment, and not a sentence or a list of words."""
    if match["blank"]:
        if match["flag"]:
            return not value.startswith(b"-")
        if match["blank"] == b"\0":
            return False
        front = match.string[max(0, match.start() - 24) : match.start()]
        keyish = bool(_KEYISH.fullmatch(value) or (match["password"] and _CASES.match(value)))
        if _SETS.search(front) or (match["open"] is not None and upper and match["password"] and len(value) >= 4):
            return True  # `PASSWORD 'x'` is SQL
        named = match["password"] or match["secret"] or match["key"] or b"_" in match["front"]
        if match["open"] is not None and named and len(value) >= 8 and b" " not in value:
            return True  # `using db_password 'x'`
        if not match["anykey"] and _is_sure(value):
            return True  # `using session token x`
        if match["password"] and keyish and len(value) >= 8 and _USING.search(front):
            return True  # `using admin pw x`
        if front.endswith(b"(") and match.string[match.end() : match.end() + 1] == b")":
            return len(value) >= 6 and (keyish or bool(match["password"] and not value.isalpha()))  # `(db_password x)`
        if match["password"] and _begins_line(match) and _ENDS_LINE.match(match.string, match.end()):
            # `password x`, alone in its line: .netrc
            return len(value) >= 6 and (keyish or (upper and len(match["blank"]) > 1))
        # Columns, and Docker's `ENV NAME value`: no sentence goes on with letters and digits in one word.
        column = len(match["blank"]) > 1 or b"\t" in match["blank"] or upper or match["key"]
        sure = upper or match["password"] or match["secret"] or (match["key"] and len(value) >= 20)
        return bool(column and sure and len(value) >= 6 and keyish)
    if match["paren"]:
        return bool(upper and (_KEYISH.fullmatch(value) or (match["password"] and not value.isalpha())))
    if match["prose"]:
        sure = upper or match["password"] or match["secret"] or (len(value) >= 8 and _KEYISH.fullmatch(value))
        return bool(sure and not _PROSE.fullmatch(value))
    if match["list"]:
        if upper and match["open"] is None and not match["close"]:  # a line of a table with commas
            alone = _begins_line(match) and _ENDS_LINE.match(match.string, match.end())
            return bool(alone and len(value) >= 8 and _KEYISH.fullmatch(value))
        named = match["flag"] or upper or match["password"] or _is_value(match, value)
        return bool(match["close"] and match["open"] is not None and named)
    return True


def _is_sure(value: bytes) -> bool:
    """Whether a word is random, a hash, or has signs in it that no word of a sentence, no path and no list has."""
    signs = len(value) - len(value.translate(None, b"!@#$%^&*()+=~{}"))
    odd = signs >= (1 if _MIXED.match(value) else 3) or _HEX_KEY.fullmatch(value) or is_random(value)
    return bool(odd and _SURELY.match(value))


def _is_value(match: Assignment, value: bytes) -> bool:
    """Whether what follows a secret's name in a list is its value, and not the next of many names."""
    sure = match["secret"] or match["key"] or match["other"] or (match["token"] and match["front"])
    front = match.string[max(0, match.start() - 24) : match.start()]
    pair = _TUPLE.search(front) is not None and match.string[match.end() : match.end() + 1] == b")"
    if sure and (pair or _GIVES.search(front)):
        return True
    least = 8 if sure or pair else 16
    if pair and is_random(value.replace(b"/", b"")):
        return True
    return len(value) >= least and _KEYISH.fullmatch(value) is not None and not _IDENTIFIER.fullmatch(value)


_SURELY = re.compile(rb"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[^\s/,]{16}")
_DOTTED = re.compile(rb"[a-z_]+\d*(?:[./][a-z_]*\d*){2,}")
"""A tensor's or a module's name."""
_IDENTIFIER = re.compile(rb"[a-z]+(?:[_-][a-z0-9]+)+")
_GIVES = re.compile(rb"(?:setdefault|getenv|setenv|putenv|\.get)\(\s*[bru]?\\{0,3}[\"']\Z")
"""A call with a name and the value that goes with it."""
_TUPLE = re.compile(rb"\(b?\\{0,3}[\"']\Z")
_MIXED = re.compile(rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)")


def _password(word: bytes, value: bytes, *, number: bool) -> str | None:
    if number and (word == b"pass" or (word in (b"pw", b"pwd") and len(value) < 4)):
        return None  # forward pass=3
    directory = word == b"pwd" and (value[:1] in b"/~." or value[1:3] in (b":\\", b":/"))
    return None if directory else "password"


@lru_cache(maxsize=20_000)
def secret_name(name: bytes) -> bool:
    """Whether a name alone, as a key of a dictionary or in a list of pairs, says that its value is secret."""
    if len(name) > 128 or b":" in name:
        return False
    probe = assignment(name + b'="Xq7-probe-value-8Zt"', 0, len(name))
    if probe is None or (probe["anykey"] and not name.isupper()):
        return False  # a `pg_key`: only a value that looks like one is a secret
    return kind_of(probe) is not None


@lru_cache(maxsize=20_000)
def plain_kind(name: bytes) -> str | None:
    """The kind that a name gives to every long value of letters and digits; None where it depends on more."""
    probe = assignment(name + b"=Xq7probe8Zt\n", 0, len(name))
    return kind_of(probe) if probe is not None and not probe["anykey"] else None
