"""A third generator of secrets, written without a look at the redaction or at the two before it.

What a secret is (`KINDS`), how it is written (`NAMED`, `BARE`, `FORMS`) and what stands before it in a line
(`PREFIXES`) are crossed. A plant knows the strings that must not come through.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

UPPER, LOWER, DIGITS = string.ascii_uppercase, string.ascii_lowercase, string.digits
ALNUM, HEX, B64 = UPPER + LOWER + DIGITS, "0123456789abcdef", UPPER + LOWER + DIGITS + "+/"
URL64, B32 = UPPER + LOWER + DIGITS + "-_", UPPER + "234567"


@dataclass(frozen=True, slots=True)
class Plant:
    """One secret in one notation: the text, and what of it must be gone."""

    kind: str
    notation: str
    text: str
    needles: tuple[str, ...]
    name: str = ""
    value: str = ""

    def found_in(self, out: str) -> str | None:
        """The needle of which half, or ten characters, stands in the text, if one does."""
        for needle in self.needles:
            width = max(min(10, len(needle)), len(needle) // 3)
            for at in range(0, len(needle) - width + 1, max(1, width // 2)):
                if needle[at : at + width] in out:
                    return needle
        return None


def _of(rng: random.Random, letters: str, count: int) -> str:
    return "".join(rng.choices(letters, k=count))


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _bytes(rng: random.Random, count: int) -> str:
    return _b64(rng.randbytes(count))


def _shape(form: str) -> Callable[[random.Random], str]:
    """A maker from a form: `{a36}` is 36 letters and digits, x hex, b base64, u URL-safe, d digits, t base32."""
    sets = {"a": ALNUM, "x": HEX, "b": B64, "u": URL64, "d": DIGITS, "t": B32, "U": UPPER + DIGITS, "l": LOWER + DIGITS}

    def make(rng: random.Random) -> str:
        out, rest = "", form
        while "{" in rest:
            before, _, rest = rest.partition("{")
            inside, _, rest = rest.partition("}")
            out += before + _of(rng, sets[inside[0]], int(inside[1:]))
        return out + rest

    return make


def _jwt(rng: random.Random) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {"sub": _of(rng, LOWER, 8), "iat": rng.randrange(10**9), "aud": "kubernetes"}
    return f"{part({'alg': 'RS256', 'typ': 'JWT'})}.{part(claims)}.{_of(rng, URL64, 86)}"


def _neptune(rng: random.Random) -> str:
    return _b64(json.dumps({"api_address": "https://app.neptune.ai", "api_key": _of(rng, HEX, 36)}))


def _pass(rng: random.Random) -> str:
    """A password as a person makes one."""
    word = rng.choice(["Winter", "summer", "Kestrel", "gpu", "Monkey", "tiger", "blue", "Trainer", "cluster"])
    end = rng.choice(["!", "#1", "_x", "$$", "?", "!!", "%9", ""])
    return word + rng.choice(["", "-", "_", "@", "."]) + _of(rng, DIGITS, 4) + _of(rng, LOWER, 3) + end


def _words(rng: random.Random) -> str:
    words = ["orbit", "walnut", "fjord", "pickle", "lantern", "copper", "mango", "sparrow", "velvet", "quartz"]
    return "-".join(rng.sample(words, 4))


# kind: (names it has in the wild, maker, whether it is known by its form alone)
KINDS: dict[str, tuple[tuple[str, ...], Callable[[random.Random], str], bool]] = {
    "aws id": (("AWS_ACCESS_KEY_ID", "aws_access_key_id"), _shape("AKIA{t16}"), True),
    "aws temp id": (("AWS_ACCESS_KEY_ID", "AccessKeyId"), _shape("ASIA{t16}"), True),
    "aws secret": (("AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", "SecretAccessKey"), _shape("{b40}"), False),
    "aws session": (("AWS_SESSION_TOKEN", "SessionToken"), _shape("IQoJb3JpZ2luX2Vj{b300}="), False),
    "huggingface": (("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hf_token"), _shape("hf_{a34}"), True),
    "wandb": (("WANDB_API_KEY", "wandb_api_key", "wandb_key"), _shape("{x40}"), False),
    "wandb v1": (("WANDB_API_KEY",), _shape("wandb_v1_{a27}_{a49}"), True),
    "gcp key": (("GOOGLE_API_KEY", "GEMINI_API_KEY"), _shape("AIza{u35}"), True),
    "gcp oauth": (("access_token", "GOOGLE_OAUTH_ACCESS_TOKEN"), _shape("ya29.{u150}"), True),
    "gcp refresh": (("refresh_token",), _shape("1//0{u60}"), False),
    "gcp hmac": (("GCS_HMAC_SECRET", "hmac_secret"), _shape("{b40}"), False),
    "azure storage": (("AZURE_STORAGE_KEY", "AccountKey"), lambda r: _bytes(r, 64), False),
    "azure ad": (("AZURE_CLIENT_SECRET", "client_secret"), _shape("{a3}8Q~{a34}"), True),
    "azure openai": (("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_KEY"), _shape("{x32}"), False),
    "oci": (("OCI_AUTH_TOKEN",), _shape("{a10};{a6}>{a3}"), False),
    "neptune": (("NEPTUNE_API_TOKEN",), _neptune, True),
    "comet": (("COMET_API_KEY", "comet_api_key"), _shape("{a25}"), False),
    "mlflow": (("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"), _pass, False),
    "databricks": (("DATABRICKS_TOKEN",), _shape("dapi{x32}"), True),
    "snowflake": (("SNOWFLAKE_PASSWORD", "SNOWSQL_PWD"), _pass, False),
    "ngc new": (("NGC_API_KEY", "NVIDIA_API_KEY"), _shape("nvapi-{u64}"), True),
    "ngc old": (
        ("NGC_API_KEY", "NGC_CLI_API_KEY"),
        lambda r: _b64(_of(r, LOWER + DIGITS, 26) + ":" + _of(r, HEX, 36)),
        False,
    ),
    "github": (("GITHUB_TOKEN", "GH_TOKEN"), _shape("ghp_{a36}"), True),
    "github app": (("GITHUB_TOKEN",), _shape("ghs_{a36}"), True),
    "github fine": (("GH_PAT",), _shape("github_pat_{a22}_{a59}"), True),
    "gitlab": (("GITLAB_TOKEN", "CI_DEPLOY_PASSWORD"), _shape("glpat-{u20}"), True),
    "gitlab runner": (("RUNNER_TOKEN",), _shape("glrt-{u20}"), True),
    "npm": (("NPM_TOKEN", "_authToken"), _shape("npm_{a36}"), True),
    "pypi": (("TWINE_PASSWORD", "UV_PUBLISH_TOKEN"), _shape("pypi-AgEIcHlwaS5vcmcC{u140}"), True),
    "slack bot": (("SLACK_BOT_TOKEN",), _shape("xoxb-{d12}-{d13}-{a24}"), True),
    "slack app": (("SLACK_APP_TOKEN",), _shape("xapp-1-A{U10}-{d13}-{x64}"), True),
    "slack hook": (
        ("SLACK_WEBHOOK_URL", "slack_webhook"),
        _shape("https://hooks.slack.com/services/T{U10}/B{U10}/{a24}"),
        True,
    ),
    "discord": (("DISCORD_TOKEN",), _shape("MTA{a23}.G{a5}.{u38}"), True),
    "discord hook": (("DISCORD_WEBHOOK",), _shape("https://discord.com/api/webhooks/{d18}/{u68}"), True),
    "telegram": (("TELEGRAM_BOT_TOKEN", "TG_TOKEN"), _shape("1{d9}:AA{u33}"), True),
    "teams hook": (
        ("TEAMS_WEBHOOK",),
        lambda r: (
            f"https://acme.webhook.office.com/webhookb2/{_uuid(r)}@{_uuid(r)}"
            f"/IncomingWebhook/{_of(r, HEX, 32)}/{_uuid(r)}"
        ),
        True,
    ),
    "stripe": (("STRIPE_SECRET_KEY",), _shape("sk_live_{a24}"), True),
    "sendgrid": (("SENDGRID_API_KEY",), _shape("SG.{u22}.{u43}"), True),
    "openai": (("OPENAI_API_KEY",), _shape("sk-proj-{u74}T3BlbkFJ{u74}"), True),
    "openai old": (("OPENAI_API_KEY", "openai_key"), _shape("sk-{a20}T3BlbkFJ{a20}"), True),
    "anthropic": (("ANTHROPIC_API_KEY",), _shape("sk-ant-api03-{u93}AA"), True),
    "cohere": (("COHERE_API_KEY", "CO_API_KEY"), _shape("{a40}"), False),
    "mistral": (("MISTRAL_API_KEY",), _shape("{a32}"), False),
    "together": (("TOGETHER_API_KEY",), _shape("{x64}"), False),
    "replicate": (("REPLICATE_API_TOKEN",), _shape("r8_{a37}"), True),
    "groq": (("GROQ_API_KEY",), _shape("gsk_{a52}"), True),
    "xai": (("XAI_API_KEY",), _shape("xai-{a80}"), True),
    "perplexity": (("PPLX_API_KEY",), _shape("pplx-{a48}"), True),
    "langsmith": (("LANGCHAIN_API_KEY", "LANGSMITH_API_KEY"), _shape("lsv2_pt_{x32}_{x10}"), True),
    "pinecone": (("PINECONE_API_KEY",), _shape("pcsk_{a6}_{a63}"), True),
    "vault": (("VAULT_TOKEN",), _shape("hvs.{u90}"), True),
    "vault old": (("VAULT_TOKEN",), _shape("s.{a24}"), False),
    "consul": (("CONSUL_HTTP_TOKEN",), lambda r: _uuid(r), False),
    "terraform": (("TFE_TOKEN", "TF_TOKEN_app_terraform_io"), _shape("{a14}.atlasv1.{a67}"), True),
    "digitalocean": (("DIGITALOCEAN_TOKEN",), _shape("dop_v1_{x64}"), True),
    "cloudflare": (("CLOUDFLARE_API_TOKEN", "CF_API_TOKEN"), _shape("{u40}"), False),
    "datadog": (("DD_API_KEY", "DATADOG_API_KEY"), _shape("{x32}"), False),
    "newrelic": (("NEW_RELIC_LICENSE_KEY",), _shape("{x36}NRAL"), False),
    "grafana": (("GRAFANA_TOKEN", "GF_API_KEY"), _shape("glsa_{a32}_{x8}"), True),
    "sentry": (("SENTRY_AUTH_TOKEN",), _shape("sntrys_{b120}"), True),
    "kaggle": (("KAGGLE_KEY",), _shape("{x32}"), False),
    "clearml": (("CLEARML_API_SECRET_KEY",), _shape("{a50}"), False),
    "runpod": (("RUNPOD_API_KEY",), _shape("rpa_{U40}{l6}"), True),
    "modal": (("MODAL_TOKEN_SECRET",), _shape("as-{a22}"), False),
    "docker": (("DOCKER_PASSWORD", "DOCKERHUB_TOKEN"), _shape("dckr_pat_{u27}"), True),
    "artifactory": (("ARTIFACTORY_API_KEY", "JFROG_TOKEN"), _shape("AKCp{a69}"), True),
    "tailscale": (("TS_AUTHKEY", "TAILSCALE_AUTHKEY"), _shape("tskey-auth-{a17}-{a32}"), True),
    "mailgun": (("MAILGUN_API_KEY",), _shape("key-{x32}"), True),
    "mailchimp": (("MAILCHIMP_API_KEY",), _shape("{x32}-us14"), True),
    "twilio": (("TWILIO_AUTH_TOKEN",), _shape("{x32}"), False),
    "pagerduty": (("PAGERDUTY_TOKEN", "PD_ROUTING_KEY"), _shape("{a20}"), False),
    "age": (("SOPS_AGE_KEY",), lambda r: "AGE-SECRET-KEY-1" + _of(r, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58), True),
    "wireguard": (("PrivateKey", "PresharedKey", "WG_PRIVATE_KEY"), lambda r: _bytes(r, 32), False),
    "totp": (("TOTP_SECRET", "totp_seed", "MFA_SECRET"), _shape("{t32}"), False),
    "fernet": (
        ("FERNET_KEY", "AIRFLOW__CORE__FERNET_KEY"),
        lambda r: base64.urlsafe_b64encode(r.randbytes(32)).decode(),
        False,
    ),
    "django": (("SECRET_KEY", "DJANGO_SECRET_KEY"), lambda r: _of(r, LOWER + DIGITS + "!@#$%^&*(-_=+)", 50), False),
    "jwt": (("SLURM_JWT", "id_token", "CI_JOB_JWT", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"), _jwt, True),
    "cookie": (("session_cookie", "JUPYTERHUB_COOKIE_SECRET", "csrftoken"), _shape("{x64}"), False),
    "jupyter": (("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN"), _shape("{x48}"), False),
    "password": (
        ("DB_PASSWORD", "password", "POSTGRES_PASSWORD", "redis_password", "LDAP_BIND_PW", "ADMIN_PASS"),
        _pass,
        False,
    ),
    "pass phrase": (("passphrase", "GPG_PASSPHRASE", "SMTP_PASSWORD", "MINIO_ROOT_PASSWORD"), _words, False),
    "random": (
        ("encryption_key", "signing_key", "INTERNAL_SERVICE_TOKEN", "webhook_secret", "auth_token"),
        _shape("{a36}"),
        False,
    ),
    "bcrypt": (("admin_password_hash",), lambda r: "$2b$12$" + _of(r, ALNUM + "./", 53), True),
}


def _uuid(rng: random.Random) -> str:
    digits = _of(rng, HEX, 32)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _camel(name: str) -> str:
    first, *rest = name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def _rich(name: str, value: str) -> str:
    """A box of locals as rich draws it, 100 columns wide, with the value broken at its edge."""
    text = f"{name} = {value!r}"
    rows = [text[at : at + 94] for at in range(0, len(text), 94)]
    top, bottom = "╭" + "─" * 40 + " locals " + "─" * 50 + "╮", "╰" + "─" * 98 + "╯"
    body = [f"│ {'rank = 3':<96} │", *(f"│ {row:<96} │" for row in rows), f"│ {'step = 1200':<96} │"]
    return "\n".join([top, *body, bottom])


def _wrapped(name: str, value: str, width: int = 60) -> str:
    text = f"{name}={value}"
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


_q = urllib.parse.quote

# One secret behind its name. `n` is the name as the kind has it, `v` the value.
NAMED: dict[str, Callable[[str, str], str]] = {
    "env": lambda n, v: f"{n}={v}",
    "env quoted": lambda n, v: f'{n}="{v}"',
    "export": lambda n, v: f"export {n}={v}",
    "declare": lambda n, v: f'declare -x {n}="{v}"',
    "xtrace": lambda n, v: f"+ export {n}={v}\n+ {n}={v}",
    "deep xtrace": lambda n, v: f"+++ {n}='{v}'",
    "xtrace with PS4": lambda n, v: f"+ launch.sh:37:main(): export {n}={v}",
    "env before a command": lambda n, v: f"+ env OMP_NUM_THREADS=8 {n}={v} python train.py --lr 3e-4",
    "docker -e": lambda n, v: f"docker run --gpus all -e {n}={v} -e NCCL_DEBUG=INFO img:1 bash",
    "docker --env": lambda n, v: f"docker run --env={n}={v} --rm img",
    "Dockerfile": lambda n, v: f"Step 7/12 : ENV {n} {v}",
    "Dockerfile ARG": lambda n, v: f"#9 [3/8] ARG {n}={v}",
    "compose list": lambda n, v: f"    environment:\n      - NCCL_DEBUG=INFO\n      - {n}={v}",
    "compose map": lambda n, v: f"    environment:\n      {n}: {v}",
    "mpirun -x": lambda n, v: f"mpirun -np 16 -x NCCL_DEBUG=INFO -x {n}={v} python train.py",
    "srun export": lambda n, v: f"srun --export=ALL,{n}={v},NCCL_DEBUG=INFO ./run.sh",
    "sbatch export": lambda n, v: f"#SBATCH --export=NONE,{n}={v}",
    "apptainer": lambda n, v: f"APPTAINERENV_{n}={v} apptainer exec --nv x.sif python t.py",
    "pod env": lambda n, v: (
        f"      env:\n        - name: {n}\n          value: {v}\n        - name: RANK\n          value: '3'"
    ),
    "pod env quoted": lambda n, v: f'    - name: {n}\n      value: "{v}"',
    "pod env json": lambda n, v: '"env":[{"name":"RANK","value":"3"},' + json.dumps({"name": n, "value": v}) + "]",
    "pod env pretty": lambda n, v: json.dumps({"env": [{"name": n, "value": v}]}, indent=4),
    "value first": lambda n, v: json.dumps({"value": v, "name": n}),
    "describe pod": lambda n, v: f"    Environment:\n      NCCL_DEBUG:      INFO\n      {n}:    {v}\n    Mounts:",
    "secret stringData": lambda n, v: f"kind: Secret\nmetadata:\n  name: train\nstringData:\n  {n}: {v}\ntype: Opaque",
    "yaml": lambda n, v: f"{n}: {v}",
    "yaml quoted": lambda n, v: f"  {n}: '{v}'",
    "yaml folded": lambda n, v: f"{n}: >-\n  {v}\nnext: 1",
    "yaml literal": lambda n, v: f"logger:\n  {n}: |\n    {v}\n  project: llama",
    "json": lambda n, v: json.dumps({"step": 3, n: v, "lr": 0.1}),
    "json pretty": lambda n, v: json.dumps({"config": {n: v}}, indent=2),
    "json compact": lambda n, v: json.dumps({n: v, "a": 1}, separators=(",", ":")),
    "json in json": lambda n, v: json.dumps({"message": json.dumps({"env": {n: v}})}),
    "json thrice": lambda n, v: json.dumps({"log": json.dumps({"msg": json.dumps({n: v})}) + "\n", "stream": "stderr"}),
    "json with \\u": lambda n, v: json.dumps({"m": f'{n}="{v}"'}).replace('\\"', "\\u0022").replace("=", "\\u003d"),
    "repr dict": lambda n, v: repr({"rank": 3, n: v, "epoch": 1}),
    "environ": lambda n, v: f"environ({ {'PATH': '/usr/bin', n: v, 'LANG': 'C.UTF-8'}!r})",
    "repr in repr": lambda n, v: repr(repr({n: v})),
    "bytes": lambda n, v: repr(f"{n}={v}\n".encode()),
    "bytes dict": lambda n, v: repr({n.encode(): v.encode()}),
    "tuple": lambda n, v: repr([("RANK", "0"), (n, v)]),
    "Namespace": lambda n, v: f"Namespace(lr=0.0003, {n.lower()}={v!r}, seed=1)",
    "dataclass": lambda n, v: f"TrainConfig(model='llama', {n.lower()}={v!r}, tp=8)",
    "pydantic": lambda n, v: f"base_url='https://x.y' {n.lower()}={v!r} timeout=30",
    "SecretStr leak": lambda n, v: f"Settings({n.lower()}=SecretStr({v!r}))",
    "omegaconf": lambda n, v: (
        f"trainer:\n  devices: 8\n  logger:\n    _target_: x.Wandb\n    {n.lower()}: {v}\n    offline: false"
    ),
    "hydra override": lambda n, v: f"python train.py +trainer.logger.{n.lower()}={v} trainer.devices=8",
    "hydra overrides list": lambda n, v: f"- trainer.devices=8\n- ++logger.{n.lower()}={v}",
    "flag": lambda n, v: f"python train.py --{n.lower().replace('_', '-')} {v} --lr 0.1",
    "flag =": lambda n, v: f"torchrun train.py --{n.lower()}={v}",
    "argv": lambda n, v: repr(["train.py", "--lr", "0.1", f"--{n.lower()}", v]),
    "argv =": lambda n, v: repr(["train.py", f"--{n.lower()}={v}", "--bf16"]),
    "argv json": lambda n, v: json.dumps({"args": ["-m", "train", f"--{n.lower()}", v]}),
    "args yaml": lambda n, v: f"    args:\n    - train.py\n    - --{n.lower()}\n    - {v}\n    - --bf16",
    "argparse table": lambda n, v: f"  {n.lower()} {'.' * 30} {v}",
    "toml": lambda n, v: f'[logger]\n{n.lower()} = "{v}"',
    "ini": lambda n, v: f"[default]\n{n} = {v}",
    "properties": lambda n, v: f"spark.hadoop.{n.lower().replace('_', '.')}={v}",
    "xml": lambda n, v: f"<{n}>{v}</{n}>",
    "hadoop xml": lambda n, v: f"<property><name>{n}</name><value>{v}</value></property>",
    "xml lines": lambda n, v: f"  <property>\n    <name>{n}</name>\n    <value>{v}</value>\n  </property>",
    "attribute": lambda n, v: f'<add key="{n}" value="{v}" />',
    "go struct": lambda n, v: f"EnvVar{{Name:{n},Value:{v},ValueFrom:nil,}}",
    "go %+v": lambda n, v: f"[{{Name:RANK Value:3}} {{Name:{n} Value:{v}}}]",
    "go %#v": lambda n, v: f'v1.EnvVar{{Name:"{n}", Value:"{v}", ValueFrom:(*v1.EnvVarSource)(nil)}}',
    "go map": lambda n, v: f"map[NCCL_DEBUG:INFO {n}:{v} RANK:3]",
    "go slog": lambda n, v: f'time=2026-01-02T03:04:05Z level=INFO msg="start" {n.lower()}={v}',
    "rust": lambda n, v: f'Config {{ rank: 3, {n.lower()}: Some("{v}"), port: 1 }}',
    "java": lambda n, v: f"ClientConfig{{host=db1, {_camel(n)}='{v}', retries=3}}",
    "javascript": lambda n, v: f"{{ project: 'x', {_camel(n)}: '{v}' }}",
    "ruby": lambda n, v: f'{{:project=>"x", :{n.lower()}=>"{v}"}}',
    "protobuf": lambda n, v: f'config {{ {n.lower()}: "{v}" devices: 8 }}',
    "rich locals": _rich,
    "sentry": lambda n, v: json.dumps({"frames": [{"function": "main", "vars": {n: repr(v), "rank": "3"}}]}),
    "cgitb": lambda n, v: f"        {n.lower()} = {v!r}, self = <Trainer object at 0x7f1234567890>",
    "source line": lambda n, v: f'    {n.lower()} = "{v}"',
    "traceback": lambda n, v: f'  File "train.py", line 12, in main\n    login({n.lower()}="{v}")\nValueError: x',
    "os.environ": lambda n, v: f'    os.environ["{n}"] = "{v}"',
    "setdefault": lambda n, v: f"    os.environ.setdefault('{n}', '{v}')",
    "setenv": lambda n, v: f'setenv("{n}", "{v}", 1);',
    "csh": lambda n, v: f"setenv {n} {v}",
    "fish": lambda n, v: f"set -gx {n} {v}",
    "powershell": lambda n, v: f'$env:{n} = "{v}"',
    "cmd": lambda n, v: f"set {n}={v}",
    "query": lambda n, v: f"GET https://api.x.io/v1/log?run=3&{n.lower()}={_q(v, safe='')}&x=1 HTTP/1.1",
    "query encoded": lambda n, v: "redirect=" + _q(f"https://x.y/cb?{n.lower()}={v}", safe=""),
    "json encoded": lambda n, v: "state=" + _q(json.dumps({n: v}), safe=""),
    "html": lambda n, v: f"{{&quot;{n}&quot;:&quot;{v}&quot;}}",
    "header": lambda n, v: f"> X-{n.title().replace('_', '-')}: {v}",
    "curl -H": lambda n, v: f"curl -sS -H 'X-{n.replace('_', '-')}: {v}' https://x.y/z",
    "headers dict": lambda n, v: repr({"Accept": "*/*", f"x-{n.lower().replace('_', '-')}": v}),
    "form": lambda n, v: f"--data-urlencode {n.lower()}={v} https://x.y",
    "colour": lambda n, v: f"\x1b[36m{n}\x1b[0m=\x1b[35m{v}\x1b[0m",
    "colour inside": lambda n, v: f'\x1b[1m"{n}"\x1b[22m: \x1b[38;5;28m"{v}"\x1b[39m,',
    "colour escaped": lambda n, v: json.dumps({"log": f"\x1b[33m{n}\x1b[0m: \x1b[32m{v}\x1b[0m"}),
    "table": lambda n, v: f"| lr | 0.1 |\n| {n.lower()} | {v} |",
    "box table": lambda n, v: f"│ {n:<28} │ {v} │",
    "columns": lambda n, v: f"{n:<40}{v}",
    "tab": lambda n, v: f"{n}\t{v}",
    "csv": lambda n, v: f"key,value\n{n},{v}",
    "arrow": lambda n, v: f"{n} -> {v}",
    "prose is": lambda n, v: f"the {n.lower().replace('_', ' ')} is {v}",
    "prose colon": lambda n, v: f"{n.capitalize().replace('_', ' ')}: {v}",
    "prose quoted": lambda n, v: f"using {n.lower()} '{v}' for the run",
    "progress": lambda n, v: f"  3%|▎ | 3/100 [00:01<00:32]\r{n}={v}\r  4%|▍ | 4/100",
    "wrapped": _wrapped,
    "wrapped 40": lambda n, v: _wrapped(n, v, 40),
    "nul": lambda n, v: f"PATH=/bin\0{n}={v}\0RANK=3\0",
    "escaped newline": lambda n, v: f"env: 'RANK=3\\n{n}={v}\\nLANG=C'",
    "escaped twice": lambda n, v: f"env: 'RANK=3\\\\n{n}={v}\\\\nLANG=C'",
    "octal": lambda n, v: f"env=RANK=3\\012{n}={v}\\012",
    "journal": lambda n, v: f"RANK=3#012{n}={v}#012LANG=C",
    "helm --set": lambda n, v: f"helm upgrade x . --set auth.{_camel(n)}={v},replicas=3",
    "from-literal": lambda n, v: f"kubectl create secret generic s --from-literal={n}={v}",
    "git config": lambda n, v: f"git -c http.extra.{_camel(n)}={v} fetch",
    "aws configure": lambda n, v: f"aws configure set {n.lower()} {v}",
    "config set": lambda n, v: f"tool config set {n.lower().replace('_', '-')} {v}",
    "systemd": lambda n, v: f'Environment="NCCL_DEBUG=INFO" "{n}={v}"',
    "cloud-init": lambda n, v: f'  - [ sh, -c, "echo {n}={v} >> /etc/environment" ]',
    "ansible": lambda n, v: f'changed: [h1] => {{"ansible_facts": {{"{n.lower()}": "{v}"}}}}',
    "terraform": lambda n, v: f'  + {n.lower()} = "{v}"',
    "diff": lambda n, v: f"-{n}: old\n+{n}: {v}",
    "gdb": lambda n, v: f'{n.lower()} = 0x55d0c8a3f2b0 "{v}"',
    "std::map": lambda n, v: f'std::map with 2 elements = {{["{n}"] = "{v}", ["RANK"] = "3"}}',
    "strace": lambda n, v: f'execve("/usr/bin/python", ["python", "t.py"], ["RANK=3", "{n}={v}"]) = 0',
    "ps e": lambda n, v: f"  812 ?  Rl  3:01 python train.py RANK=3 {n}={v} LANG=C",
    "lowered prose": lambda n, v: f"loaded {n} ({v}) from the vault",
    "typed": lambda n, v: f"{n.lower()}: str = {v!r}",
    "default": lambda n, v: f"  --{n.lower()} TEXT  [default: {v}]",
    "nested yaml value": lambda n, v: f"{n}:\n  value: {v}\n  sensitive: true",
    "nested list": lambda n, v: f"{n}:\n  - {v}\n",
    "json list": lambda n, v: json.dumps({n: [v]}),
    "wandb config": lambda n, v: f"{n.lower()}:\n    desc: null\n    value: {v}",
}

# Notations in which a secret stands without a name: only for those that are known by their form.
BARE: dict[str, Callable[[str], str]] = {
    "prose": lambda v: f"authenticated with {v} as user",
    "glued": lambda v: f"token{v}",
    "after a letter": lambda v: f"\x1b[32m{v}\x1b[0m",
    "escaped colour": lambda v: f"\\x1b[32m{v}\\x1b[0m",
    "repr newline": lambda v: f"'first\\n{v}\\nlast'",
    "list": lambda v: repr(["a", v]),
    "path": lambda v: f"/data/cache/{v}/blob.bin",
    "file name": lambda v: f"ckpt-{v}.pt",
    "in a URL": lambda v: f"https://api.x.io/v1/{_q(v, safe='')}/runs",
    "quoted": lambda v: f"%22{_q(v, safe='')}%22",
    "underscore": lambda v: f"run_{v}",
    "dash": lambda v: f"job-{v}",
    "bearer": lambda v: f"Authorization: Bearer {v}",
    "bearer dict": lambda v: repr({"authorization": f"Bearer {v}"}),
    "bearer lower": lambda v: f"< authorization: bearer {v}",
    "token header": lambda v: f"-H 'Authorization: token {v}'",
    "KeyError": lambda v: f"KeyError: '{v}'",
    "frame": lambda v: f'  File "/w/{v}.py", line 3, in <module>',
    "dot": lambda v: f"cfg.{v}",
    "markup": lambda v: f"<code>{v}</code>",
    "angle": lambda v: f"<{v}>",
    "colon": lambda v: f"x:{v}:y",
    "at": lambda v: f"{v}@github.com",
    "wrapped at 20": lambda v: "token: " + "\n".join(v[at : at + 20] for at in range(0, len(v), 20)),
    "base64 of": lambda v: f"auth: {_b64('user:' + v)}",
}


def _pem(rng: random.Random, label: str, rows: int = 12) -> tuple[str, tuple[str, ...]]:
    body = [_of(rng, B64, 64) for _ in range(rows)] + [_of(rng, B64, 30) + "=="]
    return f"-----BEGIN {label}-----\n" + "\n".join(body) + f"\n-----END {label}-----", tuple(body)


def _pem_flat(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text, rows = _pem(rng, "PRIVATE KEY")
    return json.dumps({"type": "service_account", "private_key_id": _of(rng, HEX, 40), "private_key": text}), rows


def _pem_b64(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text, _ = _pem(rng, "RSA PRIVATE KEY", 6)
    flat = _b64(text)
    return f"    client-key-data: {flat}", (flat,)


def _prefixed_pem(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text, rows = _pem(rng, "OPENSSH PRIVATE KEY")
    return "\n".join(f"[rank3]: {row}" for row in text.split("\n")), rows


def _pgp(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    rows = tuple(_of(rng, B64, 64) for _ in range(8))
    head = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n"
    return head + "\n".join(rows) + "\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----", rows


def _ppk(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    rows = tuple(_of(rng, B64, 64) for _ in range(8))
    return "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 8\n" + "\n".join(
        rows
    ) + "\nPrivate-MAC: x", rows


def _with(
    form: str, make: Callable[[random.Random], str] = _pass
) -> Callable[[random.Random], tuple[str, tuple[str, ...]]]:
    """A text around one secret: `{v}` as it is, `{q}` URL-encoded, `{b}` base64 of `user:secret`."""

    def text(rng: random.Random) -> tuple[str, tuple[str, ...]]:
        value = make(rng)
        quoted, coded = _q(value, safe=""), _b64(f"bob:{value}")
        out = form.replace("{v}", value).replace("{q}", quoted).replace("{b}", coded)
        needles = {"{v}": value, "{q}": quoted, "{b}": coded}
        return out, tuple(needle for mark, needle in needles.items() if mark in form)

    return text


_HEX64, _SIG, _A30 = _shape("{x64}"), _shape("{b43}="), _shape("{a30}")

# What has a form of its own, with the secret somewhere in it.
FORMS: dict[str, Callable[[random.Random], tuple[str, tuple[str, ...]]]] = {
    "pem": lambda r: _pem(r, "RSA PRIVATE KEY"),
    "pem ec": lambda r: _pem(r, "EC PRIVATE KEY", 3),
    "pem encrypted": lambda r: _pem(r, "ENCRYPTED PRIVATE KEY"),
    "pem in json": _pem_flat,
    "kubeconfig": _pem_b64,
    "pem prefixed": _prefixed_pem,
    "pgp": _pgp,
    "ppk": _ppk,
    "netrc": _with("machine api.wandb.ai\n  login user\n  password {v}", _shape("{x40}")),
    "netrc line": _with("machine h.io login bob password {v}"),
    "pgpass": _with("db1.prod:5432:train:bob:{v}"),
    "htpasswd apr1": _with("bob:$apr1${v}", lambda r: _of(r, ALNUM, 8) + "$" + _of(r, ALNUM + "./", 22)),
    "shadow 6": _with("bob:$6${v}:19000:0:99999:7:::", lambda r: _of(r, ALNUM, 16) + "$" + _of(r, ALNUM + "./", 86)),
    "shadow y": _with(
        "bob:$y$j9T${v}:19000:0:99999:7:::", lambda r: _of(r, ALNUM, 22) + "$" + _of(r, ALNUM + "./", 43)
    ),
    "argon2": _with("$argon2id$v=19$m=65536,t=3,p=4${v}", lambda r: _of(r, B64, 22) + "$" + _of(r, B64, 43)),
    "otpauth": _with("otpauth://totp/ACME:bob?secret={v}&issuer=ACME", _shape("{t32}")),
    "redis url": _with("redis://:{q}@redis-0.redis:6379/0"),
    "rediss url": _with("broker=rediss://default:{q}@r.x.io:6380"),
    "mongo url": _with("mongodb+srv://bob:{q}@cluster0.ab1cd.mongodb.net/db?retryWrites=true"),
    "postgres url": _with("sqlalchemy.url = postgresql+psycopg2://bob:{q}@db:5432/train"),
    "mysql url": _with("mysql://root:{q}@10.0.0.3/x"),
    "amqp url": _with("amqp://guest:{q}@mq//"),
    "smb url": _with("smb://corp;bob:{q}@fs1/share"),
    "ftp url": _with("wget ftp://bob:{q}@ftp.x.io/d.tar"),
    "proxy url": _with("https_proxy=http://bob:{q}@proxy.corp:3128"),
    "raw at in a url": _with("postgres://bob:{v}@db:5432/x", _shape("{a6}@{a6}#{a3}")),
    "snowflake url": _with("snowflake://bob:{q}@acct/db/schema?warehouse=wh"),
    "url only token": _with("git clone https://{v}@github.com/acme/x.git", _shape("{a40}")),
    "oauth2 url": _with("git clone https://oauth2:{v}@gitlab.x.io/a/b.git", _A30),
    "pip index": _with("Looking in indexes: https://bob:{q}@pypi.corp/simple", _A30),
    "conda token": _with("https://conda.anaconda.org/t/{v}/acme/linux-64", _shape("ac-{x36}")),
    "sentry dsn": _with("dsn=https://{v}@o4501.ingest.sentry.io/4505", _shape("{x32}")),
    "jdbc": _with("jdbc:postgresql://db:5432/x?user=bob&password={q}&ssl=true"),
    "jdbc sqlserver": _with("jdbc:sqlserver://db:1433;databaseName=x;user=sa;password={v};encrypt=true"),
    "jdbc oracle": _with("jdbc:oracle:thin:bob/{v}@//db:1521/x", _A30),
    "odbc": _with("DRIVER={ODBC Driver 18};SERVER=db;UID=sa;PWD={v};"),
    "libpq": _with("host=db user=bob password={v} dbname=train"),
    "azure connection": _with(
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={v};EndpointSuffix=core.windows.net",
        lambda r: _bytes(r, 64),
    ),
    "service bus": _with("Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={v}", _SIG),
    "sas": _with("https://x.blob.core.windows.net/c/b?sv=2022-11-02&ss=b&se=2026-01-01&sp=rl&sig={q}", _SIG),
    "presigned": _with(
        "https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260101T000000Z&X-Amz-Expires=900&X-Amz-Signature={v}",
        _HEX64,
    ),
    "presigned credential": _with(
        "https://b.s3.amazonaws.com/k?X-Amz-Credential={q}%2F20260101%2Fus-east-1%2Fs3%2Faws4_request",
        _shape("AKIA{t16}"),
    ),
    "presigned token": _with(
        "https://b.s3.amazonaws.com/k?X-Amz-Security-Token={q}&x=1", _shape("FwoGZXIvYXdz{b200}=")
    ),
    "presigned v2": _with(
        "https://b.s3.amazonaws.com/k?AWSAccessKeyId=AKIAEXAMPLE&Expires=1790000000&Signature={q}", _shape("{b27}=")
    ),
    "gcs signed": _with(
        "https://storage.googleapis.com/b/o?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Signature={v}", _shape("{x512}")
    ),
    "cloudfront": _with(
        "https://d1.cloudfront.net/x?Expires=1790000000&Signature={v}&Key-Pair-Id=K2", _shape("{u340}__")
    ),
    "basic header": _with("> Authorization: Basic {b}"),
    "basic dict": _with("{'Authorization': 'Basic {b}'}"),
    "proxy header": _with("Proxy-Authorization: Basic {b}"),
    "digest header": _with(
        'Authorization: Digest username="bob", realm="x", nonce="y", uri="/", response="{v}"', _shape("{x32}")
    ),
    "sigv4 header": _with(
        "Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us/s3/aws4_request, SignedHeaders=host, Signature={v}",
        _HEX64,
    ),
    "cookie": _with("> Cookie: theme=dark; sessionid={v}; lang=en", _A30),
    "set-cookie": _with("< Set-Cookie: _xsrf=2|{v}; Path=/; HttpOnly", _shape("{x8}|{x32}|{d10}")),
    "cookie dict": _with("cookies={'JSESSIONID': '{v}'}", _shape("{U32}")),
    "docker config": _with('{"auths": {"nvcr.io": {"auth": "{b}"}}}', _A30),
    "dockerconfigjson": lambda r: _dockerconfig(r),
    "secret data": lambda r: _secret_data(r),
    "bootstrap token": _with(
        "kubeadm join 10.0.0.1:6443 --token {v} --discovery-token-ca-cert-hash sha256:00", _shape("{l6}.{l16}")
    ),
    "mysql -p": _with("mysql -h db -u root -p{v} train"),
    "curl -u": _with("curl -sf -u bob:{v} https://x.y/z"),
    "curl --user": _with("curl --user 'bob:{v}' https://x.y/z"),
    "sshpass": _with("sshpass -p {v} ssh bob@h1 uptime"),
    "redis-cli": _with("redis-cli -h r -a {v} ping"),
    "docker login": _with("docker login -u '$oauthtoken' -p {v} nvcr.io", _A30),
    "docker login stdin": _with("+ echo {v}\n+ docker login -u bob --password-stdin nvcr.io", _A30),
    "echo pipe": _with("echo {v} | docker login -u bob --password-stdin nvcr.io", _A30),
    "here string": _with("sudo -S mount /x <<< {v}"),
    "sudo -S": _with("echo '{v}' | sudo -S systemctl restart nvidia-fabricmanager"),
    "wandb login": _with("wandb login --relogin {v}", _shape("{x40}")),
    "wandb.login()": _with("wandb.login(key='{v}')", _shape("{x40}")),
    "hf login": _with("huggingface-cli login --token {v} --add-to-git-credential", _A30),
    "hf use_auth_token": _with("from_pretrained('x', use_auth_token='{v}')", _A30),
    "openssl": _with("openssl rsa -in k.pem -passin pass:{v}"),
    "gpg": _with("gpg --batch --passphrase {v} -d f.gpg"),
    "cifs": _with("mount -t cifs -o username=bob,password={v},vers=3.0 //fs/x /mnt"),
    "mc alias": _with("mc alias set minio http://m:9000 minioadmin {v}", _A30),
    "ray": _with("ray start --head --redis-password {v}"),
    "az login": _with("az login --service-principal -u app -p {v} --tenant t", _A30),
    "auth tuple": _with("requests.get(url, auth=('bob', '{v}'))"),
    "connect call": _with("psycopg2.connect(host='db', user='bob', password='{v}')"),
    "boto call": _with("boto3.client('s3', aws_secret_access_key='{v}')", _shape("{b40}")),
    "git credential": _with("protocol=https\nhost=github.com\nusername=bob\npassword={v}", _A30),
    "git-credentials": _with("https://bob:{v}@github.com", _A30),
    "npmrc": _with("//registry.npmjs.org/:_authToken={v}", _A30),
    "npmrc _auth": _with("_auth={b}", _A30),
    "pypirc": _with("[pypi]\nusername = bob\npassword = {v}"),
    "s3cfg": _with("[default]\naccess_key = x\nsecret_key = {v}", _shape("{b40}")),
    "aws credentials": _with("[default]\naws_secret_access_key={v}", _shape("{b40}")),
    "sts answer": _with('{"Credentials": {"SecretAccessKey": "{v}", "Expiration": "2026"}}', _shape("{b40}")),
    "kaggle.json": _with('{"username":"bob","key":"{v}"}', _shape("{x32}")),
    "gcp adc": _with('{"client_id": "x", "client_secret": "{v}", "type": "authorized_user"}', _shape("GOCSPX-{u28}")),
    "jupyter url": _with("    http://gpu1:8888/lab?token={v}", _shape("{x48}")),
    "wg.conf": _with("[Interface]\nPrivateKey = {v}\nAddress = 10.0.0.2/32", lambda r: _bytes(r, 32)),
    "wifi": _with("ssid=x\npsk={v}"),
    "snmp": _with("snmpwalk -v2c -c {v} switch1", _A30),
    "ipmi": _with("ipmitool -I lanplus -H bmc1 -U root -P {v} chassis power cycle"),
    "ipmi env": _with("IPMI_PASSWORD={v} ipmitool -E"),
    "prompt": _with("Password for bob: {v}"),
    "prompt wandb": _with(
        "wandb: Paste an API key from your profile and hit enter, or press ctrl+c to quit: {v}", _shape("{x40}")
    ),
    "prose pw": _with("login: bob pw: {v}"),
    "login pair": _with("credentials: bob / {v}"),
    "ssh-rsa private d": _with('{"kty":"RSA","d":"{v}","e":"AQAB"}', _shape("{u342}")),
    "munge key": _with("MUNGE_KEY={v}", _SIG),
    "etcd": _with("etcdctl --user root:{v} get /"),
    "ldap": _with("ldapsearch -D cn=admin -w {v} -b dc=x"),
    "xml password": _with("<server><username>bob</username><password>{v}</password></server>"),
    "rclone": _with("[s3]\ntype = s3\nsecret_access_key = {v}", _shape("{b40}")),
    "env file of a hook": _with("::set-output name=token::{v}", _A30),
    "gh mask": _with("::add-mask::{v}", _A30),
    "vault kv": _with("====== Data ======\nKey         Value\n---         -----\npassword    {v}"),
    "vault login": _with("token                hvs.{v}\ntoken_accessor       x", _shape("{u90}")),
    "saml": _with("SAMLResponse={v}", lambda r: _bytes(r, 200)),
    "graph token": _with('{"token_type":"Bearer","expires_in":3599,"access_token":"{v}"}', _shape("0.A{u300}")),
    "device code": _with('{"device_code":"{v}","user_code":"ABCD-EFGH"}', _A30),
    "oauth code": _with("GET /callback?code={v}&state=xyz HTTP/1.1", _shape("4/0A{u60}")),
    "pkcs12": _with("keytool -importkeystore -storepass {v} -keystore k.jks"),
    "tls block": lambda r: _tls_block(r),
    "headless pem rows": lambda r: _pem_tail(r),
}


def _dockerconfig(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    inner = json.dumps({"auths": {"nvcr.io": {"username": "$oauthtoken", "password": _of(rng, ALNUM, 40)}}})
    return f"data:\n  .dockerconfigjson: {_b64(inner)}\nkind: Secret\ntype: kubernetes.io/dockerconfigjson", (
        _b64(inner),
    )


def _secret_data(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    first, second = _b64(_pass(rng)), _b64(_of(rng, ALNUM, 30))
    text = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: train\ntype: Opaque\n"
    text += f"data:\n  username: Ym9i\n  db: {first}\n  other: {second}"
    return text, (first, second)


def _tls_block(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    value = _b64(_pem(rng, "PRIVATE KEY", 4)[0])
    return f"data:\n  tls.crt: LS0tLS1CRUdJTiBDRVJU\n  tls.key: {value}", (value,)


def _pem_tail(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text, rows = _pem(rng, "RSA PRIVATE KEY")
    return "\n".join(text.split("\n")[3:]), rows[2:]


PREFIXES: tuple[str, ...] = (
    "",
    "[rank3]: ",
    "3: ",
    "[2026-11-15 02:30:11,204] ",
    "2026-11-15T02:30:11.204Z stderr F ",
    "(TrainWorker pid=8123, ip=10.0.0.7) ",
    "[default3]:",
    "I1115 02:30:11.204000 8123 site-packages/torch/x.py:12] [3/0_1] ",
    "Nov 15 02:30:11 gpu-a017 slurmstepd[812]: ",
    "[1,3]<stderr>:",
    "\x1b[36m(worker-3)\x1b[0m ",
    "master-0 | ",
    "INFO:train:",
)


def plants(seed: int = 0, per_notation: int = 6) -> Iterator[Plant]:
    """Every notation with some kinds behind some prefixes; every kind in some notations; every form."""
    rng = random.Random(seed)
    named = list(KINDS)
    bare = [kind for kind, (_, _, known) in KINDS.items() if known]
    for notation, write in NAMED.items():
        for kind in rng.sample(named, per_notation):
            yield _named(rng, kind, notation, write)
    for kind in named:
        for notation in rng.sample(list(NAMED), per_notation):
            yield _named(rng, kind, notation, NAMED[notation])
    for notation, bare_write in BARE.items():
        for kind in rng.sample(bare, per_notation):
            yield _bare(rng, kind, notation, bare_write)
    for kind in bare:
        for notation in rng.sample(list(BARE), 2):
            yield _bare(rng, kind, notation, BARE[notation])
    for form, make in FORMS.items():
        for _ in range(3):
            text, needles = make(rng)
            yield Plant(form, "form", _prefixed(rng, text), needles)


def _prefixed(rng: random.Random, text: str) -> str:
    prefix = rng.choice(PREFIXES)
    return "\n".join(prefix + line for line in text.split("\n"))


_ADDRESS = re.compile(r"https://[\w.]+/(?:api/webhooks/\d+/|services/|webhookb2/)")


def _written(value: str) -> tuple[str, ...]:
    """The forms in which a notation can have written one value; of a webhook what follows its public part."""
    value = _ADDRESS.sub("", value)
    return tuple(dict.fromkeys((value, _q(value, safe=""), json.dumps(value)[1:-1], repr(value)[1:-1])))


def _named(rng: random.Random, kind: str, notation: str, write: Callable[[str, str], str]) -> Plant:
    names, make, _ = KINDS[kind]
    value = make(rng)
    name = rng.choice(names)
    text = _prefixed(rng, write(name, value))
    if notation.startswith("wrapped") or notation == "rich locals":
        pieces = [run for run in _pieces(text, _ADDRESS.sub("", value)) if len(run) >= 10]
        return Plant(kind, notation, text, tuple(pieces) or (value,), name, value)
    return Plant(kind, notation, text, _written(value), name, value)


def _bare(rng: random.Random, kind: str, notation: str, write: Callable[[str], str]) -> Plant:
    value = KINDS[kind][1](rng)
    text = _prefixed(rng, write(value))
    if notation.startswith("wrapped"):
        return Plant(
            kind, notation, text, tuple(run for run in _pieces(text, _ADDRESS.sub("", value)) if len(run) >= 10)
        )
    if notation == "base64 of":
        return Plant(kind, notation, text, (_b64("user:" + value),))
    return Plant(kind, notation, text, _written(value))


def _pieces(text: str, value: str) -> Iterator[str]:
    """The runs of the value as they stand in the lines of a text that broke it."""
    at = 0
    while at < len(value):
        end = len(value)
        while end > at and value[at:end] not in text:
            end -= 1
        if end == at:
            at += 1
            continue
        yield value[at:end]
        at = end
