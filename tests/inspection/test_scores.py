"""Scores against distance, wavelengths and identities of ``ropewalk inspect``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.encodings import alibi
from harness.encodings._config import config_of
from harness.encodings._model import EncodingForCausalLM
from harness.errors import UserError
from harness.inspection.inspect import draw_wavelengths, identities
from harness.inspection.scores import of_base, of_encoding, of_rotation
from harness.methods.channels import channels, decay
from harness.plugins import names
from scaling import Frequencies, Rope, jet_long, pi

ROPE = Rope(64, 10_000.0, 256)


def test_a_rotation_keeps_norms_and_relative_positions():
    """To rounding, in both precisions; layouts are equal up to a permutation."""
    plain = Frequencies(ROPE.inv_freq())
    single, double = (identities(plain, 2048, dtype) for dtype in (torch.float32, torch.float64))
    assert len(single) == 3
    for about, error in double.items():
        assert 0 < error < 1e-14
        assert error < single[about] < 1e-4


def test_the_score_of_equal_contents_is_a_sum_of_cosines():
    """In the mean over many contents 2 Σ cos(m θ) / sqrt(d); interpolated, that of m / s."""
    plain = of_rotation("", "none", Frequencies(ROPE.inv_freq()), 256)
    at = torch.tensor(plain.distance, dtype=torch.float64)
    wanted = 2 * torch.outer(at, ROPE.inv_freq().double()).cos().sum(1) / 8
    assert torch.tensor(plain.mean, dtype=torch.float64).allclose(
        wanted, atol=0.6
    )  # of 64 contents
    slow = of_rotation("", "pi", pi.frequencies(ROPE, 1024), 1024)
    both = dict(zip(slow.distance, slow.mean, strict=True))
    ours = dict(zip(plain.distance, plain.mean, strict=True))
    same = [d for d in ours if 4 * d in both]
    assert [both[4 * d] for d in same] == pytest.approx([ours[d] for d in same], abs=1e-4)
    assert of_base(10_000.0, ROPE, 256).mean == plain.mean
    assert all(low <= high for low, high in zip(plain.low, plain.high, strict=True))


def test_bands_of_several_frequencies_are_read_at_the_angles_of_their_own():
    """Jet-Long's far channels go on slower from the window: no pair meets a new angle, all fade."""
    found = jet_long.bands(ROPE, 2048, far="ramped")
    pairs = channels(ROPE, found, 2048)
    assert not any(pair.unseen for pair in pairs)
    s = (2048 - 16) / (256 - 16)
    assert pairs[-1].ratio == pytest.approx(1 / s)
    wanted = torch.tensor([16.0, 16 + (2047 - 16) / s]).double()[:, None] * ROPE.inv_freq()[13:]
    assert found.angles(torch.tensor([16, 2047]))[:, 13:].allclose(wanted)
    heat = float(found.query_scale[-1])
    assert decay(found, [0]) == pytest.approx([16.5 * heat])
    assert of_rotation("", "", found, 2048).mean[0] == pytest.approx(
        heat * of_base(10_000.0, ROPE, 2048).mean[0]
    )


@pytest.mark.slow
def test_the_score_of_an_encoding():
    """ALiBi's falls by its mean slope; that of no encoding is flat; a table ends at its window."""
    alibi = of_encoding("alibi", ROPE, 512, trusted=False)
    slope = (2**-4 + 2**-8) / 2  # of two heads
    wanted = [alibi.mean[0] - slope * distance for distance in alibi.distance]
    assert alibi.mean == pytest.approx(wanted, abs=1e-3)
    flat = of_encoding("none", ROPE, 512, trusted=False)
    assert max(flat.mean) == pytest.approx(min(flat.mean), abs=1e-4)
    assert of_encoding("learned", ROPE, 512, trusted=False).distance[-1] == 255
    with pytest.raises(UserError, match="has no scores"):
        of_encoding("rope_linear", ROPE, 512, trusted=False)
    rope = of_encoding("rope", ROPE, 512, trusted=False)
    assert rope.mean == pytest.approx(of_base(10_000.0, ROPE, 512).mean, abs=1.0)
    for name in set(names("encoding")) - {"rope_linear"}:
        found = of_encoding(name, ROPE, 64, trusted=False)
        assert torch.tensor(found.mean).isfinite().all(), name


def test_a_curve_needs_no_memory_for_distances_between(tmp_path):
    """At 2^20 tokens ALiBi is asked for the distances of the curve alone, and at 1 for one."""
    file = tmp_path / "counted.py"
    text = (Path(alibi.__file__)).read_text(encoding="utf-8")
    counted = "        assert len(places.key) <= 400\n        slope = torch.tensor("
    file.write_text(text.replace("        slope = torch.tensor(", counted), encoding="utf-8")
    rope = Rope(64, 10_000.0, 2**20)
    assert of_encoding(str(file), rope, 2**20, trusted=True).distance[-1] == 2**20 - 1
    assert of_encoding(str(file), rope, 1, trusted=True).distance == [0]


