"""The snippets of docs/in-python.md do what the page says, with each framework that is installed."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

import hangscope

PAGE = Path(__file__).parents[2] / "docs" / "in-python.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def snippet(word: str) -> str:
    (found,) = [each for each in SNIPPETS if word in each]
    return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    """What `watch` was called with; that it watches is shown by its own tests."""
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def note(*words: object, **named: object) -> bool:
        calls.append((words, named))
        return True

    monkeypatch.setattr(hangscope, "watch", note)
    return calls


def test_every_snippet_is_python() -> None:
    """And each framework that the page names has one."""
    assert len(SNIPPETS) == 5
    for each in SNIPPETS:
        compile(each, str(PAGE), "exec")


def test_lightning(watched: list[object], tmp_path: Path) -> None:
    """A Trainer calls it before it trains."""
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    demos = pytest.importorskip("lightning.pytorch.demos.boring_classes")
    place: dict[str, type] = {}
    exec(snippet("lightning.pytorch"), place)
    trainer = pl.Trainer(
        callbacks=[place["Hangscope"]()], fast_dev_run=True, accelerator="cpu", default_root_dir=tmp_path, logger=False
    )
    trainer.fit(demos.BoringModel())
    assert watched == [((f"{tmp_path}/hangs",), {})]


def test_transformers(watched: list[object]) -> None:
    """The Trainer's own order of callbacks calls it at its start."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    place: dict[str, type] = {}
    exec(snippet("TrainerCallback"), place)
    handler_of = pytest.importorskip("transformers.trainer_callback").CallbackHandler
    handler = handler_of([place["Hangscope"]()], None, None, None, None)
    handler.on_init_end(types.SimpleNamespace(output_dir="out"), transformers.TrainerState(), types.SimpleNamespace())
    assert watched == [(("out/hangs",), {})]


def test_accelerate(watched: list[object]) -> None:
    """It comes before the Accelerator."""
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    exec(snippet("accelerate"), {})
    assert watched == [(("hangs",), {})]


@pytest.mark.ray
def test_ray_train(tmp_path: Path) -> None:
    """Two real workers of Ray Train: each calls it with the shared directory and a name of its own."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    torch_trainer = pytest.importorskip("ray.train.torch", reason="Ray Train is not installed", exc_type=ImportError)
    text = snippet("ray.train").replace("...  # the training", "(Path(config['told']) / f'rank{rank}').write_text('')")
    text = text.replace("hangscope.watch(", "note(")

    def loop(config: dict[str, str]) -> None:
        from pathlib import Path as Place

        def note(directory: str, job: str, node: str) -> None:
            (Place(config["told"]) / node).write_text(f"{directory} {job}")

        space: dict[str, object] = {"Path": Place, "note": note}
        exec(text, space)
        space["train_loop_per_worker"](config)  # type: ignore[operator]

    ray.init(num_cpus=2, include_dashboard=False, ignore_reinit_error=True)
    try:
        scaling = ray.train.ScalingConfig(num_workers=2)
        told = {"hangs": "/shared/hangs", "told": str(tmp_path)}
        torch_trainer.TorchTrainer(loop, train_loop_config=told, scaling_config=scaling).fit()
    finally:
        ray.shutdown()
    names = sorted(each.name for each in tmp_path.iterdir())
    assert [name.rpartition("-")[2] for name in names if "-" in name] == ["rank0", "rank1"]
