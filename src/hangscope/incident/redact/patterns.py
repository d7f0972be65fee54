"""What a secret looks like: one entry a kind. Bytes in, because logs are not always UTF-8.

Each pattern has its needles: lower-case text with which every match begins (after `back` bytes). All needles are looked
for at once, and a pattern is tried only where one of its own was found: most of a log is never tried against any.
The group `s` is what is replaced.

A pattern must be sure: evidence is full of hashes, ids and names that look random. What is secret only by its place (a
W&B key is forty hexadecimal digits, and so is a commit) is recognised by the name in front of it: see `names`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    kind: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[bytes]
    back: int = 0
    reach: int = 2048
    """How far behind its needle a match can end: whatever a file holds, trying a pattern costs so much and no more."""


def _p(kind: str, needles: str, regex: bytes, *, back: int = 0, reach: int = 2048, case: bool = True) -> Pattern:
    flags = 0 if case else re.IGNORECASE
    return Pattern(kind, tuple(needle.encode() for needle in needles.split()), re.compile(regex, flags), back, reach)


_START = rb"(?<![A-Za-z0-9])"  # not the tail of a longer word
_END = rb"(?![A-Za-z0-9_-])"
_NEW = rb"(?!\[redacted)"

TOKENS = (
    _p("aws-access-key", "akia asia abia acca", _START + rb"(?P<s>(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})(?![A-Za-z0-9])"),
    _p("gcp-api-key", "aiza", _START + rb"(?P<s>AIza[0-9A-Za-z_-]{35})" + _END),
    _p("gcp-oauth", "ya29. gocspx-", _START + rb"(?P<s>ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{20,})"),
    _p("azure-secret", "q~", rb"(?<![\w~.-])(?P<s>[\w~.]{3}\dQ~[\w~.-]{31,34})(?![\w~-])", back=4),
    _p("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", _START + rb"(?P<s>gh[pousr]_[A-Za-z0-9]{30,255})" + _END),
    _p("github-token", "github_pat_", _START + rb"(?P<s>github_pat_[A-Za-z0-9_]{22,255})"),
    _p(
        "gitlab-token",
        "glpat- gldt- glrt- glcbt- glptt- glft- gloas- glagent- glsoat-",
        _START + rb"(?P<s>gl(?:pat|dt|rt|cbt|ptt|ft|oas|agent|soat)-[A-Za-z0-9_.-]{20,})",
    ),
    _p("huggingface-token", "hf_ api_org_", _START + rb"(?P<s>(?:hf|api_org)_[A-Za-z0-9]{30,64})" + _END),
    _p("anthropic-key", "sk-ant-", _START + rb"(?P<s>sk-ant-[A-Za-z0-9_-]{16,})"),
    _p("openai-key", "sk-", _START + rb"(?P<s>sk-(?!ant-)(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,})"),
    _p(
        "slack-token",
        "xoxa- xoxb- xoxp- xoxr- xoxs- xoxe- xoxe. xapp-",
        _START + rb"(?P<s>(?:xox[abprs]|xoxe(?:\.xox[bp])?|xapp)-[A-Za-z0-9-]{10,})",
    ),
    _p("slack-webhook", "hooks.slack.com", rb"hooks\.slack\.com/(?P<s>\w+/[A-Za-z0-9/_-]{20,})", case=False),
    _p("discord-webhook", "api/webhooks/", rb"api/webhooks/\d+/(?P<s>[\w-]{20,})"),
    _p("mailgun-key", "key-", _START + rb"(?P<s>key-[0-9a-f]{32})" + _END),
    _p("gcp-oauth", "1//0", _START + rb"(?P<s>1//0[A-Za-z0-9_-]{20,})"),
    _p("wandb-key", "wandb_v1_ local-", _START + rb"(?P<s>wandb_v1_[A-Za-z0-9_]{20,}|local-[0-9a-f]{40})" + _END),
    _p(
        "wandb-key",
        "wandb",
        rb"wandb(?:\.ai)?[^\n]{0,60}?(?:login|key|api)[\"'\]\s:=,-]+(?:--\w+\s+)*(?P<s>[0-9a-f]{40})(?![0-9a-z])",
        case=False,
    ),
    _p("ngc-key", "nvapi-", _START + rb"(?P<s>nvapi-[A-Za-z0-9_-]{20,})"),
    _p("npm-token", "npm_", _START + rb"(?P<s>npm_[A-Za-z0-9]{36,})" + _END),
    _p("pypi-token", "pypi-", _START + rb"(?P<s>pypi-(?:Ag[A-Za-z0-9_-]{20,}|[A-Za-z0-9_-]{60,}))"),
    _p("docker-token", "dckr_pat_ dckr_oat_", _START + rb"(?P<s>dckr_[po]at_[A-Za-z0-9_-]{20,})"),
    _p("stripe-key", "k_live_ k_test_", _START + rb"(?P<s>[prs]k_(?:live|test)_[A-Za-z0-9]{16,})" + _END, back=1),
    _p("sendgrid-key", "sg.", _START + rb"(?P<s>SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,})"),
    _p("databricks-token", "dapi", _START + rb"(?P<s>dapi[0-9a-f]{32}(?:-\d)?)" + _END),
    _p("vault-token", "hvs. hvb. hvr.", _START + rb"(?P<s>hv[sbr]\.[A-Za-z0-9_-]{20,})"),
    _p("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", _START + rb"(?P<s>do[opr]_v1_[0-9a-f]{64})" + _END),
    _p(
        "cloud-key",
        "gsk_ xai- pplx- r8_ lin_api_ rpa_",
        _START + rb"(?P<s>(?:gsk_|xai-|pplx-|r8_|lin_api_|rpa_)[A-Za-z0-9]{32,})" + _END,
    ),
    _p("atlassian-token", "atatt3 atctt3", _START + rb"(?P<s>AT[AC]TT3[A-Za-z0-9_=-]{40,})"),
    _p("age-key", "age-secret-key-", _START + rb"(?P<s>AGE-SECRET-KEY-1[0-9A-Z]{40,})", case=False),
    _p("telegram-token", ":aa", rb"(?<![0-9])(?P<s>\d{9}\d?:AA[A-Za-z0-9_-]{32,34})" + _END, back=10),
    _p("telegram-token", ":aa", rb"(?<![0-9])(?P<s>\d{9}:AA[A-Za-z0-9_-]{32,34})" + _END, back=9),
    _p("jwt", "eyj", _START + rb"(?P<s>eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3})", reach=16384),
)
"""Secrets that say themselves what they are."""

SURROUNDED = (
    # The secret half, printed beside the access key that it belongs to.
    _p(
        "aws-secret-key",
        "akia asia",
        rb"(?:AKIA|ASIA)[A-Z0-9]{16}[\"']?[\s,:;|/]{1,4}(?:[\"']?[\w ]{0,40}[\"']?\s?[=:]\s?)?[\"']?"
        rb"(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    _p(
        "azure-key",
        "accountkey= accesskey=",
        rb"(?:Account|Access)Key=(?P<s>[A-Za-z0-9+/%]{20,}={0,2})",
        case=False,
    ),
    _p(
        "azure-sas",
        "sig= sharedaccesssignature=",
        rb"(?<![\w-])(?:sig|SharedAccessSignature)=(?P<s>[A-Za-z0-9+/%_-]{16,}=*)",
        case=False,
    ),
    _p(
        "signed-url",
        "x-amz- x-goog- signature=",
        rb"(?<=[?&])(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|Signature)=(?P<s>[^&\s\"'<>]{8,})",
        case=False,
    ),
    _p("url-credentials", "://", rb"://(?P<s>" + _NEW + rb"[^\s/\"'<>@:]*:[^\s/\"'<>]+)@(?=[\w.\[-])"),
    _p("url-credentials", "://", rb"(?<=ttps)://(?P<s>(?!git@)" + _NEW + rb"[^\s/:\"'<>@]+)@(?=[\w.\[-])", case=False),
    _p(
        "authorization",
        "authorization",
        rb"authorization(?:\\{0,3}[\"'])?\s{0,3}[:=,]\s{0,3}(?:b?\\{0,3}[\"'])?(?P<s>"
        + _NEW
        + rb"(?:(?:Basic|Bearer|Token|Digest|Negotiate|ApiKey|Key|AWS4-HMAC-SHA256)\s+[^\r\n\"'\\]{2,}"
        rb"|[^\s\"',;\\]{6,}))",
        case=False,
    ),
    _p(
        "authorization",
        "bearer",
        _START + rb"bearer\s{1,3}(?P<s>" + _NEW + rb"(?=[A-Za-z._~+/=-]*\d|\S{24})[A-Za-z0-9._~+/=-]{12,})",
        case=False,
    ),
    _p("authorization", "basic", _START + rb"Basic\s(?P<s>(?=[a-z+/]*[A-Z0-9])[A-Za-z0-9+/]{16,}={0,2})(?!\w)"),
    _p(
        "cookie",
        "cookie",
        rb"(?<![A-Za-z_])cookie(?:\\{0,3}[\"'])?\s{0,3}[:=]\s{0,3}(?:b?\\{0,3}[\"'])?(?P<s>"
        + _NEW
        + rb"[^\s\"'\\=;]+=[^\r\n\"'\\]+)",
        case=False,
    ),
    _p("password", "login", _START + rb"login\s+\S+\s+password\s+(?P<s>" + _NEW + rb"\S+)"),
    _p("password", "sshpass", _START + rb"sshpass\s+-p\s*(?P<s>" + _NEW + rb"\S+)"),
    _p(
        "password",
        "curl wget",
        _START
        + rb"(?:curl|wget)\s[^\n]{0,200}?(?<=\s)(?:-u|--user)[\s=]+[\"']?[^\s:\"']+:(?P<s>"
        + _NEW
        + rb"[^\s\"']+)",
    ),
    _p("password", "mysql", rb"mysql(?:dump|admin|sh)?\s[^\n]{0,200}?(?<=\s)-p(?P<s>(?!\s)" + _NEW + rb"\S+)"),
    _p("password", "redis-cli", rb"redis-cli\s[^\n]{0,200}?(?<=\s)(?:-a|--pass)\s+(?P<s>" + _NEW + rb"\S+)"),
    _p(
        "password",
        "docker podman",
        _START + rb"(?:docker|podman) login\s[^\n]{0,200}?(?<=\s)-p\s+(?P<s>" + _NEW + rb"\S+)",
    ),
    _p("docker-auth", '"auth" _auth', rb"(?:\"auth\"|_auth(?:Token)?)\s*[:=]\s*\"?(?P<s>[A-Za-z0-9+/_-]{12,}={0,2})"),
)
"""Secrets by the words around them."""

PRIVATE_KEY_START = re.compile(rb"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
PRIVATE_KEY_END = re.compile(rb"-----END (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
PRIVATE_KEY_BYTES = 64 << 10
"""The most that a private key takes, with line prefixes of a log. Behind a start without an end that much is taken."""

EMAIL = re.compile(
    rb"(?P<s>[A-Za-z0-9][\w.+%-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24})(?![\w@-])"
)
EMAIL_FRONT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+%-"

HOME = re.compile(rb"/(?:home|homes|Users|users)/(?P<s>[^/\s:\"'<>|,;()\[\]{}\\$*?&=\0]{1,64})")
WINDOWS_HOME = re.compile(rb":(?:\\{1,4}|/)Users(?:\\{1,4}|/)(?P<s>[^/\s:\"'<>|,;\\\0]{1,64})", re.IGNORECASE)
_ACCOUNT = rb"(?:\\{0,3}[\"'])?(?P<s>[A-Za-z_][A-Za-z0-9_.-]{0,31})(?![\w$(/@:-])"
USER = re.compile(
    rb"(?<![A-Za-z0-9.$-])[A-Z0-9_]{0,40}(?:USER|LOGNAME|USERNAME|USER_NAME)(?:\\{0,3}[\"'])?(?:=|\s?:\s|\s=\s)"
    + _ACCOUNT
)
"""A variable of the environment. The name in it is a user's, wherever else it stands."""
USER_FIELD = re.compile(rb"(?<![A-Za-z0-9.$_-])(?:user|username|user_name|logname)(?:=|\\{0,3}[\"']\s?:\s?)" + _ACCOUNT)
"""A field of a record: a user, or a role in a conversation. Replaced here, and not looked for elsewhere."""
USER_FRONT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
NUMBERED_USER = re.compile(rb"[ug]id=\d+\((?P<s>[A-Za-z_][\w.-]{0,31})\)")

GENERIC_USERS = frozenset(
    b"""root user users ubuntu debian centos rocky ec2-user admin administrator nobody daemon www-data jovyan runner
    docker app service slurm opc azureuser vagrant default guest public shared all none null true false name id str
    linuxbrew work workspace data host main system node""".split()
)
"""Accounts that name nobody. A home of one of them stays as it is."""

WORDS = frozenset(
    b"""ada adam all amber any auto batch bench best big cache chip clip cluster code compute core cuda dash data
    deep demo dev dist drop edge epoch eval exp file fire flash fold free fsdp git grace grad group hopper host
    info init jax job key lab lamb large last learn lib lion load local log loss main mark master max mean merge
    meta min mini mixed model mon nano nccl net new none norm nova null opt para pass path perf pile pip plan
    pod pool pro process proxy pt python rand rank ray ref research root run sage sam save scale sched server
    shard sky small spark speed start state step stop storage sum sun super task team temp test text time tmp
    tool top torch train trainer tuna tune user val var vim wait warm warn web will work worker world zero""".split()
)
"""Names of people that are also words of logs and programs: replacing these everywhere would spoil the evidence."""
