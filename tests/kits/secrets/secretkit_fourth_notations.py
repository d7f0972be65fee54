# ruff: noqa: E501 - a table whose rows are read as they are written
"""Notations of the fourth kit: how a named secret gets into a log, a configuration dump or a command line.

Each takes dice and a secret and returns the text, or the text with the strings that must not be found where they are
not those of the secret itself (encoded ones).
"""

from __future__ import annotations

import base64
import json
import shlex
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

sys.path.insert(0, str(Path(__file__).parents[2]))  # also run as a script

from kits.secrets.secretkit_fourth_kinds import Dice, Secret

Text = str | tuple[str, tuple[str, ...]]
Notation = Callable[[Dice, Secret], Text]


def _flag(name: str) -> str:
    return "--" + name.lower().replace("_", "-").replace(".", "-").lstrip("-")


def _snake(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").lower()


def _upper(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").upper()


def _camel(name: str) -> str:
    head, *rest = _snake(name).split("_")
    return head + "".join(part.title() for part in rest)


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return "\n".join(indent + text[i : i + width] for i in range(0, len(text), width))


def _boxed(d: Dice, s: Secret) -> str:
    """Rich's traceback with locals: a box of 100 columns, long values cut into lines."""
    rows = [f"lr = {d.random.random():.5f}", f"{_snake(s.name)} = {s.value!r}", "step = 412"]
    lines = [piece for row in rows for piece in textwrap.wrap(row, 92, break_on_hyphens=False) or [""]]
    body = "\n".join(f"│ │ {line:<92} │ │" for line in lines)
    return f"│ ╭{'─' * 40} locals {'─' * 46}╮ │\n{body}\n│ ╰{'─' * 94}╯ │"


def _rich_table(d: Dice, s: Secret) -> str:
    rows = [("lr", "0.0003"), (s.name, s.value), ("batch_size", "512")]
    a, b = max(len(r[0]) for r in rows), max(len(r[1]) for r in rows)
    top = f"┏{'━' * (a + 2)}┳{'━' * (b + 2)}┓"
    end = f"└{'─' * (a + 2)}┴{'─' * (b + 2)}┘"
    return "\n".join([top, *(f"│ {x:<{a}} │ {y:<{b}} │" for x, y in rows), end])


def _rich_narrow(d: Dice, s: Secret) -> str:
    """Rich cuts a cell that does not fit and goes on in the next row of the box."""
    width = 34
    rows: list[tuple[str, str]] = [("lr", "0.0003")]
    for at in range(0, len(s.value), width):
        rows.append((s.name if at == 0 else "", s.value[at : at + width]))
    a = max(len(r[0]) for r in rows)
    return "\n".join(f"│ {x:<{a}} │ {y:<{width}} │" for x, y in rows)


def _tabulated(d: Dice, s: Secret) -> str:
    rows = [("lr", "0.0003"), (s.name, s.value), ("batch_size", "512")]
    a, b = max(len(r[0]) for r in rows), max(len(r[1]) for r in rows)
    line = f"+{'-' * (a + 2)}+{'-' * (b + 2)}+"
    return "\n".join([line, *(f"| {x:<{a}} | {y:<{b}} |" for x, y in rows), line])


def _csv(d: Dice, s: Secret) -> str:
    return f'run_id,{s.name},epoch\n{d.random.randrange(100, 999)},"{s.value}",3'


def _notebook(d: Dice, s: Secret) -> str:
    cell = {"cell_type": "code", "source": ["import os\n", f'os.environ["{s.name}"] = "{s.value}"\n'], "outputs": []}
    return json.dumps({"cells": [cell], "nbformat": 4}, indent=1)


def _utf16(d: Dice, s: Secret) -> str:
    return "\0".join(f"{s.name}={s.value}") + "\0"


def _in_base64(d: Dice, s: Secret) -> Text:
    text = base64.b64encode(f"{s.name}={s.value}".encode()).decode()
    return f"payload: {text}", (text[4:-4],)


def _kube_secret(d: Dice, s: Secret) -> Text:
    text = base64.b64encode(s.value.encode()).decode()
    return f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: train\ndata:\n  {_snake(s.name)}: {text}", (
        text.rstrip("="),
    )


def _percent(d: Dice, s: Secret) -> Text:
    text = quote(s.value, safe="")
    return f"callback?next=%2Frun&{_snake(s.name)}={text}&v=2", tuple(quote(part, safe="") for part in s.parts)


def _percent_pair(d: Dice, s: Secret) -> Text:
    """A whole query inside of one: the equals sign itself is encoded."""
    text = quote(f"{_snake(s.name)}={s.value}", safe="")
    return f"GET /login?redirect=%2Fcb%3F{text} 302", (quote(s.parts[0], safe=""),)


def _escaped_json(d: Dice, s: Secret) -> str:
    return json.dumps({"level": "info", "msg": json.dumps({"cfg": {s.name: s.value, "lr": 0.1}})})


def _thrice_json(d: Dice, s: Secret) -> str:
    return json.dumps({"log": json.dumps({"msg": json.dumps({s.name: s.value})}) + "\n", "stream": "stderr"})


def _pytest(d: Dice, s: Secret) -> str:
    return f"cfg        = {{'lr': 0.1}}\n{_snake(s.name):<10} = {s.value!r}\nrank       = 3\n\ntests/test_x.py:12: AssertionError"


def _better(d: Dice, s: Secret) -> str:
    name = _snake(s.name)
    return f'  File "train.py", line 31, in main\n    login({name})\n    │     └ {s.value!r}\n    └ <function login at 0x7f3b1c0a2d30>'


def _cgitb(d: Dice, s: Secret) -> str:
    return f" /opt/train/run.py in main({_snake(s.name)}={s.value!r})\n   29 login({_snake(s.name)})\n{_snake(s.name)} = {s.value!r}"


def _ps(d: Dice, s: Secret) -> str:
    return f"root      81233  312  4.1 98123456 7123456 ?  Rl  03:57  12:01 python -u train.py --lr 0.1 {_flag(s.name)} {s.value} --bf16"


def _ansi_value(d: Dice, s: Secret) -> str:
    return f"\x1b[36m{s.name}\x1b[0m=\x1b[35m{s.value}\x1b[0m"


def _ansi_json(d: Dice, s: Secret) -> str:
    return f'{{\x1b[34;1m"{s.name}"\x1b[0m: \x1b[32m"{s.value}"\x1b[0m}}'


def _ansi_inside(d: Dice, s: Secret) -> str:
    """A pager or grep colours a match in the middle of the value."""
    cut = len(s.value) // 2
    return f"{s.name}={s.value[:cut]}\x1b[01;31m\x1b[K{s.value[cut:]}\x1b[m\x1b[K"


def _sent(d: Dice, s: Secret) -> str:
    return f"send: b'POST /api/v1/runs HTTP/1.1\\r\\nHost: api.example.com\\r\\n{_header(s)}: {s.value}\\r\\nAccept: */*\\r\\n\\r\\n'"


def _header(s: Secret) -> str:
    return s.name if "-" in s.name or s.name in ("Authorization", "Cookie") else "X-" + s.name.replace("_", "-").title()


NOTATIONS: dict[str, Notation] = {
    "env": lambda d, s: f"{_upper(s.name)}={s.value}",
    "export": lambda d, s: f"export {_upper(s.name)}={shlex.quote(s.value)}",
    "export quoted": lambda d, s: f'export {_upper(s.name)}="{s.value}"',
    "declare -x": lambda d, s: f'declare -x {_upper(s.name)}="{s.value}"',
    "setenv": lambda d, s: f"setenv {_upper(s.name)} '{s.value}'",
    "powershell": lambda d, s: f'$env:{_upper(s.name)} = "{s.value}"',
    "cmd set": lambda d, s: f"set {_upper(s.name)}={s.value}\r",
    "name colon": lambda d, s: f"{s.name}: {s.value}",
    "spaced name": lambda d, s: f"{_snake(s.name).replace('_', ' ').capitalize()}: {s.value}",
    "arrow": lambda d, s: f"  {s.name} -> {s.value}",
    "dots": lambda d, s: f"  {_snake(s.name)} {'.' * max(3, 48 - len(s.name))} {s.value}",
    "json": lambda d, s: json.dumps({"step": 3, s.name: s.value, "ok": True}),
    "json tight": lambda d, s: json.dumps({"step": 3, s.name: s.value}, separators=(",", ":")),
    "json pretty": lambda d, s: json.dumps({"logger": {s.name: s.value, "lr": 0.1}}, indent=2),
    "json camel": lambda d, s: json.dumps({_camel(s.name): s.value}),
    "json in json": _escaped_json,
    "json in json in json": _thrice_json,
    "json list": lambda d, s: json.dumps({s.name: [s.value, None]}),
    "dict repr": lambda d, s: repr({"lr": 0.1, s.name: s.value, "rank": 3}),
    "dict of bytes": lambda d, s: repr({s.name.encode(): s.value.encode()}),
    "dataclass": lambda d, s: f"TrainConfig(lr=0.1, {_snake(s.name)}={s.value!r}, steps=100)",
    "namespace": lambda d, s: f"Namespace(lr=0.1, {_snake(s.name)}={s.value!r}, seed=1)",
    "attrs nested": lambda d, s: f"Run(cfg=Cfg(log=Log({_snake(s.name)}={s.value!r}), lr=0.1))",
    "secretstr-less pydantic": lambda d, s: f"lr=0.1 {_snake(s.name)}='{s.value}' seed=1",
    "pydantic error": lambda d, s: (
        f"  Input should be a valid URL [type=url_parsing, input_value={{'{_snake(s.name)}': '{s.value}'}}, input_type=dict]"
    ),
    "omegaconf": lambda d, s: f"logger:\n  project: llama\n  {_snake(s.name)}: {s.value}\ntrainer:\n  devices: 8",
    "hydra overrides": lambda d, s: f"hydra.overrides.task: ['lr=0.1', '+logger.{_snake(s.name)}={s.value}']",
    "yaml quoted": lambda d, s: f"env:\n  {s.name}: '{s.value}'",
    "yaml flow": lambda d, s: f"logger: {{project: llama, {_snake(s.name)}: {s.value}, lr: 0.1}}",
    "yaml anchor": lambda d, s: f"x-common: &common\n  {_snake(s.name)}: &tok {s.value}\njob:\n  <<: *common",
    "yaml literal": lambda d, s: f"{_snake(s.name)}: |-\n  {s.value}\nother: 1",
    "yaml folded": lambda d, s: f"{_snake(s.name)}: >-\n    {s.value}\nother: 1",
    "yaml list of pairs": lambda d, s: f"env:\n- name: {_upper(s.name)}\n  value: {s.value}\n- name: LR\n  value: '1'",
    "yaml value first": lambda d, s: f"env:\n- value: {s.value}\n  name: {_upper(s.name)}",
    "k8s describe": lambda d, s: f"    Environment:\n      RANK:  3\n      {_upper(s.name)}:  {s.value}\n    Mounts:",
    "json name value": lambda d, s: json.dumps({"env": [{"name": _upper(s.name), "value": s.value}]}),
    "json key value": lambda d, s: json.dumps([{"Key": s.name, "Value": s.value}]),
    "json value first": lambda d, s: json.dumps({"value": s.value, "name": s.name}),
    "k8s secret": _kube_secret,
    "toml": lambda d, s: f'[logger]\n{_snake(s.name)} = "{s.value}"\nlr = 0.1',
    "toml triple": lambda d, s: f'{_snake(s.name)} = """\n{s.value}"""',
    "ini": lambda d, s: f"[default]\n{_snake(s.name)} = {s.value}",
    "properties": lambda d, s: f"spring.{_snake(s.name).replace('_', '.')}={s.value}",
    "java flag": lambda d, s: f"java -Xmx4g -D{_snake(s.name).replace('_', '.')}={s.value} -jar app.jar",
    "ps aux": _ps,
    "ps environment": lambda d, s: f"  81233 ?  Rl  12:01 python train.py RANK=3 {_upper(s.name)}={s.value} HOME=/root",
    "cmdline nul": lambda d, s: f"python\0-u\0train.py\0{_flag(s.name)}\0{s.value}\0--bf16\0",
    "cmdline nul equals": lambda d, s: f"python\0train.py\0{_flag(s.name)}={s.value}\0",
    "environ nul": lambda d, s: f"RANK=3\0{_upper(s.name)}={s.value}\0HOME=/root\0",
    "docker run": lambda d, s: (
        f"docker run --rm -e {_upper(s.name)}={shlex.quote(s.value)} -e RANK=0 nvcr.io/nvidia/pytorch:25.09-py3"
    ),
    "docker inspect": lambda d, s: json.dumps({"Config": {"Env": ["PATH=/usr/bin", f"{_upper(s.name)}={s.value}"]}}),
    "docker build": lambda d, s: f"docker build --build-arg {_upper(s.name)}={s.value} -t train:latest .",
    "dockerfile env": lambda d, s: f"FROM pytorch/pytorch\nENV {_upper(s.name)} {s.value}\nRUN pip install x",
    "dockerfile arg": lambda d, s: f"ARG {_upper(s.name)}={s.value}",
    "kubectl literal": lambda d, s: f"kubectl create secret generic train --from-literal={_snake(s.name)}={s.value}",
    "helm": lambda d, s: f"helm upgrade train ./chart --set auth.{_camel(s.name)}={s.value},replicas=2",
    "srun export": lambda d, s: f"srun --export=ALL,{_upper(s.name)}={s.value},RANK=3 python train.py",
    "sbatch wrap": lambda d, s: f"sbatch -N 4 --wrap '{_upper(s.name)}={s.value} torchrun train.py'",
    "ssh env": lambda d, s: f'ssh node7 "{_upper(s.name)}={s.value} torchrun --nnodes 4 train.py"',
    "mpirun -x": lambda d, s: f"mpirun -np 16 -x NCCL_DEBUG=INFO -x {_upper(s.name)}={s.value} python train.py",
    "ray runtime env": lambda d, s: f"runtime_env={{'env_vars': {{'{_upper(s.name)}': '{s.value}'}}, 'pip': ['x']}}",
    "curl header": lambda d, s: f"curl -sS -H '{_header(s)}: {s.value}' https://api.example.com/v1",
    "curl data": lambda d, s: f"curl -d '{json.dumps({_snake(s.name): s.value})}' https://api.example.com/v1",
    "curl form": lambda d, s: f"curl --data-urlencode '{_snake(s.name)}={s.value}' https://api.example.com/v1",
    "curl -v": lambda d, s: f"> POST /v1 HTTP/2\n> Host: api.example.com\n> {_header(s)}: {s.value}\n> accept: */*",
    "http.client send": _sent,
    "http.client header": lambda d, s: f"header: {_header(s)}: {s.value}",
    "httpx headers": lambda d, s: f"Headers([('host', 'api.example.com'), ('{_header(s).lower()}', '{s.value}')])",
    "h11 headers": lambda d, s: f"request_headers=[(b'Host', b'api'), (b'{_header(s)}', b'{s.value}')]",
    "grpc metadata": lambda d, s: f"(_Metadatum(key='{_header(s).lower()}', value='{s.value}'),)",
    "go map": lambda d, s: f"headers: map[Accept:[*/*] {_header(s)}:[{s.value}]]",
    "go struct": lambda d, s: (
        f"config: {{Host:api Port:443 {_camel(s.name)[:1].upper() + _camel(s.name)[1:]}:{s.value} Debug:true}}"
    ),
    "rust debug": lambda d, s: f'Config {{ lr: 0.1, {_snake(s.name)}: Some("{s.value}"), seed: 1 }}',
    "ruby hash": lambda d, s: f'{{:lr=>0.1, :{_snake(s.name)}=>"{s.value}"}}',
    "php array": lambda d, s: f"    [{_snake(s.name)}] => {s.value}",
    "perl hash": lambda d, s: f"$VAR1 = {{ '{_snake(s.name)}' => '{s.value}' }};",
    "js object": lambda d, s: f"{{ lr: 0.1, {_camel(s.name)}: '{s.value}' }}",
    "c++ define": lambda d, s: f'-D{_upper(s.name)}=\\"{s.value}\\"',
    "python assign": lambda d, s: f'    os.environ["{_upper(s.name)}"] = "{s.value}"',
    "python getenv default": lambda d, s: f'key = os.getenv("{_upper(s.name)}", "{s.value}")',
    "python keyword": lambda d, s: f'>>> client = Client("https://api", {_snake(s.name)}="{s.value}")',
    "environ repr": lambda d, s: f"environ({{'RANK': '3', '{_upper(s.name)}': '{s.value}'}})",
    "items repr": lambda d, s: f"[('RANK', '3'), ('{_upper(s.name)}', '{s.value}')]",
    "argv list": lambda d, s: f"['train.py', '--lr', '0.1', '{_flag(s.name)}', '{s.value}']",
    "argv json": lambda d, s: json.dumps({"args": ["train.py", _flag(s.name), s.value, "--bf16"]}),
    "gflags": lambda d, s: f"torchrun train.py --{_snake(s.name)}={s.value} --lr=0.1",
    "f-string debug": lambda d, s: f"{_snake(s.name)}={s.value!r}",
    "rich locals": _boxed,
    "rich table": _rich_table,
    "rich narrow table": _rich_narrow,
    "pytest locals": _pytest,
    "better_exceptions": _better,
    "cgitb": _cgitb,
    "set -x": lambda d, s: f"+ export {_upper(s.name)}={s.value}\n+ {_upper(s.name)}={s.value}",
    "set -x deep": lambda d, s: f"++ setup.sh:12: {_upper(s.name)}={s.value}",
    "ansi": _ansi_value,
    "ansi json": _ansi_json,
    "ansi inside": _ansi_inside,
    "terraform plan": lambda d, s: f'  + resource "x" "y" {{\n      + {_snake(s.name)}      = "{s.value}"\n    }}',
    "terraform change": lambda d, s: f'      ~ {_snake(s.name)} = "{s.value}" -> (known after apply)',
    "ansible": lambda d, s: f'ok: [gpu-worker-6] => {{"changed": false, "item": {{"{_snake(s.name)}": "{s.value}"}}}}',
    "ansible extra": lambda d, s: f'ansible-playbook site.yml -e "{_snake(s.name)}={s.value}" -e lr=1',
    "tabulate": _tabulated,
    "markdown table": lambda d, s: f"| key | value |\n|---|---|\n| {s.name} | `{s.value}` |",
    "markdown": lambda d, s: f"- **{s.name}**: `{s.value}`",
    "csv": _csv,
    "tsv": lambda d, s: f"run\t{s.name}\tepoch\n17\t{s.value}\t3",
    "tsv pair": lambda d, s: f"{s.name}\t{s.value}",
    "url query": lambda d, s: f"GET https://api.example.com/v1/run?lr=0.1&{_snake(s.name)}={s.value} 200",
    "url fragment": lambda d, s: f"https://app.example.com/cb#state=1&{_snake(s.name)}={s.value}",
    "percent": _percent,
    "percent pair": _percent_pair,
    "base64 pair": _in_base64,
    "crlf": lambda d, s: f"[logger]\r\n{_snake(s.name)}={s.value}\r\nlr=1\r",
    "utf-16": _utf16,
    "logfmt": lambda d, s: f'ts=2026-11-15T00:00:00Z level=info msg="start run" {_snake(s.name)}={s.value} step=3',
    "logfmt quoted": lambda d, s: f'level=info {_snake(s.name)}="{s.value}" msg="start run"',
    "xml": lambda d, s: f"<property><{_camel(s.name)}>{escape(s.value)}</{_camel(s.name)}></property>",
    "xml attribute": lambda d, s: f"<server host='a' {_snake(s.name)}={quoteattr(s.value)}/>",
    "hadoop xml": lambda d, s: (
        f"<property><name>fs.{_snake(s.name).replace('_', '.')}</name><value>{escape(s.value)}</value></property>"
    ),
    "prototext": lambda d, s: f'auth {{\n  {_snake(s.name)}: "{s.value}"\n}}',
    "diff": lambda d, s: f"@@ -3,1 +3,1 @@\n-{_upper(s.name)}={s.value}\n+{_upper(s.name)}=",
    "heredoc": lambda d, s: f"cat > .env <<'EOF'\n{_upper(s.name)}={s.value}\nEOF",
    "echo into": lambda d, s: f"echo '{_upper(s.name)}={s.value}' >> ~/.bashrc",
    "notebook": _notebook,
    "prompt": lambda d, s: f"Enter {_snake(s.name).replace('_', ' ')}: {s.value}",
    "next line": lambda d, s: f"{_snake(s.name).replace('_', ' ')}:\n{s.value}",
    "sentence": lambda d, s: f"using {_snake(s.name).replace('_', ' ')} {s.value} for the run",
    "sentence is": lambda d, s: f"your {_snake(s.name).replace('_', ' ')} is {s.value}.",
    "sentence set to": lambda d, s: f"{s.name} was set to '{s.value}' by the launcher",
    "invalid": lambda d, s: f"ValueError: invalid {_snake(s.name).replace('_', ' ')} '{s.value}'",
    "parenthesised": lambda d, s: f"login failed ({_snake(s.name)} {s.value})",
    "sql": lambda d, s: f"INSERT INTO settings (k, v) VALUES ('{s.name}', '{s.value}')",
    "wrap 80": lambda d, s: _wrapped(f"2026-11-15 00:00:01 INFO starting with {s.name}={s.value}", 80),
    "wrap 120": lambda d, s: _wrapped(
        f'{{"timestamp": "2026-11-15T00:00:01Z", "message": "x", "config": {{"{s.name}": "{s.value}"}}}}', 120
    ),
    "wrap 40": lambda d, s: _wrapped(f"{s.name}={s.value}", 40),
    "wrap 40 indented": lambda d, s: _wrapped(f"{s.name}={s.value}", 40, "    "),
    "backslash": lambda d, s: f"torchrun train.py \\\n  {_flag(s.name)} \\\n  {s.value} \\\n  --bf16",
    "vars dump": lambda d, s: f"locals: lr=0.1; {_snake(s.name)}={s.value}; seed=1",
    "gdb": lambda d, s: f'#3  login ({_snake(s.name)}=0x7f3b1c0a2d30 "{s.value}") at auth.cc:81',
    "strace": lambda d, s: (
        f'execve("/usr/bin/python", ["python", "train.py", "{_flag(s.name)}", "{s.value}"], 0x7ffd /* 41 vars */) = 0'
    ),
    "strace write": lambda d, s: f'write(7, "{_header(s)}: {s.value}\\r\\nHost: x\\r\\n", 91) = 91',
    "systemd": lambda d, s: f'Environment="{_upper(s.name)}={s.value}" "RANK=3"',
    "systemctl show": lambda d, s: f"Environment=RANK=3 {_upper(s.name)}={s.value} LANG=C",
    "audit": lambda d, s: (
        f'type=EXECVE msg=audit(1794705819.9:12): argc=3 a0="train" a1="{_flag(s.name)}" a2="{s.value}"'
    ),
    "ruby inspect": lambda d, s: f'#<Config:0x0000 @{_snake(s.name)}="{s.value}", @lr=1>',
    "object repr": lambda d, s: f"<Client url=https://api {_snake(s.name)}={s.value}>",
    "html input": lambda d, s: f'<input type="hidden" name="{_snake(s.name)}" value={quoteattr(s.value)}>',
    "multipart": lambda d, s: f'Content-Disposition: form-data; name="{_snake(s.name)}"\r\n\r\n{s.value}\r',
}

PREFIXES: tuple[Callable[[Dice], str], ...] = (
    lambda d: "",
    lambda d: "",
    lambda d: f"[rank{d.random.randrange(64)}]: ",
    lambda d: f"{d.random.randrange(16)}: ",
    lambda d: f"[default{d.random.randrange(8)}]:",
    lambda d: f"(pid={d.random.randrange(1000, 90000)}, ip=10.0.0.7) ",
    lambda d: f"(RayTrainWorker pid={d.random.randrange(1000, 90000)}) ",
    lambda d: f"\x1b[36m(TrainActor pid={d.random.randrange(1000, 90000)})\x1b[0m ",
    lambda d: f"2026-11-15T00:00:0{d.random.randrange(10)}.123456789Z stderr F ",
    lambda d: f"2026-11-15 00:00:01,{d.random.randrange(100, 999)} - root - INFO - ",
    lambda d: f"[2026-11-15 00:00:01,{d.random.randrange(100, 999)}][__main__][INFO] - ",
    lambda d: f"I1115 00:00:01.{d.random.randrange(100000, 999999)} {d.random.randrange(1000, 9999)} main.cc:41] ",
    lambda d: f"Nov 15 00:00:01 gpu-worker-6 train[{d.random.randrange(1000, 9999)}]: ",
    lambda d: f"gpu-worker-{d.random.randrange(1, 9)}: ",
    lambda d: f"pod/train-worker-{d.random.randrange(8)}/main ",
    lambda d: f"train-worker-{d.random.randrange(8)}  | ",
    lambda d: f"00:01:02.{d.text('0123456789', 3)} | DEBUG    | __main__:main:{d.random.randrange(10, 99)} - ",
    lambda d: "\x1b[1;32m[INFO]\x1b[0m ",
)
