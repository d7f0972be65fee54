# ruff: noqa: E501 - a table whose rows are read as they are written
r"""Notations: how a secret gets into a log, a configuration, a command line or an exception, with its name or bare.

In a row, `\n`, `\r`, `\t`, `\0` and `\e` are what they are elsewhere. `{n}` is the name as it is, `{i}` as an
identifier, `{l}` in small letters, `{f}` with dashes, `{c}` and `{C}` in camel case, `{H}` and `{D}` as a header, `{s}`
and `{S}` in words, `{.}` with dots. `{v}` is the value as it is, `{j}`, `{jj}`, `{jjj}` inside JSON once to three times,
`{r}` in a repr, `{q}`, `{qq}` in an address, `{x}`, `{e}` in markup, `{sh}` for a shell, `{b64}` in base64.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import textwrap
import urllib.parse
from collections.abc import Callable
from xml.sax.saxutils import escape

from kits.secrets.kinds import Dice, Made, Secret

_SLOT = re.compile(r"\{(n|i|l|f|c|C|H|D|s|S|\.|v|jjj|jj|j|rr|r|qq|qj|q|xj|x|e|sh|b64)\}")
_ESCAPE = re.compile(r"\\([nrt0e\\])")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "e": "\x1b", "\\": "\\"}


def _snake(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").lower()


def _camel(name: str) -> str:
    first, *rest = _snake(name).split("_")
    return first + "".join(word.title() for word in rest)


def _json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _quoted(value: str) -> str:
    return urllib.parse.quote(value, safe="")


_NAMES: dict[str, Callable[[str], str]] = {
    "n": lambda name: name,
    "i": lambda name: name.replace("-", "_").replace(".", "_"),
    "l": _snake,
    "f": lambda name: _snake(name).replace("_", "-"),
    "c": _camel,
    "C": lambda name: _camel(name)[:1].upper() + _camel(name)[1:],
    "H": lambda name: name.replace("_", "-").title(),
    "D": lambda name: name.replace("_", "-"),
    "s": lambda name: _snake(name).replace("_", " "),
    "S": lambda name: _snake(name).replace("_", " ").capitalize(),
    ".": lambda name: _snake(name).replace("_", "."),
}
_VALUES: dict[str, Callable[[str], str]] = {
    "v": lambda value: value,
    "j": _json,
    "jj": lambda value: _json(_json(value)),
    "jjj": lambda value: _json(_json(_json(value))),
    "r": lambda value: repr(value)[1:-1],
    "rr": lambda value: repr(repr(value))[2:-2],
    "q": _quoted,
    "qq": lambda value: _quoted(_quoted(value)),
    "qj": lambda value: _quoted(_json(value)),
    "x": html.escape,
    "xj": lambda value: html.escape(_json(value)),
    "e": lambda value: escape(value, {'"': "&quot;"}),
    "sh": shlex.quote,
    "b64": lambda value: base64.b64encode(value.encode()).decode(),
}

NAMED = r'''
{n}={v}
export {n}='{v}'
+ {n}={v}\n+ srun python train.py
docker run --rm -e {n}={v} image:1 train
{"lr": 0.1, "{l}": "{j}", "steps": 5}
{"log": "{\\"{l}\\": \\"{jj}\\"}", "stream": "stdout"}
environ({'HOME': '/root', '{n}': '{r}', 'LANG': 'C'})
env:\n  {l}: {v}\n  lr: 0.1
config:\n  {l}: |\n    {v}\n  lr: 0.1
{l}:\n  value: {v}\nlr: 0.1
- name: {n}\n  value: {v}\n- name: LR\n  value: '0.1'
{"value": "{j}", "name": "{n}"}
python train.py --{f} {v} --lr 0.1
['train.py', '--{l}', '{v}', '--lr', '0.1']
GET https://api.example.com/x?{l}={q}&lr=1
lr%3D1%26{l}%3D{q}%26x%3D2
\e[32m{n}\e[0m=\e[1;33m{v}\e[0m done
'started\\n{n}={r}\\nlr=0.1'
[default]\n{l} = {v}\nlr = 0.1
  {l} ......................... {v}
<key>{n}</key>\n<string>{v}</string>
<property><name>fs.{l}</name><value>{v}</value></property>
Content-Disposition: form-data; name="{l}"\r\n\r\n{v}\r\n--x
{n} is set to {v}
{n} -> {v}
setenv {n} {v}
resource "x" "y" {\n  {l} = "{v}"\n  count = 2\n}
map[{l}:{v} lr:0.1]
{"{c}": "{j}"}
{&quot;{n}&quot;: &quot;{xj}&quot;}
HOME=/root\0{n}={v}\0LANG=C\0
Environment="{n}={v}" "B=2"
[('LR', '0.1'), ('{n}', '{v}')]
+ export {n}={v}\n+ {n}={v}
declare -x {n}="{v}"
{"a": 1, "{n}": "{j}", "z": [1]}
{\n  "a": {\n    "b": {\n      "{n}": "{j}"\n    }\n  },\n  "z": [\n    1\n  ]\n}
{"m": "{\\"{n}\\": \\"{jj}\\"}"}
{"m": "{\\"q\\": \\"{\\\\\\"{n}\\\\\\": \\\\\\"{jjj}\\\\\\"}\\"}"}
{\n "env": [\n  {\n   "name": "{n}",\n   "value": "{j}"\n  }\n ]\n}
db:\n  host: a\n  {n}: "{j}"\n  port: 3
db:\n  host: a\n  {n}: {v}
{n}: |\n  {v}\nnext: 1
{n}: >-\n    {v}\nnext: 1
{n}:\n  - {v}\n  - {v}x\nnext: 1
env:\n- name: {n}\n  value: "{j}"\n- name: A\n  value: b
env:\n- value: "{j}"\n  name: {n}
Step 4/9 : ENV {n} {v}
ARG {n}={v}
set -gx {n} {v}
python train.py --{f} {v} --steps 3
torchrun --nnodes 2 train.py --{l}={v} --steps 3
torchrun train.py --{l} '{v}'
argv: ['train.py', '--{l}', '{r}', '--steps', '3']
["train.py", "--{l}", "{j}", "--steps", "3"]
[\n  "train.py",\n  "--{l}",\n  "{j}",\n  "--steps",\n  "3"\n]
GET /x?a=1&{n}={q}&b=2 HTTP/1.1
next=%2Fx%3Fa%3D1%26{n}%3D{qq}%26b%3D2
\e[36m{n}\e[0m=\e[35m{v}\e[0m
\e[34;1m"{n}"\e[0m: \e[32m"{v}"\e[0m,
[rank3]: [2026-01-02 03:04:05,678] INFO {n}: {v}
2026-01-02T03:04:05.678Z node7 train[88]: {n}={v}
      {n} = '{v}'\n      step = 3
│ {n} = '{v}'   │
│ {n}   │ {v}   │
| {n} | {v} |
Namespace(lr=0.1, {i}='{r}', steps=3)
Config(opt=Opt(lr=1), {i}='{r}')
python main.py ++cfg.auth.{n}={v} seed=1
[auth]\n{n} = "{v}"
[auth]\n{n} = {v}
$env:{n} = "{v}"
#SBATCH --export=ALL,{n}={v},FOO=1
srun --export=ALL,{n}={v} python t.py
docker run -e {n}={v} -it img
ray job submit --runtime-env-json='{"env_vars": {"{n}": "{j}"}}' -- python t.py
mpirun -x {n}={v} -np 8 python t.py
PATH=/bin\0{n}={v}\0HOME=/root\0
{Host:a {n}:{v} Port:3}
<{n}>{x}</{n}>
<property><name>{n}</name><value>{x}</value></property>
{'HOME': '/root',\n '{n}': '{r}',\n 'Z': 1}
{'{n}':\n     '{r}',\n 'Z': 1}
headers=[(b'{l}', b'{v}'), (b'host', b'a')]
dict_items([('A', 'b'), ('{n}', '{r}')])
    os.environ["{n}"] = "{v}"
    os.environ.setdefault('{n}', '{v}')
    key = os.getenv('{n}', '{v}')
    client = Client(host, {i}='{v}')
DEBUG {n}='{v}' host='a'
level=info msg="login" {n}="{v}" ts=1
the {n} is {v}
{n} := {v}
:{n} => "{v}",
    Environment:\n      {n}:  {v}\n      FOO:   bar
curl -d '{n}={v}&x=1' https://a.b/c
curl -H '{n}: {v}' https://a.b/c
Environment="{n}={v}"
singularity exec --env {n}={v},B=1 img.sif python t.py
b'{n}={v}\\nFOO=bar'
-{n}={v}x\n+{n}={v}
.env:12:{n}={v}
    12\t{n}={v}
{n}="{v}"
export {n}={v}
export {n}={sh}
+++ {n}='{v}'
+ launch.sh:37:main(): export {n}={v}
+ env OMP_NUM_THREADS=8 {n}={v} python train.py --lr 3e-4
docker run --gpus all -e {n}={v} -e NCCL_DEBUG=INFO img:1 bash
docker run --env={n}={v} --rm img
Step 7/12 : ENV {n} {v}
#9 [3/8] ARG {n}={v}
    environment:\n      - NCCL_DEBUG=INFO\n      - {n}={v}
    environment:\n      {n}: {v}
mpirun -np 16 -x NCCL_DEBUG=INFO -x {n}={v} python train.py
srun --export=ALL,{n}={v},NCCL_DEBUG=INFO ./run.sh
#SBATCH --export=NONE,{n}={v}
APPTAINERENV_{n}={v} apptainer exec --nv x.sif python t.py
      env:\n        - name: {n}\n          value: {v}\n        - name: RANK\n          value: '3'
    - name: {n}\n      value: "{v}"
"env":[{"name":"RANK","value":"3"},{"name": "{n}", "value": "{j}"}]
{\n    "env": [\n        {\n            "name": "{n}",\n            "value": "{j}"\n        }\n    ]\n}
    Environment:\n      NCCL_DEBUG:      INFO\n      {n}:    {v}\n    Mounts:
kind: Secret\nmetadata:\n  name: train\nstringData:\n  {n}: {v}\ntype: Opaque
{n}: {v}
  {n}: '{v}'
{n}: >-\n  {v}\nnext: 1
logger:\n  {n}: |\n    {v}\n  project: llama
{"step": 3, "{n}": "{j}", "lr": 0.1}
{\n  "config": {\n    "{n}": "{j}"\n  }\n}
{"{n}":"{j}","a":1}
{"message": "{\\"env\\": {\\"{n}\\": \\"{jj}\\"}}"}
{"log": "{\\"msg\\": \\"{\\\\\\"{n}\\\\\\": \\\\\\"{jjj}\\\\\\"}\\"}\\n", "stream": "stderr"}
{'rank': 3, '{n}': '{r}', 'epoch': 1}
environ({'PATH': '/usr/bin', '{n}': '{r}', 'LANG': 'C.UTF-8'})
"{'{n}': '{rr}'}"
b'{n}={r}\\n'
{b'{n}': b'{r}'}
[('RANK', '0'), ('{n}', '{r}')]
Namespace(lr=0.0003, {l}='{r}', seed=1)
TrainConfig(model='llama', {l}='{r}', tp=8)
base_url='https://x.y' {l}='{r}' timeout=30
Settings({l}=SecretStr('{r}'))
trainer:\n  devices: 8\n  logger:\n    _target_: x.Wandb\n    {l}: {v}\n    offline: false
python train.py +trainer.logger.{l}={v} trainer.devices=8
- trainer.devices=8\n- ++logger.{l}={v}
torchrun train.py --{l}={v}
['train.py', '--lr', '0.1', '--{l}', '{r}']
['train.py', '--{l}={r}', '--bf16']
{"args": ["-m", "train", "--{l}", "{j}"]}
    args:\n    - train.py\n    - --{l}\n    - {v}\n    - --bf16
  {l} .............................. {v}
[logger]\n{l} = "{v}"
[default]\n{n} = {v}
spark.hadoop.{.}={v}
  <property>\n    <name>{n}</name>\n    <value>{v}</value>\n  </property>
<add key="{n}" value="{v}" />
EnvVar{Name:{n},Value:{v},ValueFrom:nil,}
[{Name:RANK Value:3} {Name:{n} Value:{v}}]
v1.EnvVar{Name:"{n}", Value:"{v}", ValueFrom:(*v1.EnvVarSource)(nil)}
map[NCCL_DEBUG:INFO {n}:{v} RANK:3]
time=2026-01-02T03:04:05Z level=INFO msg="start" {l}={v}
Config { rank: 3, {l}: Some("{v}"), port: 1 }
ClientConfig{host=db1, {c}='{v}', retries=3}
{ project: 'x', {c}: '{v}' }
{:project=>"x", :{l}=>"{v}"}
config { {l}: "{v}" devices: 8 }
        {l} = '{r}', self = <Trainer object at 0x7f1234567890>
    {l} = "{v}"
  File "train.py", line 12, in main\n    login({l}="{v}")\nValueError: x
setenv("{n}", "{v}", 1);
set {n}={v}
GET https://api.x.io/v1/log?run=3&{l}={q}&x=1 HTTP/1.1
redirect=https%3A%2F%2Fx.y%2Fcb%3F{l}%3D{q}
state=%7B%22{n}%22%3A%20%22{qj}%22%7D
{&quot;{n}&quot;:&quot;{v}&quot;}
> X-{H}: {v}
curl -sS -H 'X-{D}: {v}' https://x.y/z
{'Accept': '*/*', 'x-{f}': '{r}'}
--data-urlencode {l}={v} https://x.y
\e[1m"{n}"\e[22m: \e[38;5;28m"{v}"\e[39m,
{"log": "\\u001b[33m{n}\\u001b[0m: \\u001b[32m{j}\\u001b[0m"}
| lr | 0.1 |\n| {l} | {v} |
│ {n}                    │ {v} │
{n}                               {v}
{n}\t{v}
key,value\n{n},{v}
the {s} is {v}
{S}: {v}
using {l} '{v}' for the run
  3%|▎ | 3/100 [00:01<00:32]\r{n}={v}\r  4%|▍ | 4/100
PATH=/bin\0{n}={v}\0RANK=3\0
env: 'RANK=3\\n{n}={v}\\nLANG=C'
env: 'RANK=3\\\\n{n}={v}\\\\nLANG=C'
env=RANK=3\\012{n}={v}\\012
RANK=3#012{n}={v}#012LANG=C
helm upgrade x . --set auth.{c}={v},replicas=3
kubectl create secret generic s --from-literal={n}={v}
git -c http.extra.{c}={v} fetch
aws configure set {l} {v}
tool config set {f} {v}
Environment="NCCL_DEBUG=INFO" "{n}={v}"
  - [ sh, -c, "echo {n}={v} >> /etc/environment" ]
changed: [h1] => {"ansible_facts": {"{l}": "{v}"}}
  + {l} = "{v}"
-{n}: old\n+{n}: {v}
{l} = 0x55d0c8a3f2b0 "{v}"
std::map with 2 elements = {["{n}"] = "{v}", ["RANK"] = "3"}
execve("/usr/bin/python", ["python", "t.py"], ["RANK=3", "{n}={v}"]) = 0
  812 ?  Rl  3:01 python train.py RANK=3 {n}={v} LANG=C
loaded {n} ({v}) from the vault
{l}: str = '{r}'
  --{l} TEXT  [default: {v}]
{n}:\n  value: {v}\n  sensitive: true
{n}:\n  - {v}
{"{n}": ["{j}"]}
{l}:\n    desc: null\n    value: {v}
export {n}="{v}"
setenv {n} '{v}'
set {n}={v}\r
  {n} -> {v}
  {l} ....................................... {v}
{"step": 3, "{n}": "{j}", "ok": true}
{"step":3,"{n}":"{j}"}
{\n  "logger": {\n    "{n}": "{j}",\n    "lr": 0.1\n  }\n}
{"level": "info", "msg": "{\\"cfg\\": {\\"{n}\\": \\"{jj}\\", \\"lr\\": 0.1}}"}
{"{n}": ["{j}", null]}
{'lr': 0.1, '{n}': '{r}', 'rank': 3}
TrainConfig(lr=0.1, {l}='{r}', steps=100)
Namespace(lr=0.1, {l}='{r}', seed=1)
Run(cfg=Cfg(log=Log({l}='{r}'), lr=0.1))
lr=0.1 {l}='{v}' seed=1
  Input should be a valid URL [type=url_parsing, input_value={'{l}': '{v}'}, input_type=dict]
logger:\n  project: llama\n  {l}: {v}\ntrainer:\n  devices: 8
hydra.overrides.task: ['lr=0.1', '+logger.{l}={v}']
env:\n  {n}: '{v}'
logger: {project: llama, {l}: {v}, lr: 0.1}
x-common: &common\n  {l}: &tok {v}\njob:\n  <<: *common
{l}: |-\n  {v}\nother: 1
{l}: >-\n    {v}\nother: 1
env:\n- name: {n}\n  value: {v}\n- name: LR\n  value: '1'
env:\n- value: {v}\n  name: {n}
    Environment:\n      RANK:  3\n      {n}:  {v}\n    Mounts:
{"env": [{"name": "{n}", "value": "{j}"}]}
[{"Key": "{n}", "Value": "{j}"}]
[logger]\n{l} = "{v}"\nlr = 0.1
{l} = """\n{v}"""
[default]\n{l} = {v}
spring.{.}={v}
java -Xmx4g -D{.}={v} -jar app.jar
root      81233  312  4.1 98123456 7123456 ?  Rl  03:57  12:01 python -u train.py --lr 0.1 --{f} {v} --bf16
  81233 ?  Rl  12:01 python train.py RANK=3 {n}={v} HOME=/root
python\0-u\0train.py\0--{f}\0{v}\0--bf16\0
python\0train.py\0--{f}={v}\0
RANK=3\0{n}={v}\0HOME=/root\0
docker run --rm -e {n}={sh} -e RANK=0 nvcr.io/nvidia/pytorch:25.09-py3
{"Config": {"Env": ["PATH=/usr/bin", "{n}={j}"]}}
docker build --build-arg {n}={v} -t train:latest .
FROM pytorch/pytorch\nENV {n} {v}\nRUN pip install x
kubectl create secret generic train --from-literal={l}={v}
helm upgrade train ./chart --set auth.{c}={v},replicas=2
srun --export=ALL,{n}={v},RANK=3 python train.py
sbatch -N 4 --wrap '{n}={v} torchrun train.py'
ssh node7 "{n}={v} torchrun --nnodes 4 train.py"
runtime_env={'env_vars': {'{n}': '{v}'}, 'pip': ['x']}
curl -sS -H 'X-{H}: {v}' https://api.example.com/v1
curl -d '{"{l}": "{j}"}' https://api.example.com/v1
curl --data-urlencode '{l}={v}' https://api.example.com/v1
> POST /v1 HTTP/2\n> Host: api.example.com\n> X-{H}: {v}\n> accept: */*
send: b'POST /api/v1/runs HTTP/1.1\\r\\nHost: api.example.com\\r\\nX-{H}: {v}\\r\\nAccept: */*\\r\\n\\r\\n'
header: X-{H}: {v}
Headers([('host', 'api.example.com'), ('x-{f}', '{v}')])
request_headers=[(b'Host', b'api'), (b'X-{H}', b'{v}')]
(_Metadatum(key='x-{f}', value='{v}'),)
headers: map[Accept:[*/*] X-{H}:[{v}]]
config: {Host:api Port:443 {C}:{v} Debug:true}
Config { lr: 0.1, {l}: Some("{v}"), seed: 1 }
{:lr=>0.1, :{l}=>"{v}"}
    [{l}] => {v}
$VAR1 = { '{l}' => '{v}' };
{ lr: 0.1, {c}: '{v}' }
-D{n}=\\"{v}\\"
key = os.getenv("{n}", "{v}")
>>> client = Client("https://api", {l}="{v}")
environ({'RANK': '3', '{n}': '{v}'})
[('RANK', '3'), ('{n}', '{v}')]
['train.py', '--lr', '0.1', '--{f}', '{v}']
{"args": ["train.py", "--{f}", "{j}", "--bf16"]}
torchrun train.py --{l}={v} --lr=0.1
{l}='{r}'
┏━━━━━━━━━━━━┳━━━━━━━━━━┓\n│ lr         │ 0.0003   │\n│ {n}  │ {v} │\n│ batch_size │ 512      │\n└────────────┴──────────┘
cfg        = {'lr': 0.1}\n{l}  = '{r}'\nrank       = 3\n\ntests/test_x.py:12: AssertionError
  File "train.py", line 31, in main\n    login({l})\n    │     └ '{r}'\n    └ <function login at 0x7f3b1c0a2d30>
 /opt/train/run.py in main({l}='{r}')\n   29 login({l})\n{l} = '{r}'
++ setup.sh:12: {n}={v}
{\e[34;1m"{n}"\e[0m: \e[32m"{v}"\e[0m}
  + resource "x" "y" {\n      + {l}      = "{v}"\n    }
      ~ {l} = "{v}" -> (known after apply)
ok: [gpu-worker-6] => {"changed": false, "item": {"{l}": "{v}"}}
ansible-playbook site.yml -e "{l}={v}" -e lr=1
+------------+----------+\n| lr         | 0.0003   |\n| {n}  | {v} |\n| batch_size | 512      |\n+------------+----------+
| key | value |\n|---|---|\n| {n} | `{v}` |
- **{n}**: `{v}`
run_id,{n},epoch\n461,"{v}",3
run\t{n}\tepoch\n17\t{v}\t3
GET https://api.example.com/v1/run?lr=0.1&{l}={v} 200
https://app.example.com/cb#state=1&{l}={v}
callback?next=%2Frun&{l}={q}&v=2
GET /login?redirect=%2Fcb%3F{l}%3D{q} 302
[logger]\r\n{l}={v}\r\nlr=1\r
ts=2026-11-15T00:00:00Z level=info msg="start run" {l}={v} step=3
level=info {l}="{v}" msg="start run"
<property><{c}>{e}</{c}></property>
<server host='a' {l}="{e}"/>
<property><name>fs.{.}</name><value>{e}</value></property>
auth {\n  {l}: "{v}"\n}
@@ -3,1 +3,1 @@\n-{n}={v}\n+{n}=
cat > .env <<'EOF'\n{n}={v}\nEOF
echo '{n}={v}' >> ~/.bashrc
{\n "cells": [\n  {\n   "cell_type": "code",\n   "source": [\n    "import os\\n",\n    "os.environ[\\"{n}\\"] = \\"{j}\\"\\n"\n   ],\n   "outputs": []\n  }\n ],\n "nbformat": 4\n}
Enter {s}: {v}
{s}:\n{v}
using {s} {v} for the run
your {s} is {v}.
{n} was set to '{v}' by the launcher
ValueError: invalid {s} '{v}'
login failed ({l} {v})
INSERT INTO settings (k, v) VALUES ('{n}', '{v}')
torchrun train.py \\\n  --{f} \\\n  {v} \\\n  --bf16
locals: lr=0.1; {l}={v}; seed=1
#3  login ({l}=0x7f3b1c0a2d30 "{v}") at auth.cc:81
execve("/usr/bin/python", ["python", "train.py", "--{f}", "{v}"], 0x7ffd /* 41 vars */) = 0
write(7, "X-{H}: {v}\\r\\nHost: x\\r\\n", 91) = 91
Environment="{n}={v}" "RANK=3"
Environment=RANK=3 {n}={v} LANG=C
type=EXECVE msg=audit(1794705819.9:12): argc=3 a0="train" a1="--{f}" a2="{v}"
#<Config:0x0000 @{l}="{v}", @lr=1>
<Client url=https://api {l}={v}>
<input type="hidden" name="{l}" value="{e}">
Content-Disposition: form-data; name="{l}"\r\n\r\n{v}\r
<env><{l}>{e}</{l}></env>
{"m": "{n}\\u003d\\u0022{j}\\u0022"}
{"frames": [{"function": "main", "vars": {"{n}": "'{j}'", "rank": "3"}}]}
apiVersion: v1\nkind: Secret\nmetadata:\n  name: train\ndata:\n  {l}: {b64}
'''.strip("\n").split("\n")
"""A secret beside its name."""

BARE = r"""
login with {v} failed, trying again
using \e[36m{v}\e[0m now
['a', 'line one\\n{r}\\nline two']
q=%22{q}%22
x{v} and key-{v}
> Authorization: Bearer {v}
{"messages": [{"text": "my {j} ok"}]}
    connect (client.py:12)\n      Arguments: url: 'x', auth: '{v}'
trying {v} now
\e[1;32m{v}\e[0m accepted
b'line one\\n{v}\\nline'
{"log": "first\\n{j}\\nlast"}
"{\\"m\\": \\"[\\\\\\"a\\\\\\", \\\\\\"{jjj}\\\\\\"]\\"}"
GET /cb?v=%22{q}%22 HTTP/1.1
GET /cb?v=%2522{qq}%2522 HTTP/1.1
<td>&quot;{x}&quot;</td>
value_{v}
[rank3]: [2026-01-02 03:04:05,678] INFO trainer.py:77 x={v},
open /data/cache/{v}/part-0.bin
['python', 'train.py', '--x', '{r}']
Traceback (most recent call last):\n  File "a.py", line 3, in f\n    login("{v}")\nValueError: bad {v}
    locals: x = '{v}', step = 3
{"m": "\\u0022{v}\\u0022"}
Warning  Failed  2m  kubelet  Error: failed to start container "t": args [--x={v}]
authenticated with {v} as user
token{v}
\e[32m{v}\e[0m
\\x1b[32m{v}\\x1b[0m
'first\\n{v}\\nlast'
['a', '{r}']
/data/cache/{v}/blob.bin
ckpt-{v}.pt
https://api.x.io/v1/{q}/runs
%22{q}%22
run_{v}
job-{v}
Authorization: Bearer {v}
{'authorization': 'Bearer {r}'}
< authorization: bearer {v}
-H 'Authorization: token {v}'
KeyError: '{v}'
  File "/w/{v}.py", line 3, in <module>
cfg.{v}
<code>{v}</code>
<{v}>
x:{v}:y
{v}@github.com
""".strip("\n").split("\n")
"""A secret without a name: for those that are known by their form."""

PREFIXES = (
    "",
    "",
    "[rank{-d1}]: ",
    "{-d2}: ",
    "[default{-d1}]:",
    "[1,{-d1}]<stderr>:",
    "[2026-11-15 02:30:11,{-d3}] ",
    "[2026-11-15 00:00:01,{-d3}][__main__][INFO] - ",
    "2026-11-15 00:00:01,{-d3} - root - INFO - ",
    "2026-11-15T02:30:11.{-d3}Z stderr F ",
    "2026-11-15T00:00:0{-d1}.123456789Z stderr F ",
    "00:01:02.{-d3} | DEBUG    | __main__:main:{-d2} - ",
    "INFO:train:",
    "I1115 00:00:01.{-d6} {-d4} main.cc:41] ",
    "I1115 02:30:11.204000 8123 site-packages/torch/x.py:12] [3/0_1] ",
    "Nov 15 00:00:01 gpu-worker-6 train[{-d4}]: ",
    "(pid={-d4}, ip=10.0.0.7) ",
    "(RayTrainWorker pid={-d4}) ",
    "(TrainWorker pid=8123, ip=10.0.0.7) ",
    "\x1b[36m(TrainActor pid={-d4})\x1b[0m ",
    "\x1b[36m(worker-3)\x1b[0m ",
    "\x1b[1;32m[INFO]\x1b[0m ",
    "\x1b[33m",
    "gpu-worker-{-d1}: ",
    "pod/train-worker-{-d1}/main ",
    "train-worker-{-d1}  | ",
    "master-0 | ",
)
"""What a launcher puts in front of every line."""


def unescaped(row: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], row)


def written(row: str, secret: Secret) -> Made:
    """A secret in one notation, and what of it nobody may read there, as it is written there."""

    def fill(match: re.Match[str]) -> str:
        slot = match[1]
        return _NAMES[slot](secret.name) if slot in _NAMES else _VALUES[slot](secret.value)

    values = {match[1] for match in _SLOT.finditer(row)} & _VALUES.keys()
    parts = [_VALUES[slot](part) for slot in values for part in secret.parts]
    if "b64" in values:
        parts = [_VALUES["b64"](secret.value).rstrip("=")]
    return Made(_SLOT.sub(fill, unescaped(row)), tuple(sorted(parts)))


def prefixed(text: str, dice: Dice) -> str:
    """The text as a launcher writes it: one writer's mark before each line, the time going on where there is one."""
    prefix = dice.random.choice(PREFIXES)
    first = dice.fill(prefix).text
    timed = re.search(r"\d\d:\d\d:\d\d", first)
    return "\n".join((dice.fill(prefix).text if timed else first) + line for line in text.split("\n"))


# ---- notations that break a value, draw around it or encode it --------------------------------------------------------


def _pieces(text: str, secret: Secret) -> Made:
    """A text that was broken: what may not be read are the runs of the secret that are still in one piece."""
    runs: list[str] = []
    for part in secret.parts:
        at = 0
        while at < len(part):
            end = next((end for end in range(len(part), at, -1) if part[at:end] in text), at + 1)
            runs.append(part[at:end])
            at = end
    return Made(text, tuple(run for run in runs if len(run) >= min(10, len(secret.parts[0]))) or secret.parts)


def _wrapped(row: str, width: int, indent: str = "") -> Callable[[Secret], Made]:
    def write(secret: Secret) -> Made:
        text = row.replace("{n}", secret.name).replace("{v}", secret.value)
        return _pieces("\n".join(indent + text[at : at + width] for at in range(0, len(text), width)), secret)

    return write


def _at_words(row: str) -> Callable[[Secret], Made]:
    def write(secret: Secret) -> Made:
        text = row.replace("{n}", secret.name).replace("{v}", secret.value)
        return _pieces("\n".join(textwrap.wrap(text, 80, break_on_hyphens=False)), secret)

    return write


def _rich_locals(secret: Secret) -> Made:
    """Rich's traceback with locals: a box of 100 columns, long values cut into lines."""
    text = f"{_snake(secret.name)} = {secret.value!r}"
    rows = ["rank = 3", *(text[at : at + 94] for at in range(0, len(text), 94)), "step = 1200"]
    box = [f"╭{'─' * 40} locals {'─' * 50}╮", *(f"│ {row:<96} │" for row in rows), f"╰{'─' * 98}╯"]
    return _pieces("\n".join(box), secret)


def _inner_locals(secret: Secret) -> Made:
    """The same, inside of the box of the frame, broken at words."""
    rows = ["lr = 0.00031", f"{_snake(secret.name)} = {secret.value!r}", "step = 412"]
    lines = [piece for row in rows for piece in textwrap.wrap(row, 92, break_on_hyphens=False)]
    body = "\n".join(f"│ │ {line:<92} │ │" for line in lines)
    return _pieces(f"│ ╭{'─' * 40} locals {'─' * 46}╮ │\n{body}\n│ ╰{'─' * 94}╯ │", secret)


def _narrow_table(secret: Secret) -> Made:
    """Rich cuts a cell that does not fit and goes on in the next row of the box."""
    cells = [secret.value[at : at + 34] for at in range(0, len(secret.value), 34)]
    names = [secret.name, *[""] * (len(cells) - 1)]
    width = max(map(len, (*names, "lr")))
    rows = zip(("lr", *names), ("0.0003", *cells), strict=True)
    return _pieces("\n".join(f"│ {name:<{width}} │ {cell:<34} │" for name, cell in rows), secret)


def _coloured_inside(secret: Secret) -> Made:
    """A pager or grep colours a match in the middle of the value."""
    cut = len(secret.value) // 2
    return _pieces(f"{secret.name}={secret.value[:cut]}\x1b[01;31m\x1b[K{secret.value[cut:]}\x1b[m\x1b[K", secret)


def _in_base64(row: str) -> Callable[[Secret], Made]:
    def write(secret: Secret) -> Made:
        text = base64.b64encode(row.replace("{n}", secret.name).replace("{v}", secret.value).encode()).decode()
        return Made(f"payload {text}", (text[4:-4],))

    return write


def _utf16(secret: Secret) -> Made:
    return Made("\0".join(f"{secret.name}={secret.value}") + "\0", secret.parts)


def _bare_broken(row: str) -> Callable[[Secret], Made]:
    def write(secret: Secret) -> Made:
        half = len(secret.value) // 2
        return _pieces(row.replace("{1}", secret.value[:half]).replace("{2}", secret.value[half:]), secret)

    return write


BROKEN: dict[str, Callable[[Secret], Made]] = {
    "wrapped 60": _wrapped("{n}={v}", 60),
    "wrapped 40": _wrapped("{n}={v}", 40),
    "wrapped 40 indented": _wrapped("{n}={v}", 40, "    "),
    "wrapped 80": _wrapped("2026-11-15 00:00:01 INFO starting with {n}={v}", 80),
    "wrapped 120": _wrapped('{"timestamp": "2026-11-15T00:00:01Z", "message": "x", "config": {"{n}": "{v}"}}', 120),
    "wrapped at words": _at_words(
        "2026-01-02 03:04:05 the environment of this process was as here printed: {n}={v} and it ended"
    ),
    "rich locals": _rich_locals,
    "rich inner locals": _inner_locals,
    "rich narrow table": _narrow_table,
    "coloured inside": _coloured_inside,
    "base64 pair": _in_base64("{n}={v}"),
    "base64 lines": _in_base64("FOO=bar\n{n}={v}\n"),
    "utf-16": _utf16,
}
"""Notations that break a value, draw around it or encode it."""

BARE_BROKEN: dict[str, Callable[[Secret], Made]] = {
    "wrapped at 20": _wrapped("token: {v}", 20),
    "wrapped at words": _at_words("2026-01-02 03:04:05 the request was made by the client with x {v} and failed"),
    "coloured inside": _bare_broken("tok \x1b[31m{1}\x1b[0m{2}"),
    "behind a backslash": _bare_broken("run --x {1}\\\n{2} y"),
    "base64": _in_base64("login {v} ok"),
    "base64 of a login": _in_base64("user:{v}"),
}

BEYOND = frozenset(
    """wrapped 60|wrapped 40|wrapped 40 indented|wrapped 80|wrapped 120|wrapped at words|wrapped at 20|behind a backslash
rich locals|rich inner locals|rich narrow table|{s}:\\n{v}""".replace("\n", "|").split("|")
)
"""Values that are broken over lines or drawn around: --all-lines does not promise to find these."""


def is_beyond(row: str) -> bool:
    """Whether nothing promises to find a secret that is written so."""
    return row in BEYOND or "└ <" in row
