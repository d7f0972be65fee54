"""Lines by which trainers and servers show that they go on."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import pytest

from hangscope.reader.logs.progress_lines import ProgressLine, moves, progress_lines, stalled

TRAINERS = {
    "tqdm": """
 41%|████      | 410/1000 [10:11<14:20,  1.46s/it]
 41%|████      | 412/1000 [10:14<14:20,  1.46s/it]""",
    "HF Trainer": """
{'loss': 2.7, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.1}
{'loss': 2.5, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.2}""",
    "HF Trainer, at its end": "{'train_runtime': 1201.2, 'train_samples_per_second': 3.1, 'train_loss': 2.41, 'epoch': 3.0}",
    "Lightning": """
Epoch 9: 100%|██████████| 120/120 [00:31<00:00,  3.81it/s, v_num=3, train_loss=0.20]
`Trainer.fit` stopped: `max_epochs=10` reached.""",
    "Megatron": """
 [2025-03-05 10:00:00] iteration      100/  500000 | elapsed time per iteration (ms): 1200.3 | lm loss: 8.1E+00 |
 [2025-03-05 10:02:00] iteration      200/  500000 | elapsed time per iteration (ms): 1200.3 | lm loss: 7.1E+00 |""",
    "DeepSpeed": """
[2024-05-01 10:00:01,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=2000, skipped=0, lr=[2.1e-05], mom=[(0.9, 0.95)]
[2024-05-01 10:04:01,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=2010, skipped=0, lr=[2.1e-05], mom=[(0.9, 0.95)]""",
    "NeMo": """
Training epoch 0, iteration 0/99 | lr: 1.499e-07 | global_step: 0 | reduced_train_loss: 11.03
Training epoch 0, iteration 1/99 | lr: 2.999e-07 | global_step: 1 | reduced_train_loss: 11.03""",
    "torchtitan": """
[rank0]:[titan] 2025-03-05 10:00:00,123 - root - INFO - step:  1  loss: 12.2  memory: 30.1GiB(38.0%)  tps: 1,203  mfu: 2.0%
[rank0]:[titan] 2025-03-05 10:00:10,123 - root - INFO - step: 10  loss:  9.2  memory: 30.1GiB(38.0%)  tps: 7,203  mfu: 12.0%""",
    "a tutorial's epochs": """
[GPU0] Epoch 0 | Batchsize: 32 | Steps: 32
[GPU0] Epoch 1 | Batchsize: 32 | Steps: 32""",
    "vLLM": """
INFO 03-05 10:10:10 [loggers.py:116] Engine 000: Avg prompt throughput: 120.1 tokens/s, Avg generation throughput: 310.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs
INFO 03-05 10:10:20 [loggers.py:116] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs""",
    "SGLang": """
[2025-03-05 10:00:00 TP0] Decode batch. #running-req: 3, #token: 4011, gen throughput (token/s): 120.22, #queue-req: 0,
[2025-03-05 10:00:02 TP0] Decode batch. #running-req: 2, #token: 3011, gen throughput (token/s): 100.22, #queue-req: 0,""",
    "a server that came up": "[2025-03-05 10:00:01] The server is fired up and ready to roll!",
}
STILL = {
    "one step": "step: 10  loss:  9.2",
    "the same step": "step: 10  loss:  9.2\nstep: 10  loss:  9.2",
    "a table of settings": "epochs: 10\nbatch_size: 32\nsteps: 100",
    "probes that the API's own process answers": """
INFO:     10.1.2.3:41698 - "GET /health HTTP/1.1" 200 OK
INFO:     10.1.2.3:41699 - "GET /metrics HTTP/1.1" 200 OK
INFO:     10.1.2.3:41700 - "GET /v1/models HTTP/1.1" 200 OK""",
    "requests and no output": """
Avg prompt throughput: 3.0 tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 12 reqs, Waiting: 3 reqs
Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 12 reqs, Waiting: 4 reqs""",
}


def lines(text: str) -> list[ProgressLine]:
    return progress_lines(enumerate(text.strip("\n").split("\n"), 1))


@pytest.mark.parametrize("text", TRAINERS.values(), ids=TRAINERS)
def test_a_trainer_or_server_that_goes_on_is_seen_to(text: str) -> None:
    """Counters that rise, throughput, an end as planned."""
    assert moves(lines(text))


@pytest.mark.parametrize("text", STILL.values(), ids=STILL)
def test_what_does_not_move_is_not_said_to(text: str) -> None:
    """A single step, settings, or a server with requests that generates nothing."""
    assert not moves(lines(text))


def test_a_server_stands_still_where_two_lines_say_so() -> None:
    """One such line may be a long prefill."""
    still = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 12 reqs, Waiting: 4 reqs"
    assert stalled(lines(still)) is None
    shown = stalled(lines(f"{still}\n{still}"))
    assert shown is not None and shown.number == 2


def test_of_several_counters_the_one_that_rises_counts() -> None:
    """An epoch that stays and a number of steps that is a setting do not hide the steps."""
    found = lines("epoch 0 | step 1 | loss 3\nepoch 0 | step 9 | loss 2")
    assert [line.counter for line in found] == [1, 9]


ALONE = (
    "training is complete",
    "FINISHED TRAINING",
    "***** train metrics *****",
    "Out of bounds values : 0 OK",
    "INFO:     Application startup complete.",
    "Uvicorn running on http://0.0.0.0:8000",
    '127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK',
    "input throughput (token/s): 3.0",
    "output throughput (token/s): 3.0",
    "GLOBAL_STEP: 3 loss 1",
    "idx: 3, acc 1",
    "it=3 ppl 1",
    "batch 3 reward 1",
    "iter 3 tps 1",
)


@pytest.mark.parametrize("text", ALONE)
def test_every_wording_is_looked_at(text: str) -> None:
    """What a line has to hold to be looked at at all excludes no wording that is known."""
    assert len(lines(text)) == 1
