"""The laboratory: every encoding against its paper's formula, and its model as any other model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.t5.modeling_t5 import T5Attention

from ropewalk.harness.encodings._config import config_of
from ropewalk.harness.encodings._model import EncodingForCausalLM
from ropewalk.harness.encodings.types import Places, bucket
from ropewalk.harness.engine import Sizes, answers, shareable
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import answering, patched
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load, names
from ropewalk.harness.runs.store import read_run, read_samples
from ropewalk.scaling import Frequencies
from ropewalk.tasks import Generate, Loglikelihood
from tests import naive_encodings as naive
from tests.asking import own_losses
from tests.tiny import tiny_tokenizer

OPTIONS = ["rope_linear:rotated=false", "kerple:kind=power", "shaw:clip=3", "deberta:clip=5"]
EVERY = [*names("encoding"), *OPTIONS]
ROTARY = ("rope", "rope_linear", "xpos")
SMALL = {
    "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": naive.WINDOW, "vocab_size": 300, "initializer_range": 0.4,
    "eos_token_id": None,
}  # fmt: skip
MINE = '''
"""Scores fall with the square root of the distance."""
import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self, shape, *, rate: float = 0.5):
        super().__init__()
        self.rate = nn.Parameter(torch.full((shape.heads, 1, 1), rate))

    def scores(self, layer, query, key, places):
        return -self.rate * places.distance.to(query.dtype) ** 0.5
'''


def model_of(encoding: str) -> Any:
    """Return a small model of seeded random weights, those of the encoding included."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = EncodingForCausalLM(config_of(encoding, **SMALL)).eval()
        for parameter in model.model.encoding.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def text(count: int) -> torch.Tensor:
    return torch.arange(count)[None] ** 2 * 7 % 300


@pytest.mark.parametrize("encoding", ["alibi", "kerple", "kerple:kind=power", "fire"])
def test_a_bias_is_not_rounded_to_bfloat16(encoding):
    """Of a model in bfloat16 it is that of its parameters in float64, also at eight windows."""
    model = model_of(encoding).bfloat16()
    layer, last = model.model.layers[1].self_attn, 8 * naive.WINDOW
    places = Places(torch.tensor([last - 1]), torch.arange(last))
    states = torch.zeros(1, 2, 1, 16, dtype=torch.bfloat16)
    with torch.no_grad():
        found = layer.mask(states, states, places, None)
        wanted = model.model.encoding.double().scores(layer, states.double(), None, places)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0].double(), wanted.double(), rtol=1e-5, atol=1e-5)
    assert model(text(40)).logits.isfinite().all()


