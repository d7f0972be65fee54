"""Secrets, generated: kinds as their makers write them, in the notations that evidence has. And innocent strings.

`python tests/kits/secrets/secretkit.py` says which of many more than the tests try come through the
redaction (seeds as arguments).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import random
import re
import string
import sys
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

ALNUM = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
URLSAFE = ALNUM + "-_"
LOWER = string.ascii_lowercase + string.digits


class Planted(NamedTuple):
    kind: str
    notation: str
    text: str
    parts: tuple[str, ...]
    """What may not come through: the secret, or each line of it."""


class Kind(NamedTuple):
    name: str
    variable: str
    make: Callable[[random.Random], str]
    speaks: bool
    """Whether the value itself says what it is; otherwise only its name does."""


def _word(noise: random.Random, size: int, letters: str = ALNUM) -> str:
    while True:
        word = "".join(noise.choice(letters) for _ in range(size))
        if letters not in (ALNUM, URLSAFE) or (re.search(r"\d", word) and re.search("[a-z][A-Z]|[A-Z][a-z]", word)):
            return word.replace("--", "-x") if letters == URLSAFE else word


def _b64(noise: random.Random, size: int) -> str:
    return base64.b64encode(noise.randbytes(size)).decode()


def _jwt(noise: random.Random) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': _word(noise, 12)})}.{_word(noise, 43)}"


def _prefixed(prefix: str, size: int, letters: str = ALNUM, behind: str = "") -> Callable[[random.Random], str]:
    return lambda noise: prefix + _word(noise, size, letters) + behind


_HUMAN = ("hunter", "dragon", "Sommer", "letmein", "correcthorse", "Passw0rd", "trustno", "qwertz")


def _password(noise: random.Random) -> str:
    return noise.choice(_HUMAN) + str(noise.randrange(2, 9999)) + noise.choice(("", "!", "_x", "-Q"))


KINDS = (
    Kind("aws access key", "AWS_ACCESS_KEY_ID", _prefixed("AKIA", 16, UPPER), True),
    Kind("aws secret key", "AWS_SECRET_ACCESS_KEY", lambda noise: _b64(noise, 30), True),
    Kind("aws session token", "AWS_SESSION_TOKEN", lambda noise: "IQoJb3JpZ2luX2Vj" + _b64(noise, 120), True),
    Kind("google api key", "GOOGLE_API_KEY", _prefixed("AIza", 35, URLSAFE), True),
    Kind("google oauth", "GCP_ACCESS_TOKEN", _prefixed("ya29.", 68, URLSAFE), True),
    Kind("google client secret", "GOOGLE_CLIENT_SECRET", _prefixed("GOCSPX-", 28, URLSAFE), True),
    Kind("azure storage key", "AZURE_STORAGE_KEY", lambda noise: _b64(noise, 64), True),
    Kind("azure client secret", "AZURE_CLIENT_SECRET", lambda n: f"{_word(n, 3)}8Q~{_word(n, 34)}", True),
    Kind("github token", "GITHUB_TOKEN", _prefixed("ghp_", 36), True),
    Kind("github fine-grained", "GH_TOKEN", lambda n: f"github_pat_{_word(n, 22)}_{_word(n, 59)}", True),
    Kind("gitlab token", "GITLAB_TOKEN", _prefixed("glpat-", 20, URLSAFE), True),
    Kind("hugging face token", "HF_TOKEN", _prefixed("hf_", 34), True),
    Kind("openai key", "OPENAI_API_KEY", _prefixed("sk-", 48), True),
    Kind("openai project key", "OPENAI_KEY", _prefixed("sk-proj-", 74, URLSAFE), True),
    Kind("openrouter key", "OPENROUTER_API_KEY", _prefixed("sk-or-v1-", 64, HEX), True),
    Kind("anthropic key", "ANTHROPIC_API_KEY", _prefixed("sk-ant-api03-", 80, URLSAFE), True),
    Kind("slack bot token", "SLACK_BOT_TOKEN", lambda n: f"xoxb-{_word(n, 12, '0123456789')}-{_word(n, 24)}", True),
    Kind("slack app token", "SLACK_APP_TOKEN", lambda n: f"xapp-1-A0{_word(n, 9, UPPER)}-{_word(n, 64, HEX)}", True),
    Kind("wandb key", "WANDB_API_KEY", _prefixed("", 40, HEX), False),
    Kind("wandb service key", "WANDB_API_KEY", _prefixed("local-", 40, HEX), True),
    Kind("ngc key", "NGC_API_KEY", _prefixed("nvapi-", 64, URLSAFE), True),
    Kind("npm token", "NPM_TOKEN", _prefixed("npm_", 36), True),
    Kind("pypi token", "TWINE_PASSWORD", _prefixed("pypi-AgEIcHlwaS5vcmc", 80, URLSAFE), True),
    Kind("docker token", "DOCKER_PAT", _prefixed("dckr_pat_", 27, URLSAFE), True),
    Kind("stripe key", "STRIPE_KEY", _prefixed("sk_live_", 24), True),
    Kind("sendgrid key", "SENDGRID_API_KEY", lambda n: f"SG.{_word(n, 22)}.{_word(n, 43)}", True),
    Kind("mailgun key", "MAILGUN_KEY", _prefixed("key-", 32, HEX), True),
    Kind("databricks token", "DATABRICKS_TOKEN", _prefixed("dapi", 32, HEX), True),
    Kind("vault token", "VAULT_TOKEN", _prefixed("hvs.", 90, URLSAFE), True),
    Kind("digitalocean token", "DO_TOKEN", _prefixed("dop_v1_", 64, HEX), True),
    Kind("groq key", "GROQ_API_KEY", _prefixed("gsk_", 52), True),
    Kind("replicate token", "REPLICATE_API_TOKEN", _prefixed("r8_", 37), True),
    Kind("atlassian token", "JIRA_TOKEN", _prefixed("ATATT3xFfGF0", 60, URLSAFE), True),
    Kind("new relic key", "NEW_RELIC_API_KEY", _prefixed("NRAK-", 27, UPPER), True),
    Kind("pulumi token", "PULUMI_ACCESS_TOKEN", _prefixed("pul-", 40, HEX), True),
    Kind("grafana token", "GRAFANA_TOKEN", lambda n: f"glsa_{_word(n, 32)}_{_word(n, 8, HEX)}", True),
    Kind("tailscale key", "TS_AUTHKEY", lambda n: f"tskey-auth-{_word(n, 12)}-{_word(n, 32)}", True),
    Kind("telegram token", "TELEGRAM_TOKEN", lambda n: f"{n.randrange(10**9, 9 * 10**9)}:AA{_word(n, 33)}", True),
    Kind("langsmith key", "LANGSMITH_API_KEY", lambda n: f"lsv2_pt_{_word(n, 32, HEX)}_{_word(n, 10, HEX)}", True),
    Kind("sonar token", "SONAR_TOKEN", _prefixed("sqp_", 40, HEX), True),
    Kind("circleci token", "CIRCLE_TOKEN", lambda n: f"CCIPAT_{_word(n, 22)}_{_word(n, 40, HEX)}", True),
    Kind("mailchimp key", "MAILCHIMP", _prefixed("", 32, HEX, "-us12"), True),
    Kind("personal access token", "AZURE_DEVOPS_EXT_PAT", lambda n: _word(n, 52, LOWER), False),
    Kind("key id", "private_key_id", _prefixed("", 40, HEX), False),
    Kind("jwt", "ID_TOKEN", _jwt, True),
    Kind("unknown key", "ACME_SERVICE_KEY", _prefixed("", 44), True),
    Kind("datadog key", "DD_API_KEY", _prefixed("", 32, HEX), False),
    Kind("comet key", "COMET_API_KEY", _prefixed("", 25), False),
    Kind("django secret", "DJANGO_SECRET_KEY", lambda n: _word(n, 42, string.ascii_lowercase + string.digits), False),
    Kind("password", "DB_PASSWORD", _password, False),
    Kind("password, short name", "ADMIN_PW", _password, False),
    Kind("passphrase", "SSH_KEY_PASSPHRASE", _password, False),
    Kind("pass variable", "REDIS_PASS", _password, False),
)


def _lower(variable: str) -> str:
    return variable.lower()


def _camel(variable: str) -> str:
    first, *rest = variable.lower().split("_")
    return first + "".join(word.title() for word in rest)


NAMED: dict[str, Callable[[str, str], str]] = {
    "environment": lambda n, v: f"{n}={v}",
    "export": lambda n, v: f"export {n}='{v}'",
    "shell trace": lambda n, v: f"+ {n}={v}\n+ srun python train.py",
    "docker option": lambda n, v: f"docker run --rm -e {n}={v} image:1 train",
    "json": lambda n, v: json.dumps({"lr": 0.1, _lower(n): v, "steps": 5}),
    "json in json": lambda n, v: json.dumps({"log": json.dumps({_lower(n): v}), "stream": "stdout"}),
    "repr": lambda n, v: f"environ({{'HOME': '/root', '{n}': '{v}', 'LANG': 'C'}})",
    "yaml": lambda n, v: f"env:\n  {_lower(n)}: {v}\n  lr: 0.1",
    "yaml block": lambda n, v: f"config:\n  {_lower(n)}: |\n    {v}\n  lr: 0.1",
    "yaml nested": lambda n, v: f"{_lower(n)}:\n  value: {v}\nlr: 0.1",
    "kubernetes env": lambda n, v: f"- name: {n}\n  value: {v}\n- name: LR\n  value: '0.1'",
    "kubernetes env, value first": lambda n, v: f'{{"value": "{v}", "name": "{n}"}}',
    "command line": lambda n, v: f"python train.py --{_lower(n).replace('_', '-')} {v} --lr 0.1",
    "argv": lambda n, v: f"['train.py', '--{_lower(n)}', '{v}', '--lr', '0.1']",
    "url": lambda n, v: f"GET https://api.example.com/x?{_lower(n)}={urllib.parse.quote(v, safe='')}&lr=1",
    "url-encoded": lambda n, v: urllib.parse.quote(f"lr=1&{_lower(n)}={v}&x=2", safe=""),
    "coloured": lambda n, v: f"\x1b[32m{n}\x1b[0m=\x1b[1;33m{v}\x1b[0m done",
    "after an escape": lambda n, v: repr(f"started\n{n}={v}\nlr=0.1"),
    "ini": lambda n, v: f"[default]\n{_lower(n)} = {v}\nlr = 0.1",
    "megatron arguments": lambda n, v: f"  {_lower(n)} ......................... {v}",
    "xml": lambda n, v: f"<env><{_lower(n)}>{v.replace('&', '&amp;')}</{_lower(n)}></env>",
    "plist": lambda n, v: f"<key>{n}</key>\n<string>{v}</string>",
    "hadoop": lambda n, v: f"<property><name>fs.{_lower(n)}</name><value>{v}</value></property>",
    "form": lambda n, v: f'Content-Disposition: form-data; name="{_lower(n)}"\r\n\r\n{v}\r\n--x',
    "said": lambda n, v: f"{n} is set to {v}",
    "arrow": lambda n, v: f"{n} -> {v}",
    "csh": lambda n, v: f"setenv {n} {v}",
    "terraform": lambda n, v: f'resource "x" "y" {{\n  {_lower(n)} = "{v}"\n  count = 2\n}}',
    "go map": lambda n, v: f"map[{_lower(n)}:{v} lr:0.1]",
    "camel case": lambda n, v: json.dumps({_camel(n): v}),
    "html": lambda n, v: html.escape(json.dumps({n: v})),
    "process environment": lambda n, v: f"HOME=/root\0{n}={v}\0LANG=C\0",
    "systemd": lambda n, v: f'Environment="{n}={v}" "B=2"',
    "tuple": lambda n, v: f"[('LR', '0.1'), ('{n}', '{v}')]",
}
"""Notations in which a name stands beside the secret."""

BARE: dict[str, Callable[[str], str]] = {
    "sentence": lambda v: f"login with {v} failed, trying again",
    "coloured, bare": lambda v: f"using \x1b[36m{v}\x1b[0m now",
    "quoted in a repr": lambda v: repr(["a", f"line one\n{v}\nline two"]),
    "url-encoded, bare": lambda v: "q=" + urllib.parse.quote(f'"{v}"', safe=""),
    "behind a letter": lambda v: f"x{v} and key-{v}",
    "header": lambda v: f"> Authorization: Bearer {v}",
    "json value": lambda v: json.dumps({"messages": [{"text": f"my {v} ok"}]}),
    "stack": lambda v: f"    connect (client.py:12)\n      Arguments: url: 'x', auth: '{v}'",
}
"""Notations without a name: for secrets that say themselves what they are."""


def planted(seed: int) -> Iterator[Planted]:
    """Every kind in every notation that makes sense for it."""
    noise = random.Random(seed)
    for kind in KINDS:
        for notation, write in NAMED.items():
            value = kind.make(noise)
            yield Planted(kind.name, notation, write(kind.variable, value), (value,))
        for notation, put in BARE.items() if kind.speaks else ():
            value = kind.make(noise)
            yield Planted(kind.name, notation, put(value), (value,))
    yield from _structures(noise)
    yield from _people(noise)


def _structures(noise: random.Random) -> Iterator[Planted]:
    """Secrets whose form is a structure: keys, objects of Kubernetes, addresses, headers, commands."""

    def pem(of: str = "RSA", lines: int = 8) -> tuple[list[str], list[str]]:
        body = [*(_b64(noise, 48) for _ in range(lines)), _b64(noise, 20)]
        return [f"-----BEGIN {of} PRIVATE KEY-----", *body, f"-----END {of} PRIVATE KEY-----"], body

    for of in ("RSA", "EC", "OPENSSH", "ENCRYPTED"):
        whole, body = pem(of)
        yield Planted("private key", f"{of} file", "\n".join(whole), tuple(body))
        yield Planted("private key", f"{of} in json", json.dumps({"k": "\n".join(whole)}), tuple(body))
        yield Planted("private key", f"{of} in a log", "\n".join(f"[rank3]: {line}" for line in whole), tuple(body))
        yield Planted("private key", f"{of} without its first line", "\n".join(whole[1:]), tuple(body))
        yield Planted("private key", f"{of} without its last line", "\n".join(whole[:-1]), tuple(body))
        yield Planted("private key", f"{of} in yaml", "tls.key: |\n" + "\n".join(f"  {x}" for x in whole), tuple(body))
    secret, other = _b64(noise, 30), base64.b64encode(_password(noise).encode()).decode()
    yield Planted(
        "kubernetes secret",
        "yaml",
        f"apiVersion: v1\ndata:\n  db: {other}\n  token: {secret}\nkind: Secret\nmetadata:\n  name: x\n",
        (secret, other),
    )
    value = _password(noise)
    yield Planted("kubernetes secret", "stringData", f"kind: Secret\nstringData:\n  mode: {value}\ntype: x\n", (value,))
    value = base64.b64encode(_password(noise).encode()).decode()
    as_json = json.dumps({"kind": "Secret", "data": {"mode": value}, "apiVersion": "v1"}, indent=1)
    yield Planted("kubernetes secret", "json", as_json, (value,))
    values = [base64.b64encode(_password(noise).encode()).decode() for _ in range(60)]
    rows = "".join(f"  file{n}: {value}\n" for n, value in enumerate(values))
    yield Planted("kubernetes secret", "of many keys", f"apiVersion: v1\ndata:\n{rows}kind: Secret\n", tuple(values))
    for name in ("client-key-data", "tls.key", ".dockerconfigjson", "ssh-privatekey"):
        value = _b64(noise, 90)
        yield Planted("kubeconfig", name, f"users:\n- name: x\n  user:\n    {name}: {value}\n", (value,))
        lines = [value[at : at + 64] for at in range(0, len(value), 64)]
        folded = f"    {name}: >-\n" + "\n".join(f"      {x}" for x in lines) + "\n    other: y\n"
        yield Planted("kubeconfig", f"{name}, folded", folded, tuple(lines))
    for form in (
        "postgresql://svc:{}@db.example.com/x", "redis://:{}@cache:6379/0", "https://bob:{}@git.example.com/r.git",
        "mongodb+srv://app:{}@c0.example.net", "amqp%3A%2F%2Fapp%3A{}%40mq%3A5672", "curl -u bob:{} https://x",
        "mysql -u root -p{} -h db", "docker login -u bob -p {} nvcr.io", "sshpass -p {} ssh host",
        "sshpass -p{} ssh host", "redis-cli -h db -a {} ping", "requests.get(url, auth=('bob', '{}'))",
        "auth=HTTPBasicAuth('bob', '{}')", "db.example.com:5432:prod:bob:{}", "Cookie: session={}; theme=dark",
        "cookies={{'session': '{}'}}", "machine x login bob password {}", "requirepass {}", "Password for bob: {}",
        "openssl rsa -passin pass:{} -in x", "az login -u bob -p {}", "keytool -storepass {} -list",
        "kubectl create secret generic x --from-literal=mode={}", "ldapsearch -x -D cn=bob -w {} -b dc=x",
        "{{Host:db Password:{} Port:5432}}", ":password => '{}'", "password := \"{}\"", "my_pw: '{}'",
        '<password value="{}"/>', '<entry key="db.password">{}</entry>', "password: &anchor {}", "password: !!str {}",
        "ENV DB_PASSWORD {}", "DB_PASSWORD\t{}", "  db_password        {}", "echo {} | docker login --password-stdin",
        "smbclient //h/s -U bob%{}", "htpasswd -b file bob {}", "pass: {}", "- value: {}\n  name: DB_PASSWORD",
        "passwords:\n  - other\n  - {}", "psql 'host=db password={} sslmode=require'", "$env:DB_PASSWORD = '{}'",
        '<add key="Password" value="{}" />', "PASSWORD\n  = {}".replace("\n  ", " "),
    ):  # fmt: skip
        value = _password(noise)
        yield Planted("password by its place", form, form.format(urllib.parse.quote(value)), (value,))
    for form in ("wandb login --relogin {}", "wandb login --host https://w.example.com {}", "wandb: API key: {}"):
        value = _word(noise, 40, HEX)
        yield Planted("wandb key", form, form.format(value), (value,))
    for form in ("--key {} --lr 1", "Authorization: Basic {}", '"auth": "{}"', "X-Api-Key: {}", "_authToken={}"):
        value = _b64(noise, 24)
        yield Planted("key by its place", form, form.format(value), (value,))
    value = f"T{_word(noise, 8, UPPER)}/B{_word(noise, 8, UPPER)}/{_word(noise, 24)}"
    yield Planted("webhook", "slack", f"https://hooks.slack.com/services/{value}", (value.rpartition("/")[2],))
    value = _word(noise, 32, HEX)
    teams = f"https://x.webhook.office.com/webhookb2/{uuid.UUID(int=5)}/IncomingWebhook/{value}/y"
    yield Planted("webhook", "teams", teams, (value,))
    value = _word(noise, 68)
    yield Planted("webhook", "discord", f"https://discord.com/api/webhooks/123456789/{value}", (value,))
    value = _word(noise, 40)
    yield Planted("signed url", "sas", f"https://x.blob.core.windows.net/c?sv=2024&sig={value}%3D&sp=r", (value,))
    value = _word(noise, 64, HEX)
    yield Planted("signed url", "aws", f"https://b.s3.amazonaws.com/k?X-Amz-Signature={value}", (value,))
    for wrap in ("\n", "\n    ", "\\\n"):
        value = "ghp_" + _word(noise, 36)
        text = f"token is\n{value[:18]}{wrap}{value[18:]}\nnext line"
        yield Planted("github token", f"wrapped {wrap!r}", text, (value[:18], value[18:]))
        value = _word(noise, 40, HEX)
        text = f"WANDB_API_KEY={value[:20]}{wrap}{value[20:]}\nnext line"
        yield Planted("wandb key", f"wrapped {wrap!r}", text, (value[:20], value[20:]))


def _people(noise: random.Random) -> Iterator[Planted]:
    for form in (
        "opened /home/{}/data/train.bin", "opened /Users/{}/x", "/scratch/{}/run/train.py:12", "/fsx/{}/ckpt",
        "/u/{}/src/x.py", "/checkpoint/{}/job", "/afs/cs.example.edu/user/z/zz/{}/x", "/tmp/torchinductor_{}/ab/x.py",
        "/mnt/lustre/home/{}/x", "/lustre/fs1/users/{}/y", "-rw-r--r-- 1 {} staff 123 Nov 15 10:00 train.py",
        "drwxr-xr-x. 2 {} {} 4096 Nov 15 10:00 src", "ssh -o BatchMode=yes {}@gpu-a017 hostname",
        "scp x {}@gpu-a017:/y", "USER={}", "LOGNAME={}", "uid=1004({}) gid=100(users)", "{}@gpu-a017:~$ srun x",
        "SLURM_JOB_USER={}", "C:\\Users\\{}\\x", '{{"user": "{}"}}', "%2Fhome%2F{}%2Fx",
    ):  # fmt: skip
        name = "zq" + _word(noise, 6, string.ascii_lowercase)
        yield Planted("user name", form, form.format(name, name), (name,))
    name = "alice." + _word(noise, 5, string.ascii_lowercase)
    yield Planted("e-mail", "sentence", f"mail {name}@example.com now", (name,))


def innocents(seed: int = 7) -> list[str]:
    """Strings that look random, or like a secret's name, and are neither: what a diagnosis reads."""
    noise = random.Random(seed)
    words = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(25)]
    words += [hashlib.sha1(str(i).encode()).hexdigest() for i in range(25)]
    words += [hashlib.md5(str(i).encode()).hexdigest() for i in range(10)]
    words += [str(uuid.UUID(int=noise.getrandbits(128))) for _ in range(20)]
    words += [f"GPU-{uuid.UUID(int=noise.getrandbits(128))}" for _ in range(10)]
    words += [f"sha256:{hashlib.sha256(str(i).encode()).hexdigest()}" for i in range(5)]
    words += [f"sha256-{base64.b64encode(noise.randbytes(32)).decode()}" for _ in range(5)]
    words += [f"0x{noise.getrandbits(64):016x}" for _ in range(15)]
    words += [f"commId 0x{noise.getrandbits(64):x} comm 0x{noise.getrandbits(48):x}" for _ in range(10)]
    words += [f"i-0{noise.getrandbits(64):016x}" for _ in range(5)]
    base32 = "abcdefghijklmnopqrstuvwxyz234567"
    for _ in range(10):
        name = "c" + _word(noise, 51, base32)
        words.append(f"/tmp/torchinductor_root/{name[1:3]}/{name}.py")
    words += [f"/root/.triton/cache/{_word(noise, 52, base32.upper())}/k.cubin" for _ in range(5)]
    for i, name in enumerate(("q_proj", "k_proj", "v_proj", "o_proj") * 8):
        words.append(f"module.layers.{i}.self_attn.{name}.weight")
    words += [f"fe80::{noise.getrandbits(16):x}:ebff:fe12:{noise.getrandbits(16):x}" for _ in range(5)]
    words += [f"0000:{noise.randrange(16, 256):02x}:00.0" for _ in range(5)]
    words += [f"worker-{i:03d}.cluster.local" for i in range(10)]
    words += [f"trainer-7d9f8b6c5d-{_word(noise, 5, 'bcdfghjklmnpqrstvwxz2456789')}" for _ in range(5)]
    return words + _PROSE