def test_an_encoding_without_scores_to_draw_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    turned = "    def turn(self, query, key, angles, positions):\n        return query, {}\n"
    begun = '"""Mine."""\nfrom torch import nn\n\n\nclass Encoding(nn.Module):\n'
    begun += "    def __init__(self, shape):\n        super().__init__()\n\n"
    file.write_text(begun + turned.format("key if angles is None else 0"), encoding="utf-8")
    assert len(of_encoding(str(file), ROPE, 64, trusted=True).mean) == 64
    file.write_text(begun + turned.format("nothing"), encoding="utf-8")
    with pytest.raises(UserError, match="NameError"):
        of_encoding(str(file), ROPE, 64, trusted=True)
    with pytest.raises(UserError, match="no finite scores"):
        of_encoding("xpos", ROPE, 64 * 256, trusted=False)


def test_a_score_that_depends_on_other_keys_has_no_curve(tmp_path):
    """A curve asks for some keys alone: a position counted by the keys between would be wrong."""
    file = tmp_path / "counted.py"
    text = (Path(alibi.__file__)).read_text(encoding="utf-8")
    counted = "* (places.behind >= 0).flip(-1).cumsum(-1).flip(-1)"
    file.write_text(text.replace("* places.distance", counted), encoding="utf-8")
    with pytest.raises(UserError, match="a score depends on other keys"):
        of_encoding(str(file), ROPE, 512, trusted=True)


@pytest.mark.parametrize("twice", [("--base", "100", "100"), ("--encoding", "alibi", "alibi")])
def test_two_curves_have_two_names(twice, rejected):
    assert "twice" in rejected("inspect", "--scaling", "none", "--length", "1x", *twice)


@pytest.mark.slow
def test_inspect_draws_bases_and_encodings(tmp_path, ropewalk):
    model = EncodingForCausalLM(config_of("t5", vocab_size=32, max_position_embeddings=64))
    with torch.no_grad():
        model.model.encoding.bias -= torch.arange(32.0) / model.model.encoding.root
    model.save_pretrained(tmp_path / "trained")
    words = ("--scaling", "none", "--length", "2x", "--base", "500000", "--encoding", "alibi")
    done = ropewalk("inspect", *words, tmp_path / "trained", "--out", tmp_path / "figures")
    assert (done.status, "a rotation keeps the norm" in done.out) == (0, True)
    table = pd.read_csv(tmp_path / "figures" / "scores.csv")
    name = "trained, window of 64"  # that of the model inspected, which the figure marks, is 256
    assert list(table["name"].unique()) == ["none", "base 500000", "alibi", name]
    trained = table[table["name"] == name]
    assert trained["mean"].iloc[0] - trained["mean"].iloc[-1] == pytest.approx(31, abs=1e-3)
    channels = pd.read_csv(tmp_path / "figures" / "channels.csv")
    (line,) = [one for one in draw_wavelengths(channels).axes[0].lines if one.get_label() == "none"]
    assert list(line.get_ydata()) == pytest.approx(channels["wavelength"].tolist())


@pytest.mark.parametrize("encoding", ["deberta", "rope:base=500", "learned"])
def test_a_trained_model_has_the_scores_of_its_own_first_layer(encoding, tmp_path, monkeypatch):
    """As its attention has them in a forward of one token repeated; left out, all would be flat."""
    fields = {"vocab_size": 40, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = EncodingForCausalLM(
            config_of(encoding, max_position_embeddings=64, initializer_range=0.3, **fields)
        )
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight.mul_(1.5)
    model.save_pretrained(tmp_path)
    seen = []

    def attention(_: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        scores = query @ key.mT * more["scaling"]
        seen.append((scores if mask is None else scores + mask)[:, :, -1])
        return (value.transpose(1, 2),)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "seen", attention)
    model.config._attn_implementation = "seen"
    tokens = torch.randint(40, (64, 1), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(input_ids=tokens.expand(-1, 64), use_cache=False)
    wanted = seen[0].flatten(0, 1).flip(-1)  # by distance
    found = of_encoding(str(tmp_path), replace(ROPE, trained_length=64), 64, trusted=False)
    assert found.distance == list(range(64))
    assert found.mean == pytest.approx(wanted.mean(0).tolist(), abs=1e-3)
    assert found.high == pytest.approx(wanted.quantile(0.95, 0).tolist(), abs=1e-3)
    assert max(found.mean) - min(found.mean) > 0.1
