"""Secrets and innocent strings once more, by another hand: a second generator that shares nothing with `secretkit`.

What one generator's author did not think of, the redaction's author did not either. Kinds by form, by name and by
structure, in the notations of shells, formats, loggers and terminals; `python tests/kits/secrets/secretkit_second.py 1 2 3` says
what of many thousands comes through.
"""

# ruff: noqa: E501, E731, E741  # a line of evidence stays one line here, and a notation one expression

from __future__ import annotations

import base64
import html
import io
import json
import random
import re
import string
import sys
import textwrap
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hangscope.bundle.redact.random_words import is_random
from hangscope.bundle.redact.redact_file import CannotRedact, Redactor

AL = string.ascii_letters + string.digits
LOW = string.ascii_lowercase + string.digits
HEX = "0123456789abcdef"
B64 = AL + "+/"
URL = AL + "-_"
WORDS = [
    "correct",
    "horse",
    "battery",
    "staple",
    "summer",
    "winter",
    "dragon",
    "monkey",
    "coffee",
    "purple",
    "orange",
    "falcon",
    "tiger",
    "rocket",
    "planet",
    "silver",
]


def r(rng, alphabet, n):
    return "".join(rng.choice(alphabet) for _ in range(n))


def b64(rng, n):
    return base64.b64encode(rng.randbytes(n)).decode()


def weak(rng):
    "a password a human made up"
    k = rng.randrange(6)
    w = rng.choice(WORDS)
    if k == 0:
        return w.capitalize() + str(rng.randrange(100, 9999)) + rng.choice("!#%*")
    if k == 1:
        return w + "-" + rng.choice(WORDS) + "-" + rng.choice(WORDS) + str(rng.randrange(10, 99))
    if k == 2:
        return r(rng, AL, 8) + rng.choice("!@#%^*") + r(rng, AL, 3)
    if k == 3:
        return w + rng.choice(WORDS) + str(rng.randrange(1000))
    if k == 4:
        return r(rng, AL + "!@#%^*_-+=", 14)
    return w[0].upper() + w[1:] + "@" + str(rng.randrange(2015, 2027))


