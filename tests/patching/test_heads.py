"""The tables by which some methods rank heads: measured on a model, against a naive loop."""

import json
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.heads import measure_heads
from tests import naive_methods as naive
from tests.banded import TOKEN, model_of
from tests.tiny import save_tiny


def unrotated(model: Any, tokens: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the queries and keys of each layer before their rotation, (heads, tokens, width)."""
    seen: list[torch.Tensor] = []
    parts = [part for layer in model.model.layers
             for part in (layer.self_attn.q_proj, layer.self_attn.k_proj)]  # fmt: skip
    handles = [part.register_forward_hook(lambda _, __, out: seen.append(out[0])) for part in parts]
    with torch.inference_mode():
        model(input_ids=tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = [out.unflatten(-1, (-1, width)).transpose(0, 1) for out in seen]
    return list(zip(heads[::2], heads[1::2], strict=True))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_heads_are_measured_as_a_loop_measures_them(family):
    model, texts = model_of(family), [TOKEN[0, :60], TOKEN[0, 30:110]]
    found = measure_heads(model, [text.tolist() for text in texts])
    shares, best = torch.zeros_like(found.outlier_shares), []
    for text in texts:
        for layer, (query, key) in enumerate(unrotated(model, text[None])):
            shares[layer] += torch.tensor(naive.ms_poe_shares(query, key)) / len(texts)
    torch.testing.assert_close(found.outlier_shares, shares)
    alone = measure_heads(model, [texts[0].tolist()])
    for layer, (query, key) in enumerate(unrotated(model, texts[0][None])):
        sharing = len(query) // len(key)
        for head in range(len(query)):
            chosen = naive.dpe_key_pairs(query[head], key[head // sharing], 3)
            order = alone.pair_norms[layer, head].argsort(descending=True)
            best.append(set(order[:3].tolist()) == set(chosen))
    assert all(best)


def test_a_calibration_is_a_file_that_methods_read(tmp_path, ropewalk, docs):
    """It names its documents, and a run with the file leaves them out, also inside ``on=``."""
    model = save_tiny(tmp_path / "m")
    file = tmp_path / "heads.json"
    done = ropewalk("calibrate", model, "--docs", docs, "--documents", "1", "--out", file)
    assert done.status == 0, done.err
    table = json.loads(file.read_text(encoding="utf-8"))
    rope = rope_of(model_of("llama").config)
    assert torch.tensor(table["pair_norms"]).shape == (rope.layers, rope.heads, 8)
    (used,) = [one["name"] for one in table["documents"]]
    for given in (f"ms_poe:heads={file}", f"info_scale:on=dpe:heads={file}"):
        folder = tmp_path / given[:4]
        run = rw.run(
            model, docs=str(docs), scaling=["none", given], length=["1x"],
            task=["perplexity:tail=8"], out=folder,
        )  # fmt: skip
        frame = run.frame()
        assert set(frame["status"]) == {"ok"}
        assert used not in set(frame["unit"])
    few = ("--task", "perplexity:tail=8", "--length", "1x", "--scaling", given)
    only = ropewalk("run", "--model", model, "--docs", docs / used, *few)
    assert only.status == 2
    assert "has only documents that a method was calibrated on" in only.err


def test_heads_of_another_checkpoint_are_named(tmp_path, ropewalk, docs):
    """Those of a model of the same shape would rank the heads of this one without a word."""
    models = [save_tiny(tmp_path / name, seed=seed) for name, seed in (("one", 0), ("other", 1))]
    file = tmp_path / "heads.json"
    ropewalk("calibrate", models[0], "--docs", docs, "--documents", "1", "--out", file)
    words = ("--docs", docs, "--task", "perplexity:tail=8", "--length", "1x", "--dry-run")
    notes = [
        ropewalk("run", "--model", model, *words, "--scaling", f"ms_poe:heads={file}").out
        for model in models
    ]
    text = "heads.json was measured on another checkpoint ("
    assert [text in " ".join(note.split()) for note in notes] == [False, True]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--documents", "0"), "calibrate reads 1 or more"),
        (("--documents", "99"), "documents of 63 tokens or more, not 99"),
        (("--length", "4x"), "heads are measured inside the trained window"),
    ],
)
def test_a_calibration_that_cannot_be_is_one_sentence(flags, words, tiny, docs, rejected):
    assert words in rejected("calibrate", tiny, "--docs", docs, *flags)
