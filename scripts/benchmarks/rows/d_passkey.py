"""A passkey grid against generating every trial with transformers; the reference model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.setting import Row, Setting, counted, over_law, ratios, row
from harness.data.corpus import make_source
from harness.engine import answers
from harness.models.config import REFERENCE
from harness.patching.config import rope_of
from harness.patching.frequencies import patched
from scaling import yarn
from tasks import passkey
from tasks.types import Loglikelihood, LoglikelihoodResponse, TaskContext

DEVICE = "cpu"
DEPTHS = 5


def measure(setting: Setting) -> list[Row]:
    """Five depths at three lengths with 4 trials and at two with 10, under YaRN, float32."""
    cases = (((512, 1024, 2048), 4), ((512, 1024), 10))
    return [found for case in cases for found in _grid(setting, *case)]


def _grid(setting: Setting, lengths: tuple[int, ...], trials: int) -> list[Row]:
    model = AutoModelForCausalLM.from_pretrained(REFERENCE, dtype=torch.float32).eval()
    model = model.to(setting.device)
    rope = rope_of(model.config)
    source = make_source(AutoTokenizer.from_pretrained(REFERENCE), list, rope.trained_length)
    if setting.quick:
        lengths, trials = lengths[:1], 2
    asked = list(passkey.ask(source, lengths, depths=DEPTHS, trials=trials))
    theirs: list[float] = []
    ours: list[float] = []

    def peer() -> None:
        theirs[:] = [_graded(source, q, _generated(model, q)) for q in asked]

    def engine() -> None:
        found = sorted(answers(model, asked))
        ours[:] = [_graded(source, q, a) for q, (_, a) in zip(asked, found, strict=True)]

    # A factor at which some keys are found and some are missed.
    with patched(model, yarn.frequencies(rope, lengths[-1], factor=2)):
        list(answers(model, asked[:1]))
        slow, fast = setting.interleaved(peer, engine)
        law = counted(peer) / counted(engine)
    assert ours == theirs, "hits and misses differ from those of generate"
    what = f"passkey, lengths {', '.join(map(str, lengths))}, {DEPTHS} depths, {trials} trials"
    told = f"all {len(asked)} equal, {sum(ours):.0f} hits"
    gained = ratios(slow, fast)
    return [
        row("d", f"{what}, reference model", gained, "x", None, told),
        over_law("d", gained, law),
    ]


def _generated(model: Any, question: Loglikelihood) -> LoglikelihoodResponse:
    """Decode greedily as many tokens as the answer has, and one more."""
    prompt = torch.tensor([question.tokens[: question.start]], device=model.device)
    count = question.length - question.start
    found = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
        min_new_tokens=count + 1, max_new_tokens=count + 1, pad_token_id=0,
    )  # fmt: skip
    return LoglikelihoodResponse((0.0,) * count, tuple(found[0, question.start :].tolist()))


def _graded(source: TaskContext, question: Loglikelihood, answer: Any) -> float:
    assert isinstance(answer, LoglikelihoodResponse)
    return passkey.grade(question, answer, source).value
