"""The library's own stateful type, run as it is served."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from ropewalk.harness.engine import Sizes
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import answering
from ropewalk.scaling import dynamic_ntk
from ropewalk.scaling.dynamic_ntk import StatefulRope
from ropewalk.tasks.types import Loglikelihood, Request, Response
from tests.families import TOKENS, build, tiny
from tests.tiny import WINDOW

LENGTH, START = 2 * WINDOW, 100
QUESTION = Loglikelihood(tuple(TOKENS[0, :LENGTH].tolist()), START, doc_id="q")
FAMILIES = ("llama", "qwen3", "gpt_neox", "gemma3_text")


def served(model: Any, factor: float = 2.0) -> StatefulRope:
    found = dynamic_ntk.bands(rope_of(model.config), LENGTH, factor=factor, mode="transformers")
    assert isinstance(found, StatefulRope)
    return found


def asked(model: Any, questions: list[Request], factor: float = 2.0) -> list[Response]:
    rotation = served(model, factor)
    with answering(model, rotation, Sizes()) as answer:
        found = dict(answer(questions))
    return [found[index] for index in range(len(questions))]


@torch.inference_mode()
def by_hand(model: Any, question: Request, factor: float = 2.0) -> list[float]:
    """Return the losses of a new model of the library's own type: prompt, then token by token."""
    config = deepcopy(model.config)
    given = config.rope_parameters
    slot = given if "rope_theta" in given else given["full_attention"]
    slot.update(rope_type="dynamic", factor=factor)
    fresh = AutoModelForCausalLM.from_config(config).eval()
    fresh.load_state_dict(model.state_dict())
    tokens = torch.tensor([question.tokens])
    cache = DynamicCache(config=config)
    found, read = [], 0
    for stop in range(question.start, tokens.shape[1]):
        given = {"past_key_values": cache, "use_cache": True}
        logits = fresh(input_ids=tokens[:, read:stop], **given).logits[0, -1]
        found.append(-float(logits.float().log_softmax(-1)[tokens[0, stop]]))
        read = stop
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_the_library_serves(family):
    model = build(tiny(family))
    (answer,) = asked(model, [QUESTION])
    assert answer.nll == pytest.approx(by_hand(model, QUESTION), abs=1e-5)
    assert len(answer.argmax) == len(answer.nll) + 1


def test_nothing_is_left_from_one_question_to_the_next():
    model = build(tiny("llama"))
    short = Loglikelihood(QUESTION.tokens[:40], 20, doc_id="s")
    before = model(input_ids=TOKENS).logits
    alone, (_, after) = asked(model, [short]), asked(model, [QUESTION, short])
    assert alone[0] == after
    assert torch.equal(model(input_ids=TOKENS).logits, before)
