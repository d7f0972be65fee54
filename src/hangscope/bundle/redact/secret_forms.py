"""What a secret looks like: one entry a kind. Bytes in, because logs are not always UTF-8.

Each pattern has its needles: lower-case text with which every match begins (after `back` bytes). All needles are looked
for at once, and a pattern is tried only where one of its own was found: most of a log is never tried against any.
The group `s` is what is replaced.

A pattern must be sure: evidence is full of hashes, ids and names that look random. What is secret only by its place (a
W&B key is forty hexadecimal digits, and so is a commit) is recognised by the name in front of it: see `assignments`.
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
    weak: bool = False
    """Its beginning is also the end of ordinary words (`task-`): behind a letter the rest must be random."""


def _p(
    kind: str,
    needles: str,
    regex: bytes,
    *,
    back: int = 0,
    reach: int = 2048,
    case: bool = True,
    weak: bool = False,
) -> Pattern:
    flags = 0 if case else re.IGNORECASE
    words = tuple(needle.encode() for needle in needles.split())
    return Pattern(kind, words, re.compile(regex, flags), back, reach, weak)


_START = rb"(?<![A-Za-z0-9])"  # not the tail of a longer word
_END = rb"(?![A-Za-z0-9_-])"
_NEW = rb"(?!\[redacted)"
_MADE_UP = rb"(?=[^\s\"']*\d)(?=[^\s\"']*[A-Za-z])"  # no word, and no number

TOKENS = (
    _p("aws-access-key", "akia asia abia acca", rb"(?P<s>(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})(?![A-Za-z0-9])"),
    _p("gcp-api-key", "aiza", rb"(?P<s>AIza[0-9A-Za-z_-]{35})" + _END),
    _p("gcp-oauth", "ya29. gocspx-", rb"(?P<s>ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{20,})"),
    _p("azure-secret", "q~", rb"(?<![\w~.-])(?P<s>[\w~.]{3}\dQ~[\w~.-]{31,34})(?![\w~-])", back=4),
    # Azure DevOps: 84 letters with a mark in them since 2024; before, 52 of base32, which only words beside them tell.
    _p(
        "azure-devops-pat",
        "azdo",
        rb"(?<![A-Za-z0-9])(?P<s>[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4})(?![A-Za-z0-9])",
        back=76,
    ),
    _p(
        "azure-devops-pat",
        "devops azure personal_access personal-access accesstoken pat: pat= pat'",
        rb"(?:devops|azure|personal[ _-]access|accesstoken|pat[:='])[^\n]{0,80}?(?<![A-Za-z0-9])"
        rb"(?P<s>(?-i:[a-z2-7]{52}))(?![A-Za-z0-9])",
        case=False,
    ),
    _p("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", rb"(?P<s>gh[pousr]_[A-Za-z0-9]{30,255})" + _END),
    _p("github-token", "github_pat_", rb"(?P<s>github_pat_[A-Za-z0-9_]{22,255})"),
    _p(
        "gitlab-token",
        "glpat- gldt- glrt- glcbt- glptt- glft- gloas- glagent- glsoat-",
        rb"(?P<s>gl(?:pat|dt|rt|cbt|ptt|ft|oas|agent|soat)-[A-Za-z0-9_.-]{20,})",
    ),
    _p("huggingface-token", "hf_ api_org_", rb"(?P<s>(?:hf|api_org)_[A-Za-z0-9]{30,64})" + _END),
    _p("anthropic-key", "sk-ant-", rb"(?P<s>sk-ant-[A-Za-z0-9_-]{16,})"),
    _p("openrouter-key", "sk-or-", rb"(?P<s>sk-or-v1-[0-9a-f]{64})" + _END),
    _p("openai-key", "sk-", rb"(?P<s>sk-(?!ant-)(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,})", weak=True),
    _p(
        "slack-token",
        "xoxa- xoxb- xoxp- xoxr- xoxs- xoxe- xoxe. xapp-",
        rb"(?P<s>(?:xox[abprs]|xoxe(?:\.xox[bp])?|xapp)-[A-Za-z0-9-]{10,})",
    ),
    _p("slack-webhook", "hooks.slack.com", rb"hooks\.slack\.com/(?P<s>\w+/[A-Za-z0-9/_-]{20,})", case=False),
    _p(
        "webhook",
        "webhook.office. outlook.office. hooks.zapier. maker.ifttt. open.feishu. oapi.dingtalk. qyapi.weixin.",
        rb"[\w.]+/(?P<s>(?:webhookb?2?|hooks/catch|trigger|open-apis|robot|cgi-bin)/[\w@/?=&.-]{20,})",
        case=False,
    ),
    _p("discord-webhook", "api/webhooks/", rb"api/webhooks/\d+/(?P<s>[\w-]{20,})"),
    _p("mailgun-key", "key-", rb"(?P<s>key-[0-9a-f]{32})" + _END),
    _p("gcp-oauth", "1//0", rb"(?P<s>1//0[A-Za-z0-9_-]{20,})"),
    _p("wandb-key", "wandb_v1_ local-", rb"(?P<s>wandb_v1_[A-Za-z0-9_]{20,}|local-[0-9a-f]{40})" + _END),
    _p(
        "wandb-key",
        "wandb",
        rb"wandb(?:\.ai)?[^\n]{0,60}?(?:login|key|api)[\"'\]\s:=,-]+(?:--?[\w-]+(?:[= ][^\s-]\S*)?\s+)*"
        rb"(?P<s>[0-9a-f]{40})(?![0-9a-z])",
        case=False,
    ),
    _p(
        "api-key",
        "login",
        rb"login(?:\s+--?[\w-]+(?:[= ][^\s-]\S*)?){0,4}[\s:]+(?P<s>[0-9a-f]{32,64})(?![0-9a-z])",
        case=False,
    ),
    _p("ngc-key", "nvapi-", rb"(?P<s>nvapi-[A-Za-z0-9_-]{20,})"),
    _p("npm-token", "npm_", rb"(?P<s>npm_[A-Za-z0-9]{36,})" + _END),
    _p("pypi-token", "pypi-", rb"(?P<s>pypi-(?:Ag[A-Za-z0-9_-]{20,}|[A-Za-z0-9_-]{60,}))"),
    _p("docker-token", "dckr_pat_ dckr_oat_", rb"(?P<s>dckr_[po]at_[A-Za-z0-9_-]{20,})"),
    _p("stripe-key", "k_live_ k_test_", rb"(?P<s>[prs]k_(?:live|test)_[A-Za-z0-9]{16,})" + _END, back=1),
    _p("sendgrid-key", "sg.", rb"(?P<s>SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,})", weak=True),
    _p("databricks-token", "dapi", rb"(?P<s>dapi[0-9a-f]{32}(?:-\d)?)" + _END),
    _p("vault-token", "hvs. hvb. hvr.", rb"(?P<s>hv[sbr]\.[A-Za-z0-9_-]{20,})"),
    _p("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", rb"(?P<s>do[opr]_v1_[0-9a-f]{64})" + _END),
    _p(
        "cloud-key",
        "gsk_ xai- pplx- r8_ lin_api_ rpa_",
        rb"(?P<s>(?:gsk_|xai-|pplx-|r8_|lin_api_|rpa_)[A-Za-z0-9]{32,})" + _END,
        weak=True,
    ),
    _p("newrelic-key", "nrak-", rb"(?P<s>NRAK-[A-Z0-9]{27})"),
    _p("pulumi-token", "pul-", rb"(?P<s>pul-[0-9a-f]{40})" + _END),
    _p("shopify-token", "shpat_ shpss_ shpca_ shppa_", rb"(?P<s>shp(?:at|ss|ca|pa)_[0-9a-fA-F]{32})" + _END),
    _p("square-token", "sq0atp- sq0csp-", rb"(?P<s>sq0(?:atp|csp)-[A-Za-z0-9_-]{22,})"),
    _p("grafana-token", "glsa_ glc_", rb"(?P<s>glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}|glc_[A-Za-z0-9+/]{32,}={0,2})"),
    _p("postman-key", "pmak-", rb"(?P<s>PMAK-[0-9a-f]{24}-[0-9a-f]{34})"),
    _p("notion-token", "secret_ ntn_", rb"(?P<s>secret_[A-Za-z0-9]{43}|ntn_[A-Za-z0-9]{40,})" + _END),
    _p("figma-token", "figd_", rb"(?P<s>figd_[A-Za-z0-9_-]{40,})"),
    _p("rubygems-key", "rubygems_", rb"(?P<s>rubygems_[0-9a-f]{48})" + _END),
    _p("doppler-token", "dp.", rb"(?P<s>dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{40,})"),
    _p("planetscale-token", "pscale_", rb"(?P<s>pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{30,})"),
    _p("tailscale-key", "tskey-", rb"(?P<s>tskey-[a-z]+-[A-Za-z0-9-]{16,})"),
    _p("langsmith-key", "lsv2_", rb"(?P<s>lsv2_[a-z]{2}_[0-9a-f]{32}(?:_[0-9a-f]{10})?)" + _END),
    _p("sonar-token", "sqp_ squ_ sqa_", rb"(?P<s>sq[pua]_[0-9a-f]{40})" + _END),
    _p("circleci-token", "ccipat_ ccipr", rb"(?P<s>CCIP(?:AT|RJ)_[A-Za-z0-9]{16,}_[0-9a-f]{40})" + _END),
    _p("buildkite-token", "bkua_", rb"(?P<s>bkua_[0-9a-f]{40})" + _END),
    _p("alibaba-key", "ltai", rb"(?P<s>LTAI[A-Za-z0-9]{12,20})" + _END),
    _p("tencent-key", "akid", rb"(?P<s>AKID[A-Za-z0-9]{32})" + _END),
    _p("sentry-token", "sntrys_ sntryu_", rb"(?P<s>sntry[su]_[A-Za-z0-9_=+/-]{40,})"),
    _p("supabase-token", "sbp_", rb"(?P<s>sbp_[0-9a-f]{40})" + _END),
    _p("webhook-secret", "whsec_", rb"(?P<s>whsec_[A-Za-z0-9+/=]{24,})"),
    _p("atlassian-token", "atatt3 atctt3", rb"(?P<s>AT[AC]TT3[A-Za-z0-9_=-]{40,})"),
    _p("age-key", "age-secret-key-", rb"(?P<s>AGE-SECRET-KEY-1[0-9A-Z]{40,})", case=False),
    _p("telegram-token", ":aa", rb"(?<![0-9])(?P<s>\d{9}\d?:AA[A-Za-z0-9_-]{32,34})" + _END, back=10),
    _p("telegram-token", ":aa", rb"(?<![0-9])(?P<s>\d{9}:AA[A-Za-z0-9_-]{32,34})" + _END, back=9),
    _p(
        "password-hash",
        "$1$ $5$ $6$ $7$ $y$ $2a$ $2b$ $2x$ $2y$ $apr1$ $argon2 $pbkdf2 $scrypt $sha512",
        rb"\$\w{1,20}(?:-\w{1,10})?\$(?P<s>[A-Za-z0-9./+$=,-]{20,400})",
    ),
    _p("jwt", "eyj", rb"(?P<s>eyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3})", reach=16384),
)
"""Secrets that say themselves what they are."""

WHOLE = tuple(
    (kind, re.compile(regex))
    for kind, regex in (
        ("twilio-key", rb"(?<![A-Za-z0-9])(?P<s>(?:SK|AC)(?=[a-f]*\d)[0-9a-f]{32})(?![A-Za-z0-9])"),
        ("mailchimp-key", rb"(?<![0-9a-f])(?P<s>[0-9a-f]{32}-us\d{1,2})(?![A-Za-z0-9])"),
        ("airtable-token", rb"(?P<s>pat[A-Za-z0-9]{14}\.[0-9a-f]{64})(?![A-Za-z0-9])"),
        ("terraform-token", rb"(?P<s>[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70})"),
    )
)
"""Secrets without a beginning that is worth a search: tried on long words alone."""

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
    _p("password", "requirepass masterauth", rb"(?:requirepass|masterauth)\s+[\"']?(?P<s>" + _NEW + rb"[^\s\"']+)"),
    _p(
        "password",
        "passphrase password",
        rb"pass(?:word|phrase)(?:\s+for\s+(?:\w+\s+)?[^\s:]+\s*:\s*|\s*>\s+)(?P<s>" + _NEW + rb"\S+)",
        case=False,
    ),
    _p(
        "password",
        "auth=( auth=h auth=a auth': auth\": login( basicauth(",
        rb"(?:auth\\{0,3}[\"']?\s{0,3}[=:]\s{0,3}(?:[\w.]+)?|login|basicauth)[(\[]\s*(?:\w+\s*=\s*)?(?P<q>\\{0,3}[\"'])"
        rb"[^\"'\n\\]{0,200}(?P=q)\s*,\s*(?:\w+\s*=\s*)?(?P=q)(?P<s>" + _NEW + rb"[^\"'\n\\]{1,400})(?P=q)",
        case=False,
    ),
    _p(
        "password",
        "-pfx -p12 -pkcs12",
        rb"-(?:pfx|p12|pkcs12)[-_]?pass(?:word|phrase|wd|code)?(?:\s*[=:]\s*|[\"']?,?\s+)[\"']?(?P<s>(?!-)"
        + _NEW
        + rb"[^\s\"']+)",
        case=False,
    ),
    _p("password", "-pass", rb"-pass(?:in|out)?\s+pass:(?P<s>" + _NEW + rb"\S+)"),
    _p(
        "password",
        "login sshpass mysql maria mongo psql sqlcmd smbclient mosquitto htpasswd ldap ipmi",
        rb"(?:login|sshpass|mysql\w*|maria\w*|mongo\w*|psql|sqlcmd|smbclient|mosquitto\w*|htpasswd|ldap\w+|ipmi[\w-]+)"
        rb"(?:\s[^\n|;&]{0,200}?)?(?<=\s)-[pPw](?:\s+|=)(?!-|\d{1,5}(?:[\s:\"'\\]|\Z)|[~.]?/)[\"']?(?P<s>"
        + _NEW
        + rb"[^\s\"']+)",
        case=False,
    ),
    _p("password", "-u", rb"-u\s+[\w.@-]+\s+-p\s+(?!-|\d{1,5}(?:\s|\Z))[\"']?(?P<s>" + _NEW + rb"[^\s\"']+)"),
    _p("password", "-p", rb"-p\s+(?!-|\d{1,5}(?:\s|:)|[~.]?/)(?P<s>" + _NEW + rb"[^\s\"']+)[\"']?\s+(?:-u|--user)\s"),
    _p("password", "-u", rb"-U\s+[\w.\\]+%(?P<s>" + _NEW + rb"[^\s\"']+)"),
    _p(
        "password",
        "zip 7z openssl gpg",
        rb"(?:7z[ar]?\s+\w|(?:un)?zip|openssl|gpg2?)(?:\s[^\n|;&]{0,200}?)?(?<=\s)(?:-P\s+|-p(?!ass)(?=\S)|-k\s+|-K\s+)"
        rb"[\"']?(?P<s>(?!-)" + _NEW + rb"[^\s\"']{3,})",
    ),
    _p(
        "password",
        "identified",
        rb"identified\s+(?:with\s+\S+\s+)?by\s+(?:password\s+)?[\"'](?P<s>" + _NEW + rb"[^\s\"';]+)[\"']",
        case=False,
    ),
    _p(
        "password",
        "sqlplus sqlldr expdp impdp",
        rb"(?:sqlplus|sqlldr|expdp|impdp)\s+(?:-\S+\s+)*[\w$]+/(?P<s>" + _NEW + rb"[^\s@\"']+)@",
        case=False,
    ),
    _p(
        "tls-key",
        "client_random _traffic_secret exporter_secret",
        rb"(?:CLIENT_RANDOM|\w*TRAFFIC_SECRET(?:_\d)?|EXPORTER_SECRET)\s+[0-9a-f]{64}\s+(?P<s>[0-9a-f]{64,})",
        case=False,
    ),
    _p("x11-cookie", "mit-magic-cookie", rb"MIT-MAGIC-COOKIE-\d\s+(?P<s>[0-9a-f]{16,})", case=False),
    _p(
        "password",
        "pass",
        rb"(?<![A-Za-z0-9_])PASS\s+(?P<s>"
        + _NEW
        + rb"(?=\S{0,63}[\d!-/:-@])(?!\d+[\s%]|\[|\()[^\s\"'\\/]{6,})[ \t]*(?=[\r\n\\\"']|\Z)",
    ),
    _p(
        "password",
        "login",
        rb"(?<=\w )LOGIN[ ][\"']?[\w.@-]+[\"']?[ ][\"']?(?P<s>"
        + _NEW
        + rb"(?=\S{0,63}[\d!-/:-@])[^\s\"'\\]{4,})[\"']?[ \t]*(?=[\r\n\\\"']|\Z)",
    ),
    _p(
        "password",
        "auth",
        rb"(?<![A-Za-z0-9_.-])AUTH\s+(?:(?!PLAIN|LOGIN|CRAM|XOAUTH)[\w.@-]+\s+)?(?P<s>"
        + _NEW
        + rb"(?=\S{0,63}[\d!-/:-@])[^\s\"'\\]{6,})[ \t]*(?=[\r\n\\\"']|\Z)",
    ),
    _p("password", "htpasswd", rb"htpasswd\s+-\w*b\w*\s+\S+\s+\S+\s+(?P<s>" + _NEW + rb"\S+)"),
    _p(
        "password",
        "echo printf",
        rb"(?:echo|printf)\s+(?:-n\s+)?[\"']?(?P<s>"
        + _NEW
        + rb"[^\s\"'|]+)[\"']?(?:\s*\|\s*|\r?\n(?=[^\n]{0,160}--password-stdin))"
        rb"(?:sudo\s+-S|kinit|[^\n|]{0,120}--password-stdin|[^\n|]{0,60}passwd)",
    ),
    _p("password", "kinit sudo login", rb"(?:kinit|sudo|login)[^\n]{0,80}?<<<\s*[\"']?(?P<s>" + _NEW + rb"[^\s\"']+)"),
    _p("secret", "--from-literal", rb"--from-literal[= ][\"']?[\w.-]+=(?P<s>" + _NEW + rb"[^\s\"']+)"),
    _p(
        "secret",
        "configure",
        rb"configure\s+set\s+\S*(?:secret|token|key|passw|pwd)\S*\s+(?P<s>" + _NEW + rb"\S+)",
        case=False,
    ),
    _p(
        "secret",
        "config",
        rb"config\s+(?:--?\w+\s+)*(?:set\s+)?\S*(?:secret|token|password|pwd|key)\s+(?P<s>" + _NEW + rb"\S{6,})",
        case=False,
    ),
    _p(
        "pgpass",
        ":5432: :5433: :6432: :3306: :1433: :*:",
        rb"(?<=[\w.*-])(?::\d{2,5}|:\*):[\w*.-]{1,63}:(?=[A-Za-z_*])[\w.*-]{1,63}:(?P<s>"
        + _NEW
        + rb"(?!//)[^\s:]{3,200})(?=:?(?:\s|\Z)|[\"'])",
    ),
    _p("password", "--user", rb"--user[= ][\"']?[\w.@-]+:(?P<s>" + _NEW + _MADE_UP + rb"[^\s\"']{6,})"),
    _p(
        "password",
        "credential login:",
        rb"(?:credentials?|login):\s+[\w.@-]{1,64}\s?[/|]\s?(?P<s>" + _NEW + _MADE_UP + rb"[^\s\"']{6,})",
        case=False,
    ),
    _p(
        "api-key",
        "paste enter",
        rb"(?:paste|enter)\s[^\n]{0,40}(?:key|token|password|passphrase|secret)\b[^\n]{0,100}?[:>]\s+(?P<s>"
        + _NEW
        + _MADE_UP
        + rb"[^\s\"']{8,})[ \t]*(?=[\r\n\"'\\]|\Z)",
        case=False,
    ),
    _p(
        "api-key",
        "username",
        rb"username(?P<q>\\{0,3}[\"'])\s{0,3}:\s{0,3}(?P=q)[^\"'\n]{1,64}(?P=q)\s{0,3},\s{0,3}(?P=q)key(?P=q)\s{0,3}:\s{0,3}"
        rb"(?P=q)(?P<s>[0-9a-zA-Z]{20,64})",
    ),
    _p("authorization", "response=", rb"response=\\{0,3}\"(?P<s>[0-9a-f]{32,64})"),
    _p("conda-token", "/t/", rb"(?<=\w)/t/(?P<s>(?:[a-z]{2}-)?[0-9a-f]{8}[0-9A-Za-z-]{12,})(?=/)"),
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