# ---- A: tokens of a known form
FORMS = {
    "aws-akid-secret-pair": lambda g: "AKIA" + r(g, string.ascii_uppercase + "234567", 16),
    "gh-classic": lambda g: g.choice(["ghp_", "gho_", "ghs_", "ghu_", "ghr_"]) + r(g, AL, 36),
    "gh-fine": lambda g: "github_pat_" + r(g, AL, 22) + "_" + r(g, AL, 59),
    "gitlab": lambda g: g.choice(["glpat-", "gldt-", "glrt-", "glcbt-"]) + r(g, URL, 20),
    "hf": lambda g: "hf_" + r(g, string.ascii_letters, 34),
    "openai": lambda g: "sk-proj-" + r(g, URL, 48) + "T3BlbkFJ" + r(g, URL, 48),
    "openai-old": lambda g: "sk-" + r(g, AL, 20) + "T3BlbkFJ" + r(g, AL, 20),
    "anthropic": lambda g: "sk-ant-api03-" + r(g, URL, 93) + "AA",
    "slack-bot": lambda g: "xoxb-" + r(g, string.digits, 12) + "-" + r(g, string.digits, 13) + "-" + r(g, AL, 24),
    "slack-app": lambda g: (
        "xapp-1-A"
        + r(g, string.ascii_uppercase + string.digits, 10)
        + "-"
        + r(g, string.digits, 13)
        + "-"
        + r(g, HEX, 64)
    ),
    "slack-hook": lambda g: (
        "https://hooks.slack.com/services/T"
        + r(g, string.ascii_uppercase + string.digits, 8)
        + "/B"
        + r(g, string.ascii_uppercase + string.digits, 8)
        + "/"
        + r(g, AL, 24)
    ),
    "stripe": lambda g: g.choice(["sk_live_", "rk_live_", "sk_test_"]) + r(g, AL, 24),
    "npm": lambda g: "npm_" + r(g, AL, 36),
    "pypi": lambda g: "pypi-AgEIcHlwaS5vcmc" + r(g, URL, 150),
    "docker-pat": lambda g: "dckr_pat_" + r(g, URL, 27),
    "jwt": lambda g: (
        "eyJhbGciOiJIUzI1NiJ9."
        + base64.urlsafe_b64encode(json.dumps({"sub": r(g, LOW, 8), "exp": g.randrange(10**9)}).encode())
        .decode()
        .rstrip("=")
        + "."
        + r(g, URL, 43)
    ),
    "vault": lambda g: "hvs." + r(g, URL, 90),
    "databricks": lambda g: "dapi" + r(g, HEX, 32),
    "age": lambda g: "AGE-SECRET-KEY-1" + r(g, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "google-api": lambda g: "AIza" + r(g, URL, 35),
    "google-oauth": lambda g: "ya29.a0" + r(g, URL, 120),
    "google-cs": lambda g: "GOCSPX-" + r(g, URL, 28),
    "digitalocean": lambda g: "dop_v1_" + r(g, HEX, 64),
    "nvapi": lambda g: "nvapi-" + r(g, URL, 64),
    "sendgrid": lambda g: "SG." + r(g, URL, 22) + "." + r(g, URL, 43),
    "groq": lambda g: "gsk_" + r(g, AL, 52),
    "replicate": lambda g: "r8_" + r(g, AL, 37),
    "langsmith": lambda g: "lsv2_pt_" + r(g, HEX, 32) + "_" + r(g, HEX, 10),
    "pinecone": lambda g: "pcsk_" + r(g, AL, 6) + "_" + r(g, AL, 60),
    "grafana": lambda g: "glsa_" + r(g, AL, 32) + "_" + r(g, HEX, 8),
    "atlassian": lambda g: "ATATT3xFfGF0" + r(g, URL, 180) + "=" + r(g, "0123456789ABCDEF", 8),
    "rubygems": lambda g: "rubygems_" + r(g, HEX, 48),
    "postman": lambda g: "PMAK-" + r(g, HEX, 24) + "-" + r(g, HEX, 34),
    "webhook-secret": lambda g: "whsec_" + r(g, B64, 32),
    "linear": lambda g: "lin_api_" + r(g, AL, 40),
    "doppler": lambda g: "dp.pt." + r(g, AL, 43),
    "shopify": lambda g: "shpat_" + r(g, HEX, 32),
    "terraform": lambda g: r(g, AL, 14) + ".atlasv1." + r(g, URL, 67),
    "tailscale": lambda g: "tskey-auth-" + r(g, AL, 12) + "CNTRL-" + r(g, AL, 32),
    "jfrog": lambda g: "AKCp8" + r(g, AL, 68),
    "crates": lambda g: "cio" + r(g, AL, 32),
    "telegram": lambda g: r(g, "123456789", 9) + ":AA" + r(g, URL, 33),
    "fireworks": lambda g: "fw_" + r(g, AL, 24),
    "wandb-new": lambda g: "wandb_v1_" + r(g, AL, 77),
    "circleci": lambda g: "CCIPAT_" + r(g, AL, 22) + "_" + r(g, HEX, 40),
    "discord-hook": lambda g: "https://discord.com/api/webhooks/" + r(g, "123456789", 18) + "/" + r(g, URL, 68),
    "1password": lambda g: "ops_eyJ" + r(g, AL, 250),
    "cohere-random40": lambda g: r(g, AL, 40),
    "random-b64-44": lambda g: b64(g, 33),
    "lambda-secret": lambda g: "secret_" + r(g, AL, 30) + "." + r(g, AL, 32),
    "fly": lambda g: "FlyV1 fm2_" + r(g, AL + "+/", 200),
    "planetscale": lambda g: "pscale_tkn_" + r(g, URL, 43),
    "netlify": lambda g: "nfp_" + r(g, AL, 36),
    "buildkite": lambda g: "bkua_" + r(g, HEX, 40),
    "prefect": lambda g: "pnu_" + r(g, LOW, 36),
    "runpod": lambda g: "rpa_" + r(g, string.ascii_uppercase + string.digits, 38) + r(g, LOW, 6),
    "supabase": lambda g: "sbp_" + r(g, HEX, 40),
    "together": lambda g: "tgp_v1_" + r(g, URL, 43),
    "xai": lambda g: "xai-" + r(g, AL, 80),
    "perplexity": lambda g: "pplx-" + r(g, AL, 48),
    "dynatrace": lambda g: r(g, string.ascii_uppercase + "234567", 64),
}
FORM_NOTES = {
    "bare": lambda s, g: f"trying {s} now\n",
    "ansi": lambda s, g: f"\x1b[1;32m{s}\x1b[0m accepted\n",
    "ansi-in-middle": lambda s, g: f"tok \x1b[31m{s[: len(s) // 2]}\x1b[0m{s[len(s) // 2 :]}\n",
    "repr-nl": lambda s, g: f"b'line one\\n{s}\\nline'\n",
    "json-nl": lambda s, g: json.dumps({"log": "first\n" + s + "\nlast"}) + "\n",
    "json2": lambda s, g: json.dumps(json.dumps({"m": json.dumps(["a", s])})) + "\n",
    "url-enc": lambda s, g: "GET /cb?v=%22" + urllib.parse.quote(s, safe="") + "%22 HTTP/1.1\n",
    "url-enc2": lambda s, g: (
        "GET /cb?v=" + urllib.parse.quote(urllib.parse.quote('"' + s + '"', safe=""), safe="") + " HTTP/1.1\n"
    ),
    "html": lambda s, g: "<td>&quot;" + html.escape(s) + "&quot;</td>\n",
    "glued": lambda s, g: f"value_{s}\n" if not s.startswith("http") else f"value {s}\n",
    "rank": lambda s, g: f"[rank3]: [2026-01-02 03:04:05,678] INFO trainer.py:77 x={s},\n",
    "path": lambda s, g: f"open /data/cache/{s}/part-0.bin\n" if "/" not in s and ":" not in s else f"open '{s}'\n",
    "wrapped80": lambda s, g: (
        "\n".join(
            textwrap.wrap(
                "2026-01-02 03:04:05 the request was made by the client with x " + s + " and failed",
                80,
                break_on_hyphens=False,
            )
        )
        + "\n"
    ),
    "backslash-wrap": lambda s, g: f"run --x {s[: len(s) // 2]}\\\n{s[len(s) // 2 :]} y\n",
    "argv": lambda s, g: f"['python', 'train.py', '--x', {s!r}]\n",
    "traceback": lambda s, g: (
        f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    login("{s}")\nValueError: bad {s}\n'
    ),
    "locals": lambda s, g: f"    locals: x = '{s}', step = 3\n",
    "b64": lambda s, g: "payload " + base64.b64encode(("login " + s + " ok").encode()).decode() + "\n",
    "u-escape": lambda s, g: '{"m": "\\u0022' + s + '\\u0022"}\n',
    "k8s-event": lambda s, g: f'Warning  Failed  2m  kubelet  Error: failed to start container "t": args [--x={s}]\n',
}
# ---- B: named values
NAMES = [
    "DB_PASSWORD",
    "PGPASSWORD",
    "MYSQL_PWD",
    "REDIS_PASSWORD",
    "LDAP_BIND_PW",
    "SMTP_PASS",
    "SVC_PW",
    "MLFLOW_TRACKING_PASSWORD",
    "RESTIC_PASSWORD",
    "MINIO_ROOT_PASSWORD",
    "SNOWFLAKE_PASSWORD",
    "RAY_REDIS_PASSWORD",
    "COSIGN_PASSWORD",
    "KEYSTORE_PASSWORD",
    "ANSIBLE_VAULT_PASSWORD",
    "sudo_pass",
    "gpg_passphrase",
    "ssh_passphrase",
    "JUPYTER_PASSWORD",
    "admin_password",
    "WANDB_API_KEY",
    "COMET_API_KEY",
    "NEPTUNE_API_TOKEN",
    "CLEARML_API_SECRET_KEY",
    "CLEARML_API_ACCESS_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_CLIENT_SECRET",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "OPENAI_API_KEY",
    "VAULT_TOKEN",
    "JUPYTER_TOKEN",
    "SLURM_JWT",
    "MINIO_SECRET_KEY",
    "S3_SECRET",
    "encryption_key",
    "SIGNING_KEY",
    "DJANGO_SECRET_KEY",
    "client_secret",
    "access_token",
    "refresh_token",
    "NGC_API_KEY",
    "NGC_CLI_API_KEY",
    "DISCORD_BOT_TOKEN",
    "webhook_secret",
    "private_key",
    "hmac_key",
    "DATADOG_API_KEY",
    "DD_APP_KEY",
    "ROLLBAR_ACCESS_TOKEN",
    "sessionid",
    "csrftoken",
    "auth_token",
    "bearer_token",
    "oauth_token",
    "id_token",
    "KAGGLE_KEY",
    "GITHUB_TOKEN",
    "CI_JOB_TOKEN",
    "apiKey",
    "clientSecret",
    "accessToken",
    "dbPassword",
    "secretKey",
    "privateKey",
    "authToken",
    "passwd",
    "pwd",
    "passphrase",
    "SECRET",
    "PASSWORD",
    "TOKEN",
    "API-KEY",
    "X-Api-Key",
    "api.key",
    "spring.datasource.password",
    "LABEL_STUDIO_API_KEY",
    "SINGULARITY_DOCKER_PASSWORD",
    "APPTAINER_DOCKER_PASSWORD",
    "TWINE_PASSWORD",
    "UV_INDEX_PRIVATE_PASSWORD",
    "PIP_INDEX_PASSWORD",
    "RCLONE_CONFIG_PASS",
    "OS_PASSWORD",
    "VSPHERE_PASSWORD",
    "fernet_key",
    "jwt_secret",
    "ENCRYPTION_PASSPHRASE",
    "MASTER_KEY",
    "DEPLOY_KEY",
    "SSH_KEY",
    "LICENSE_KEY",
    "account_key",
    "storage_account_key",
    "sas_token",
    "shared_access_key",
    "connection_password",
    "proxy_password",
    "BASIC_AUTH_PASSWORD",
    "http_auth_password",
]


def named_value(g, name):
    low = name.lower()
    if low == "fernet_key":  # the name alone does not say that it is secret: its value is always this long
        return base64.urlsafe_b64encode(g.randbytes(32)).decode()
    if any(w in low for w in ("pass", "pw", "pwd")):
        return weak(g)
    return g.choice(
        [
            lambda: r(g, HEX, 40),
            lambda: r(g, AL, 25),
            lambda: b64(g, 30),
            lambda: weak(g),
            lambda: r(g, LOW, 32),
            lambda: r(g, HEX, 32),
            lambda: r(g, AL, 16),
        ]
    )()


NAMED_NOTES = {
    "env": lambda n, v, g: f"{n}={v}\n",
    "export": lambda n, v, g: f"export {n}='{v}'\n",
    "setx": lambda n, v, g: f"+ export {n}={v}\n+ {n}={v}\n",
    "declare": lambda n, v, g: f'declare -x {n}="{v}"\n',
    "environ-repr": lambda n, v, g: f"environ({{'HOME': '/root', {n!r}: {v!r}, 'LANG': 'C'}})\n",
    "json": lambda n, v, g: json.dumps({"a": 1, n: v, "z": [1]}) + "\n",
    "json-pretty": lambda n, v, g: json.dumps({"a": {"b": {n: v}}, "z": [1]}, indent=2) + "\n",
    "json2": lambda n, v, g: json.dumps({"m": json.dumps({n: v})}) + "\n",
    "json3": lambda n, v, g: json.dumps({"m": json.dumps({"q": json.dumps({n: v})})}) + "\n",
    "json-split": lambda n, v, g: json.dumps({"env": [{"name": n, "value": v}]}, indent=1) + "\n",
    "yaml": lambda n, v, g: f"db:\n  host: a\n  {n}: {json.dumps(v)}\n  port: 3\n",
    "yaml-plain": lambda n, v, g: f"db:\n  host: a\n  {n}: {v}\n",
    "yaml-block": lambda n, v, g: f"{n}: |\n  {v}\nnext: 1\n",
    "yaml-fold": lambda n, v, g: f"{n}: >-\n    {v}\nnext: 1\n",
    "yaml-list": lambda n, v, g: f"{n}:\n  - {v}\n  - {v}x\nnext: 1\n",
    "yaml-namevalue": lambda n, v, g: f"env:\n- name: {n}\n  value: {json.dumps(v)}\n- name: A\n  value: b\n",
    "yaml-valuename": lambda n, v, g: f"env:\n- value: {json.dumps(v)}\n  name: {n}\n",
    "docker-env": lambda n, v, g: f"Step 4/9 : ENV {n} {v}\n",
    "docker-arg": lambda n, v, g: f"ARG {n}={v}\n",
    "setenv": lambda n, v, g: f"setenv {n} {v}\n",
    "fish": lambda n, v, g: f"set -gx {n} {v}\n",
    "cli-space": lambda n, v, g: f"python train.py --{n.lower().replace('_', '-')} {v} --steps 3\n",
    "cli-eq": lambda n, v, g: f"torchrun --nnodes 2 train.py --{n.lower()}={v} --steps 3\n",
    "cli-quoted": lambda n, v, g: f"torchrun train.py --{n.lower()} '{v}'\n",
    "argv": lambda n, v, g: f"argv: ['train.py', '--{n.lower()}', {v!r}, '--steps', '3']\n",
    "argv-json": lambda n, v, g: json.dumps(["train.py", f"--{n.lower()}", v, "--steps", "3"]) + "\n",
    "argv-json-pretty": lambda n, v, g: json.dumps(["train.py", f"--{n.lower()}", v, "--steps", "3"], indent=2) + "\n",
    "query": lambda n, v, g: f"GET /x?a=1&{n}={urllib.parse.quote(v, safe='')}&b=2 HTTP/1.1\n",
    "query-enc": lambda n, v, g: (
        "next=" + urllib.parse.quote(f"/x?a=1&{n}={urllib.parse.quote(v, safe='')}&b=2", safe="") + "\n"
    ),
    "ansi": lambda n, v, g: f"\x1b[36m{n}\x1b[0m=\x1b[35m{v}\x1b[0m\n",
    "ansi-json": lambda n, v, g: f'\x1b[34;1m"{n}"\x1b[0m: \x1b[32m"{v}"\x1b[0m,\n',
    "rank": lambda n, v, g: f"[rank3]: [2026-01-02 03:04:05,678] INFO {n}: {v}\n",
    "ts": lambda n, v, g: f"2026-01-02T03:04:05.678Z node7 train[88]: {n}={v}\n",
    "locals": lambda n, v, g: f"      {n} = '{v}'\n      step = 3\n",
    "rich-locals": lambda n, v, g: f"│ {n} = '{v}'   │\n",
    "rich-table": lambda n, v, g: f"│ {n}   │ {v}   │\n",
    "md-table": lambda n, v, g: f"| {n} | {v} |\n",
    "namespace": lambda n, v, g: f"Namespace(lr=0.1, {n.replace('-', '_').replace('.', '_')}={v!r}, steps=3)\n",
    "dataclass": lambda n, v, g: f"Config(opt=Opt(lr=1), {n.replace('-', '_').replace('.', '_')}={v!r})\n",
    "hydra": lambda n, v, g: f"python main.py ++cfg.auth.{n}={v} seed=1\n",
    "toml": lambda n, v, g: f'[auth]\n{n} = "{v}"\n',
    "ini": lambda n, v, g: f"[auth]\n{n} = {v}\n",
    "powershell": lambda n, v, g: f'$env:{n} = "{v}"\n',
    "sbatch": lambda n, v, g: f"#SBATCH --export=ALL,{n}={v},FOO=1\n",
    "srun-export": lambda n, v, g: f"srun --export=ALL,{n}={v} python t.py\n",
    "docker-run": lambda n, v, g: f"docker run -e {n}={v} -it img\n",
    "ray-env": lambda n, v, g: (
        f"ray job submit --runtime-env-json='{json.dumps({'env_vars': {n: v}})}' -- python t.py\n"
    ),
    "mpirun": lambda n, v, g: f"mpirun -x {n}={v} -np 8 python t.py\n",
    "nul": lambda n, v, g: f"PATH=/bin\0{n}={v}\0HOME=/root\0",
    "go-struct": lambda n, v, g: f"{{Host:a {n}:{v} Port:3}}\n",
    "xml": lambda n, v, g: f"<{n}>{html.escape(v)}</{n}>\n",
    "xml-hadoop": lambda n, v, g: f"<property><name>{n}</name><value>{html.escape(v)}</value></property>\n",
    "html-esc": lambda n, v, g: html.escape(json.dumps({n: v})) + "\n",
    "wrap80": lambda n, v, g: (
        "\n".join(
            textwrap.wrap(
                f"2026-01-02 03:04:05 the environment of this process was as here printed: {n}={v} and it ended",
                80,
                break_on_hyphens=False,
            )
        )
        + "\n"
    ),
    "pprint": lambda n, v, g: f"{{'HOME': '/root',\n {n!r}: {v!r},\n 'Z': 1}}\n",
    "pprint-below": lambda n, v, g: f"{{{n!r}:\n     {v!r},\n 'Z': 1}}\n",
    "header-repr": lambda n, v, g: f"headers=[(b'{n.lower()}', b'{v}'), (b'host', b'a')]\n",
    "items": lambda n, v, g: f"dict_items([('A', 'b'), ({n!r}, {v!r})])\n",
    "os-environ": lambda n, v, g: f'    os.environ["{n}"] = "{v}"\n',
    "setdefault": lambda n, v, g: f"    os.environ.setdefault('{n}', '{v}')\n",
    "getenv": lambda n, v, g: f"    key = os.getenv('{n}', '{v}')\n",
    "kwarg": lambda n, v, g: f"    client = Client(host, {n.replace('-', '_').replace('.', '_')}='{v}')\n",
    "f-debug": lambda n, v, g: f"DEBUG {n}='{v}' host='a'\n",
    "logfmt": lambda n, v, g: f'level=info msg="login" {n}="{v}" ts=1\n',
    "prose": lambda n, v, g: f"the {n} is {v}\n",
    "prose-arrow": lambda n, v, g: f"{n} -> {v}\n",
    "colon-eq": lambda n, v, g: f"{n} := {v}\n",
    "hash-rocket": lambda n, v, g: f':{n} => "{v}",\n',
    "k8s-env": lambda n, v, g: f"    Environment:\n      {n}:  {v}\n      FOO:   bar\n",
    "b64-line": lambda n, v, g: base64.b64encode(f"FOO=bar\n{n}={v}\n".encode()).decode() + "\n",
    "curl-data": lambda n, v, g: f"curl -d '{n}={v}&x=1' https://a.b/c\n",
    "curl-H": lambda n, v, g: f"curl -H '{n}: {v}' https://a.b/c\n",
    "systemd": lambda n, v, g: f'Environment="{n}={v}"\n',
    "singularity": lambda n, v, g: f"singularity exec --env {n}={v},B=1 img.sif python t.py\n",
    "bytes-repr": lambda n, v, g: f"b'{n}={v}\\nFOO=bar'\n",
    "diff": lambda n, v, g: f"-{n}={v}x\n+{n}={v}\n",
    "grep": lambda n, v, g: f".env:12:{n}={v}\n",
    "cat-n": lambda n, v, g: f"    12\t{n}={v}\n",
}


# ---- C: by structure
def pem(g, kind="RSA PRIVATE KEY", n=10, pre=""):
    body = [b64(g, 48) for _ in range(n)]
    return body, f"{pre}-----BEGIN {kind}-----\n" + "".join(
        pre + l + "\n" for l in body
    ) + f"{pre}-----END {kind}-----\n"


def structural(g):
    """(kind, [cores], text)"""
    p = weak(g).replace("@", "_").replace("/", "_").replace("#", "_").replace("%", "_").replace("+", "_")
    u = g.choice(["svc", "trainer", "mlops", "admin"])
    h = g.choice(["db.internal", "10.0.3.7", "redis-0.ns.svc"])
    hexk = r(g, HEX, 40)
    al = r(g, AL, 32)
    b = b64(g, 64)
    out = []

    def add(kind, cores, text):
        out.append((kind, cores if isinstance(cores, list) else [cores], text))

    for scheme in (
        "postgresql",
        "postgresql+psycopg2",
        "mysql+pymysql",
        "redis",
        "rediss",
        "mongodb+srv",
        "amqp",
        "amqps",
        "smtp",
        "ftp",
        "https",
        "sftp",
        "ldap",
        "clickhouse",
        "kafka",
        "nats",
        "s3",
        "socks5h",
    ):
        add("url-" + scheme, p, f"connecting to {scheme}://{u}:{p}@{h}:5432/db?x=1\n")
    add("url-redis-nouser", p, f"broker redis://:{p}@{h}:6379/0\n")
    add("url-encoded-pw", urllib.parse.quote(weak(g) + "/x@y", safe=""), "")
    pe = urllib.parse.quote(p + "/@" + r(g, AL, 6), safe="")
    out[-1] = ("url-encoded-pw", [pe], f"postgres://{u}:{pe}@{h}/db\n")
    add("url-whole-encoded", p, "next=" + urllib.parse.quote(f"postgres://{u}:{p}@{h}/db", safe="") + "\n")
    add("git-url-token", al, f"Cloning https://oauth2:{al}@gitlab.corp/x/y.git\n")
    add("git-url-onlytoken", hexk, f"fatal: unable to access 'https://{hexk}@github.com/x/y.git/': 403\n")
    add("pip-index", al, f"Looking in indexes: https://__token__:{al}@pypi.corp/simple\n")
    add("jdbc", p, f"jdbc:postgresql://{h}/db?user={u}&password={p}&ssl=true\n")
    add("jdbc-sqlserver", p, f"jdbc:sqlserver://{h};databaseName=x;user={u};password={p};\n")
    add("odbc", p, f"DRIVER={{ODBC Driver 17}};SERVER={h};UID={u};PWD={p};Encrypt=yes\n")
    add("libpq", p, f"conninfo: host={h} port=5432 user={u} password={p} dbname=x\n")
    add("libpq-quoted", p, f"psycopg2.connect(\"host={h} user={u} password='{p}' dbname=x\")\n")
    add("oracle", p, f"sqlplus {u}/{p}@{h}:1521/orcl\n")
    add(
        "azure-conn",
        b,
        f"DefaultEndpointsProtocol=https;AccountName=acc;AccountKey={b};EndpointSuffix=core.windows.net\n",
    )
    add("azure-sb", b64(g, 32), "")
    k = b64(g, 32)
    out[-1] = (
        "azure-sb",
        [k],
        f"Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={k}\n",
    )
    sig = urllib.parse.quote(b64(g, 32), safe="")
    add(
        "sas",
        sig,
        f"https://acc.blob.core.windows.net/c/ckpt?sv=2022-11-02&ss=b&srt=co&sp=r&se=2026-01-01T00%3A00%3A00Z&sig={sig}\n",
    )
    add("aws-presigned", r(g, HEX, 64), "")
    k = r(g, HEX, 64)
    out[-1] = (
        "aws-presigned",
        [k],
        f"https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA{r(g, string.ascii_uppercase, 16)}%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature={k}\n",
    )
    k = r(g, HEX, 512)
    add(
        "gcs-presigned",
        k,
        f"https://storage.googleapis.com/b/o?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Expires=60&X-Goog-Signature={k}\n",
    )
    k = r(g, HEX, 64)
    add(
        "sigv4-header",
        k,
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIAX/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature={k}\n",
    )
    k = b64(g, 3000)[:700]
    add("aws-session", k, f"aws_session_token = {k}\n")
    k = b64(g, 600)[:700]
    add(
        "aws-sts-json",
        [al, k],
        json.dumps(
            {
                "Credentials": {
                    "AccessKeyId": "ASIA" + r(g, string.ascii_uppercase, 16),
                    "SecretAccessKey": al,
                    "SessionToken": k,
                }
            },
            indent=2,
        )
        + "\n",
    )
    k = b64(g, 30)
    add(
        "aws-credentials-file",
        k,
        f"[default]\naws_access_key_id = AKIA{r(g, string.ascii_uppercase, 16)}\naws_secret_access_key = {k}\n",
    )
    k = b64(g, 30)
    add("aws-configure", k, f"aws configure set aws_secret_access_key {k}\n")
    k = r(g, HEX, 48)
    add("jupyter", k, f"    http://127.0.0.1:8888/lab?token={k}\n")
    k = r(g, HEX, 48)
    add(
        "jupyter-or",
        k,
        f"[I 2026 ServerApp] http://node7:8888/tree?token={k}\n     or http://127.0.0.1:8888/tree?token={k}\n",
    )
    k = r(g, string.ascii_uppercase + "234567", 32)
    add("otpauth", k, f"otpauth://totp/ACME:alice?secret={k}&issuer=ACME\n")
    k = r(g, string.ascii_uppercase + "234567", 16)
    add("otpauth-short", k, f"scan otpauth://totp/x?issuer=A&secret={k}\n")
    add("pgpass", p.replace(":", "_"), f"{h}:5432:db:{u}:{p.replace(':', '_')}\n")
    add("pgpass-star", p.replace(":", "_"), f"*:*:*:{u}:{p.replace(':', '_')}\n")
    add("netrc", hexk, f"machine api.wandb.ai login user password {hexk}\n")
    add("netrc-multi", hexk, f"machine api.wandb.ai\n  login user\n  password {hexk}\n")
    k = b64(g, 900)
    add(
        "kubeconfig",
        k,
        f"users:\n- name: admin\n  user:\n    client-certificate-data: {b64(g, 300)}\n    client-key-data: {k}\n",
    )
    k = b64(g, 300)
    add(
        "k8s-secret-tls",
        k,
        f"apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\ndata:\n  tls.crt: {b64(g, 200)}\n  tls.key: {k}\n",
    )
    add(
        "k8s-secret-opaque",
        base64.b64encode(p.encode()).decode(),
        f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\ndata:\n  username: YQ==\n  foo: {base64.b64encode(p.encode()).decode()}\n",
    )
    add(
        "k8s-secret-reordered",
        base64.b64encode(p.encode()).decode(),
        f"apiVersion: v1\ndata:\n  foo: {base64.b64encode(p.encode()).decode()}\nkind: Secret\nmetadata:\n  name: s\n",
    )
    add(
        "k8s-secret-json",
        base64.b64encode(p.encode()).decode(),
        json.dumps({"apiVersion": "v1", "data": {"foo": base64.b64encode(p.encode()).decode()}, "kind": "Secret"})
        + "\n",
    )
    add("k8s-stringdata", p, f"kind: Secret\nstringData:\n  foo: {p}\n")
    add(
        "docker-config",
        base64.b64encode(f"{u}:{p}".encode()).decode(),
        json.dumps(
            {"auths": {"https://index.docker.io/v1/": {"auth": base64.b64encode(f"{u}:{p}".encode()).decode()}}},
            indent=1,
        )
        + "\n",
    )
    add("docker-config-nvcr", p, json.dumps({"auths": {"nvcr.io": {"username": "$oauthtoken", "password": p}}}) + "\n")
    body, text = pem(g)
    add("pem-rsa", body, text)
    body, text = pem(g, "OPENSSH PRIVATE KEY")
    add("pem-openssh", body, text)
    body, text = pem(g, "PRIVATE KEY", 8, "[rank0]: ")
    add("pem-prefixed", body, text)
    body, text = pem(g, "EC PRIVATE KEY", 4, "2026-01-02T03:04:05.6Z stdout F ")
    add("pem-cri-prefix", body, text)
    body, text = pem(g, "PRIVATE KEY", 12)
    add("pem-headless", body[2:], "\n".join(text.split("\n")[3:]))
    body, text = pem(g, "PRIVATE KEY", 12)
    add("pem-footless", body[:8], "\n".join(text.split("\n")[:9]) + "\nstep 1 loss 2.3\n")
    body, text = pem(g, "PRIVATE KEY", 12)
    add("pem-middle", body[3:8], "\n".join(text.split("\n")[4:9]) + "\n")
    body, text = pem(g, "RSA PRIVATE KEY", 12)
    add("pem-oneline-repr", body, "key = " + repr(text) + "\n")
    body, text = pem(g, "PRIVATE KEY", 12)
    add(
        "pem-sa-json",
        body,
        json.dumps(
            {
                "type": "service_account",
                "private_key_id": hexk,
                "private_key": text,
                "client_email": "x@y.iam.gserviceaccount.com",
            },
            indent=1,
        )
        + "\n",
    )
    body, text = pem(g, "PRIVATE KEY", 12)
    add("pem-sa-json-inner", body, json.dumps({"e": json.dumps({"private_key": text})}) + "\n")
    body, text = pem(g, "PRIVATE KEY", 6, "    ")
    add("pem-yaml", body, "tls:\n  key: |\n" + text)
    body, text = pem(g, "PGP PRIVATE KEY BLOCK", 8)
    add("pgp", body, text.replace("-----\n", "-----\nVersion: GnuPG v2\n\n", 1))
    body, text = pem(g, "PRIVATE KEY", 12)
    add(
        "pem-b64", [base64.b64encode(text.encode()).decode()], "data " + base64.b64encode(text.encode()).decode() + "\n"
    )
    body, text = pem(g, "PRIVATE KEY", 6)
    add("pem-spaces", body, text.replace("\n", " ").strip() + "\n")
    body, text = pem(g, "PRIVATE KEY", 6, "\x1b[2m")
    add("pem-ansi", body, text)
    body = [b64(g, 48) for _ in range(3)]
    add(
        "putty",
        body,
        "PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nPrivate-Lines: 3\n"
        + "\n".join(body)
        + "\nPrivate-MAC: "
        + hexk
        + "\n",
    )
    k = b64(g, 32)
    add("wireguard", k, f"[Interface]\nPrivateKey = {k}\nAddress = 10.0.0.1/32\n")
    k = r(g, AL + "./", 86)
    add("shadow", k, f"root:$6${r(g, AL, 16)}${k}:19000:0:99999:7:::\n")
    k = r(g, AL + "./", 22)
    add("htpasswd-apr1", k, f"alice:$apr1${r(g, AL, 8)}${k}\n")
    k = r(g, AL + "./", 53)
    add("bcrypt", k, f"alice:$2y$10${k}\n")
    k = b64(g, 32)
    add("argon2", k, f"jupyter password: argon2:$argon2id$v=19$m=10240,t=10,p=8${b64(g, 16)}${k}\n")
    add("cookie", al, f"Cookie: session={al}; theme=dark\n")
    add("set-cookie", al, f"Set-Cookie: sid={al}; Path=/; HttpOnly\n")
    add("cookie-repr", al, f"{{'Cookie': 'theme=dark; session={al}'}}\n")
    add("bearer", al, f"Authorization: Bearer {al}\n")
    add("bearer-dict", al, f"headers={{'Authorization': 'Bearer {al}', 'Accept': '*/*'}}\n")
    add("bearer-curl", al, f'curl -H "Authorization: Bearer {al}" https://x\n')
    add("auth-token-header", hexk, f"> Authorization: token {hexk}\n")
    add(
        "basic",
        base64.b64encode(f"{u}:{p}".encode()).decode(),
        f"Authorization: Basic {base64.b64encode(f'{u}:{p}'.encode()).decode()}\n",
    )
    add(
        "proxy-auth",
        base64.b64encode(f"{u}:{p}".encode()).decode(),
        f"Proxy-Authorization: Basic {base64.b64encode(f'{u}:{p}'.encode()).decode()}\n",
    )
    add("private-token-header", al, f"PRIVATE-TOKEN: {al}\n")
    add("auth-tuple", p, f"requests.get(url, auth=('{u}', '{p}'))\n")
    add("auth-basic-obj", p, f"auth=HTTPBasicAuth('{u}', '{p}')\n")
    add("auth-aiohttp", p, f"aiohttp.BasicAuth(login='{u}', password='{p}')\n")
    add("wandb-login", hexk, f"+ wandb login {hexk}\n")
    add("wandb-login-relogin", hexk, f"wandb login --relogin --host https://w.corp {hexk}\n")
    add("wandb-py", hexk, f"wandb.login(key='{hexk}')\n")
    add("hf-cli", al, f"huggingface-cli login --token {al}\n")
    add("docker-login", p, f"docker login -u {u} -p {p} nvcr.io\n")
    add("docker-login-stdin", p, f"echo {p} | docker login -u {u} --password-stdin nvcr.io\n")
    add("helm-login", p, f"helm registry login -u {u} -p '{p}' reg\n")
    add("podman-creds", p, f"podman pull --creds {u}:{p} reg/x\n")
    add("skopeo", p, f"skopeo copy --src-creds={u}:{p} docker://a dir:b\n")
    add("mysql-p", p, f"mysql -u{u} -p{p} -h {h}\n")
    add("mysql-p2", p, f"mysqldump -h {h} -u {u} -p'{p}' db\n")
    add("sshpass", p, f"sshpass -p '{p}' ssh {u}@{h}\n")
    add("sshpass-glued", p, f"sshpass -p{p} scp a {h}:b\n")
    add("curl-u", p, f"curl -u {u}:{p} https://x\n")
    add("curl-user", p, f"curl --user '{u}:{p}' https://x\n")
    add("wget", p, f"wget --user {u} --password {p} https://x\n")
    add("wget-http", p, f"wget --http-user={u} --http-password={p} https://x\n")
    add("redis-a", p, f"redis-cli -h {h} -a {p} ping\n")
    add("mongo-p", p, f"mongosh -u {u} -p {p} --host {h}\n")
    add("ldap-w", p, f"ldapsearch -x -D cn=a -w {p} -b dc=x\n")
    add("smbclient", p, f"smbclient //h/s -U {u}%{p}\n")
    add("mount-cifs", p, f"mount -t cifs -o username={u},password={p} //h/s /mnt\n")
    add("openssl-pass", p, f"openssl rsa -in k.pem -passin pass:{p}\n")
    add("openssl-k", p, f"openssl enc -aes-256-cbc -k {p} -in a\n")
    add("gpg", p, f"gpg --batch --passphrase {p} -d x.gpg\n")
    add("zip-P", p, f"zip -P {p} a.zip b\n")
    add("7z-p", p, f"7z x -p{p} a.7z\n")
    add("htpasswd-b", p, f"htpasswd -b /etc/htpasswd {u} {p}\n")
    add("chpasswd", p, f"echo '{u}:{p}' | chpasswd\n")
    add("sudo-S", p, f"echo '{p}' | sudo -S apt install x\n")
    add("prompt", p, f"Password: {p}\n")
    add("prompt-for", p, f"[sudo] password for alice: {p}\n")
    add("enter-pass", p, f"Enter passphrase for key '/root/.ssh/id_rsa': {p}\n")
    add("expect", p, f'send "{p}\\r"\n') if False else None
    add("kubectl-literal", p, f"kubectl create secret generic s --from-literal=foo={p}\n")
    add(
        "kubectl-docker-registry",
        p,
        f"kubectl create secret docker-registry r --docker-server=x --docker-username={u} --docker-password={p}\n",
    )
    add("kubectl-token", al, f"kubectl --token={al} get pods\n")
    add("k8s-join", f"{r(g, LOW, 6)}.{r(g, LOW, 16)}", "")
    k = f"{r(g, LOW, 6)}.{r(g, LOW, 16)}"
    out[-1] = (
        "k8s-join",
        [k.split(".")[1]],
        f"kubeadm join 10.0.0.1:6443 --token {k} --discovery-token-ca-cert-hash sha256:{r(g, HEX, 64)}\n",
    )
    add("az-login", p, f"az login --service-principal -u {u} -p {p} --tenant t\n")
    add("gcloud-token", al, f"gcloud --access-token={al}\n") if False else None
    add("vault-write", p, f"vault kv put secret/x password={p}\n")
    add("s3cfg", al, f"[default]\nsecret_key = {al}\nhost_base = x\n")
    add("rclone", al, f"[remote]\ntype = s3\npass = {al}\n")
    add("rclone-secret", al, f"secret_access_key = {al}\n")
    add("msmtp", p, f"account default\nuser {u}\npassword {p}\n")
    add("redis-conf", p, f"requirepass {p}\n")
    add("redis-auth", p, f"AUTH {p}\n")
    add("mysql-cnf", p, f"[client]\nuser={u}\npassword={p}\n")
    add("sql-identified", p, f"CREATE USER '{u}'@'%' IDENTIFIED BY '{p}';\n")
    add("sql-alter", p, f"ALTER ROLE {u} WITH PASSWORD '{p}';\n")
    add("smtp-login", p, f"    server.login('{u}@corp.com', '{p}')\n")
    add(
        "smtp-auth-plain",
        base64.b64encode(f"\0{u}\0{p}".encode()).decode(),
        f"AUTH PLAIN {base64.b64encode(chr(0).join(['', u, p]).encode()).decode()}\n",
    )
    add(
        "smtp-auth-trace",
        base64.b64encode(f"\0{u}\0{p}".encode()).decode(),
        f"send: 'AUTH PLAIN {base64.b64encode(chr(0).join(['', u, p]).encode()).decode()}\\r\\n'\n",
    )
    add("ftp-pass", p, f"ftp> PASS {p}\n")
    add("imap-login", p, f"a1 LOGIN {u} {p}\n")
    add("paramiko", p, f"    ssh.connect(host, username='{u}', password='{p}')\n")
    add("snowflake-repr", p, f"snowflake.connector.connect(user='{u}', password='{p}', account='x')\n")
    add("ansible-extra", p, f"ansible-playbook x.yml -e 'ansible_become_pass={p}'\n")
    add("yaml-db-list", p, f"databases:\n  - host: a\n    user: b\n    password: {p}\n  - host: c\n    password: {p}\n")
    add("yaml-flow", p, f"db: {{host: a, user: b, password: {p}, port: 1}}\n")
    add("yaml-password-nested", p, f"password:\n  value: {p}\n  from: vault\n")
    add("json-cred-obj", p, json.dumps({"credentials": {"user": u, "x": p}}) + "\n")
    add("json-tokens-list", [al, hexk], json.dumps({"tokens_secret": [al, hexk]}) + "\n") if False else None
    add("json-api_keys-list", [al, hexk], json.dumps({"api_keys": [al, hexk]}) + "\n")
    add(
        "teams-hook",
        hexk,
        f"https://corp.webhook.office.com/webhookb2/{r(g, HEX, 8)}-1111-2222-3333-{r(g, HEX, 12)}@{r(g, HEX, 8)}-1111-2222-3333-{r(g, HEX, 12)}/IncomingWebhook/{hexk}/{r(g, HEX, 8)}-1111-2222-3333-{r(g, HEX, 12)}\n",
    )
    add("sentry-dsn", r(g, HEX, 32), "")
    k = r(g, HEX, 32)
    out[-1] = ("sentry-dsn", [k], f"SENTRY_DSN=https://{k}@o123.ingest.sentry.io/456\n")
    add("comet-init", al, f"comet_ml.init(api_key='{al}')\n")
    add("neptune-init", al, f"neptune.init_run(project='x', api_token='{al}')\n")
    add("clearml-conf", [al, hexk], f'api {{\n  credentials {{"access_key" = "{al}"\n "secret_key" = "{hexk}"}}\n}}\n')
    add("mlflow-uri", p, f"MLFLOW_TRACKING_URI=https://{u}:{p}@mlflow.corp\n")
    add("proxy-env", p, f"http_proxy=http://{u}:{p}@proxy.corp:3128\nHTTPS_PROXY=http://{u}:{p}@proxy.corp:3128\n")
    add("openai-header", al, f"'api-key': '{al}'\n")
    add("cli-secret-arg", al, f"python x.py --secret {al}\n")
    add("cli-api-key-single-dash", al, f"tool -apikey {al}\n")
    add("cli-key", al, f"prog --key {al} --n 3\n")
    add("slurm-cred", al, f"SLURM_JWT={al}\n")
    add("munge", b64(g, 128), "")
    k = b64(g, 120)
    out[-1] = ("munge", [k], f"MUNGE:{k}:\n")
    add("krb", p, f"echo {p} | kinit alice@CORP\n")
    add("xauth", r(g, HEX, 32), "")
    k = r(g, HEX, 32)
    out[-1] = ("xauth", [k], f"node7/unix:10  MIT-MAGIC-COOKIE-1  {k}\n")
    add("macaroon", al, f"storage token: {al}{al}\n")
    add("ssh-agent-b64key", [b64(g, 200)], "")
    k = b64(g, 300)
    out[-1] = ("ssh-key-b64-env", [k], f"SSH_PRIVATE_KEY={k}\n")
    add("tf-var", p, f"TF_VAR_db_password={p}\n")
    add("ps-line", p, f"root  812  0.0  /usr/bin/python t.py --db-password {p} --x 1\n")
    add("cmdline-nul", p, f"python\0t.py\0--db-password\0{p}\0--x\0001\n")
    add("proc-environ", p, f"HOME=/root\0DB_PASSWORD={p}\0X=1\0")
    add(
        "curl-trace", al, f"=> Send header, 99 bytes (0x63)\n0000: Authorization: Bearer {al[:10]}\n"
    ) if False else None
    add("boto-debug", hexk + hexk[:24], f"DEBUG botocore.auth Signature:\n{hexk}{hexk[:24]}\n")
    add("urllib3-debug", hexk, f'DEBUG urllib3 https://api.x:443 "GET /v1?api_key={hexk} HTTP/1.1" 200\n')
    add("httpx-info", hexk, f'INFO httpx HTTP Request: GET https://api.x/v1?key={hexk} "HTTP/1.1 200 OK"\n')
    add("pydantic-err", p, f"  Value error [type=value_error, input_value={{'password': '{p}'}}, input_type=dict]\n")
    add("omegaconf", p, f"DictConfig({{'db': {{'password': '{p}'}}}})\n")
    add("attr-dict", p, f"password                  {p}\n")
    add("dots", p, f"db_password ..................... {p}\n")
    add("megatron-dots", hexk, f"  wandb_api_key ................................... {hexk}\n")
    add("tqdm", p, f"  3%|x | 3/100 [00:01<00:30] password={p}\n")
    add("crlf", p, f"PASSWORD={p}\r\nX=1\r\n")
    add("tabbed", p, f"password\t{p}\n")
    add("password-quoted-spaces", p + " " + p, f'password = "{p} {p}"\n')
    add("comment", p, f"# password: {p}\n")
    add("sql-alchemy-engine", p, f"Engine(postgresql://{u}:{p}@{h}/x)\n")
    add("fsspec-so", [al, hexk], f"storage_options={{'key': '{al}', 'secret': '{hexk}'}}\n")
    add("s3fs", [hexk], f"S3FileSystem(key='AKIA{r(g, string.ascii_uppercase, 16)}', secret='{hexk}')\n")
    add("boto3-client", [al], f"boto3.client('s3', aws_access_key_id='x', aws_secret_access_key='{al}')\n")
    add("nested-bytes", p, f'b\'{{"password": "{p}"}}\'\n')
    return out


class Plant(NamedTuple):
    kind: str
    notation: str
    cores: tuple[str, ...]
    """What may not come through, nor a good part of it."""
    text: str


_PREFIXED: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    "rank": lambda text: "".join(f"[rank3]: {line}\n" for line in text.rstrip("\n").split("\n")),
    "logger": lambda text: "".join(f"2026-01-02 03:04:05,678 - INFO - {x}\n" for x in text.rstrip("\n").split("\n")),
    "container": lambda text: json.dumps({"log": text, "stream": "stdout"}) + "\n",
    "repr": lambda text: f"out = {text!r}\n",
    "colour": lambda text: "".join(f"\x1b[33m{line}\x1b[0m\n" for line in text.rstrip("\n").split("\n")),
}


