# ruff: noqa: E501, SIM905 - a table whose rows are read as they are written
"""Kinds of secrets: how each is made, and the names under which people keep it.

`{a36}` in a shape is 36 random letters and digits, and secret; `{-a36}` is as random and may be seen. A kind with `*`
is known by its form alone, also without a name; one with `-` only behind a name, or by what is around it.
"""

from __future__ import annotations

import base64
import random
import re
import string
from typing import NamedTuple
from urllib.parse import quote

LETTERS = {
    "d": string.digits,
    "x": "0123456789abcdef",
    "X": "0123456789ABCDEF",
    "w": string.ascii_lowercase,
    "l": string.ascii_lowercase + string.digits,
    "A": string.ascii_letters,
    "U": string.ascii_uppercase + string.digits,
    "t": string.ascii_uppercase + "234567",
    "B": string.ascii_lowercase + "234567",
    "a": string.ascii_letters + string.digits,
    "u": string.ascii_letters + string.digits + "-_",
    "b": string.ascii_letters + string.digits + "+/",
    "h": string.ascii_letters + string.digits + "./",
    "z": string.ascii_letters + string.digits + "._~-",
}
WORDS = """abandon amber anchor autumn badge bamboo basket battery beacon bishop border candle canyon carbon castle cedar
cobalt coffee copper correct cradle crater dagger desert dolphin dragon ember engine fabric falcon fossil garden ginger
glacier hammer harbor hazard helmet horse island jacket jungle kitten ladder lagoon lantern lizard magnet marble meadow
mirror monkey nectar novel oasis orange orchid oyster paddle panther parrot pepper pigeon pilot planet pocket purple quartz
rabbit raven ribbon river rocket saddle salmon shadow silver spider spirit sponge staple summer temple thunder tiger timber
tunnel turtle velvet violet walnut whisper window winter wizard yellow zebra""".split()
PEOPLE = """agnieszka bartholomew chidinma dmitrijs eleonora fitzgerald gwendolyn hyacinthe ingeborg joaquim kazimierz
lieselotte matsuyama nkechinyere oluwaseun przemyslaw quintessa rosalinda siobhanmary tadeusz umberto vasilisa wolfhart
xiaohong yevgenia zbigniew""".split()
_SLOT = re.compile(
    r"\{(-?)([a-zA-Z])(\d+)\}|\{(-?)(pw|qpw|upw|basic|b64pw|user|mail|words|oci|django|uuid|host|login)\}"
)


class Made(NamedTuple):
    """A text with secrets in it, and what nobody may read of it."""

    text: str
    parts: tuple[str, ...]


