# ruff: noqa: E501 - a table whose rows are read as they are written
"""Kinds of secrets for the fourth kit: written from vendors' formats, without a look at what hangscope recognises.

A `Secret` has the name under which people keep it, its text, and the parts of that text which nobody may read: of
`sk-proj-…` the part behind the dash, of a URL the password.
"""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable
from typing import NamedTuple

ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"
B64 = ALNUM + "+/"
URL64 = ALNUM + "-_"
B32 = string.ascii_uppercase + "234567"
UPPER = string.ascii_uppercase + string.digits

WORDS = [
    "abandon",
    "amber",
    "anchor",
    "autumn",
    "badge",
    "bamboo",
    "basket",
    "beacon",
    "bishop",
    "border",
    "candle",
    "canyon",
    "carbon",
    "castle",
    "cedar",
    "cobalt",
    "copper",
    "cradle",
    "crater",
    "dagger",
    "desert",
    "dolphin",
    "dragon",
    "ember",
    "engine",
    "fabric",
    "falcon",
    "fossil",
    "garden",
    "ginger",
    "glacier",
    "hammer",
    "harbor",
    "hazard",
    "helmet",
    "island",
    "jacket",
    "jungle",
    "kitten",
    "ladder",
    "lagoon",
    "lantern",
    "lizard",
    "magnet",
    "marble",
    "meadow",
    "mirror",
    "monkey",
    "nectar",
    "novel",
    "oasis",
    "orchid",
    "oyster",
    "paddle",
    "panther",
    "parrot",
    "pepper",
    "pigeon",
    "pilot",
    "planet",
    "pocket",
    "quartz",
    "rabbit",
    "raven",
    "ribbon",
    "river",
    "rocket",
    "saddle",
    "salmon",
    "shadow",
    "silver",
    "spider",
    "spirit",
    "sponge",
    "summer",
    "temple",
    "thunder",
    "tiger",
    "timber",
    "tunnel",
    "turtle",
    "velvet",
    "violet",
    "walnut",
    "whisper",
    "window",
    "winter",
    "wizard",
    "yellow",
    "zebra",
]

FIRST = [
    "agnieszka",
    "bartholomew",
    "chidinma",
    "dmitrijs",
    "eleonora",
    "fitzgerald",
    "gwendolyn",
    "hyacinthe",
    "ingeborg",
    "joaquim",
    "kazimierz",
    "lieselotte",
    "matsuyama",
    "nkechinyere",
    "oluwaseun",
    "przemyslaw",
    "quintessa",
    "rosalinda",
    "siobhanmary",
    "tadeusz",
    "umberto",
    "vasilisa",
    "wolfhart",
    "xiaohong",
    "yevgenia",
    "zbigniew",
]


class Secret(NamedTuple):
    kind: str
    name: str
    value: str
    parts: tuple[str, ...]