def planted(seed: int) -> Iterator[Plant]:
    """Every form in every notation, every name in fifteen of them, every structure behind every prefix."""
    g = random.Random(seed)
    for kind, make in FORMS.items():
        for note, wrap in FORM_NOTES.items():
            secret = make(g)
            while not _found(kind, secret):
                secret = make(g)
            yield Plant(kind, note, (secret,), wrap(secret, g))
    for name in NAMES:
        for note, wrap_named in g.sample(list(NAMED_NOTES.items()), 15):
            value = named_value(g, name).replace("'", "x").replace('"', "x")
            yield Plant("named", note, (value,), wrap_named(name, value, g))
    for kind, cores, text in structural(g):
        for prefix, put in _PREFIXED.items():
            yield Plant(kind, prefix or "plain", tuple(cores), put(text))


_BY_PREFIX = frozenset(("prefect", "fireworks", "together", "crates", "netlify", "lambda-secret", "cohere-random40"))


def _found(kind: str, secret: str) -> bool:
    """Whether a key without a form of its own is random enough: some of few letters look like a name, as the page says."""
    whole = is_random(secret.encode())
    return kind not in _BY_PREFIX or (whole and all(is_random(p.encode()) for p in secret.split(".")[1:]))


def forms_of(secret: str) -> Iterator[str]:
    yield secret
    once = urllib.parse.quote(secret, safe="")
    yield from (once, urllib.parse.quote(once, safe=""), html.escape(secret), json.dumps(secret)[1:-1])


