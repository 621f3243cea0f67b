"""YaRN's evaluation, written again from its description, against a case worked by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from scripts.compare_protocols import STRIDE, yarn_script


class Unigram(torch.nn.Module):
    """A model that gives every token the same probabilities, whatever came before."""

    def forward(self, tokens: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.tensor([0.5, 0.4, 0.1]).log().expand(*tokens.shape, 3))


def test_windows_weigh_alike_whatever_they_score():
    """The first window scores 2 strides of one token, the second 44 of another: each is a half."""
    text = [0] * (2 * STRIDE) + [1] * 44
    by_window, by_token = yarn_script(Unigram(), [text], 2, 2 * STRIDE + 1)
    first, second = -math.log(0.5), -math.log(0.4)
    assert by_window == pytest.approx(math.exp((first + second) / 2), rel=1e-6)
    total = (2 * STRIDE * first + 44 * second) / len(text)
    assert by_token == pytest.approx(math.exp(total), rel=1e-6)


def test_a_window_of_a_stride_scores_every_token_once():
    """Where the window is no longer than the stride, all tokens but those between are scored."""
    text = [0, 1] * STRIDE
    _, by_token = yarn_script(Unigram(), [text], 2, STRIDE + 1)
    assert by_token == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.4)) / 2), rel=1e-6)
