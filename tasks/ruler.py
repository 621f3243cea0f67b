"""RULER under one name: its eleven tasks that need no download, and their mean (arXiv:2404.06654).

The needle tests, variable tracking, common and frequent words, as many trials each; its two sets of
questions and answers (SQuAD, HotpotQA) are not among them, so the mean is not that of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tasks import _retrieval, common_words, frequent_words, niah, variable_tracking
from tasks._needles import PRESETS
from tasks._retrieval import check_trials, grade, score
from tasks._types import Question, Source

__all__ = ["FACTS", "METRIC", "VERSION", "ask", "grade", "score"]
VERSION = 1
METRIC = "recall"
FACTS = {**_retrieval.FACTS, "part": str}
PARTS: dict[str, Callable[..., Iterator[Question]]] = {
    **{f"niah_{name}": partial(niah.ask, preset=name, depths=1) for name in PRESETS},
    "vt": variable_tracking.ask,
    "cwe": common_words.ask,
    "fwe": frequent_words.ask,
}


def ask(
    source: Source,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    trials: int = 5,
    chat: bool = False,
) -> Iterator[Question]:
    """Yield ``trials`` prompts of every part at every length, each of the exact length.

    A single needle stands in the middle, where parts with several have theirs drawn. Raises
    ValueError, with the name of the part, where one cannot fit.
    """
    check_trials(trials, len(PARTS))
    for name, part in PARTS.items():
        try:
            for asked in part(source, lengths, seed=seed, trials=trials, chat=chat):
                facts = {key: fact for key, fact in asked.facts.items() if key != "depth"}
                yield replace(asked, unit=f"{name} {asked.unit}", facts={**facts, "part": name})
        except ValueError as error:
            message = f"{name}: {error}"
            raise ValueError(message) from error