@pytest.mark.parametrize("threshold", [0.25, 1.5])
def test_fire_held_reads_past_its_window_as_at_the_last_position_inside(threshold):
    """What is nearer than a window has the bias of there, the rest that of the longest distance."""
    model, window = model_of("fire:held=true"), naive.WINDOW
    torch.nn.init.constant_(model.model.encoding.threshold, threshold)

    def bias(last: int) -> torch.Tensor:
        places = Places(torch.tensor([last]), torch.arange(last + 1))
        found: torch.Tensor = model.model.encoding.scores(
            model.model.layers[1].self_attn, None, None, places
        )
        return found[:, 0]

    inside, past = bias(window - 1), bias(8 * window - 1)
    assert torch.equal(past[:, -window:], inside)
    assert torch.equal(past[:, :-window], inside[:, :1].expand(-1, 7 * window))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_linear_attention_of_far_negative_states_is_no_0_by_0(dtype):
    """elu + 1 is positive: its part below 0 is exp, which elu rounds to -1 long before it is 0."""
    encoding = model_of("rope_linear:rotated=false").model.encoding
    states = torch.full((1, 2, 3, 16), -40.0, dtype=dtype)
    query, key = encoding.turn(states, states, None, torch.arange(3))
    places = Places(torch.arange(3), torch.arange(3))
    value = torch.arange(96, dtype=dtype).view(1, 2, 3, 16)
    found = encoding.attend(None, query, key, value, places)
    wanted = value.cumsum(2) / torch.arange(1, 4)[:, None]  # equal weights: a running mean
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=0.1)
    ends = torch.linspace(-5, 5, 101, dtype=torch.float64)
    turned, _ = encoding.turn(ends, ends, None, ends)
    torch.testing.assert_close(turned[:101], torch.nn.functional.elu(ends) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", EVERY)
def test_attention_is_the_formula_of_the_paper(encoding):
    """In float64 each layer's output is that of a loop over heads, queries and keys."""
    model = model_of(encoding).double()
    trunk, name = model.model, encoding.partition(":")[0]
    layer = trunk.layers[naive.LAYER].self_attn
    positions, states = torch.arange(24)[None], torch.randn(1, 24, 32, dtype=torch.float64)
    with torch.no_grad():
        angles = trunk.rotary_emb(states, positions)
        found = layer(states, position_embeddings=angles)[0][0]
        plain = [
            project(states[0]).view(24, 2, 16).transpose(0, 1)
            for project in (layer.q_proj, layer.k_proj, layer.v_proj)
        ]
        turned = angles is not None
        wanted = naive.attention(name, trunk.encoding, layer, tuple(plain), turned=turned)
        wanted = layer.o_proj(wanted.transpose(0, 1).reshape(24, 32))
    # The model's angles are float32, as in transformers: 4e-6 radians at position 24.
    assert torch.allclose(found, wanted, atol=2e-5 if angles else 1e-10)


def test_what_absolute_encodings_add_to_the_inputs():
    """The sinusoids of Vaswani with scaled embeddings, and the rows of a table."""
    given, positions = torch.randn(1, 5, 32, dtype=torch.float64), torch.tensor([[0, 1, 7, 20, 63]])
    rows = [naive.sinusoid(int(p), 32) for p in positions[0]]
    found = model_of("sinusoidal").model.encoding.inputs(given, positions)
    assert torch.allclose(found[0], given[0] * 32**0.5 + torch.stack(rows), atol=1e-12)
    learned = model_of("learned").double().model.encoding
    assert torch.equal(learned.inputs(given, positions), given + learned.table.weight[positions])


def test_buckets_are_those_of_t5():
    """As transformers' own model has them for a decoder, past the farthest distance too."""
    distance = torch.arange(600)
    wanted = T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=32, max_distance=128
    )
    assert torch.equal(bucket(distance, 32, 128), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", EVERY)
@torch.inference_mode()
def test_a_model_is_saved_read_cached_and_causal(encoding, tmp_path):
    model, tokens = model_of(encoding), text(50)
    whole = model(input_ids=tokens, use_cache=False).logits
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(input_ids=tokens, use_cache=False).logits, whole)
    cache, parts = None, []
    for part in tokens.tensor_split((20, 21, 33), 1):
        out = model(input_ids=part, past_key_values=cache)
        cache = out.past_key_values
        parts.append(out.logits)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-4)
    model.set_attn_implementation("eager")
    assert torch.allclose(model(input_ids=tokens).logits, whole, atol=1e-4)
    assert torch.allclose(model(input_ids=tokens[:, :30]).logits, whole[:, :30], atol=1e-4)


