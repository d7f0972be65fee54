"""What may be shown of a log line that is no evidence: its time, its writer's number, and words of training loops.

Around a failure people want to see what the job was doing: a step, an evaluation, a checkpoint. Any such line may also
hold a path, a customer's name or a password. So nothing of it is looked for and taken out; a list says what may stay:
some words that every training loop prints, and the numbers right behind them. Everything else becomes ``…``.
"""

from __future__ import annotations

import re

from hangscope.model.times import ISO

LEFT_OUT = "…".encode()
"""In the place of what is not shown."""

_ISO = ISO.pattern.encode()
_FRONT = re.compile(
    rb"(?:" + _ISO + rb"\s?(?:std(?:out|err) [FP] )?|\[" + _ISO + rb"\]\s?"
    rb"|\[rank:? ?\d{1,6}\]:? ?|\[default\d{1,6}\]:\s?|\[\d{1,6}(?:,\d{1,6})?\]<std(?:out|err|diag)>:\s?"
    rb"|[ ]{0,3}\d{1,6}: |\[?[EWIF]\d{3,4} \d\d:\d\d:\d\d\.\d{1,9}(?: +\d+)? ){1,6}"
)
"""Times and numbers of writers, in the forms that launchers give them: no letter in it is the job's own."""
_TIME = re.compile(_ISO)
_TAG = re.compile(rb"\[rank\d{1,6}\]: ?")
_NEAR = 120
_LONGEST = 1000

_WORDS = frozenset(
    b"""
    step steps epoch epochs iter iters iteration iterations batch batches microbatch update updates global local micro
    train training trainer eval evaluating evaluation validation validating valid test testing warmup warming resume
    resuming resumed start starting started begin beginning end ending ended finish finished finishing done complete
    completed stop stopping stopped exit exiting wait waiting waited ready
    loss losses lr learning rate grad grads gradient gradients norm scale scaler clip clipping accuracy acc perplexity
    ppl throughput tokens samples sequences examples seq length size sec second seconds min mins minute minutes hour
    hours ms us s h m it its per elapsed remaining eta time took total mean avg average max sum std median best last
    first next current previous number num count of from to at in on for after before until all each every no not
    save saves saving saved load loads loading loaded write writing wrote read reading checkpoint checkpoints ckpt state
    model optimizer scheduler shard shards sharded sharding rank ranks world node nodes device devices gpu gpus cuda cpu
    cpus memory mem allocated reserved peak free used usage gb gib mb mib kb kib tb tflops flops mfu hfu bf fp tf
    forward backward fwd bwd compile compiling compiled graph kernel kernels allreduce allgather broadcast reduce
    scatter gather barrier collective collectives group groups process processes initialize initializing initialized
    init setup distributed parallel pipeline tensor data expert experts layer layers
    dataset datasets dataloader loader worker workers prefetch shuffle shuffling buffer queue fetch fetching download
    downloading downloaded cache caching cached skip skipping skipped retry retrying attempt attempts timeout timeouts
    warning warn info debug error errors critical fatal failed failure fail exception nan inf overflow underflow
    prompt prompts generation generated gen running req reqs request requests kv prefix hit decode prefill engine
    consumed timing runtime metrics bounds values out ok timed actor critic kl pg entropy seqlen reward rewards
    e k b g t
    """.split()
)
"""What training loops print, besides numbers. None of it is about accounts, and none is a name."""
_PLAIN = re.compile(
    rb"[\[({|\"'#]*(?P<words>[A-Za-z]{1,16}(?:[_./-][A-Za-z]{1,16}){0,5})?(?P<sign>[=:]{0,2})"
    rb"(?P<number>[-+~]?[0-9][0-9.,:/]{0,14}(?:e[-+]?[0-9]{1,3})?)?(?P<unit>[A-Za-z]{1,8}(?:/[A-Za-z]{1,8})?)?"
    rb"%?[\])}|\"',;:.!]*"
)
_PART = re.compile(rb"[A-Za-z]+")
_RATE = b"(token/s):"
"""SGLang's unit; the word alone may stand before a secret."""


def front(raw: bytes) -> bytes:
    """The times and writers' numbers in front of a line; else the time near its beginning, and a rank's tag inside."""
    match = _FRONT.match(raw)
    if match is not None:
        return match.group()
    time = _TIME.search(raw[:_NEAR])
    tag = _TAG.search(raw) if b"[rank" in raw else None
    return (time.group().rstrip() + b" " if time is not None else b"") + (tag.group() if tag is not None else b"")


def emptied(raw: bytes) -> bytes:
    """What is left of a line that is not shown."""
    return front(raw) + LEFT_OUT if raw.strip() else b""


def shown(raw: bytes) -> bytes:
    """A line of which nothing but its front, known words and their numbers is left."""
    raw = raw.rsplit(b"\r", 1)[-1][:_LONGEST]
    if not raw.strip():
        return b""
    begin = front(raw)
    rest = raw[len(begin) :] if raw.startswith(begin) else _TAG.sub(b" ", _TIME.sub(b" ", raw))
    kept: list[bytes] = []
    behind_a_word = False
    for chunk in rest.split():
        behind_a_word = _is_plain(chunk, behind_a_word=behind_a_word)
        if behind_a_word:
            kept.append(chunk)
        elif not kept or kept[-1] != LEFT_OUT:
            kept.append(LEFT_OUT)
    if not any(map(_PART.search, kept)):
        return emptied(raw)
    return begin + b" ".join(kept)


def _is_plain(chunk: bytes, *, behind_a_word: bool) -> bool:
    """Whether a chunk is made of known words and a number; a number alone only where such a chunk is in front."""
    if chunk == _RATE:
        return True
    match = _PLAIN.fullmatch(chunk)
    if match is None:
        return False
    parts = _PART.findall((match["words"] or b"") + b" " + (match["unit"] or b""))
    if not all(part.lower() in _WORDS for part in parts):
        return False
    return match["words"] is not None or behind_a_word
