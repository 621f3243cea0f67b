"""A model measured while a Trainer fine-tunes it, as its saved checkpoints are measured later."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments
from transformers import default_data_collator as collate

import ropewalk as rw


def drawn(rope: rw.Rope, _length: int) -> rw.Frequencies:
    """A method that uses the random numbers that training uses too."""
    return rw.Frequencies(rope.inv_freq() / (2 + 0 * torch.rand(1)))


CURVE: dict[str, Any] = {
    "scaling": ["none", "yarn:factor=2", drawn],
    "length": ["1x", "2x"],
    "task": "perplexity:tail=16",
}


class Logger(TrainerCallback):  # type: ignore[misc]
    """A logger of the trainer's: what it was given, and at which step."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any, **_: Any) -> None:
        self.seen.setdefault(state.global_step, {}).update(logs)


def trained(tiny: Path, out: Path, *callbacks: Any, **options: Any) -> Trainer:
    """Fine-tune a tiny model with dropout for five steps, and save it after every second."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attention_dropout=0.2)
    tokens = torch.arange(1, 129).reshape(8, 16)
    arguments = Arguments(
        out, max_steps=5, save_steps=2, logging_steps=1, per_device_train_batch_size=2,
        learning_rate=0.01, use_cpu=True, report_to="none", disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        processing_class=AutoTokenizer.from_pretrained(tiny),
        data_collator=collate,
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def callback(docs: Path, **options: Any) -> rw.Callback:
    given = {"lengths" if name == "length" else name: value for name, value in CURVE.items()}
    return rw.Callback(str(docs), **{**given, "every": 2, **options})


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_the_curve_is_that_of_the_saved_checkpoint(mixed, tiny, docs, tmp_path):
    """Bit for bit, in mixed precision too; every logger sees it, and training is what it was."""
    curve, logger = callback(docs), Logger()
    watched = trained(tiny, tmp_path / "watched", curve, logger, bf16=mixed)
    plain = trained(tiny, tmp_path / "plain", bf16=mixed)
    for name, tensor in watched.model.state_dict().items():
        assert torch.equal(tensor, plain.model.state_dict()[name])
    assert list(curve.runs) == [2, 4, 5]
    columns = ["model", "scaling", "length", "unit", "value", "score", "low", "high"]
    for step in (2, 4):
        folder = tmp_path / "watched" / f"checkpoint-{step}"
        saved = rw.run(folder, docs=str(docs), out=tmp_path / f"run-{step}", **CURVE).frame()
        assert curve.runs[step].frame()[columns].equals(saved[columns])
        scores = saved[(saved["scaling"] == "yarn:factor=2") & (saved["length"] == 128)]["score"]
        name = "eval_perplexity:tail 16/yarn:factor 2/128"
        assert logger.seen[step][name] == scores.iloc[0]
        assert any(entry.get(name) == scores.iloc[0] for entry in watched.state.log_history)
        assert "loss" in logger.seen[step]
    assert not any(name.startswith("eval") for name in logger.seen[1] | logger.seen[3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 is invalid"),
        ({"scaling": "yran"}, "did you mean 'yarn'"),
        ({"docs": "./gone"}, "documents ./gone do not exist"),
        ({"workers": 2}, "leave out workers"),
    ],
)
def test_a_mistake_is_told_before_the_first_step(options, message, tiny, tmp_path):
    logger = Logger()
    with pytest.raises(rw.UserError, match=message):
        trained(tiny, tmp_path, logger, rw.Callback(**options))
    assert not logger.seen


def test_runs_of_an_earlier_training_are_not_continued(tiny, tmp_path):
    (tmp_path / "ropewalk" / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(rw.UserError, match="holds runs of an earlier training"):
        trained(tiny, tmp_path, rw.Callback())


def test_a_measurement_that_fails_does_not_end_the_training(tiny, docs, tmp_path, caplog):
    """As where the disk is full: a warning per step, and the training goes on."""

    class Full(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **_given: Any) -> None:
            (tmp_path / "taken").touch()

    curve = callback(docs, out=tmp_path / "taken")
    assert trained(tiny, tmp_path / "out", curve, Full()).state.global_step == 5
    assert curve.runs == {}
    assert "step 2 is not measured" in caplog.text
