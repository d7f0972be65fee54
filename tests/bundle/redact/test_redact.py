"""Redaction: planted secrets never reach a bundle, innocent strings survive, and everything stays readable."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import pickle
import random
import re
import string
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangscope.bundle.aliases import Aliases
from hangscope.bundle.pack import Reports, write_bundle
from hangscope.bundle.redact import rewrite_pickle
from hangscope.bundle.redact.assignments import secret_name
from hangscope.bundle.redact.learn_names import hosts_in, users_in
from hangscope.bundle.redact.redact_file import CannotRedact, Redactor
from hangscope.bundle.unpack import extract
from hangscope.errors import DamagedError

RANDOM = random.Random(20261115)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def some(size: int, letters: str = ALNUM) -> str:
    """A random word of that size that has a digit and letters of both cases, as real keys have."""
    while True:
        word = "".join(RANDOM.choice(letters) for _ in range(size))
        if letters != ALNUM or (re.search(r"\d", word) and re.search("[a-z]", word) and re.search("[A-Z]", word)):
            return word


def b64(size: int) -> str:
    return base64.b64encode(RANDOM.randbytes(size)).decode()


def jwt() -> str:
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": some(12)}).encode()).decode().rstrip("=")
    return f"{header}.{body}.{some(43)}"


def pem(of: str, lines: int = 6) -> tuple[str, list[str]]:
    body = [b64(48) for _ in range(lines)]
    name = f"{of} PRIVATE KEY".strip()
    return "\n".join([f"-----BEGIN {name}-----", *body, f"-----END {name}-----"]), body


def planted() -> list[tuple[str, str, list[str]]]:
    """(kind, the text as evidence has it, the parts that may not come through)."""
    found: list[tuple[str, str, list[str]]] = []

    def plant(kind: str, form: str, *secrets: str) -> None:
        found.append((kind, form.format(*secrets), list(secrets)))

    upper = string.ascii_uppercase + string.digits
    plant("aws-access-key", "export AWS_ACCESS_KEY_ID={}", "AKIA" + some(16, upper))
    plant("aws-access-key", "boto3: using key {} from the environment", "ASIA" + some(16, upper))
    plant("aws-secret-key", "AWS_SECRET_ACCESS_KEY={}", some(40))
    plant("aws-secret-key", '{{"SecretAccessKey": "{}"}}', some(38) + "/+")
    plant("aws-secret-key", "AKIAIOSFODNN7EXAMPL2 {}", some(20) + "/" + some(19))
    plant("aws-secret-key", "aws_session_token = {}", b64(90))
    key, body = pem("")
    plant("gcp", '{{"type": "service_account", "private_key": "' + key.replace("\n", "\\n") + '"}}')
    found[-1][2].extend(body)
    plant("gcp", '"private_key_id": "{}"', some(40, HEX))
    plant("gcp", "GOOGLE_API: {}", "AIza" + some(35))
    plant("gcp", "Authorization: Bearer {}", "ya29." + some(60))
    plant(
        "azure", "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={};EndpointSuffix=core.windows.net", b64(64)
    )
    plant("azure", "https://x.blob.core.windows.net/c?sv=2024-01-01&se=2026&sig={}&sp=r", some(40) + "%3D")
    plant("azure", "Endpoint=sb://x/;SharedAccessKeyName=Root;SharedAccessKey={}", b64(32))
    plant("azure", "client secret {} expires soon", some(3) + "8Q~" + some(34))
    plant("azure", "AZURE_STORAGE_CONNECTION_STRING='{}'", f"AccountName=y;AccountKey={b64(64)}")
    for prefix in ("ghp_", "gho_", "ghs_"):
        plant("github", "remote: https://x-access-token:{}@github.com/o/r.git", prefix + some(36))
    plant("github", "git config --global github.token {}", "github_pat_" + some(22) + "_" + some(59))
    plant("gitlab", "CI_JOB_TOKEN: {}", "glpat-" + some(20))
    plant("gitlab", "runner {} registered", "glrt-" + some(24))
    plant("huggingface", "huggingface_hub: token {} is valid", "hf_" + some(34))
    plant("huggingface", "HF_TOKEN={}", "hf_" + some(37))
    plant("openai", "openai.api_key = '{}'", "sk-" + some(48))
    plant("openai", "key {} rejected", "sk-proj-" + some(60))
    plant("anthropic", "x-api-key: {}", "sk-ant-api03-" + some(80))
    plant("slack", "slack: posting with {}", f"xoxb-{some(12, string.digits)}-{some(12, string.digits)}-{some(24)}")
    plant("slack", "https://hooks.slack.com/services/{}", f"T{some(8, upper)}/B{some(8, upper)}/{some(24)}")
    plant("wandb", "WANDB_API_KEY={}", some(40, HEX))
    plant("wandb", "+ wandb login {}", some(40, HEX))
    plant("wandb", "machine api.wandb.ai\n  login user\n  password {}", some(40, HEX))
    plant("ngc", "docker login nvcr.io: {}", "nvapi-" + some(64))
    plant("npm", "//registry.npmjs.org/:_authToken={}", "npm_" + some(36))
    plant("pypi", "TWINE_PASSWORD={}", "pypi-AgEIcHlwaS5vcmc" + some(80))
    plant("jwt", "token was {}", jwt())
    plant("jwt", '{{"id_token":"{}"}}', jwt())
    for of in ("RSA", "OPENSSH", "EC", "ENCRYPTED"):
        key, body = pem(of)
        plant("private-key", f"loaded\n{key}\ndone")
        found[-1][2].extend(body)
    key, body = pem("OPENSSH")
    plant("private-key", "\n".join(f"[rank3]: {line}" for line in key.split("\n")))
    found[-1][2].extend(body)
    plant("url", "MLFLOW_TRACKING_URI=https://bob:{}@mlflow.example.com/x", "p4ss" + some(8))
    plant("url", "redis://:{}@cache:6379/0", some(12))
    plant("url", "postgresql+psycopg2://svc:{}@db/x", some(9) + "@" + some(5))
    plant("url", "pip install --index-url https://{}@pypi.example.com/simple", some(24))
    plant("header", "Authorization: Basic {}", base64.b64encode(f"bob:{some(12)}".encode()).decode())
    plant("header", "{{'Authorization': 'Token {}'}}", some(30))
    plant("header", 'curl -H "Authorization: Bearer {}" https://x', some(30))
    plant("header", "Cookie: session={}; theme=dark", some(32))
    plant("header", "set-cookie: sid={}; HttpOnly", some(32))
    plant("header", "X-Auth-Token: {}", some(24))
    plant("password", "password={}", "hunter2")
    plant("password", '"password": "{}"', 'wi"th quotes'.replace('"', '\\"') + some(6))
    plant("password", r"args: {{\"password\": \"{}\"}}", some(10))
    plant("password", "  db_password: {}", "correct horse battery " + some(6))
    plant("password", '"pin_password": {}', some(8, string.digits))
    plant("password", "train.py --db-password {} --lr 0.1", some(10))
    plant("password", "['train.py', '--password', '{}', '--lr', '0.1']", some(10))
    plant("password", "PGPASSWORD={} psql", some(10))
    plant("password", "curl -u bob:{} https://x", some(10))
    plant("secret", "client_secret: '{}'", some(20))
    plant("secret", "os.environ['APP_SECRET'] = \"{}\"", some(20))
    plant("secret", "- name: DB_PASSWORD\n  value: {}\n", some(12))
    plant("secret", '{{"name": "API_TOKEN", "value": "{}"}}', some(24))
    plant("token", "https://example.com/hook?access_token={}&x=1", some(30))
    plant("token", "('KUBE_TOKEN', '{}')", some(30))
    plant("key", "api_key={}", some(24))
    plant("key", "config = Config(apikey='{}', retries=3)", some(24))
    plant("password", "<db><password>{}</password></db>", some(10))
    plant("password", "user=bob pass={} host=db", some(10))
    plant("password", "  db_password ........................ {}", some(10))
    plant("password", "| db_password | {} |", some(10))
    plant("password", "the password is {} by the way", some(10))
    plant("password", "password%3D{}", some(10))
    plant("password", "PASSWORD={}", some(4) + "&" + some(4) + ";" + some(4))
    plant("password", "mysql -u root -p{} -h db", some(10))
    plant("password", "docker login -u bob -p {} nvcr.io", some(12))
    plant("key", "API key: {}", some(24))
    plant("key", "Access token = '{}'", some(24))
    plant("discord", "https://discord.com/api/webhooks/123456789/{}", some(60))
    plant("mailgun", "mailgun uses {} now", "key-" + some(32, HEX))
    plant("stripe", "charge with {}", "sk_live_" + some(24))
    plant("vault", "VAULT_TOKEN={}", "hvs." + some(40))
    plant("databricks", "host uses {}", "dapi" + some(32, HEX))
    plant("docker", '{{"auths": {{"nvcr.io": {{"auth": "{}"}}}}}}', b64(40))
    plant("email", "mailto {}", f"alice.{some(5)}@example.com")
    plant("user", "opened /home/{}/data/train.bin", "averyodd" + some(5, string.ascii_lowercase))
    plant("user", "USER={}", "zoe" + some(6, string.ascii_lowercase))
    plant("user", "uid=1004({}) gid=100(users)", "yan" + some(6, string.ascii_lowercase))
    plant("user", "/Users/{}/src/x.py", "xiao" + some(6, string.ascii_lowercase))
    return found


def innocents() -> list[str]:
    """Strings that look random, or like a secret's name, and are neither."""
    noise = random.Random(7)
    words = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(25)]
    words += [hashlib.sha1(str(i).encode()).hexdigest() for i in range(25)]
    words += [hashlib.md5(str(i).encode()).hexdigest() for i in range(10)]
    words += [str(uuid.UUID(int=noise.getrandbits(128))) for _ in range(15)]
    words += [f"GPU-{uuid.UUID(int=noise.getrandbits(128))}" for _ in range(5)]
    words += [f"sha256-{base64.b64encode(noise.randbytes(32)).decode()}" for _ in range(10)]
    words += [f"0x{noise.getrandbits(64):016x}" for _ in range(10)]
    words += [f"module.layers.{i}.self_attn.{name}.weight" for i, name in enumerate(("q_proj", "k_proj", "v_proj") * 4)]
    words += [
        "model.embed_tokens.weight", "token_embedding.weight", "transformer.wte.token_type_embeddings", "cls_token",
        "pos_embed", "key_padding_mask", "attn.key.bias", "module.query_key_value.weight", "lm_head.weight",
        "secretary", "passwordless", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "bypass",
        "max_tokens=4096", "num_tokens: 1048576", "tokens_per_second=182734.5", "eos_token=</s>", "pad_token_id=128001",
        'bos_token="<s>"', "token=128009", "tokens=[1, 2, 3]", "n_tokens_per_batch: 65536", "key=weight",
        "sort_key=loss", "cache_key=abcdef0123456789", "token | count", "forward pass: 3", "pass=1",
        "the token is here", "key is weight", "password is required",
        "password is incorrect", "secret is set", "primary_key=id", "PWD=/workspace/run", "OLDPWD=/workspace",
        "password=None", "token: str", "api_key: Optional[str] = None", "secret=***", "password: ${DB_PASSWORD}",
        "secretName: nccl-conf",
        "sk-learn-contrib", "scikit-learn", "task-scheduler-0123456789abcdef", "risk-adjusted", "hf_hub_download",
        "hf_transfer", "npm_config_cache", "pypi-publish", "glpat", "xoxo", "ghp", "AKIA", "eyJ", "bearer of news",
        "basic usage", "Basic block profile", "cookie cutter", "authorization is required", "/root/.cache/torch/x",
        "/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py", "/tmp/nccl_trace_rank_0",
        "https://pytorch.org/docs/stable/distributed.html", "tcp://10.0.0.1:29500", "s3://bucket/path/to/ckpt-1000",
        "abfss://container@account.dfs.core.windows.net/data", "ssh://git@github.com/org/repo",
        "git@github.com:org/repo",
        "pthread_create@GLIBC_2.34", "memcpy@@GLIBC_2.14", "x@y", "loss@step", "mlx5_0:1/IB", "torch==2.11.0+cu130",
        "gpu-a017:81233:81301 [6] NCCL INFO Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA",
        "NCCL INFO comm 0x5581f8a0 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xad99822aca09d444",
        "NCCL WARN NET/IB: Got completion from peer 10.1.2.3<41411> with status=12 opcode=0 len=0 vendor err 129",
        "[rank0]:[E1115 00:56:34.844323936 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation",
        "NCCL_SOCKET_IFNAME set by environment to eth0", "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
        "CUDA_VISIBLE_DEVICES=0,1,2,3",
        "Init START key 0- color 12", "splitCount 3 parent 0x55 color 1 key 4", "fe80::ac0:ebff:fe12:3456",
        "0000:9d:00.0",
        "UserWarning: barrier(): using the device under current context", "user defined function", "username",
        "login node",
        "nccl:all_reduce_barrier", "nccl:_all_gather_base", "ckpt-2026-11-15T01-25-35", "run-20261115_012535-a1b2c3d4",
    ]  # fmt: skip
    return words