@pytest.mark.parametrize("encoding", ["alibi", "fire", "shaw", "deberta", "untied", "rope_linear"])
def test_scores_in_parts_are_those_of_a_whole_forward(encoding, monkeypatch):
    model, tokens = model_of(encoding), text(50)
    padded = torch.ones_like(tokens)
    padded[:, 45:] = 0
    monkeypatch.setattr("ropewalk.harness.encodings._config.SCORES", 2 * 50 * 7)
    monkeypatch.setattr("ropewalk.harness.encodings._config.LEAST_QUERIES", 1)
    with torch.enable_grad():
        whole = model(input_ids=tokens, attention_mask=padded, use_cache=False).logits[:, :45]
    with torch.inference_mode():
        here = model(input_ids=tokens, attention_mask=padded, use_cache=False).logits[:, :45]
        cache = model(input_ids=tokens[:, :20]).past_key_values
        after = model(input_ids=tokens[:, 20:45], past_key_values=cache).logits
    assert torch.allclose(here, whole, atol=3e-5)
    assert torch.allclose(after, whole[:, 20:], atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", names("encoding"))
@torch.inference_mode()
def test_the_engine_answers_as_the_model_does(encoding):
    model, tokens = model_of(encoding), text(60)[0].tolist()
    asked = [
        Loglikelihood(tuple(tokens), 30, doc_id="one"),
        Loglikelihood((*tokens[:40], *tokens[50:]), 45, doc_id="other"),
        Generate(tuple(tokens[:16]), 4, doc_id="text"),
    ]
    found = dict(answers(model, asked, decode=lambda tokens: " ".join(map(str, tokens))))
    for index in (0, 1):
        wanted = own_losses(model, asked[index].tokens, asked[index].start)
        assert found[index].nll == pytest.approx(wanted.tolist(), abs=1e-4)
    written = model.generate(torch.tensor([tokens[:16]]), max_new_tokens=4, do_sample=False)
    assert list(found[2].tokens) == written[0, 16:].tolist()
    assert shareable(model) == (encoding in ("none", "sinusoidal", "learned", "rope", "xpos"))


@pytest.mark.parametrize("encoding", ROTARY)
@torch.inference_mode()
def test_scaling_methods_patch_the_rotary_ones(encoding):
    model, tokens = model_of(encoding), text(40)
    rope = rope_of(model.config)
    assert (rope.rotary_dim, rope.base, rope.trained_length) == (16, 10_000.0, naive.WINDOW)
    before = model(input_ids=tokens).logits
    with patched(model, Frequencies(torch.zeros(8))):
        still = model(input_ids=tokens).logits
    assert not torch.allclose(still, before, atol=1e-2)
    if encoding == "rope_linear":
        plain = model_of("rope_linear:rotated=false")
        assert torch.allclose(plain(input_ids=tokens).logits, still, atol=1e-4)
    assert torch.equal(model(input_ids=tokens).logits, before)


@torch.inference_mode()
def test_positions_are_moved_in_the_rotary_one():
    model, tokens = model_of("rope"), text(60)[0].tolist()
    rope, asked = rope_of(model.config), [Loglikelihood(tuple(tokens), 30, doc_id="one")]
    (_, wanted), *_ = answers(model, asked)
    for window, same in ((100, True), (8, False)):
        bands = resolve(load("method", f"rerope:window={window}"), rope, 60)
        with answering(model, bands, Sizes()) as answer:
            (_, found), *_ = answer(asked)
        assert (abs(torch.tensor(found.nll) - torch.tensor(wanted.nll)) < 1e-4).all() == same
    linear = model_of("rope_linear")
    with pytest.raises(UserError, match="attention"), patched(linear, bands):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    return saved(f"{file}:rate=0.25", tmp_path / "model")


def saved(encoding: str, to: Path) -> Path:
    model_of(encoding).save_pretrained(to)
    tiny_tokenizer().save_pretrained(to)
    return to


@pytest.mark.slow
def test_a_model_of_the_laboratory_is_exported_to_its_own_class(docs, tmp_path, ropewalk):
    rotary, exported = saved("xpos", tmp_path / "xpos"), tmp_path / "exported"
    words = ("--scaling", "yarn:factor=2", "--length", "2x")
    refused = ropewalk("export", rotary, *words, "--to", "vllm")
    assert refused.status == 2
    assert "which Ropewalk's own class in transformers alone reads" in refused.err
    done = ropewalk("export", rotary, *words, "--to", "transformers", "--out", exported)
    assert f'EncodingForCausalLM.from_pretrained("{exported}")' in done.out
    found = []
    for model, scaling in ((rotary, "yarn:factor=2"), (exported, "native")):
        out = tmp_path / f"of-{model.name}"
        words = ("--scaling", scaling, "--length", "128", "--task", "perplexity:tail=16")
        assert not ropewalk("run", "--model", model, "--docs", docs, *words, "--out", out).status
        found.append({line["question"]: line["value"] for line in read_samples(out).values()})
    assert found[0] == found[1]


@pytest.mark.slow
def test_code_beside_weights_runs_only_where_it_is_allowed(folder, docs, tmp_path, ropewalk):
    words = ("run", "--model", folder, "--docs", docs, "--scaling", "none", "--length", "1x")
    words = (*words, "--task", "perplexity:tail=16", "--out", tmp_path / "out")
    refused = ropewalk(*words)
    assert (refused.status, "--trust-remote-code" in refused.err) == (2, True)
    assert ropewalk(*words, "--trust-remote-code").status == 0
    assert read_run(tmp_path / "out")["model"]["encoding"] == "mine.py:rate=0.25"
    with pytest.raises(UserError, match="trust-remote-code"):
        AutoModelForCausalLM.from_pretrained(folder)
    (folder / "mine.py").write_text(MINE.replace("0.5\n", "0.6\n"), encoding="utf-8")
    changed = ropewalk(*words, "--trust-remote-code")
    assert (changed.status, "is not the file" in changed.err) == (2, True)


def test_a_config_does_not_allow_its_own_code(folder):
    config = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(config.replace("{", '{"run_code": true,', 1))
    with pytest.raises(UserError, match="trust-remote-code"):
        open_checkpoint(str(folder), dtype="float32", device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("part", "other", "told"), [
    ("** 0.5", "** wrong", "NameError"),
    ("    def scores(", "    def inputs(self, states, positions):\n"
     "        return states + states.mean(1, keepdim=True)\n\n    def scores(",
     "a token depends on a later one"),
])  # fmt: skip
def test_check_finds_what_is_wrong(part, other, told, tmp_path, ropewalk):
    (file := tmp_path / "wrong.py").write_text(MINE.replace(part, other))
    done = ropewalk("check", file)
    assert (done.status, done.out.count("✗"), told in done.out) == (1, 1, True), done.out
