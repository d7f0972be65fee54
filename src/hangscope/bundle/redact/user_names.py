"""Users' names: where paths, variables and commands give them away, and wherever a name that was learnt so is a word.

Each user becomes `user-1`, `user-2`, … Accounts that name nobody stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from hangscope.bundle.edits import Findings, Handler, back_over

_NAME = rb"(?P<s>[^/\s:\"'<>|,;()\[\]{}\\$*?&=\0]{1,64})"
_LOGIN = rb"(?P<s>[A-Za-z_][\w.-]{1,31})"
HOME = re.compile(rb"/(?:home|homes|Users|users)\d{0,3}/(?:[A-Za-z]/(?:[A-Za-z]{2}/)?)?" + _NAME)
SHARED_HOME = re.compile(
    rb"(?:/(?:u|afs/[\w.-]+/(?:user|usr|u|home|work)(?:/\w(?:/\w\w)?)?|(?:lustre|gpfs|nfs|ceph|beegfs|weka|vast|efs|mnt|data|"
    rb"net|export|storage)(?:/[\w.-]+){0,3}/(?:home|homes|users?))/|(?<=[/ \"'=])torchinductor_|/tmp/ray_)" + _NAME
)
"""Homes on shared file systems. `/tmp/torchinductor_alice` is where torch.compile keeps alice's kernels."""
_SHARED_ROOTS = tuple(
    b"""/u/ /afs/ torchinductor_ /tmp/ray_ /lustre/ /gpfs/ /nfs/ /ceph/ /beegfs/ /weka/ /vast/ /efs/ /mnt/ /data/ /net/
    /export/ /storage/""".split()
)
_CLUSTER = re.compile(
    rb"/(?:scratch|fsx(?:-[a-z0-9]{1,20})?|checkpoints?|work|lustre|gpfs|projects?)"
    rb"(?:/(?:scratch|fsx|users?|homes?|work|fs\d{1,3})){0,2}/(?P<s>[a-z][a-z0-9._-]{1,31})(?=[/\s:\"',;)\]]|\Z)"
)
"""Directories below which users keep their own, and others theirs: a name is replaced here and looked for nowhere."""
_CLUSTER_ROOTS = tuple(b"/scratch/ /fsx /checkpoint/ /checkpoints/ /work/ /project/ /projects/ /lustre/ /gpfs/".split())
_WINDOWS_HOME = re.compile(rb":(?:\\{1,4}|/)Users(?:\\{1,4}|/)(?P<s>[^/\s:\"'<>|,;\\\0]{1,64})", re.IGNORECASE)
_OTHER_HOMES = (
    ((b"~",), re.compile(rb"~(?P<s>[a-z_][a-z0-9_-]{1,31})/")),
    ((b"/var/spool/", b"/var/mail/"), re.compile(rb"/var/(?:spool/)?(?:mail|cron(?:/crontabs|/tabs)?)/" + _LOGIN)),
    ((b"hdfs://", b"viewfs://"), re.compile(rb"\w+://[^/\s\"']{0,200}/user/" + _LOGIN)),
    (
        (b"s3://", b"s3a://", b"gs://", b"abfs://", b"abfss://", b"oss://", b"az://"),
        re.compile(rb"\w+://[^\s\"']{1,200}?/(?:users?|home)/" + _LOGIN),
    ),
)
"""Needles, and what a path with a user's name in it looks like from there on."""
_ACCOUNT = rb"(?:\\{0,3}[\"'])?(?P<s>[A-Za-z_][A-Za-z0-9_.-]{0,31})(?![\w$(/@:-])"
VARIABLE = re.compile(
    rb"(?<![A-Za-z0-9.$-])[A-Z0-9_]{0,40}(?:USER|LOGNAME|USERNAME|USER_NAME)(?:\\{0,3}[\"'])?(?:=|\s?:\s|\s=\s)"
    + _ACCOUNT
)
"""A variable of the environment. The name in it is a user's, wherever else it is."""
VARIABLE_FRONT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_FIELD = re.compile(rb"(?<![A-Za-z0-9.$_-])(?:user|username|user_name|logname)(?:=|\\{0,3}[\"']\s?:\s?)" + _ACCOUNT)
"""A field of a record: a user, or a role in a conversation. Replaced here, and not looked for elsewhere."""
NUMBERED = re.compile(rb"[ug]id=\d+\((?P<s>[A-Za-z_][\w.-]{0,31})\)")
_REMOTE = re.compile(
    rb"(?:ssh|scp|sftp|rsync|mosh)\s[^\n@|;&]{0,200}?(?<![\w.@/-])(?P<s>[A-Za-z_][\w.-]{0,31})@(?=[A-Za-z0-9])"
)

