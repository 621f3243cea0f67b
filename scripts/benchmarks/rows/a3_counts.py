"""What is forwarded, counted and not timed: the same on every machine."""

from __future__ import annotations

import torch

from benchmarks.setting import Row, Setting, build, config, counted, row, tokens
from harness.engine import answers
from tasks.types import Loglikelihood

DEVICE = "cpu"


def measure(setting: Setting) -> list[Row]:
    """Tokens and operations of a curve of 8 lengths, over those of its longest forward."""
    model = build(setting, config("XS"), torch.float32)
    longest = setting.size(4096)
    text = tokens(model, longest)
    questions = [
        Loglikelihood(text[:n], 1, doc_id="q")
        for n in range(longest // 8, longest + 1, longest // 8)
    ]
    list(answers(model, questions[:1]))  # the check of the model, once
    counts: list[int] = []
    embed = model.get_input_embeddings()
    with embed.register_forward_hook(lambda _, given, __: counts.append(given[0].numel())):
        ours = counted(lambda: list(answers(model, questions)))
    ids = torch.tensor([text], device=model.device)
    with torch.inference_mode():
        theirs = counted(lambda: model(input_ids=ids, use_cache=False))
    return [
        row("a3", "tokens forwarded over the longest length, 8 lengths", [sum(counts) / longest],
            "x", 1.0, "counted", above=False),
        row("a3", "operations over one forward of it", [ours / theirs], "x", None,
            "counted; masked tiles whole"),
    ]  # fmt: skip