class Dice:
    """Random text by alphabet, from one seed."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))

    def text(self, alphabet: str, length: int) -> str:
        return "".join(self.random.choice(alphabet) for _ in range(length))

    def of(self, *choices: str) -> str:
        return self.random.choice(choices)

    def b64(self, size: int) -> str:
        return base64.b64encode(self.random.randbytes(size)).decode()

    def url64(self, size: int) -> str:
        return base64.urlsafe_b64encode(self.random.randbytes(size)).decode().rstrip("=")

    def uuid(self) -> str:
        return "-".join(self.text(HEX, n) for n in (8, 4, 4, 4, 12))

    def password(self) -> str:
        """What a person or a password manager makes up; never a plain word."""
        r = self.random
        return r.choice(
            (
                lambda: r.choice(WORDS).title() + str(r.randrange(1000, 9999)) + r.choice("!#%*"),
                lambda: "-".join(r.sample(WORDS, 3)) + str(r.randrange(10, 99)),
                lambda: self.text(ALNUM + "!#%^*_-+", 16),
                lambda: self.text(LOWER, 12),
                lambda: r.choice(WORDS) + "_" + r.choice(WORDS) + str(r.randrange(100, 999)),
            )
        )()

    def user(self) -> str:
        first = self.random.choice(FIRST)
        return self.of(first, first[:1] + self.random.choice(FIRST), first + str(self.random.randrange(10, 99)))

    def host(self) -> str:
        return f"{self.of('db', 'pg', 'cache', 'mq')}-{self.random.randrange(1, 90)}.internal.example.net"


def _prefixed(prefix: str, body: str) -> tuple[str, tuple[str, ...]]:
    return prefix + body, (body,)


def _whole(value: str) -> tuple[str, tuple[str, ...]]:
    return value, (value,)


def _jwt(d: Dice) -> tuple[str, tuple[str, ...]]:
    head = base64.urlsafe_b64encode(b'{"alg":"RS256","typ":"JWT"}').decode().rstrip("=")
    body = (
        base64.urlsafe_b64encode(b'{"sub":"%s","exp":17%d}' % (d.text(LOWER, 20).encode(), 10**7)).decode().rstrip("=")
    )
    sign = d.url64(64)
    return f"{head}.{body}.{sign}", (body[12:34], sign)


def _connection(d: Dice) -> tuple[str, tuple[str, ...]]:
    key = d.b64(64)
    account = "acct" + d.text(LOWER, 8)
    return (
        f"DefaultEndpointsProtocol=https;AccountName={account};AccountKey={key};EndpointSuffix=core.windows.net",
        (key,),
    )


def _servicebus(d: Dice) -> tuple[str, tuple[str, ...]]:
    key = d.b64(32)
    return (
        f"Endpoint=sb://ns{d.text(LOWER, 5)}.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={key}",
        (key,),
    )


def _url(scheme: str, port: int, path: str) -> Callable[[Dice], tuple[str, tuple[str, ...]]]:
    def made(d: Dice) -> tuple[str, tuple[str, ...]]:
        password = d.of(d.text(ALNUM, 14), d.text(LOWER, 10), d.of(*WORDS) + d.text(string.digits, 5))
        user = d.of("svc_train", "app", "postgres", "root", "etl")
        return f"{scheme}://{user}:{password}@{d.host()}:{port}{path}", (password,)

    return made


def _odbc(d: Dice) -> tuple[str, tuple[str, ...]]:
    password = d.password().replace("%", "x")
    return f"Driver={{ODBC Driver 18}};Server=tcp:{d.host()},1433;Database=runs;Uid=etl;Pwd={password};", (password,)


def _dsn(d: Dice) -> tuple[str, tuple[str, ...]]:
    password = d.text(ALNUM, 13)
    return f"host={d.host()} port=5432 dbname=runs user=etl password={password} sslmode=require", (password,)


def _sas(d: Dice) -> tuple[str, tuple[str, ...]]:
    sig = d.text(ALNUM, 42) + "%3D"
    account = d.text(LOWER, 9)
    return (
        f"https://{account}.blob.core.windows.net/ckpt/step100.pt?sv=2023-11-03&sr=b&se=2026-12-01T00%3A00%3A00Z&sp=r&sig={sig}",
        (sig[:42],),
    )


def _presigned(d: Dice) -> tuple[str, tuple[str, ...]]:
    key, sign, session = "ASIA" + d.text(UPPER, 16), d.text(HEX, 64), d.text(ALNUM, 180)
    return (
        f"https://bucket-{d.text(LOWER, 4)}.s3.us-west-2.amazonaws.com/data/shard-0001.tar?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        f"&X-Amz-Credential={key}%2F20261115%2Fus-west-2%2Fs3%2Faws4_request&X-Amz-Date=20261115T000000Z"
        f"&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Security-Token={session}&X-Amz-Signature={sign}",
        (sign, session, key[4:]),
    )


def _gcs_signed(d: Dice) -> tuple[str, tuple[str, ...]]:
    sign = d.text(HEX, 256)
    return (
        f"https://storage.googleapis.com/bkt-{d.text(LOWER, 4)}/a.tar?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Date="
        f"20261115T000000Z&X-Goog-Expires=900&X-Goog-SignedHeaders=host&X-Goog-Signature={sign}",
        (sign,),
    )


def _slack_hook(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.text(ALNUM, 24)
    return f"https://hooks.slack.com/services/T{d.text(UPPER, 9)}/B{d.text(UPPER, 10)}/{body}", (body,)


def _discord_hook(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.text(URL64, 68)
    return f"https://discord.com/api/webhooks/{d.text('123456789', 18)}/{body}", (body,)


def _teams_hook(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.text(HEX, 32)
    return f"https://acme.webhook.office.com/webhookb2/{d.uuid()}@{d.uuid()}/IncomingWebhook/{body}/{d.uuid()}", (body,)


def _telegram(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.text(URL64, 33)
    return f"{d.text('123456789', 10)}:AA{body}", (body,)


def _telegram_url(d: Dice) -> tuple[str, tuple[str, ...]]:
    value, parts = _telegram(d)
    return f"https://api.telegram.org/bot{value}/sendMessage", parts


def _discord_bot(d: Dice) -> tuple[str, tuple[str, ...]]:
    a, b, c = "M" + d.text(ALNUM, 25), d.text(URL64, 6), d.text(URL64, 38)
    return f"{a}.{b}.{c}", (c,)


def _basic(d: Dice) -> tuple[str, tuple[str, ...]]:
    password = d.text(ALNUM, 15)
    return "Basic " + (b := base64.b64encode(f"svc:{password}".encode()).decode()), (b, password)


def _bcrypt(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.text(ALNUM + "./", 53)
    return "$2b$12$" + body, (body,)


def _crypt6(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.text(ALNUM + "./", 86)
    return f"$6${d.text(ALNUM, 16)}${body}", (body,)


def _argon(d: Dice) -> tuple[str, tuple[str, ...]]:
    body = d.b64(32).rstrip("=")
    return f"$argon2id$v=19$m=65536,t=3,p=4${d.b64(16).rstrip('=')}${body}", (body,)


def _age(d: Dice) -> tuple[str, tuple[str, ...]]:
    return _prefixed("AGE-SECRET-KEY-1", d.text("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58))


def _azure_client(d: Dice) -> tuple[str, tuple[str, ...]]:
    return _whole(d.text(ALNUM, 3) + "8Q~" + d.text(ALNUM + "._~-", 34))


def _phrase(d: Dice) -> tuple[str, tuple[str, ...]]:
    return _whole(" ".join(d.random.sample(WORDS, 12)))


def _vnc(d: Dice) -> tuple[str, tuple[str, ...]]:
    return _whole(d.text(ALNUM, 8))


# name of the kind: (names under which it is kept, how it is made)
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Dice], tuple[str, tuple[str, ...]]]]] = {
    "aws access key id": (("AWS_ACCESS_KEY_ID", "aws_access_key_id"), lambda d: _prefixed("AKIA", d.text(UPPER, 16))),
    "aws secret key": (
        ("AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", "SecretAccessKey"),
        lambda d: _whole(d.text(B64, 40)),
    ),
    "aws session token": (
        ("AWS_SESSION_TOKEN", "aws_session_token", "SessionToken"),
        lambda d: _prefixed("IQoJb3JpZ2luX2Vj", d.b64(150)),
    ),
    "azure storage connection": (("AZURE_STORAGE_CONNECTION_STRING", "connection_string"), _connection),
    "azure storage key": (
        ("AZURE_STORAGE_KEY", "account_key", "AZURE_STORAGE_ACCOUNT_KEY"),
        lambda d: _whole(d.b64(64)),
    ),
    "azure client secret": (("AZURE_CLIENT_SECRET", "client_secret"), _azure_client),
    "azure service bus": (("SERVICEBUS_CONNECTION", "EVENTHUB_CONN_STR"), _servicebus),
    "azure sas url": (("CKPT_URL", "upload_to"), _sas),
    "aws presigned url": (("DATA_URL", "shard"), _presigned),
    "gcs signed url": (("SIGNED", "download_url"), _gcs_signed),
    "gcp api key": (
        ("GOOGLE_API_KEY", "gcp_api_key", "GEMINI_API_KEY"),
        lambda d: _prefixed("AIza", d.text(URL64, 35)),
    ),
    "gcp oauth": (("GCP_ACCESS_TOKEN", "oauth_token"), lambda d: _prefixed("ya29.", d.text(URL64, 120))),
    "gcp hmac": (("GCS_HMAC_SECRET", "hmac_key"), lambda d: _whole(d.text(B64, 40))),
    "oci key": (("OCI_AUTH_TOKEN", "oci_pass_phrase"), lambda d: _whole(d.text(ALNUM + ";}{(", 20).replace("'", "x"))),
    "alibaba": (("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "OSS_ACCESS_KEY_SECRET"), lambda d: _whole(d.text(ALNUM, 30))),
    "tencent": (("TENCENTCLOUD_SECRET_KEY",), lambda d: _whole(d.text(ALNUM, 32))),
    "ibm cloud": (("IBMCLOUD_API_KEY",), lambda d: _whole(d.text(URL64, 44))),
    "digitalocean": (("DIGITALOCEAN_TOKEN", "DO_TOKEN"), lambda d: _prefixed("dop_v1_", d.text(HEX, 64))),
    "hetzner": (("HCLOUD_TOKEN",), lambda d: _whole(d.text(ALNUM, 64))),
    "linode": (("LINODE_TOKEN",), lambda d: _whole(d.text(HEX, 64))),
    "scaleway": (("SCW_SECRET_KEY",), lambda d: _whole(d.uuid())),
    "cloudflare": (("CLOUDFLARE_API_TOKEN", "CF_API_KEY"), lambda d: _whole(d.text(URL64, 40))),
    "wandb": (("WANDB_API_KEY", "wandb_key", "wandb.api_key"), lambda d: _whole(d.text(HEX, 40))),
    "huggingface": (
        ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hf_token", "use_auth_token"),
        lambda d: _prefixed("hf_", d.text(ALNUM, 34)),
    ),
    "comet": (("COMET_API_KEY", "comet_key"), lambda d: _whole(d.text(ALNUM, 25))),
    "neptune": (("NEPTUNE_API_TOKEN", "neptune_api_token"), lambda d: _prefixed("eyJhcGlfYWRkcmVzcyI6Imh0", d.b64(90))),
    "lambda cloud": (
        ("LAMBDA_API_KEY",),
        lambda d: _prefixed(f"secret_{d.of('cluster', 'train')}_", d.text(HEX, 32) + "." + d.text(ALNUM, 32)),
    ),
    "runpod": (("RUNPOD_API_KEY", "runpod_key"), lambda d: _prefixed("rpa_", d.text(UPPER, 44))),
    "coreweave": (("COREWEAVE_TOKEN", "CW_API_TOKEN"), lambda d: _prefixed("CW-SECRET-", d.text(ALNUM, 43))),
    "together": (("TOGETHER_API_KEY",), lambda d: _whole(d.text(HEX, 64))),
    "openai": (
        ("OPENAI_API_KEY", "openai_key", "OPENAI_KEY"),
        lambda d: _prefixed("sk-proj-", d.text(URL64, 48) + "T3BlbkFJ" + d.text(URL64, 48)),
    ),
    "anthropic": (
        ("ANTHROPIC_API_KEY", "anthropic_key"),
        lambda d: _prefixed("sk-ant-api03-", d.text(URL64, 93) + "AA"),
    ),
    "xai": (("XAI_API_KEY",), lambda d: _prefixed("xai-", d.text(ALNUM, 80))),
    "mistral": (("MISTRAL_API_KEY",), lambda d: _whole(d.text(ALNUM, 32))),
    "groq": (("GROQ_API_KEY",), lambda d: _prefixed("gsk_", d.text(ALNUM, 52))),
    "cohere": (("COHERE_API_KEY", "CO_API_KEY"), lambda d: _whole(d.text(ALNUM, 40))),
    "replicate": (("REPLICATE_API_TOKEN",), lambda d: _prefixed("r8_", d.text(ALNUM, 37))),
    "fireworks": (("FIREWORKS_API_KEY",), lambda d: _prefixed("fw_", d.text(ALNUM, 24))),
    "modal": (("MODAL_TOKEN_SECRET",), lambda d: _prefixed("as-", d.text(ALNUM, 22))),
    "vast": (("VAST_API_KEY",), lambda d: _whole(d.text(HEX, 64))),
    "anyscale": (("ANYSCALE_CLI_TOKEN",), lambda d: _prefixed("aph0_", d.text(URL64, 60))),
    "ngc": (
        ("NGC_API_KEY", "NGC_CLI_API_KEY"),
        lambda d: _whole(base64.b64encode((d.text(LOWER, 26) + ":" + d.uuid()).encode()).decode()),
    ),
    "nvapi": (("NVIDIA_API_KEY",), lambda d: _prefixed("nvapi-", d.text(URL64, 64))),
    "kaggle": (("KAGGLE_KEY", "kaggle_key"), lambda d: _whole(d.text(HEX, 32))),
    "mlflow": (("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"), lambda d: _whole(d.password())),
    "clearml": (("CLEARML_API_SECRET_KEY", "clearml_secret"), lambda d: _whole(d.text(ALNUM, 50))),
    "databricks": (("DATABRICKS_TOKEN",), lambda d: _prefixed("dapi", d.text(HEX, 32))),
    "snowflake": (("SNOWFLAKE_PASSWORD", "SNOWSQL_PWD"), lambda d: _whole(d.password())),
    "slack bot": (
        ("SLACK_BOT_TOKEN", "slack"),
        lambda d: _prefixed("xoxb-", f"{d.text('123456789', 12)}-{d.text('123456789', 12)}-{d.text(ALNUM, 24)}"),
    ),
    "slack webhook": (("SLACK_WEBHOOK", "notify_url"), _slack_hook),
    "discord webhook": (("DISCORD_WEBHOOK_URL", "notify"), _discord_hook),
    "discord bot": (("DISCORD_TOKEN", "bot_token"), _discord_bot),
    "teams webhook": (("TEAMS_WEBHOOK",), _teams_hook),
    "telegram bot": (("TELEGRAM_BOT_TOKEN", "tg_token"), _telegram),
    "telegram url": (("NOTIFY_URL", "url"), _telegram_url),
    "github": (
        ("GITHUB_TOKEN", "GH_TOKEN", "gh_pat"),
        lambda d: _prefixed(d.of("ghp_", "gho_", "ghs_"), d.text(ALNUM, 36)),
    ),
    "github fine": (
        ("GIT_TOKEN", "token"),
        lambda d: _prefixed("github_pat_", d.text(ALNUM, 22) + "_" + d.text(ALNUM, 59)),
    ),
    "gitlab": (("GITLAB_TOKEN", "CI_JOB_TOKEN"), lambda d: _prefixed("glpat-", d.text(URL64, 20))),
    "bitbucket": (("BITBUCKET_APP_PASSWORD", "bb_token"), lambda d: _prefixed("ATBB", d.text(ALNUM, 32))),
    "atlassian": (("JIRA_API_TOKEN",), lambda d: _prefixed("ATATT3xFfGF0", d.text(URL64, 150))),
    "npm": (("NPM_TOKEN", "_authToken"), lambda d: _prefixed("npm_", d.text(ALNUM, 36))),
    "pypi": (("TWINE_PASSWORD", "PYPI_TOKEN"), lambda d: _prefixed("pypi-AgEIcHlwaS5vcmc", d.text(URL64, 120))),
    "dockerhub": (("DOCKER_PAT", "DOCKERHUB_TOKEN"), lambda d: _prefixed("dckr_pat_", d.text(URL64, 27))),
    "docker auth": (
        ("auth", "DOCKER_AUTH"),
        lambda d: _whole(base64.b64encode(("robot:" + d.text(ALNUM, 24)).encode()).decode()),
    ),
    "vault": (("VAULT_TOKEN", "vault_token"), lambda d: _prefixed("hvs.", d.text(ALNUM, 90))),
    "vault unseal": (("UNSEAL_KEY", "unseal_key_1"), lambda d: _whole(d.b64(33))),
    "consul": (("CONSUL_HTTP_TOKEN",), lambda d: _whole(d.uuid())),
    "terraform": (
        ("TF_TOKEN_app_terraform_io", "TFE_TOKEN"),
        lambda d: (lambda b: (f"{d.text(ALNUM, 14)}.atlasv1.{b}", (b,)))(d.text(ALNUM, 67)),
    ),
    "pulumi": (("PULUMI_ACCESS_TOKEN",), lambda d: _prefixed("pul-", d.text(HEX, 40))),
    "jwt": (("ID_TOKEN", "access_token", "jwt"), _jwt),
    "basic auth": (("Authorization", "Proxy-Authorization"), _basic),
    "bearer": (("Authorization", "authorization"), lambda d: (lambda b: ("Bearer " + b, (b,)))(d.text(URL64, 48))),
    "x-api-key": (
        ("X-API-Key", "x-api-key", "api-key", "X-Auth-Token", "X-Vault-Token"),
        lambda d: _whole(d.text(ALNUM, 32)),
    ),
    "cookie": (("Cookie", "Set-Cookie"), lambda d: (lambda s: (f"sessionid={s}; Path=/", (s,)))(d.text(LOWER, 32))),
    "csrf": (("csrftoken", "csrf_token", "X-CSRFToken", "_xsrf"), lambda d: _whole(d.text(ALNUM, 64))),
    "otp seed": (("TOTP_SECRET", "otp_seed", "mfa_secret"), lambda d: _whole(d.text(B32, 32))),
    "otp url": (
        ("otp", "provisioning_uri"),
        lambda d: (lambda s: (f"otpauth://totp/Acme:ops?secret={s}&issuer=Acme", (s,)))(d.text(B32, 32)),
    ),
    "recovery phrase": (("recovery_phrase", "mnemonic", "seed_phrase"), _phrase),
    "age key": (("SOPS_AGE_KEY", "age"), _age),
    "fernet": (("FERNET_KEY", "AIRFLOW__CORE__FERNET_KEY"), lambda d: _whole(d.url64(32) + "=")),
    "django": (("SECRET_KEY", "DJANGO_SECRET_KEY"), lambda d: _whole(d.text(LOWER + "!@#%^&*(-_=+)", 50))),
    "encryption key": (("ENCRYPTION_KEY", "master_key", "ckpt_encryption_key"), lambda d: _whole(d.text(HEX, 64))),
    "munge": (("MUNGE_KEY", "munge.key"), lambda d: _whole(d.b64(64))),
    "munge credential": (("SLURM_CRED", "credential"), lambda d: (lambda b: (f"MUNGE:{b}:", (b,)))(d.b64(90))),
    "slurm jwt": (("SLURM_JWT",), _jwt),
    "jupyter": (("JUPYTER_TOKEN", "NotebookApp.token"), lambda d: _whole(d.text(HEX, 48))),
    "jupyter url": (
        ("notebook", "lab_url"),
        lambda d: (lambda t: (f"http://127.0.0.1:8888/lab?token={t}", (t,)))(d.text(HEX, 48)),
    ),
    "jupyter hash": (
        ("NotebookApp.password", "jupyter_password"),
        lambda d: (lambda b: (f"sha1:{d.text(HEX, 12)}:{b}", (b,)))(d.text(HEX, 40)),
    ),
    "ray token": (("RAY_AUTH_TOKEN", "RAY_REDIS_PASSWORD", "redis_password"), lambda d: _whole(d.text(HEX, 64))),
    "bcrypt": (("password_hash", "HASH"), _bcrypt),
    "sha512 crypt": (("rootpw", "passwd"), _crypt6),
    "argon2": (("pw_hash", "hashed_password"), _argon),
    "postgres url": (("DATABASE_URL", "db", "SQLALCHEMY_DATABASE_URI"), _url("postgresql+psycopg2", 5432, "/runs")),
    "mysql url": (("MYSQL_URL", "backend_store_uri"), _url("mysql+pymysql", 3306, "/mlflow")),
    "mongo url": (("MONGO_URI", "mongo"), _url("mongodb+srv", 27017, "/?retryWrites=true")),
    "redis url": (
        ("REDIS_URL", "broker"),
        lambda d: (lambda p: (f"redis://:{p}@{d.host()}:6379/0", (p,)))(d.text(ALNUM, 20)),
    ),
    "amqp url": (("CELERY_BROKER_URL", "amqp"), _url("amqp", 5672, "/vhost")),
    "ftp url": (("DATASET", "src"), _url("ftp", 21, "/data.tar")),
    "git url": (
        ("remote", "GIT_REMOTE"),
        lambda d: (lambda p: (f"https://oauth2:{p}@gitlab.example.com/team/repo.git", (p,)))(d.text(URL64, 20)),
    ),
    "clickhouse url": (("CLICKHOUSE", "ch"), _url("clickhouse", 9000, "/metrics")),
    "s3 endpoint url": (("S3_ENDPOINT", "minio"), _url("http", 9000, "/")),
    "proxy url": (("HTTPS_PROXY", "http_proxy"), _url("http", 3128, "")),
    "smtp url": (("SMTP_URL", "mail"), _url("smtps", 465, "")),
    "odbc": (("ODBC_CONN", "conn_str"), _odbc),
    "dsn": (("PG_DSN", "dsn"), _dsn),
    "sentry dsn": (
        ("SENTRY_DSN",),
        lambda d: (lambda k: (f"https://{k}@o{d.text('123456789', 6)}.ingest.sentry.io/45", (k,)))(d.text(HEX, 32)),
    ),
    "smtp password": (("SMTP_PASSWORD", "EMAIL_HOST_PASSWORD", "smtp_pass"), lambda d: _whole(d.password())),
    "ldap bind": (("LDAP_BIND_PASSWORD", "ldap_bindpw", "bindpw"), lambda d: _whole(d.password())),
    "db password": (
        ("DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "db.password", "dbPassword"),
        lambda d: _whole(d.password()),
    ),
    "passphrase": (("KEY_PASSPHRASE", "passphrase", "ssh_passphrase"), lambda d: _whole(d.password())),
    "password": (("password", "PASSWD", "userPassword", "admin_pw", "root_pass"), lambda d: _whole(d.password())),
    "redis password": (("REDISCLI_AUTH", "requirepass"), lambda d: _whole(d.password())),
    "vnc": (("VNC_PASSWORD", "vnc_pw"), _vnc),
    "rabbit cookie": (("ERLANG_COOKIE", "RABBITMQ_ERLANG_COOKIE"), lambda d: _whole(d.text(UPPER, 20))),
    "stripe": (("STRIPE_SECRET_KEY",), lambda d: _prefixed("sk_live_", d.text(ALNUM, 24))),
    "twilio": (("TWILIO_AUTH_TOKEN",), lambda d: _whole(d.text(HEX, 32))),
    "sendgrid": (("SENDGRID_API_KEY",), lambda d: (lambda b: (f"SG.{d.text(URL64, 22)}.{b}", (b,)))(d.text(URL64, 43))),
    "mailgun": (("MAILGUN_API_KEY",), lambda d: _prefixed("key-", d.text(HEX, 32))),
    "datadog": (("DD_API_KEY", "DATADOG_APP_KEY"), lambda d: _whole(d.text(HEX, 32))),
    "newrelic": (("NEW_RELIC_LICENSE_KEY",), lambda d: _whole(d.text(HEX, 36) + "NRAL")),
    "grafana": (("GRAFANA_TOKEN",), lambda d: _prefixed("glsa_", d.text(ALNUM, 32) + "_" + d.text(HEX, 8))),
    "pagerduty": (("PAGERDUTY_KEY", "PD_ROUTING_KEY"), lambda d: _whole(d.text(HEX, 32))),
    "opsgenie": (("OPSGENIE_API_KEY",), lambda d: _whole(d.uuid())),
    "sentry token": (("SENTRY_AUTH_TOKEN",), lambda d: _prefixed("sntrys_", d.text(B64, 120))),
    "artifactory": (("ARTIFACTORY_API_KEY", "JFROG_TOKEN"), lambda d: _prefixed("AKCp", d.text(ALNUM, 69))),
    "pinecone": (("PINECONE_API_KEY",), lambda d: _prefixed("pcsk_", d.text(ALNUM, 6) + "_" + d.text(ALNUM, 60))),
    "langsmith": (("LANGCHAIN_API_KEY",), lambda d: _prefixed("lsv2_pt_", d.text(HEX, 32) + "_" + d.text(HEX, 10))),
    "lightning": (("LIGHTNING_API_KEY",), lambda d: _whole(d.uuid())),
    "dagshub": (("DAGSHUB_USER_TOKEN",), lambda d: _whole(d.text(HEX, 40))),
    "roboflow": (("ROBOFLOW_API_KEY",), lambda d: _whole(d.text(ALNUM, 20))),
    "tailscale": (("TS_AUTHKEY",), lambda d: _prefixed("tskey-auth-", d.text(ALNUM, 11) + "-" + d.text(ALNUM, 32))),
    "wireguard": (("PrivateKey", "wg_private_key", "PresharedKey"), lambda d: _whole(d.b64(32))),
    "ipsec psk": (("PSK", "pre_shared_key"), lambda d: _whole(d.text(ALNUM, 24))),
    "snmp": (("SNMP_COMMUNITY", "snmp_auth_pass"), lambda d: _whole(d.password())),
    "ipmi": (("IPMI_PASSWORD", "bmc_password"), lambda d: _whole(d.password())),
    "unknown vendor token": (
        ("ACME_TOKEN", "QUUX_API_TOKEN", "zorg_access_key", "BLIXEN_CREDENTIAL"),
        lambda d: _prefixed(d.of("acme_", "qx-", "zz.", ""), d.text(ALNUM, d.random.randrange(20, 48))),
    ),
    "unknown vendor secret": (
        ("ACME_SECRET", "snarfSecret", "app.signing.secret", "X-Snarf-Signature-Key"),
        lambda d: _whole(d.text(URL64, d.random.randrange(24, 60))),
    ),
}


def made(kind: str, dice: Dice) -> Secret:
    names, make = KINDS[kind]
    value, parts = make(dice)
    return Secret(kind, dice.of(*names), value, parts)