GENERIC = frozenset(
    b"""root user users ubuntu debian centos rocky ec2-user admin administrator nobody daemon www-data jovyan runner
    docker app service slurm opc azureuser vagrant default guest public shared all none null true false name id str
    linuxbrew work workspace data host main system node git anonymous svc hadoop spark hdfs nfs postgres mysql
    _apt bin sys sync games man lp mail news uucp proxy backup list irc staff wheel tty disk sudo adm users""".split()
)
"""Accounts that name nobody. A home of one of them stays as it is."""
FOLDERS = frozenset(
    b"""data dataset datasets model models ckpt ckpts checkpoint checkpoints log logs run runs job jobs exp exps
    experiment experiments project projects src code repo repos env envs conda venv cache tmp temp shared share public
    common output outputs out results result weights tokenizer tokenizers hf huggingface wandb tensorboard traces dumps
    scratch home users user group groups team teams lib libs bin etc opt train training eval test tests llama imagenet
    software containers images sqsh slurm nccl torch triton inductor cuda archive backup old new staging prod dev main
    hangscope incident incidents nodes node hangs dist distributed benchmark benchmarks bench tools scripts config
    configs step steps epoch iter iters global rank version seed layer shard shards part app apps
    app-root input inputs pipeline parallel trainer corpus corpora laion pile refinedweb mount""".split()
)
"""Directories that are nobody's own."""
_WORDS = frozenset(
    b"""ada adam all amber any auto batch bench best big cache chip clip cluster code compute core cuda dash data
    deep demo dev dist drop edge epoch eval exp file fire flash fold free fsdp git grace grad group hopper host
    info init jax job key lab lamb large last learn lib lion load local log loss main mark master max mean merge
    meta min mini mixed model mon nano nccl net new none norm nova null opt para pass path perf pile pip plan
    pod pool pro process proxy pt python rand rank ray ref research root run sage sam save scale sched server
    shard sky small spark speed start state step stop storage sum sun super task team temp test text time tmp
    tool top torch train trainer tuna tune user val var vim wait warm warn web will work worker world zero""".split()
)
"""Names of people that are also words of logs and programs: replacing these everywhere would spoil the evidence."""

_ALIAS = re.compile(rb"user-\d+")
_WORD_LETTER = re.compile(rb"[A-Za-z0-9_-]")
_WORD_END = re.compile(rb"[^A-Za-z0-9_.-]")
_COMPONENT_END = re.compile(rb"[^A-Za-z0-9_.+-]")
_WEB = re.compile(rb"[^\s\"']*\Z")
"""In an address on the web `/work/` is no directory."""