def clean(text: str, **options: Any) -> str:
    return Redactor(**options).text(text.encode()).decode()


def test_the_lists_are_as_large_as_they_should_be() -> None:
    """At least 60 secrets of 15 kinds and 200 innocent strings are tried."""
    assert len(planted()) >= 60
    assert len({kind for kind, _, _ in planted()}) >= 15
    assert len(set(innocents())) >= 200


@pytest.mark.parametrize(
    ("kind", "text", "secrets"), planted(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_secret_is_replaced_and_the_rest_stays(kind: str, text: str, secrets: list[str]) -> None:
    """Every planted secret is gone, in its own line and among others, and the words around it are still there."""
    around = f"before it\n{text}\nafter it\n"
    result = clean(around)
    for secret in secrets:
        assert secret not in result
        assert len(secret) < 12 or secret[3:-3] not in result
    assert result.startswith("before it\n")
    assert result.endswith("\nafter it\n")
    assert result.count("\n") == around.count("\n")
    assert clean(result) == result


@pytest.mark.parametrize("word", innocents())
def test_an_innocent_string_survives(word: str) -> None:
    """Hashes, ids, tensor names, settings and NCCL's lines are left alone: bare, quoted, and in a sentence."""
    for text in (word, f'"{word}"', f"  {word}\n", f"value {word}, next", f'{{"x": "{word}"}}'):
        assert clean(text) == text


def _incident(root: Path) -> tuple[list[str], list[str]]:
    """An incident with secrets in the environment, logs, stacks and dumps; (secrets, innocent strings)."""
    secrets: list[str] = []
    node = root / "nodes/gpu-a017"
    for folder in ("dumps", "logs", "stacks"):
        (node / folder).mkdir(parents=True)
    planting = planted()
    for index, (_, text, parts) in enumerate(planting):
        secrets += parts
        place = index % 3
        if place == 0:
            with (node / "logs/rank_0.log").open("a") as log:
                log.write(f"some line\n{text}\n")
        elif place == 1:
            with (node / "stacks/rank_0.1.txt").open("a") as stack:
                stack.write(f"Thread 1 (idle)\n    {text}\n")
        else:
            with gzip.open(node / f"logs/old_{index}.log.gz", "wb") as packed:
                packed.write(text.encode())
    settings_in_force = {}
    for index, name in enumerate(("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "MY_SECRET", "AWS_SESSION_TOKEN")):
        secrets.append(f"env{index}-{some(24)}")
        settings_in_force[name] = secrets[-1]
    settings_in_force["NCCL_DEBUG"] = "INFO"
    (node / "node.json").write_text(
        json.dumps({"schema": "hangscope.node/1", "node": "gpu-a017", "settings": settings_in_force, "ranks": []})
    )
    frames = [{"name": "main", "filename": f"/home/averyodduser/{text}", "line": 3} for _, text, _ in planting]
    in_dump = {"comm": {"auth_token": f"dump-{some(24)}", "api_key": f"dump-{some(24)}"}, "note": f"Bearer {some(40)}"}
    secrets += [in_dump["comm"]["auth_token"], in_dump["comm"]["api_key"], in_dump["note"][7:], "averyodduser"]
    entries = [{"frames": frames, "record_id": i, "time_created_ns": 1_794_705_000_000_000_000 + i} for i in range(50)]
    good = innocents()
    for protocol in (2, 4, 5):
        value = {"version": "2.10", "entries": entries, "innocent": good, **in_dump}
        (node / f"dumps/nccl_trace_rank_{protocol}").write_bytes(pickle.dumps(value, protocol=protocol))
    (node / "logs/rank_1.log").write_text("\n".join(good) + "\n")
    return secrets, good


def _everything(folder: Path) -> bytes:
    """All bytes of a tree: as they are, unpacked, and every string that a dump holds."""
    parts: list[bytes] = []
    for path in sorted(folder.rglob("*")):
        parts.append(str(path.relative_to(folder)).encode())
        if path.is_file():
            raw = path.read_bytes()
            parts.append(raw)
            if raw[:2] == b"\x1f\x8b":
                parts.append(gzip.decompress(raw))
            if raw[:1] == b"\x80":
                parts.append(repr(pickle.loads(raw)).encode())
    return b"\n".join(parts)


@pytest.mark.parametrize("pseudonymise", [False, True])
def test_no_planted_secret_is_in_a_bundle(tmp_path: Path, pseudonymise: bool) -> None:
    """None of the secrets planted in environment, logs, stacks and dumps is in the unpacked bytes or decoded dumps."""
    secrets, good = _incident(tmp_path / "inc")
    bundle = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz", pseudonymise=pseudonymise)
    assert bundle.left_out == ()
    extract(bundle.path, tmp_path / "out")
    found = _everything(tmp_path / "out")
    for secret in secrets:
        assert secret.encode() not in found, secret
    (node,) = (tmp_path / "out/nodes").iterdir()
    assert (node.name == "gpu-a017") is not pseudonymise
    value = pickle.loads((node / "dumps/nccl_trace_rank_2").read_bytes())
    assert value["entries"][3]["time_created_ns"] == 1_794_705_000_000_000_003
    if not pseudonymise:
        assert value["innocent"] == good
        assert (node / "logs/rank_1.log").read_text() == "\n".join(good) + "\n"
    settings_in_force = json.loads((node / "node.json").read_text())["settings"]
    assert settings_in_force["NCCL_DEBUG"] == "INFO"
    assert settings_in_force["HF_TOKEN"] == "[redacted:token]"


def test_the_summary_counts_what_was_replaced(tmp_path: Path) -> None:
    """redaction.json says how many of each kind were replaced, and the same is returned; it names no secret."""
    _incident(tmp_path / "inc")
    bundle = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz")
    extract(bundle.path, tmp_path / "out")
    summary = json.loads((tmp_path / "out/redaction.json").read_text())
    assert summary["schema"] == "hangscope.redaction/1"
    assert summary["replaced"] == dict(bundle.replaced)
    for kind in (
        "password",
        "token",
        "api-key",
        "private-key",
        "jwt",
        "url-credentials",
        "user-name",
        "aws-access-key",
    ):
        assert summary["replaced"][kind] > 0


def test_no_redact_keeps_every_byte(tmp_path: Path) -> None:
    """Without redaction the evidence in the bundle is the evidence in the folder, and no summary is written."""
    _incident(tmp_path / "inc")
    bundle = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz", redact=False)
    extract(bundle.path, tmp_path / "out")
    for path in (tmp_path / "inc").rglob("*"):
        if path.is_file():
            assert (tmp_path / "out" / path.relative_to(tmp_path / "inc")).read_bytes() == path.read_bytes()
    assert not (tmp_path / "out/redaction.json").exists()


# ---- formats stay readable -------------------------------------------------------------------------------------------


def test_json_stays_json() -> None:
    """Replacing values in JSON, also numbers and nested strings, leaves JSON that parses to the same keys."""
    value = {"password": "a\"b\\c", "pin_password": 12345, "nested": json.dumps({"token": some(20), "n": 1}), "x": None,
             "url": "https://u:p@h/x", "key": "-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----"}  # fmt: skip
    for indent in (None, 1):
        read = json.loads(clean(json.dumps(value, indent=indent)))
        assert read.keys() == value.keys()
        assert json.loads(read["nested"])["n"] == 1
        assert read["password"] == read["pin_password"] == "[redacted:password]"


def test_a_secret_across_the_border_of_two_pieces_is_found(tmp_path: Path) -> None:
    """Secrets are found wherever they lie in a large file, also keys of many lines and pairs of lines."""
    key, body = pem("RSA", lines=40)
    pair = "- name: DB_PASSWORD\n  value: Zx81-hidden-value\n"
    for text, parts in ((f"{key}\n", body), (pair, ["Zx81-hidden-value"]), ("password=Zx81-hidden\n", ["Zx81-hidden"])):
        for offset in (-2600, -1000, -301, -170, -90, -60, -41, -33, -21, -12, -3, 0, 7):
            filler = "x" * 99 + "\n"
            front = filler * ((1 << 20) // 100)
            front = front[: (1 << 20) + offset]
            front = front[: front.rfind("\n") + 1]
            out = io.BytesIO()
            Redactor().file(io.BytesIO((front + text + filler * 20).encode()), out)
            for part in parts:
                assert part.encode() not in out.getvalue()


def test_one_endless_line_is_redacted_in_pieces() -> None:
    """JSON of some MB on one line is redacted without being held as a whole, and stays JSON."""
    rows = [{"id": i, "password": f"hidden-{i:06d}-value", "x": "y" * 150} for i in range(30_000)]
    out = io.BytesIO()
    Redactor().file(io.BytesIO(json.dumps(rows).encode()), out)
    assert b"hidden-" not in out.getvalue()
    assert len(json.loads(out.getvalue())) == 30_000


def test_a_key_without_an_end_takes_only_its_own_lines() -> None:
    """A private key that a log cut off does not take the rest of the log with it."""
    key, body = pem("RSA")
    cut = "\n".join(key.split("\n")[:-2])
    result = clean(f"{cut}\n[rank0]: went on with step 12 (all is well)\nlast line\n")
    assert not any(line in result for line in body[:-1])
    assert result.endswith("[rank0]: went on with step 12 (all is well)\nlast line\n")


# ---- dumps -----------------------------------------------------------------------------------------------------------


def _rewritten(raw: bytes, redactor: Redactor | None = None) -> bytes:
    redactor = redactor or Redactor()
    return b"".join(rewrite_pickle.rewrite(raw, redactor))


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=40)
    | st.sampled_from(["/home/alice/x.py", "password", "X", "X\x10\x00\x00\x00", "hf_" + "a1" * 17, "\x8c\x8d"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
    | st.tuples(inner, inner),
    max_leaves=60,
)  # fmt: skip


def _expected(value: Any, redactor: Redactor) -> Any:
    """What redaction should make of a value, by walking the value itself."""
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return redactor.string(raw).decode("utf-8", "surrogatepass")
    if isinstance(value, list):
        return [_expected(item, redactor) for item in value]
    if isinstance(value, tuple):
        return tuple(_expected(item, redactor) for item in value)
    if isinstance(value, dict):
        return {_expected(key, redactor): _expected(item, redactor) for key, item in value.items()}
    return value


class _Unkeyed(Redactor):
    """Looks at each string by itself, as `_expected` does."""

    def secret_key(self, text: bytes) -> bool:
        return False


@settings(max_examples=200, deadline=None)
@given(value=_PLAIN, protocol=st.sampled_from([2, 3, 4, 5]))
def test_a_rewritten_dump_means_the_same(value: Any, protocol: int) -> None:
    """Any plain value, pickled in any protocol, is after rewriting the same value with its strings redacted."""
    redactor = _Unkeyed()
    raw = _rewritten(pickle.dumps(value, protocol=protocol), redactor)
    assert pickle.loads(raw) == _expected(value, redactor)


@settings(max_examples=200, deadline=None)
@given(value=_PLAIN, data=st.data())
def test_the_quick_way_and_the_walk_agree(value: Any, data: st.DataObject) -> None:
    """Finding strings without walking gives byte for byte what the walk gives, also for a dump that was cut."""
    redactor = Redactor()
    raw = pickle.dumps(value, protocol=2)
    assert _rewritten(raw) == b"".join(rewrite_pickle._walk(raw, redactor))
    cut = raw[: data.draw(st.integers(2, len(raw)))]
    walked = b"".join(rewrite_pickle._walk(cut, redactor))
    quick = _rewritten(cut)
    assert quick.startswith(walked) or quick == walked
    assert b"/home/alice" not in quick


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_value_is_secret_by_its_key(protocol: int) -> None:
    """In a dictionary, and in a pair, a key that says password makes the value behind it secret; its memo too."""
    value = [
        {"password": "Zx81a", "state": "completed"},
        {"password": "Zx81b", "n": 1},
        ("API_KEY", "Zx81c"),
        ("a", "b"),
    ]
    read = pickle.loads(_rewritten(pickle.dumps(value, protocol=protocol)))
    gone = "[redacted:secret]"
    assert read == [{"password": gone, "state": "completed"}, {"password": gone, "n": 1}, ("API_KEY", gone), ("a", "b")]


def test_real_dumps_are_rewritten_in_place() -> None:
    """Dumps that PyTorch wrote need no walk, and only their strings differ afterwards."""
    cases = Path(__file__).parents[2] / "cases"
    dumps = sorted(cases.glob("*/*/nccl_trace_rank_*[0-9]"))
    assert len(dumps) > 40
    redactor = Redactor(aliases=Aliases())
    for path in dumps:
        raw = path.read_bytes()
        quick = rewrite_pickle._in_place(raw, redactor)
        assert quick is not None
        before, after = pickle.loads(raw), pickle.loads(_rewritten(raw, redactor))
        assert after == _expected(before, redactor)
        assert b"/workspace/train.py" not in _rewritten(raw, redactor)
        assert _rewritten(raw, Redactor()) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02}X\x01\x00\x00\x00aq\x00U\x05helloq\x01s.",
        b"\x80\x02(i__main__\nX\n.",
        b"\x80\x02\x8a\x01\x05R.",
    ],
)
def test_a_pickle_that_could_run_code_is_left_out(tmp_path: Path, raw: bytes) -> None:
    """A pickle with classes, calls or byte strings is not redacted but left out, and the bundle says so."""
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/nccl_trace_rank_0").write_bytes(raw + b"/home/alice/x" * 2)
    (tmp_path / "inc/rank_0.log").write_text("fine\n")
    if raw[2:3] != b"c":
        with pytest.raises(rewrite_pickle.Unwalkable):
            list(rewrite_pickle._walk(raw, Redactor()))
    bundle = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz")
    with tarfile.open(bundle.path) as tar:
        names = tar.getnames()
    for gap in bundle.left_out:
        assert "cannot be redacted safely" in gap.why
        assert f"x/{gap.what}" not in names


def test_what_cannot_be_looked_into_is_left_out(tmp_path: Path) -> None:
    """Archives, broken compression and UTF-16 are left out with the reason, in the result and in the manifest."""
    root = tmp_path / "inc"
    root.mkdir()
    (root / "a.zip").write_bytes(b"PK\x03\x04" + b"x" * 50)
    (root / "b.log.xz").write_bytes(b"\xfd7zXZ\x00" + b"x" * 50)
    (root / "c.log.gz").write_bytes(gzip.compress(b"hello" * 100)[:-10])
    (root / "d.txt").write_bytes("password=hidden".encode("utf-16"))
    (root / "rank_0.log").write_text("fine\n")
    bundle = write_bundle(root, tmp_path / "x.tar.gz")
    assert {gap.what for gap in bundle.left_out} == {"a.zip", "b.log.xz", "c.log.gz", "d.txt"}
    opened = extract(bundle.path, tmp_path / "out")
    assert set(opened.manifest.files) == {"rank_0.log", "redaction.json"}
    assert {gap.what for gap in opened.manifest.gaps} == {"a.zip", "b.log.xz", "c.log.gz", "d.txt"}


def test_binary_files_keep_their_length() -> None:
    """In a binary file a secret is overwritten, so that everything else stays in its place."""
    secret = b"hf_" + b"aB3" * 11
    raw = bytes(range(256)) * 40 + secret + bytes(range(256)) * 40
    out = io.BytesIO()
    Redactor().file(io.BytesIO(raw), out)
    assert len(out.getvalue()) == len(raw)
    assert secret not in out.getvalue()
    assert out.getvalue()[: 256 * 40] == raw[: 256 * 40]
    with pytest.raises(CannotRedact, match="binary file that names hosts"):
        Redactor(aliases=Aliases(["gpu-a017"])).file(io.BytesIO(raw + b"gpu-a017\0"), io.BytesIO())


def test_a_log_with_holes_is_still_text() -> None:
    """A log with a block of zeros in it, as log rotation leaves them, is redacted as text."""
    out = io.BytesIO()
    Redactor(aliases=Aliases(["gpu-a017"])).file(io.BytesIO(b"\0" * 4096 + b"gpu-a017 password=Zx81\n"), out)
    assert out.getvalue() == b"\0" * 4096 + b"node-001 password=[redacted:password]\n"


@pytest.mark.parametrize(
    "piece",
    [b"sk-", b"eyJ", b"-----BEGIN RSA PRIVATE KEY-----", b"password: '", b"authorization: bearer ", b"://::::", b"a@",
     b"a", b"token=", b"gpu-a[", b"/a", b"curl -u ", b"cookie: a=", b"name: TOKEN ", b"1.", b"0:", b"X-Amz-", b"user"],
)  # fmt: skip
def test_no_file_makes_redaction_slow(piece: bytes) -> None:
    """Whatever is repeated, without a single line break, redaction takes seconds and not hours."""
    redactor = Redactor([b"alice"], Aliases(["gpu-a017", "a1"]))
    begun = time.process_time()
    redactor.text(piece * (300_000 // len(piece)))
    assert time.process_time() - begun < 20


# ---- users and aliases -----------------------------------------------------------------------------------------------


def test_users_keep_apart_and_are_followed_into_other_paths(tmp_path: Path) -> None:
    """Two users stay two; a name that a home directory gives away is also replaced in /scratch and before a host."""
    users = users_in(b"HOME=/home/alice\nUSER=bob\nuid=7(carol) gid=7(carol)\n/home/ubuntu/x /root/y\nUSER=root")
    assert users == {b"alice", b"bob", b"carol"}
    text = "/home/alice/a /home/bob/b /scratch/alice/c alice@gpu-1 /data/carol/x /home/ubuntu/x /root/y malice /alicex/"
    text += "\nalice  4711  99.0 python train.py; run by carol. Bob"
    result = clean(text, users=users)
    assert not re.search(r"\b(alice|bob|carol)\b", result)
    assert "/home/ubuntu/x /root/y malice /alicex/" in result
    assert re.search(r"\nuser-\d  4711  99.0 python train.py; run by user-\d\. Bob$", result)
    words = clean("/home/adam/x optimizer=adam lr /scratch/adam/y adam@gpu", users=[b"adam"])
    assert words == "/home/user-1/x optimizer=adam lr /scratch/user-1/y user-1@gpu"
    assert re.search(r"/home/(user-\d)/a /home/(?!\1)user-\d/b /scratch/\1/c \1@gpu-1", result)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gpu-a017:81233:81301 [6] NCCL INFO Using", "node-001:81233:81301 [6] NCCL INFO Using"),
        ("peer gpu-a018.cluster.local<41411> closed", "peer node-002<41411> closed"),
        ("GPU-A017 and gpu-a018-ib0", "node-001 and node-002-ib0"),
        ("gpu-a017.log nccl.gpu-a017.77.log trace_gpu-a018_5", "node-001.log nccl.node-001.77.log trace_node-002_5"),
        ("mygpu-a017x gpu-a0171 xgpu-a017", "mygpu-a017x node-003 xgpu-a017"),
        ("SLURM_NODELIST=gpu-a[017-018]", "SLURM_NODELIST=node-001,node-002"),
        ("Bootstrap: Using eth0:10.1.2.3<0>", "Bootstrap: Using eth0:198.18.0.1<0>"),
        ("10.1.2.4 10.1.2.3 10.1.2.4", "198.18.0.1 198.18.0.2 198.18.0.1"),
        ("lo:127.0.0.1<0> 0.0.0.0 version 12.8.4.1 cublas==12.8.4.1", None),
        ("[2026-11-15T01:25:35.161] 0000:9d:00.0 c10d::ops std::vector", None),
        ("via fe80::ac0:ebff:fe12:3456%eth0<1>", "via 2001:db8::1%eth0<1>"),
        ('File "/fsx/proj/x/train.py", line 3', 'File "/path-001/train.py", line 3'),
        ("/opt/venvs/x/lib/python3.12/site-packages/torch/a.py", "/path-001/lib/python3.12/site-packages/torch/a.py"),
        ("/usr/lib/x.so /proc/self/maps /tmp/nccl_trace_rank_0", None),
        ("NET/IB/0/GDRDMA 00/0 transport/net.cc:1302 https://h.example/x/y", None),
    ],
)
def test_aliases_keep_the_form(before: str, after: str | None) -> None:
    """Hosts, addresses and paths become aliases of the same form; times, versions and library paths stay."""
    aliases = Aliases(["gpu-a017", "gpu-a018.cluster.local"])
    result = aliases.clean(before.encode()).decode()
    assert result == (before if after is None else after)
    assert aliases.clean(result.encode()).decode() == result


def test_hosts_are_learnt_where_only_hosts_stand() -> None:
    """Prefixes of NCCL, rosters, settings, Slurm's lists and torchrun's reports give host names; words do not."""
    text = b"""x: gpu-1:12:13 [0] NCCL INFO hello
{"host": "gpu-2", "node": "gpu-3.cluster.local"} MASTER_ADDR=gpu-4
SLURM_JOB_NODELIST=gpu-a[05-07],login-1
  host      : gpu-8
closed by gpu-9<123>, [gpu-10]:29500, (gpu-11, 29500), {"host": "10.0.0.1"}, "host": "localhost", time 12:13:14
"""
    assert hosts_in(text) == {
        "gpu-1", "gpu-2", "gpu-3.cluster.local", "gpu-4", "gpu-a05", "gpu-a06", "gpu-a07", "login-1", "gpu-8",
        "gpu-9", "gpu-10", "gpu-11",
    }  # fmt: skip


def test_a_short_host_name_does_not_rename_a_gpu() -> None:
    """A host called a1 stands for itself: A100 and H200 are no hosts of the same form."""
    aliases = Aliases(["a1", "h2"])
    assert aliases.clean(b"a1:7:7 NVIDIA A100, H200 on h2") == b"node-001:7:7 NVIDIA A100, H200 on node-002"


def test_the_map_makes_aliases_stable(tmp_path: Path) -> None:
    """A second bundle with the first one's map gives the same aliases; the map is for its owner's eyes only."""
    file = tmp_path / "x.aliases.json"
    first = Aliases(["gpu-b2", "gpu-b1"])
    assert first.clean(b"gpu-b2 10.0.0.9 /fsx/a/b.py") == b"node-002 198.18.0.1 /path-001/b.py"
    first.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    second = Aliases.load(file, ["gpu-a1", "gpu-b2"])
    assert second.clean(b"gpu-b2 10.0.0.9 /fsx/a/b.py gpu-a1") == b"node-002 198.18.0.1 /path-001/b.py node-003"
    file.write_text("{}")
    with pytest.raises(DamagedError, match="not a map of aliases"):
        Aliases.load(file)


def test_hosts_that_are_called_like_aliases_get_others() -> None:
    """Where true hosts are called node-001, aliases are called otherwise, so that nobody mixes them up."""
    aliases = Aliases(["node-001", "node-002"])
    assert aliases.clean(b"node-002 node-001") == b"host-002 host-001"


def test_pseudonymised_bundle_names_no_host_anywhere(tmp_path: Path) -> None:
    """Host names, addresses and paths are in no file and no file name of the bundle, and the map is not in it."""
    source = tmp_path / "inc"
    node = source / "nodes/gpu-a017"
    (node / "logs/fsx/secretproject").mkdir(parents=True)
    (node / "logs/fsx/secretproject/nccl.gpu-a017.77.log").write_text(
        "gpu-a017:77:77 [0] NCCL INFO Bootstrap: Using eth0:10.1.2.3<0>\n"
        "gpu-a017:77:78 [0] NCCL WARN socketProgress: Connection closed by remote peer gpu-a018.cluster.local<41411>\n"
    )
    (source / "incident.json").write_text(
        json.dumps(
            {
                "schema": "hangscope.incident/1",
                "detail": "rank 2 on gpu-a018 waits",
                "nodes_expected": ["gpu-a017", "gpu-a018", "gpu-a019"],
                "nodes_present": ["gpu-a017"],
            }
        )
    )
    (node / "node.json").write_text(json.dumps({"schema": "hangscope.node/1", "node": "gpu-a017"}))
    frame = {"name": "f", "filename": "/fsx/secretproject/my code/train.py", "line": 1}
    (node / "nccl_trace_rank_0").write_bytes(pickle.dumps([{"frames": [frame]}], protocol=2))
    bundle = write_bundle(
        source,
        tmp_path / "x.tar.gz",
        pseudonymise=True,
        reports=lambda clean: Reports(*[clean("culprit on gpu-a018")] * 2, lambda: "", lambda files: ""),
    )
    extract(bundle.path, tmp_path / "out")
    found = _everything(tmp_path / "out")
    for word in (b"gpu-a01", b"10.1.2.3", b"secretproject", b"cluster.local", b"my code", b"aliases"):
        assert word not in found, word
    manifest = json.loads((tmp_path / "out/incident.json").read_text())
    assert manifest["nodes_expected"] == ["node-001", "node-002", "node-003"]
    assert manifest["detail"] == "rank 2 on node-002 waits"
    assert bundle.map_file == tmp_path / "x.aliases.json"
    assert json.loads(bundle.map_file.read_text())["hosts"]["gpu-a018"] == "node-002"
    value = pickle.loads((tmp_path / "out/nodes/node-001/nccl_trace_rank_0").read_bytes())
    assert value[0]["frames"][0]["filename"].endswith("/train.py")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("WANDB_API_KEY", True), ("password", True), ("client_secret", True), ("HF_TOKEN", True), ("auth_token", True),
     ("max_tokens", False), ("eos_token", False), ("key", False), ("state", False), ("x" * 500, False)],
)  # fmt: skip
def test_names_that_make_their_value_secret(name: str, expected: bool) -> None:
    """The key of a dictionary says whether its value is secret; the language model's tokens are not."""
    assert secret_name(name.encode()) is expected