def leaks(plant: Plant, found: str) -> bool:
    """Whether a secret, or twelve letters of it in a row, is in the text: as it is, encoded, or across lines."""
    views = (found, found.replace("\\\n", ""), re.sub(r"\x1b\[[0-9;]*m", "", found), found.replace("\n", ""))
    for core in plant.cores:
        if any(form in view for form in forms_of(core) for view in views):
            return True
        begin = 8 if not core.startswith("http") else len(core) - 24
        if len(core) >= 24 and any(core[i : i + 12] in found for i in range(begin, len(core) - 12)):
            return True
        for word in re.findall(r"[A-Za-z0-9+/]{16,}={0,2}", found):
            for offset in range(4):
                rest = word[offset:].rstrip("=")
                rest = rest[: len(rest) - (len(rest) % 4 == 1)]
                if core in base64.b64decode(rest + "=" * (-len(rest) % 4)).decode("latin1"):
                    return True
    return False


def innocents(seed):
    g = random.Random(seed)
    h = lambda n: "".join(g.choice(HEX) for _ in range(n))
    al = lambda a, n: "".join(g.choice(a) for _ in range(n))
    B32 = "abcdefghijklmnopqrstuvwxyz234567"
    out = []
    for _ in range(12):
        n = g.randrange(10**6)
        out += [
            f"commit {h(40)}",
            f"torch 2.13.0a0+git{h(7)}",
            f"NCCL INFO ncclCommInitRankConfig comm 0x{h(12)} rank {n % 64} nranks 64 cudaDev {n % 8} nvmlDev {n % 8} busId {h(5)} commId 0x{h(16)} - Init COMPLETE",
            f"comm 0x{h(12)} rank 3",
            f"commHash 0x{h(16)}",
            f"commId 0x{h(16)}",
            f"unique id {h(16)}",
            f"NCCL version 2.27.{n % 9}+cuda12.8",
            f"GPU-{uuid.UUID(int=g.getrandbits(128))}",
            f"MIG-{uuid.UUID(int=g.getrandbits(128))}",
            f"PCI:0000:{h(2)}:00.0",
            f"0000:{h(2)}:00.0",
            f"mlx5_{n % 8}:1/RoCE",
            f"node_guid {h(4)}:{h(4)}:{h(4)}:{h(4)}",
            f'0x{h(16)} "MT4129 ConnectX7 Mellanox Technologies"',
            f"GID 3 (0/{h(16)})",
            f"shape=[{n % 4096}, 4096], dtype=torch.bfloat16",
            f"numel={n}",
            f"loss {g.uniform(0, 9):.6f} grad_norm {g.uniform(0, 9):.4f} tokens/s {n} tokens_per_gpu={n}",
            f"sha256 {h(64)}",
            f"sha256:{h(64)}",
            f"md5 {h(32)}  model-00001-of-00030.safetensors",
            f"sha512-{al(string.ascii_letters + string.digits + '+/', 86)}==",
            f"/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:{n % 4000}",
            f"model.layers.{n % 80}.self_attn.q_proj.weight",
            f"triton_per_fused__to_copy_add_native_layer_norm_{n % 99}",
            f"/tmp/cache/fxgraph/{al(B32, 2)}/f{al(B32, 51)}",
            f"c{al(B32, 51)}.py",
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
            f"_ZN4c10d16ProcessGroupNCCL8WorkNCCL{n % 99}startEv",
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)",
            f"step_key=step_{n}",
            f'flattened_key is "state.layer{n % 80}.weight"',
            f'pg_key = (event["process_group"][0], {n})',
            'static_kwargkey=["dim", "descending", "stable"],',
            'CUSTOM_METADATA_KEY = "DCP_SHARDING_INFO"',
            'token_key = "RpcGroupManagementToken"',
            f"cache_key={h(32)}",
            "sort_key=loss",
            "store key default_pg/0//cuda//timeout_dump",
            f"key: 0:1:{n % 8}",
            f"forward_pass={n % 99}.25ms",
            "first_pass: done",
            "backward pass took 12.5ms",
            f"max_tokens={n}",
            "eos_token='<|end_of_text|>'",
            "pad_token_id=128001",
            f"num_tokens: {n}",
            "tokenizer.json",
            "token embedding",
            "key_padding_mask=None",
            "past_key_values=None",
            "num_key_value_heads: 8",
            f"slurm job {n} step 0",
            "SLURM_JOB_NODELIST=gpu-a[017-020]",
            f"pod trainer-worker-{h(10)}-{al(string.ascii_lowercase + string.digits, 5)}",
            f"run id {al(string.ascii_lowercase + string.digits, 8)}",
            f"WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000) ran for 600{n % 1000:03d} milliseconds before timing out.",
            f"PG ID {n % 9} PG GUID {n % 99}(EXPERT_MODEL_PARALLEL) Rank {n % 64}",
            f"NVRM: Xid (PCI:0000:{h(2)}:00): 79, pid={n}, GPU has fallen off the bus.",
            f"0x00007f{h(10)}",
            f"Thread 0x00007f{h(10)} (most recent call first):",
            f"NET/IB: Got completion from peer 10.0.{n % 255}.7<{n % 60000}> with status=12 opcode=0 len=0 vendor err 129",
            f"qpn {n} lid {n % 999}",
            f"docker image nvcr.io/nvidia/pytorch:25.04-py3@sha256:{h(64)}",
            f"container {h(64)}",
            f"layer {h(12)}: Pull complete",
            f"trace_id={h(32)} span_id={h(16)}",
            f'etag "{h(32)}-{n % 99}"',
            f"s3://bucket/ckpt/step_{n}/__{n % 64}_0.distcp",
            f"tensor([{g.random():.4f}, {g.random():.4f}], device='cuda:{n % 8}')",
            "attn_implementation=flash_attention_3",
            f"PWD=/workspace/run{n}",
            "bypass=1",
            f"compass={n}",
            f"passed {n} tests",
            "password: ",
            "keys: ['a', 'b', 'c']",
            f"missing_keys=['model.layers.{n % 80}.mlp.up_proj.weight']",
            "monkey patch",
            "Process group watchdog thread terminated with exception",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
            "NCCL_IB_GID_INDEX=3",
            "Basic usage is described",
            "bearer of bad news",
            f"AUTH failed for peer {n % 64}",
            "PASS tests/test_a.py::test_b",
            f"LOGIN node is login{n % 9}",
            f"IDENTIFIED BY rank {n % 9}" if False else f"identified by rank {n % 9}",
            f"zip -r out{n}.zip logs",
            f"openssl version 3.0.{n % 9}",
            f"7z a -t7z out{n}.7z logs",
            "mysqld -p 3306",
            "ENV PATH /usr/local/bin",
            "set -x",
            "set -euo pipefail",
            "token bucket refilled",
            "secretary problem",
            f"cluster key exchange done in {n} ms",
            f"srun -p batch --mem={n % 99}G python train.py",
            "docker run -p 8080:80 -v /data:/data img",
            f"python -m torch.distributed.run --rdzv-id={n} --rdzv-endpoint=gpu-a017:29500",
        ]
    return out


def redacted(redactor: Redactor, text: str) -> str:
    out = io.BytesIO()
    try:
        redactor.file(io.BytesIO(text.encode()), out, "rank_0.log")
    except CannotRedact:
        return ""
    return out.getvalue().decode("utf-8", "replace")


if __name__ == "__main__":
    total, lost = 0, []
    for number in map(int, sys.argv[1:] or ["1"]):
        worker = Redactor()
        for one in planted(number):
            total += 1
            if leaks(one, redacted(worker, one.text)):
                lost.append(one)
    print(f"{total} planted, {len(lost)} come through")
    for one in lost:
        print(f"  {one.kind} | {one.notation} | {one.text[:160]!r}")
    sys.exit(bool(lost))