class Users:
    """Finds users' names, and gives each its alias.

    `known` are names that the evidence gives away somewhere; they are found wherever they are a word. One that is also
    a word of logs and programs (adam, max) only in paths and in front of a host.
    """

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        self._aliases: dict[bytes, bytes] = {}
        self._known = tuple(sorted(name for name in known if name not in GENERIC and len(name) >= 3))
        for name in self._known:
            self.alias(name)

    def alias(self, name: bytes) -> bytes:
        return self._aliases.setdefault(name, b"user-%d" % (len(self._aliases) + 1))

    def handlers(self) -> Iterator[tuple[Iterable[bytes], Handler]]:
        """Needles with what to do where one is found."""
        yield (b"/home/", b"/homes/", b"/users/"), self._home
        yield (b":\\users\\", b":\\\\users\\", b":/users/", b":\\\\\\\\users"), _at(_WINDOWS_HOME)
        yield _SHARED_ROOTS, self._shared_home
        yield _CLUSTER_ROOTS, self._cluster
        for needles, path in _OTHER_HOMES:
            yield needles, _at(path)
        yield (b"user", b"logname"), self._variable
        yield (b"uid=", b"gid="), _at(NUMBERED)
        yield (b"ssh ", b"scp ", b"rsync ", b"sftp "), self._remote
        for name in self._known:
            if name.lower() in _WORDS:
                yield (b"/" + name.lower(),), self._component
                yield (name.lower() + b"@",), self._at_host
            else:
                yield (name.lower(),), self._word

    def _home(self, data: bytes, at: int, out: Findings) -> None:
        if not (data.startswith(b"/users/", at) and at and data[at - 1 : at].isalnum()):  # an address on the web
            _add(HOME.match(data, at), out)

    def _shared_home(self, data: bytes, at: int, out: Findings) -> None:
        match = SHARED_HOME.match(data, at)
        if match is not None and match["s"].lower() not in FOLDERS:
            _add(match, out)

    def _cluster(self, data: bytes, at: int, out: Findings) -> None:
        match = _CLUSTER.match(data, at)
        if match is not None and not _is_folder(match["s"]):
            web = data.rfind(b"://", max(0, at - 200), at)
            if web < 0 or not _WEB.match(data, web, at):
                _add(match, out)

    def _variable(self, data: bytes, at: int, out: Findings) -> None:
        _add(VARIABLE.match(data, back_over(data, at, VARIABLE_FRONT, 40)), out)
        _add(_FIELD.match(data, at), out)

    def _remote(self, data: bytes, at: int, out: Findings) -> None:
        if not data[max(0, at - 1) : at].isalnum():
            _add(_REMOTE.match(data, at, at + 320), out)

    def _word(self, data: bytes, at: int, out: Findings) -> None:
        """A known user's name as a whole word, wherever it is."""
        end = _WORD_END.search(data, at)
        name = data[at : end.start() if end else len(data)].rstrip(b".-")
        if name in self._aliases and not _WORD_LETTER.match(data, at - 1 if at else len(data)):
            out.add_user((at, at + len(name)))

    def _component(self, data: bytes, at: int, out: Findings) -> None:
        """A whole component of a path that is a known user's name."""
        end = _COMPONENT_END.search(data, at + 1)
        name = data[at + 1 : end.start() if end else len(data)]
        if name in self._aliases:
            out.add_user((at + 1, at + 1 + len(name)))

    def _at_host(self, data: bytes, at: int, out: Findings) -> None:
        name = data[at : max(at, data.find(b"@", at, at + 65))]
        if name in self._aliases and not data[max(0, at - 1) : at].isalnum():
            out.add_user((at, at + len(name)))


def _at(pattern: re.Pattern[bytes]) -> Handler:
    return lambda data, at, out: _add(pattern.match(data, at, at + 400), out)


def _add(match: re.Match[bytes] | None, out: Findings) -> None:
    if match is not None and match["s"] not in GENERIC and not _ALIAS.fullmatch(match["s"]):
        out.add_user(match.span("s"))


@lru_cache(maxsize=4096)
def _is_folder(name: bytes) -> bool:
    """Whether the name of a directory is made of words that name nobody."""
    if not FOLDERS.isdisjoint(re.split(rb"[._-]|\d+", name.lower())):
        return True
    return re.search(rb"\d[a-z]|\.|[_-]\d+\Z", name) is not None