OLD_PAT = b"k7x2mzq4wq5hn3v6ad7pjtbe2rfy4uc5sg6ilw3oxz7nq2mb4dka"
NEW_PAT = b"8Kd0sLqWb3Zx7Vn2Mj5Hg9Tr1Py6Uc4Ei0Oa8Sd3Fg7Hj2Kl5Qw9Er1Ty6Ui4Op0As8Df3Gh7J" + b"AZDO4Xk2"


@pytest.mark.parametrize(
    "form",
    [
        *(b"AZURE_DEVOPS_EXT_PAT=%s", b"pat: %s", b"azure devops pat %s", b"--token %s", b"personal_access_token %s"),
        b"git clone https://x:%s@dev.azure.com/o/r",
    ],
)
@pytest.mark.parametrize("secret", [OLD_PAT, NEW_PAT])
def test_tokens_of_azure_devops_are_found(form: bytes, secret: bytes) -> None:
    """The long form by its mark, the old one of base32 by the words beside it."""
    assert secret not in Redactor(set(), None, None).text(form % secret)


@pytest.mark.parametrize(
    "flag", [b"--pfx-password %s", b"--pfx-pass %s", b"--p12-password=%s", b'"--pfx-password", "%s"']
)
def test_the_password_of_a_certificate_is_found(flag: bytes) -> None:
    """Behind every spelling of the flag, also where the password is a word."""
    assert b"changeit" not in Redactor(set(), None, None).text(flag % b"changeit")