class Dice:
    """Random text from one seed."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))

    def fill(self, shape: str) -> Made:
        """The shape with random text in its slots; of one slot that is there twice the same."""
        parts: list[str] = []
        named: dict[str, str] = {}

        def slot(match: re.Match[str]) -> str:
            public, letters, count, public_word, word = match.groups()
            made = self.text(letters, int(count)) if letters else named.setdefault(word, self._word(word))
            if not (public or public_word):
                parts.append(made)
            return made

        return Made(_SLOT.sub(slot, shape), tuple(dict.fromkeys(parts)))

    def text(self, letters: str, count: int) -> str:
        """As a key is that somebody rolled: one of letters and digits has both, and both cases."""
        while True:
            made = "".join(self.random.choices(LETTERS[letters], k=count))
            if (
                letters not in "aub"
                or count < 16
                or (re.search(r"\d", made) and re.search("[a-z][A-Z]|[A-Z][a-z]", made))
            ):
                return made

    def password(self) -> str:
        """What a person or a password manager makes up; never a plain word."""
        r = self.random
        word, other, third = r.sample(WORDS, 3)
        return r.choice(
            (
                f"{word}{r.randrange(2, 9999)}{r.choice(('', '!', '_x', '-Q'))}",
                f"{word.title()}{r.randrange(100, 9999)}{r.choice('!#%*')}",
                f"{word}-{other}-{third}{r.randrange(10, 99)}",
                f"{word}_{other}{r.randrange(100, 999)}",
                f"{word}{other}{r.randrange(1000)}x{r.randrange(9)}",
                f"{word.title()}@{r.randrange(2015, 2027)}",
                f"{word.title()}{r.choice('-_@.')}{self.text('d', 4)}{self.text('w', 3)}{r.choice(('!', '#1', '_x', '$$', '?', '!!', '%9', ''))}",
                self.text("a", 8) + r.choice("!@#%^*") + self.text("a", 3),
                self.text("l", 11) + self.text("d", 1),
                "".join(r.choices(LETTERS["a"] + "!#%^*_-+", k=15)) + self.text("d", 1),
            )
        )

    def _word(self, kind: str) -> str:
        r = self.random
        if kind == "pw":
            return self.password()
        if kind == "qpw":
            return quote(self.password(), safe="")
        if kind == "upw":
            return r.choice((self.text("a", 14), self.text("l", 10), r.choice(WORDS) + self.text("d", 5)))
        if kind == "basic":
            return base64.b64encode(f"bob:{self.password()}".encode()).decode()
        if kind == "b64pw":
            return base64.b64encode(self.password().encode()).decode()
        if kind == "user":
            return r.choice(PEOPLE) + self.text("w", 3)
        if kind == "mail":
            return f"{r.choice(PEOPLE)}.{r.choice(PEOPLE)}{r.randrange(10, 99)}"
        if kind == "words":
            return " ".join(r.sample([word for word in WORDS if len(word) <= 8], 12))
        if kind == "oci":
            return "".join(r.choices(LETTERS["a"] + ";}{(>", k=19)) + self.text("d", 1)
        if kind == "django":
            return "".join(r.choices(LETTERS["l"] + "!@#$%^&*(-_=+)", k=50))
        if kind == "uuid":
            return "-".join(self.text("x", count) for count in (8, 4, 4, 4, 12))
        if kind == "host":
            return f"{r.choice(('db', 'pg', 'cache', 'mq'))}-{r.randrange(1, 90)}.internal.example.net"
        return r.choice(("svc_train", "app", "postgres", "root", "etl"))


class Kind(NamedTuple):
    shape: str
    names: tuple[str, ...]
    known_by_form: bool


class Secret(NamedTuple):
    """One secret: what it is, the name it has here, and what nobody may read of it."""

    kind: str
    name: str
    value: str
    parts: tuple[str, ...]


_PASSWORDS = """
ADMIN_PASS ADMIN_PW ANSIBLE_VAULT_PASSWORD APPTAINER_DOCKER_PASSWORD BASIC_AUTH_PASSWORD COSIGN_PASSWORD DB_PASSWORD
EMAIL_HOST_PASSWORD ENCRYPTION_PASSPHRASE GPG_PASSPHRASE IPMI_PASSWORD JUPYTER_PASSWORD KEYSTORE_PASSWORD
KEY_PASSPHRASE LDAP_BIND_PASSWORD LDAP_BIND_PW MINIO_ROOT_PASSWORD MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN
MYSQL_PWD OS_PASSWORD PASSWD PASSWORD PGPASSWORD PIP_INDEX_PASSWORD POSTGRES_PASSWORD RAY_REDIS_PASSWORD
RCLONE_CONFIG_PASS REDISCLI_AUTH REDIS_PASS REDIS_PASSWORD RESTIC_PASSWORD SINGULARITY_DOCKER_PASSWORD SMTP_PASS
SMTP_PASSWORD SNMP_COMMUNITY SNOWFLAKE_PASSWORD SNOWSQL_PWD SSH_KEY_PASSPHRASE SVC_PW TWINE_PASSWORD
UV_INDEX_PRIVATE_PASSWORD VSPHERE_PASSWORD admin_password admin_pw bindpw bmc_password connection_password
db.password dbPassword gpg_passphrase http_auth_password ldap_bindpw passphrase passwd password proxy_password pwd
redis_password requirepass root_pass smtp_pass snmp_auth_pass spring.datasource.password ssh_passphrase sudo_pass
userPassword
""".split()
_NAMES = """
WANDB_API_KEY COMET_API_KEY NEPTUNE_API_TOKEN CLEARML_API_SECRET_KEY CLEARML_API_ACCESS_KEY AWS_SECRET_ACCESS_KEY
AWS_SESSION_TOKEN AZURE_STORAGE_KEY AZURE_CLIENT_SECRET HF_TOKEN HUGGING_FACE_HUB_TOKEN OPENAI_API_KEY VAULT_TOKEN
JUPYTER_TOKEN SLURM_JWT MINIO_SECRET_KEY S3_SECRET encryption_key SIGNING_KEY DJANGO_SECRET_KEY client_secret
access_token refresh_token NGC_API_KEY NGC_CLI_API_KEY DISCORD_BOT_TOKEN webhook_secret private_key hmac_key
DATADOG_API_KEY DD_APP_KEY ROLLBAR_ACCESS_TOKEN sessionid csrftoken auth_token bearer_token oauth_token id_token
KAGGLE_KEY GITHUB_TOKEN CI_JOB_TOKEN apiKey clientSecret accessToken secretKey privateKey authToken SECRET TOKEN
API-KEY X-Api-Key api.key LABEL_STUDIO_API_KEY jwt_secret MASTER_KEY DEPLOY_KEY SSH_KEY LICENSE_KEY account_key
storage_account_key sas_token shared_access_key
""".split()
"""Names that say that a value is secret, whatever it is."""
_SHAPES = """
* AKIA{U16}  AWS_ACCESS_KEY_ID aws_access_key_id
* {b40}  AWS_SECRET_ACCESS_KEY GCS_HMAC_SECRET SecretAccessKey aws_secret_access_key hmac_key hmac_secret
* IQoJb3JpZ2luX2Vj{b160}  AWS_SESSION_TOKEN
* AIza{u35}  GEMINI_API_KEY GOOGLE_API_KEY gcp_api_key
* ya29.{u68}  GCP_ACCESS_TOKEN
* GOCSPX-{u28}  GOOGLE_CLIENT_SECRET
* {b86}==  AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_KEY AccountKey MUNGE_KEY account_key munge.key
* {a3}8Q~{a34}  AZURE_CLIENT_SECRET client_secret
* ghp_{a36}  GH_TOKEN GITHUB_TOKEN
* github_pat_{a22}_{a59}  GH_PAT GH_TOKEN GIT_TOKEN token
* glpat-{u20}  CI_DEPLOY_PASSWORD CI_JOB_TOKEN GITLAB_TOKEN
* hf_{a34}  HF_TOKEN HUGGING_FACE_HUB_TOKEN hf_token use_auth_token
* sk-{a48}  OPENAI_API_KEY
* sk-proj-{u74}  OPENAI_KEY
* sk-or-v1-{x64}  OPENROUTER_API_KEY
* sk-ant-api03-{u80}  ANTHROPIC_API_KEY
* xoxb-{-d12}-{a24}  SLACK_BOT_TOKEN
* xapp-1-A0{-U9}-{x64}  SLACK_APP_TOKEN
- {x40}  DAGSHUB_USER_TOKEN WANDB_API_KEY private_key_id wandb.api_key wandb_api_key wandb_key
* local-{x40}  WANDB_API_KEY
* nvapi-{u64}  NGC_API_KEY NVIDIA_API_KEY
* npm_{a36}  NPM_TOKEN _authToken
* pypi-AgEIcHlwaS5vcmc{u80}  TWINE_PASSWORD
* dckr_pat_{u27}  DOCKERHUB_TOKEN DOCKER_PASSWORD DOCKER_PAT
* sk_live_{a24}  STRIPE_KEY STRIPE_SECRET_KEY
* SG.{a22}.{a43}  SENDGRID_API_KEY
* key-{x32}  MAILGUN_API_KEY MAILGUN_KEY
* dapi{x32}  DATABRICKS_TOKEN
* hvs.{u90}  VAULT_TOKEN
* dop_v1_{x64}  DIGITALOCEAN_TOKEN DO_TOKEN
* gsk_{a52}  GROQ_API_KEY
* r8_{a37}  REPLICATE_API_TOKEN
* ATATT3xFfGF0{u60}  JIRA_TOKEN
* NRAK-{U27}  NEW_RELIC_API_KEY
* pul-{x40}  PULUMI_ACCESS_TOKEN
* glsa_{a32}_{x8}  GF_API_KEY GRAFANA_TOKEN
* tskey-auth-{a12}-{a32}  TS_AUTHKEY
* {-d10}:AA{a33}  TELEGRAM_TOKEN
* lsv2_pt_{x32}_{x10}  LANGCHAIN_API_KEY LANGSMITH_API_KEY
* sqp_{x40}  SONAR_TOKEN
* CCIPAT_{a22}_{x40}  CIRCLE_TOKEN
* {x32}-us12  MAILCHIMP
- {l52}  AZURE_DEVOPS_EXT_PAT
* eyJhbGciOiAiSFMyNTYiLCAidHlwIjogIkpXVCJ9.eyJzdWIiOiAi{a16}In0.{a43}  ID_TOKEN
* {a44}  ACME_SERVICE_KEY
- {x32}  AZURE_OPENAI_API_KEY AZURE_OPENAI_KEY DATADOG_API_KEY DATADOG_APP_KEY DD_API_KEY KAGGLE_KEY PAGERDUTY_KEY PD_ROUTING_KEY TWILIO_AUTH_TOKEN kaggle_key
- {a25}  COMET_API_KEY comet_api_key comet_key
- {l42}  DJANGO_SECRET_KEY
* AKIA{t16}  AWS_ACCESS_KEY_ID aws_access_key_id
* gho_{a36}  GH_TOKEN GITHUB_TOKEN gh_pat
* ghu_{a36}  GH_TOKEN GITHUB_TOKEN gh_pat
* ghr_{a36}  GH_TOKEN GITHUB_TOKEN gh_pat
* hf_{A34}
* sk-proj-{u48}T3BlbkFJ{u48}  OPENAI_API_KEY OPENAI_KEY openai_key
* sk-{a20}T3BlbkFJ{a20}  OPENAI_API_KEY openai_key
* sk-ant-api03-{u93}AA  ANTHROPIC_API_KEY anthropic_key
* xoxb-{-d12}-{-d13}-{a24}  SLACK_BOT_TOKEN
* xapp-1-A{-U10}-{-d13}-{x64}  SLACK_APP_TOKEN
* https://hooks.slack.com/services/T{-U8}/B{-U8}/{a24}
* rk_live_{a24}
* sk_test_{a24}
* pypi-AgEIcHlwaS5vcmc{u150}
* AGE-SECRET-KEY-1{U58}  SOPS_AGE_KEY age
* ya29.a0{u120}
* SG.{u22}.{u43}  SENDGRID_API_KEY
* pcsk_{a6}_{a60}  PINECONE_API_KEY
* ATATT3xFfGF0{u180}={X8}
* rubygems_{x48}
* PMAK-{x24}-{x34}
* whsec_{b32}
* lin_api_{a40}
* dp.pt.{a43}
* shpat_{x32}
* {-a14}.atlasv1.{u67}
* tskey-auth-{a12}CNTRL-{a32}
* AKCp8{a68}
* cio{a32}
* {-d9}:AA{u33}
* fw_{a24}  FIREWORKS_API_KEY
* wandb_v1_{a77}
* https://discord.com/api/webhooks/{-d18}/{u68}  DISCORD_WEBHOOK DISCORD_WEBHOOK_URL notify
* ops_eyJ{a250}
* {a40}  COHERE_API_KEY CO_API_KEY
* {b44}  UNSEAL_KEY unseal_key_1
* secret_{a30}.{a32}
* FlyV1 fm2_{b200}
* pscale_tkn_{u43}
* nfp_{a36}
* bkua_{x40}
* pnu_{l36}
* rpa_{a44}
* sbp_{x40}
* tgp_v1_{u43}
* xai-{a80}  XAI_API_KEY
* pplx-{a48}  PPLX_API_KEY
* {t64}
* ASIA{t16}  AWS_ACCESS_KEY_ID AccessKeyId
- IQoJb3JpZ2luX2Vj{b300}=  AWS_SESSION_TOKEN SessionToken
* wandb_v1_{a27}_{a49}  WANDB_API_KEY
* ya29.{u150}  GOOGLE_OAUTH_ACCESS_TOKEN access_token
- 1//0{u60}  refresh_token
* eyJhcGlfYWRkcmVzcyI6ICJodHRwczovL2FwcC5uZXB0dW5lLmFpIiwgImFwaV9rZXkiOiAi{a48}In0=  NEPTUNE_API_TOKEN
- {a84}  NGC_API_KEY NGC_CLI_API_KEY
* ghs_{a36}  GITHUB_TOKEN
* glrt-{u20}  RUNNER_TOKEN
* pypi-AgEIcHlwaS5vcmcC{u140}  TWINE_PASSWORD UV_PUBLISH_TOKEN
* https://hooks.slack.com/services/T{-U10}/B{-U10}/{a24}  SLACK_WEBHOOK_URL slack_webhook
* MTA{-a23}.G{-a5}.{u38}  DISCORD_TOKEN
* 1{-d9}:AA{u33}  TELEGRAM_BOT_TOKEN TG_TOKEN
* https://acme.webhook.office.com/webhookb2/{-uuid}@{-uuid}/IncomingWebhook/{x32}/{-uuid}  TEAMS_WEBHOOK
* sk-proj-{u74}T3BlbkFJ{u74}  OPENAI_API_KEY
- {a32}  MISTRAL_API_KEY TENCENTCLOUD_SECRET_KEY X-API-Key X-Auth-Token X-Vault-Token api-key x-api-key
- {x64}  ENCRYPTION_KEY JUPYTERHUB_COOKIE_SECRET LINODE_TOKEN RAY_AUTH_TOKEN RAY_REDIS_PASSWORD TOGETHER_API_KEY VAST_API_KEY ckpt_encryption_key csrftoken master_key redis_password session_cookie
* pcsk_{a6}_{a63}  PINECONE_API_KEY
- s.{a24}  VAULT_TOKEN
- {uuid}  CONSUL_HTTP_TOKEN LIGHTNING_API_KEY OPSGENIE_API_KEY SCW_SECRET_KEY
* {-a14}.atlasv1.{a67}  TFE_TOKEN TF_TOKEN_app_terraform_io
- {u40}  CF_API_KEY CF_API_TOKEN CLOUDFLARE_API_TOKEN
- {x36}NRAL  NEW_RELIC_LICENSE_KEY
* sntrys_{b120}  SENTRY_AUTH_TOKEN
- {a50}  CLEARML_API_SECRET_KEY clearml_secret
* rpa_{a46}  RUNPOD_API_KEY
- as-{a22}  MODAL_TOKEN_SECRET
* AKCp{a69}  ARTIFACTORY_API_KEY JFROG_TOKEN
* tskey-auth-{a17}-{a32}  TAILSCALE_AUTHKEY TS_AUTHKEY
* {x32}-us14  MAILCHIMP_API_KEY
- {a20}  PAGERDUTY_TOKEN PD_ROUTING_KEY ROBOFLOW_API_KEY
- {b43}=  PresharedKey PrivateKey WG_PRIVATE_KEY wg_private_key
- {t32}  MFA_SECRET TOTP_SECRET mfa_secret otp_seed totp_seed
- {u43}=  AIRFLOW__CORE__FERNET_KEY FERNET_KEY
- {x48}  JUPYTERHUB_API_TOKEN JUPYTER_TOKEN NotebookApp.token
- {a36}  INTERNAL_SERVICE_TOKEN auth_token encryption_key signing_key webhook_secret
- IQoJb3JpZ2luX2Vj{b200}  AWS_SESSION_TOKEN SessionToken aws_session_token
- DefaultEndpointsProtocol=https;AccountName=acct{-l8};AccountKey={b86}==;EndpointSuffix=core.windows.net  AZURE_STORAGE_CONNECTION_STRING connection_string
- Endpoint=sb://ns{-l5}.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={b43}=  EVENTHUB_CONN_STR SERVICEBUS_CONNECTION
- https://{-l9}.blob.core.windows.net/ckpt/step100.pt?sv=2023-11-03&sr=b&se=2026-12-01T00%3A00%3A00Z&sp=r&sig={a42}%3D  CKPT_URL upload_to
- https://bucket-{-l4}.s3.us-west-2.amazonaws.com/data/shard-0001.tar?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=ASIA{U16}%2F20261115%2Fus-west-2%2Fs3%2Faws4_request&X-Amz-Date=20261115T000000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Security-Token={a180}&X-Amz-Signature={x64}  DATA_URL shard
- https://storage.googleapis.com/bkt-{-l4}/a.tar?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Date=20261115T000000Z&X-Goog-Expires=900&X-Goog-SignedHeaders=host&X-Goog-Signature={x256}  SIGNED download_url
- ya29.{u120}  GCP_ACCESS_TOKEN oauth_token
- {a30}  ALIBABA_CLOUD_ACCESS_KEY_SECRET OSS_ACCESS_KEY_SECRET
- {u44}  IBMCLOUD_API_KEY
- {a64}  HCLOUD_TOKEN X-CSRFToken _xsrf csrf_token csrftoken
- eyJhcGlfYWRkcmVzcyI6Imh0{b120}  NEPTUNE_API_TOKEN neptune_api_token
- rpa_{U44}  RUNPOD_API_KEY runpod_key
- CW-SECRET-{a43}  COREWEAVE_TOKEN CW_API_TOKEN
- aph0_{u60}  ANYSCALE_CLI_TOKEN
- xoxb-{-d12}-{-d12}-{a24}  SLACK_BOT_TOKEN slack
- https://hooks.slack.com/services/T{-U9}/B{-U10}/{a24}  SLACK_WEBHOOK notify_url
- M{-a25}.{-u6}.{u38}  DISCORD_TOKEN bot_token
- {-d10}:AA{u33}  TELEGRAM_BOT_TOKEN tg_token
- https://api.telegram.org/bot{-d10}:AA{u33}/sendMessage  NOTIFY_URL url
- ATBB{a32}  BITBUCKET_APP_PASSWORD bb_token
- ATATT3xFfGF0{u150}  JIRA_API_TOKEN
- pypi-AgEIcHlwaS5vcmc{u120}  PYPI_TOKEN TWINE_PASSWORD
- cm9ib3Q6{a32}  DOCKER_AUTH auth
- hvs.{a90}  VAULT_TOKEN vault_token
- eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOi{a28}IsImV4cCI6MTcxMDAwMDAwMH0.{u86}  ID_TOKEN SLURM_JWT access_token jwt
- Basic c3ZjO{a21}==  Authorization Proxy-Authorization
- Bearer {u48}  Authorization authorization
- sessionid={l32}; Path=/  Cookie Set-Cookie
- otpauth://totp/Acme:ops?secret={t32}&issuer=Acme  otp provisioning_uri
- MUNGE:{b120}:  SLURM_CRED credential
- http://127.0.0.1:8888/lab?token={x48}  lab_url notebook
- sha1:{-x12}:{x40}  NotebookApp.password jupyter_password
- $argon2id$v=19$m=65536,t=3,p=4${-b22}${b43}  hashed_password pw_hash
- https://oauth2:{u20}@gitlab.example.com/team/repo.git  GIT_REMOTE remote
- https://{x32}@o{-d6}.ingest.sentry.io/45  SENTRY_DSN
- {a8}  VNC_PASSWORD vnc_pw
- {U20}  ERLANG_COOKIE RABBITMQ_ERLANG_COOKIE
- tskey-auth-{a11}-{a32}  TS_AUTHKEY
- {a24}  PSK pre_shared_key
* gldt-{u20}  GITLAB_TOKEN
* glcbt-{u20}  CI_JOB_TOKEN
* $2b$12${h53}  admin_password_hash password_hash HASH
* $6${-a16}${h86}  rootpw passwd
* {z3}8Q~{z34}  AZURE_CLIENT_SECRET client_secret
- {oci}  OCI_AUTH_TOKEN oci_pass_phrase
* secret_cluster_{-x32}.{a32}  LAMBDA_API_KEY
- {words}  recovery_phrase mnemonic seed_phrase
- {django}  SECRET_KEY DJANGO_SECRET_KEY
* eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ{a34}.{u43}  SLURM_JWT id_token CI_JOB_JWT ACTIONS_ID_TOKEN_REQUEST_TOKEN
- postgresql+psycopg2://{-login}:{upw}@{-host}:5432/runs  DATABASE_URL db SQLALCHEMY_DATABASE_URI
- mysql+pymysql://{-login}:{upw}@{-host}:3306/mlflow  MYSQL_URL backend_store_uri
- mongodb+srv://{-login}:{upw}@{-host}:27017/?retryWrites=true  MONGO_URI mongo
- redis://:{a20}@{-host}:6379/0  REDIS_URL broker
- amqp://{-login}:{upw}@{-host}:5672/vhost  CELERY_BROKER_URL amqp
- ftp://{-login}:{upw}@{-host}:21/data.tar  DATASET src
- clickhouse://{-login}:{upw}@{-host}:9000/metrics  CLICKHOUSE ch
- http://{-login}:{upw}@{-host}:9000/  S3_ENDPOINT minio
- http://{-login}:{upw}@{-host}:3128  HTTPS_PROXY http_proxy
- smtps://{-login}:{upw}@{-host}:465  SMTP_URL mail
- Driver={ODBC Driver 18};Server=tcp:{-host},1433;Database=runs;Uid=etl;Pwd={pw};  ODBC_CONN conn_str
- host={-host} port=5432 dbname=runs user=etl password={a13} sslmode=require  PG_DSN dsn
- acme_{a32}  ACME_TOKEN QUUX_API_TOKEN zorg_access_key BLIXEN_CREDENTIAL
- qx-{a20}  ACME_TOKEN QUUX_API_TOKEN zorg_access_key BLIXEN_CREDENTIAL
- zz.{a46}  ACME_TOKEN QUUX_API_TOKEN zorg_access_key BLIXEN_CREDENTIAL
- {u24}  ACME_SECRET snarfSecret app.signing.secret X-Snarf-Signature-Key
- {u58}  ACME_SECRET snarfSecret app.signing.secret X-Snarf-Signature-Key
"""


def _kinds() -> list[Kind]:
    found = []
    for row in _SHAPES.strip("\n").split("\n"):
        mark, rest = row[0], row[2:]
        shape, _, names = rest.partition("  ")
        found.append(Kind(shape, tuple(names.split()) or ("ACME_TOKEN",), mark == "*"))
    found += [Kind(shape, tuple(_NAMES), False) for shape in ("{x40}", "{a25}", "{b40}", "{l32}", "{x32}", "{a16}")]
    return [*found, Kind("{pw}", tuple(_PASSWORDS), False)]


KINDS = _kinds()


def secret(kind: Kind, dice: Dice) -> Secret:
    value, parts = dice.fill(kind.shape)
    return Secret(kind.shape, dice.random.choice(kind.names), value, parts)
