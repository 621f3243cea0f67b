"""Checkpoints of image-text models: their language model is measured, on text alone."""

from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForImageTextToText

from ropewalk.harness.models.checkpoint import check_rope, open_checkpoint
from ropewalk.harness.models.weights import load_weights, parts_left_out
from ropewalk.harness.patching.config import rescaled
from ropewalk.harness.patching.patch import answering
from ropewalk.scaling import lm_infinite, native, none, yarn
from ropewalk.tasks.types import Loglikelihood
from tests.asking import own_losses
from tests.families import LENGTH, TOKENS, each, tiny
from tests.tiny import WINDOW, YARN, tiny_tokenizer


@pytest.mark.parametrize("family", each(("mistral3", "qwen3_5", "qwen3_vl"), "mistral3", "qwen3_5"))
def test_losses_are_those_of_the_whole_model_on_text(family, tmp_path):
    """As shipped with YaRN, without it, and with another one: the labels' losses of each config."""
    shipped = rescaled(tiny(family), YARN)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = AutoModelForImageTextToText.from_config(deepcopy(shipped)).eval()
    whole.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path), device="cpu")
    check_rope(checkpoint.config, checkpoint.rope)
    assert parts_left_out(checkpoint) == ()
    rope, model = checkpoint.rope, load_weights(checkpoint)
    assert rope.trained_length == WINDOW
    request = Loglikelihood(tuple(TOKENS[0].tolist()), 1, doc_id="q")
    for rotation, scaling in (
        (native.frequencies(rope, LENGTH), YARN),
        (none.frequencies(rope, LENGTH), {"rope_type": "default"}),
        (yarn.frequencies(rope, LENGTH, factor=3.0), {**YARN, "factor": 3.0}),
    ):
        other = AutoModelForImageTextToText.from_config(rescaled(shipped, scaling)).eval()
        other.load_state_dict(whole.state_dict())
        with answering(model, rotation) as answer:
            ((_, found),) = answer([request])
        torch.testing.assert_close(
            torch.tensor(found.nll), own_losses(other, request.tokens).float()
        )
    with answering(model, lm_infinite.bands(rope, LENGTH)) as answer:
        ((_, moved),) = answer([request])
    assert moved.nll[WINDOW:] != pytest.approx(found.nll[WINDOW:], abs=1e-3)
