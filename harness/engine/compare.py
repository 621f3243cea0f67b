"""Compute hidden states at the targets of a question, to compare two ways of running a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harness.engine import lm_head
from harness.engine.forward import Forward, shareable
from harness.engine.prefix_tree import build_tree
from harness.engine.sizes import Sizes
from tasks.types import DivergenceResponse, ModelRequest, ModelResponse

PARTS = 4  # of the rows that the head computes at once: float64, and two predictions


@torch.inference_mode()
def hidden_states(model: Any, question: ModelRequest, sizes: Sizes) -> torch.Tensor:
    """Return the hidden states that predict the targets of a question, (1, targets, width)."""
    forward = Forward(model, build_tree([question.tokens]), sizes, shareable(model))
    rows = np.arange(question.start - 1, question.length - 1)
    hidden = forward.hidden(0, rows)
    return hidden.index_select(1, torch.from_numpy(rows).to(hidden.device))


@torch.inference_mode()
def compared(model: Any, own: torch.Tensor, other: torch.Tensor, sizes: Sizes) -> ModelResponse:
    """Return how far the predictions from ``other`` are from those of ``own``."""
    chunk = sizes.head_rows(model.config.get_text_config().vocab_size) // PARTS
    return DivergenceResponse(tuple(lm_head.divergences(model, own, other, chunk)))