_PROSE = [
    "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",
    "_ZNSt6thread11_State_implINS_8_InvokerISt5tupleIJPFvvEEEEEE6_M_runEv",
    "_ZN4c10d16ProcessGroupNCCL12ncclCommAbortERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "cutlass_80_tensorop_s16816gemm_bf16_256x128_64x3_tn_align8", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevFunc_SendRecv",
    "triton_poi_fused__to_copy_add_mul_12", "flash_fwd_splitkv_combine_kernel", "FSDPMixedPrecisionPolicyError",
    "DistributedDataParallelCommHookState", "ProcessGroupNCCLWatchdogHeartbeatTimeoutException",
    "torch-2.11.0+cu130-cp312-cp312-linux_x86_64.whl", "libcudnn_engines_precompiled.so.9.10.2",
    "_C.cpython-312-x86_64-linux-gnu.so", "CUDA_VISIBLE_DEVICES=0,1,2,3", "NVIDIA-SMI 580.65.06",
    "model.embed_tokens.weight", "token_embedding.weight", "transformer.wte.token_type_embeddings", "cls_token",
    "pos_embed", "key_padding_mask", "attn.key.bias", "module.query_key_value.weight", "lm_head.weight", "key_states",
    "secretary", "passwordless", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "bypass",
    "max_tokens=4096", "num_tokens: 1048576", "tokens_per_second=182734.5", "eos_token=</s>", "pad_token_id=128001",
    'bos_token="<s>"', "token=128009", "tokens=[1, 2, 3]", "n_tokens_per_batch: 65536", "key=weight", "key: value",
    "sort_key=loss", "cache_key=abcdef0123456789", "token | count", "forward pass: 3", "pass=1", "--sort-key loss",
    "the token is here", "key is weight", "password is required", "tokens/s 182734", "tokens: 2.1e9",
    "password is incorrect", "secret is set", "primary_key=id", "PWD=/workspace/run", "OLDPWD=/workspace",
    "password=None", "token: str", "api_key: Optional[str] = None", "secret=***", "password: ${DB_PASSWORD}",
    "secretName: nccl-conf", "kind: ConfigMap", "kind: Pod", "name: NCCL_DEBUG", "value: INFO",
    "sk-learn-contrib", "scikit-learn", "task-scheduler-0123456789abcdef", "risk-adjusted", "hf_hub_download",
    "hf_transfer", "npm_config_cache", "pypi-publish", "glpat", "xoxo", "ghp", "AKIA", "eyJ", "bearer of news",
    "basic usage", "Basic block profile", "cookie cutter", "authorization is required", "/root/.cache/torch/x",
    "/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py", "/tmp/nccl_trace_rank_0",
    "https://pytorch.org/docs/stable/distributed.html", "tcp://10.0.0.1:29500", "s3://bucket/path/to/ckpt-1000",
    "abfss://container@account.dfs.core.windows.net/data", "ssh://git@github.com/org/repo", "git@github.com:org/repo",
    "pthread_create@GLIBC_2.34", "memcpy@@GLIBC_2.14", "x@y", "loss@step", "mlx5_0:1/IB", "torch==2.11.0+cu130",
    "gpu-a017:81233:81301 [6] NCCL INFO Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA",
    "NCCL INFO comm 0x5581f8a0 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xad99822aca09d444",
    "NCCL WARN NET/IB: Got completion from peer 10.1.2.3<41411> with status=12 opcode=0 len=0 vendor err 129",
    "[rank0]:[E1115 00:56:34.844323936 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation",
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds",
    "NCCL_SOCKET_IFNAME set by environment to eth0", "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    "Init START key 0- color 12", "splitCount 3 parent 0x55 color 1 key 4", "fe80::ac0:ebff:fe12:3456",
    "UserWarning: barrier(): using the device under current context", "user defined function", "username",
    "login node", "nccl:all_reduce_barrier", "nccl:_all_gather_base", "ckpt-2026-11-15T01-25-35",
    "run-20261115_012535-a1b2c3d4", "/scratch/datasets/imagenet/train", "/data/models/llama-3-70b/config.json",
    "/workspace/src/train.py", "/fsx/checkpoints/step_1000", "drwxr-xr-x 2 root root 4096 Nov 15 10:00 src",
    "mkdir -p /data/x", "ssh -p 2222 host", "docker run -p 8080:80 image", "config set to default", "login: ok",
    "EXPERT_MODEL_PARALLEL", "TENSOR_AND_CONTEXT_PARALLEL_GROUP", "mesh_dp_shard_cp", "default_pg", "pp_stage_3_to_4",
    "rendezvous c10d run_id 48121 endpoint gpu-a017:29400", "Xid (PCI:0000:9d:00): 79, pid=81233, GPU has fallen off",
    "mlx5_core 0000:9d:00.0: Port module event: module 0, Cable unplugged", "nvidia-fabricmanager 580.65.06",
    "SymmMem: NVSHMEM is not supported", "heartbeatTimeoutInSec=480", "10.1.2.3:29500", "[::1]:29500", "eth0", "bond0",
]  # fmt: skip


def leaks(seed: int, clean: Callable[[str], str]) -> list[Planted]:
    """The planted secrets of which `clean` lets a part through."""
    found = []
    for one in planted(seed):
        result = clean(f"before it\n{one.text}\nafter it\n")
        plain = urllib.parse.unquote(result)
        if any(part in result or part in plain for part in one.parts):
            found.append(one)
    return found


if __name__ == "__main__":
    from hangscope.bundle.redact.redact_file import Redactor

    for given in map(int, sys.argv[1:] or ["1"]):
        total = sum(1 for _ in planted(given))
        lost = leaks(given, lambda text: Redactor().text(text.encode()).decode())
        for one in lost:
            print(f"{one.kind} | {one.notation} | {one.text!r}")
        print(f"seed {given}: {total} planted, {len(lost)} came through")
    harmed = [word for word in innocents() if Redactor().text(word.encode()).decode() != word]
    print(f"{len(set(innocents()))} innocent strings, {len(harmed)} harmed: {harmed}")
