"""What a serving engine reads gives the measured losses, or the export is an error."""

import json
import shlex
import socket
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import ropewalk as rw
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.patch import patched
from ropewalk.harness.plugins import load
from ropewalk.harness.serve import hf_code
from ropewalk.harness.serve._export import how_to_serve
from ropewalk.harness.serve._parameters import Target
from ropewalk.harness.sweep.server import ask_losses, connect
from ropewalk.harness.sweep.spec import parse
from ropewalk.scaling.types import Rope
from tests import ROOT, families
from tests.banded import heads_of
from tests.quantized import save_gguf
from tests.tiny import WINDOW, YARN, save_tiny, tiny_config

LENGTH = 4 * WINDOW
TOKENS = torch.randint(1, 290, (1, LENGTH), generator=torch.Generator().manual_seed(0))
# Plain forms, the carrier with a factor, with pairs that do not turn, and a user's own.
METHODS = [
    "none", "pi", "ntk", "yarn:factor=4", "yarn:ramp=paper", "yarn:truncate=false", "llama3",
    "ntk_by_parts", "p_rope", "mr_rope", "abf:base=20000", "dynamic_ntk:factor=2",
]  # fmt: skip
LAYERS = "layerwise:first=0.3,kind=yarn"
MINE = """
import torch
from ropewalk.scaling import Frequencies

def frequencies(rope, length):
    inv_freq = rope.inv_freq()
    inv_freq[::2] /= rope.stretch(length)
    return Frequencies(inv_freq, 1.25)
"""
SERVED = json.loads((ROOT / "tests/data" / "served.json").read_text())


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write ``./mine.py`` into a new working folder."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    return "./mine.py"


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


@torch.inference_mode()
def losses(model: Any) -> torch.Tensor:
    """Return the loss of every token but the first, float64."""
    logits = model(TOKENS).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, TOKENS[0, 1:], reduction="none")


def measured(model: Any, found: Any) -> torch.Tensor:
    with patched(model, found.target.rotation):
        return losses(model)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [*METHODS, "./mine.py"])
@pytest.mark.usefixtures("mine")
def test_transformers_reloads_what_was_measured(scaling, tiny, model, tmp_path):
    """A folder with the changed config has the losses of the patch: to the bit, or to rounding."""
    found = rw.export(tiny, scaling=scaling, length="4x", to="transformers", out=tmp_path / "out")
    again = losses(AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32))
    wanted = measured(model, found)
    if found.distance.units == 0:
        assert torch.equal(again, wanted)
    assert torch.allclose(again, wanted, rtol=1e-4, atol=1e-4)
    assert found.distance.units <= 1
    assert (tmp_path / "out" / "model.safetensors").is_symlink()


@pytest.mark.parametrize(("scaling", "form", "to"), [
    ("none", "default", "transformers"), ("ntk", "default", "transformers"),
    ("dynamic_ntk:factor=2", "default", "transformers"), ("pi", "linear", "transformers"),
    ("yarn", "yarn", "transformers"), ("llama3", "llama3", "transformers"),
    ("ntk_by_parts", "llama3", "transformers"), ("mr_rope", "longrope", "transformers"),
    ("p_rope", "longrope", "transformers"),
    ("dynamic_ntk:mode=transformers", "dynamic", "transformers"),
    ("yarn:factor=4", "yarn", "vllm"), ("yarn:factor=2", "longrope", "vllm"),
])  # fmt: skip
def test_the_plainest_form_is_taken(scaling, form, to, tiny):
    """A method that the engine has by name, or that is another base, is written so.

    vLLM's yarn has angles for factor times window only, and reads beyond them without an error.
    """
    assert rw.export(tiny, scaling=scaling, length=LENGTH, to=to).form == form


@pytest.mark.parametrize("case", SERVED, ids=lambda case: f"{case['engine']} {case['scaling']}")
def test_the_classes_of_the_servers_give_the_same(case):
    """Frequencies and factor of the rotary classes of the wheels, from the config that we write.

    ``data/served.json`` was made by the files of the wheels vllm 0.33.0 (``get_rope`` of
    ``vllm/model_executor/layers/rotary_embedding``), sglang 0.5.23 (``sglang/srt/layers/
    rotary_embedding``) and mlx-lm 0.32.2 (``initialize_rope``): each was given ``changed``, and
    ``inv_freq`` and ``factor`` read from its module. The wheels' other imports were empty modules.
    """
    engine, method = load("engine", case["engine"]).module, load("method", case["scaling"])
    rope = Rope(case["rotary_dim"], case["base"], case["window"])
    rotation = method.module.frequencies(rope, case["length"], **method.arguments)
    config = tiny_config("llama")
    target = Target(method, case["length"], rope, rotation, "m", config)
    found = engine.computed(case["changed"], target)
    theirs = np.array(case["inv_freq"], dtype=np.float32)
    turning = theirs * case["length"] > 1e-12
    ours = found.inv_freq.numpy()
    assert np.allclose(ours[turning], theirs[turning], rtol=case["rtol"], atol=0)
    assert found.attention_factor == pytest.approx(case["factor"], rel=1e-6)
    assert target.distance(found).close


@pytest.mark.parametrize(("to", "scaling", "words"), [
    ("vllm", "rerope", "--to hf-code"),
    ("sglang", "dynamic_ntk:mode=transformers", "mode=frozen"),
    ("hf-code", "yarn", "--to transformers"),
    ("mlx", "./shrunk.py", "the attention factor differs by 0.5"),
    ("tensorrt", "yarn", "known: gguf, hf_code"),
])  # fmt: skip
@pytest.mark.usefixtures("mine")
def test_what_an_engine_cannot_express_is_refused(to, scaling, words, tiny, rejected):
    Path("shrunk.py").write_text(MINE.replace("1.25", "0.5"))
    assert words in rejected("export", tiny, "--scaling", scaling, "--length", "4x", "--to", to)


@pytest.mark.parametrize(("family", "to", "scaling", "words"), [
    ("mixtral", "sglang", "yarn:factor=4", "its class for mixtral reads no scaling, a base alone"),
    ("gemma", "sglang", "pi", "no scaling, a base alone"),
    ("starcoder2", "sglang", "abf:base=20000.5", "default: it computes other numbers: ."),
    ("deepseek_v3", "vllm", "ntk_by_parts", "no scaling, a base alone"),
    ("deepseek_v3", "sglang", "yarn:factor=4", "no scaling, a base alone"),
    ("gpt_oss", "vllm", "pi", "only rope_type yarn"),
    ("gpt_oss", "vllm", "yarn:factor=4,attention_factor=1", "attention factor differs by 0.14"),
    ("qwen2", "gguf", "mr_rope", "not for qwen2"),
    ("cohere", "vllm", "mr_rope", "cohere reads only rope_type default, linear"),
    ("aya_vision", "vllm", "mr_rope", "cohere2 reads only rope_type default, linear"),
    ("gemma2", "mlx", "mr_rope", "not known to read"),
    ("mistral", "hf-code", "rerope", "sliding layers, which see 32 tokens"),
    ("gemma3_text", "vllm", "yarn", r"\(gemma3_text has a rotary embedding per layer"),
])  # fmt: skip
def test_a_class_that_does_not_read_a_scaling_is_not_given_one(
    family, to, scaling, words, tmp_path
):
    """Some model classes of the servers read a base alone, truncate it, or build their own yarn.

    So do the wheels vllm 0.33.0 (``vllm/model_executor/models``) and sglang 0.5.23
    (``sglang/srt/models``), which would serve another scaling without an error. llama.cpp loads no
    factors for Qwen; longrope of the servers excludes families whose pairs are neighbours.
    """
    families.tiny(family).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=words):
        rw.export(tmp_path, scaling=scaling, length="4x", to=to)


@pytest.mark.parametrize(("family", "to", "scaling", "form"), [
    ("mixtral", "vllm", "yarn:factor=4", "yarn"), ("gemma", "sglang", "ntk", "default"),
    ("gpt_oss", "vllm", "yarn:factor=4", "yarn"),
    ("gpt_oss", "sglang", "yarn:factor=4,attention_factor=1", "yarn"),
    ("gemma3_text", "transformers", "yarn", "yarn"),  # of its layers with full attention
    # Its class for the plain type rotates whole heads, and the model a part of each.
    ("mistral4", "transformers", "ntk", "longrope"),
    # vLLM's yarn has the ramp of a window four times as long where a config has mrope_section;
    # ``test_engines.py`` computes it with vLLM's class.
    ("qwen2_5_vl", "vllm", "yarn:factor=4", "longrope"),
    ("qwen2_5_vl", "sglang", "yarn:factor=4", "yarn"),
])  # fmt: skip
def test_a_class_is_given_the_plainest_form_that_it_computes_as_measured(
    family, to, scaling, form, tmp_path
):
    families.tiny(family).save_pretrained(tmp_path)
    found = rw.export(tmp_path, scaling=scaling, length="4x", to=to)
    assert (found.form, found.distance.close) == (form, True)


def test_a_form_that_the_config_class_refuses_is_not_written(tmp_path):
    """Phi 3's config takes default and longrope alone, so every engine is given the carrier.

    SGLang's class rotates the token at the original window as token 0 while no later one is there:
    its original window, which a key of the config itself overrides, is the length.
    """
    families.tiny("phi3").save_pretrained(tmp_path)
    for to, window in (("transformers", WINDOW), ("vllm", WINDOW), ("sglang", LENGTH)):
        found = rw.export(tmp_path, scaling="yarn:factor=4", length="4x", to=to)
        assert (found.form, found.distance.close) == ("longrope", True)
        windows = (found.changed, found.changed["rope_parameters"])
        assert all(keys["original_max_position_embeddings"] == window for keys in windows)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scaling"), [
    *((family, "self_extend") for family in hf_code.READ),
    ("gemma2", LAYERS),
    *(("llama", scaling) for scaling in (
        LAYERS, "lm_infinite", "dual_chunk", "log_n:on=yarn:factor=4",
        "dynamic_ntk:mode=per_query", "temperature:on=rerope", "jet_long", "jet_long:far=ramped",
        "dual_chunk:form=qwen", "mesa", "gali", "dpe:g1=2,g4=3,g8=1",
    )),
    ("cohere", "ms_poe:heads={heads}"), ("qwen2", "dpe:g1=2,g4=3,heads={heads},top=3"),
])  # fmt: skip
def test_a_modelling_file_computes_what_was_measured(family, scaling, saved, tmp_path):
    """Any tool that trusts the folder's code has the losses measured, whole and with a cache."""
    model = AutoModelForCausalLM.from_pretrained(saved(family), dtype=torch.float32).eval()
    rope = rope_of(model.config)
    scaling = scaling.format(heads=heads_of(rope.layers, rope.heads, rope.rotary_dim // 2))
    found = rw.export(saved(family), scaling=scaling, length="4x", to="hf-code", out=tmp_path / "m")
    wanted = measured(model, found)
    moved = AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", trust_remote_code=True, dtype=torch.float32
    ).eval()
    near = {"rtol": 0, "atol": 0} if scaling == LAYERS else {"rtol": 1e-4, "atol": 2e-4}
    assert torch.allclose(losses(moved), wanted, **near)
    with patched(model, found.target.rotation):
        ours = model.generate(TOKENS[:, :200], max_new_tokens=4, do_sample=False)
    theirs = moved.generate(TOKENS[:, :200], max_new_tokens=4, do_sample=False)
    assert torch.equal(ours, theirs)
    assert "ropewalk" not in (tmp_path / "m" / hf_code.FILE).read_text().split('"""')[2]
    with pytest.raises(UserError, match="the model it was made from"):  # not as the plain model
        rw.doctor(tmp_path / "m")
    longer = pytest.raises(ValueError, match="positions are stored for 256 tokens")
    with nullcontext() if scaling == LAYERS else longer:
        moved(torch.ones(1, LENGTH + 1, dtype=torch.int64))


@pytest.mark.slow
def test_a_modelling_file_computes_the_same_in_other_places(tiny, tmp_path):
    """Its rotary embedding on one device, its head on another, or saved again: no logit changes."""
    rw.export(tiny, scaling="log_n:on=yarn", length="4x", to="hf-code", out=tmp_path / "m")
    parts = ("model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb")
    split = {"device_map": dict.fromkeys(parts, "cpu") | {"lm_head": "disk"}}
    plain, spread = (
        AutoModelForCausalLM.from_pretrained(
            tmp_path / "m", trust_remote_code=True, dtype=torch.float32, **more
        ).eval()
        for more in ({}, split | {"offload_folder": str(tmp_path / "offload")})
    )
    assert spread.lm_head.weight.device.type == "meta"
    plain.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    with torch.inference_mode():
        assert torch.equal(spread(TOKENS).logits, plain(TOKENS).logits)
        assert torch.equal(again(TOKENS).logits, plain(TOKENS).logits)
    with pytest.raises(ValueError, match="a cache that grows"):
        plain.generate(TOKENS[:, :40], max_new_tokens=2, cache_implementation="static")


@pytest.mark.slow
def test_a_gguf_file_is_rewritten(tmp_path):
    from gguf import GGUFReader

    file = save_gguf(tmp_path / "tiny.gguf", "Q4_1")
    found = rw.export(file, scaling="mr_rope", length="4x", to="gguf", out=tmp_path / "new.gguf")
    before, after = GGUFReader(file), GGUFReader(tmp_path / "new.gguf")
    factors = found.changed["rope_freqs.weight"]
    tensors = {tensor.name: tensor.data for tensor in after.tensors}
    assert np.array_equal(tensors.pop("rope_freqs.weight"), np.array(factors, dtype=np.float32))
    assert tensors.keys() == {tensor.name for tensor in before.tensors}
    assert all(np.array_equal(tensors[tensor.name], tensor.data) for tensor in before.tensors)
    assert after.fields["llama.context_length"].contents() == LENGTH
    assert after.fields["llama.rope.scaling.type"].contents() == "none"
    same = before.fields.keys() - {"GGUF.tensor_count", "GGUF.kv_count", "llama.context_length"}
    assert all(before.fields[n].contents() == after.fields[n].contents() for n in same)
    with pytest.raises(UserError, match="is there already"):
        rw.export(file, scaling="pi", length="4x", to="gguf", out=tmp_path / "new.gguf")


@pytest.mark.parametrize("scaling", ["ntk", "pi", "yarn:factor=4,attention_factor=1"])
def test_a_command_of_llama_cpp_gives_all_the_keys_of_the_rewritten_file(scaling, tmp_path):
    """Its flags would not: sliding layers read the file alone, and its window limits the server."""
    from gguf import GGUFReader

    file, new = save_gguf(tmp_path / "tiny.gguf"), tmp_path / "new.gguf"
    line = shlex.split(rw.export(file, scaling=scaling, length="4x", to="gguf").command)
    assert line[:6] == ["llama-server", "-m", str(file), "-c", str(LENGTH), "--override-kv"]
    kinds = {"int": int, "float": float, "str": str}
    given = dict(one.split("=") for one in line[6].split(","))
    given = {name: kinds[v.partition(":")[0]](v.partition(":")[2]) for name, v in given.items()}
    rw.export(file, scaling=scaling, length="4x", to="gguf", out=new)
    before, after = (
        {name: field.contents() for name, field in GGUFReader(one).fields.items()}
        for one in (file, new)
    )
    changed = {name for name in after if before.get(name) != after[name]} - {"GGUF.kv_count"}
    assert changed <= given.keys()
    assert all(after[name] == pytest.approx(value) for name, value in given.items())


@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder(tmp_path):
    """Its weights are written in float32, where they are exact."""
    file = save_gguf(tmp_path / "tiny.gguf", "Q4_1")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    found = rw.export(file, scaling="yarn", length="4x", to="mlx", out=tmp_path / "out")
    again = losses(AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32))
    assert torch.allclose(again, measured(plain, found), rtol=1e-5, atol=1e-5)
    line = rw.export(file, scaling="yarn", length="4x", to="vllm").command
    assert line == "vllm serve NEW --max-model-len 256, with NEW written by --out NEW"


@pytest.mark.parametrize("scaling", ["./mine.py", "p_rope"])
@pytest.mark.usefixtures("mine")
def test_a_folder_for_mlx_is_read_back_with_its_trained_window(scaling, tiny, model, tmp_path):
    """mlx-lm's longrope has a window that makes the factor (34.8 tokens of 64); ours is beside."""
    found = rw.export(tiny, scaling=scaling, length="4x", to="mlx", out=tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert rw.rope_of(config).trained_length == WINDOW
    told = json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"]
    wanted = LENGTH if scaling == "p_rope" else LENGTH ** (1 / 1.25**2)
    assert told["original_max_position_embeddings"] == pytest.approx(wanted)
    again = losses(AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32))
    assert torch.allclose(again, measured(model, found), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not find_spec("mlx_lm"), reason="mlx-lm is not installed")
@pytest.mark.parametrize(
    "scaling", ["none", "pi", "ntk", "yarn:factor=4", "p_rope", "llama3", "./mine.py"]
)
@pytest.mark.usefixtures("mine")
def test_mlx_gives_the_losses(scaling, tiny, model, tmp_path):
    """mlx-lm on a CPU reads the folder and has the mean loss measured to 1e-4, relatively."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    found = rw.export(tiny, scaling=scaling, length="4x", to="mlx", out=tmp_path / "out")
    served = load_model(tmp_path / "out")[0]
    logits = torch.from_numpy(np.array(served(mx.array(TOKENS.numpy())).astype(mx.float32)))
    nll = torch.nn.functional.cross_entropy(logits[0, :-1].double(), TOKENS[0, 1:])
    assert float(nll) == pytest.approx(float(measured(model, found).mean()), rel=1e-4)


@pytest.mark.parametrize("to", ["transformers", "vllm", "sglang", "mlx"])
def test_a_folder_says_the_same_to_every_reader(to, tmp_path):
    """rope_scaling and rope_theta for older readers, and no other key or file limits the length.

    vLLM takes the smallest name of the window, SGLang the first; vLLM reads params.json where a
    file is called consolidated*.safetensors. A null stays: without it the sliding window of Mistral
    would be 4096 tokens, the default of its class.
    """
    limits = {"max_sequence_length": WINDOW, "model_max_length": 2 * WINDOW, "max_seq_len": None}
    model, out = save_tiny(tmp_path / "m", "mistral", **limits), tmp_path / "out"
    for name in ("params.json", "consolidated.safetensors"):
        (model / name).touch()
    rw.export(model, scaling="yarn", length="4x", to=to, out=out, copy=True)
    assert not {"params.json", "consolidated.safetensors"} & {file.name for file in out.iterdir()}
    assert not (out / "model.safetensors").is_symlink()
    before, after = (json.loads((at / "config.json").read_text()) for at in (model, out))
    assert before.keys() <= after.keys()
    assert after["rope_scaling"] == after["rope_parameters"]
    assert after["rope_theta"] == after["rope_parameters"]["rope_theta"] == 10_000.0
    assert after["max_position_embeddings"] == LENGTH
    assert after["max_sequence_length"] == after["model_max_length"] == LENGTH
    assert after["max_seq_len"] is None
    assert AutoConfig.from_pretrained(out).sliding_window is None


def test_the_command_prints_config_distance_and_line(tiny, ropewalk):
    """What is printed can be pasted: JSON of the keys, and the line that serves it."""
    words = ("export", tiny, "--scaling", "yarn:factor=4", "--length", "4x", "--to", "vllm")
    done = ropewalk(*words)
    assert done.status == 0
    assert "8 of 8 frequencies are bit-identical to the measured ones" in done.out
    override = done.out.partition("--hf-overrides '")[2].partition("'")[0]
    assert json.loads(override)["rope_parameters"]["rope_theta"] == 10_000.0
    assert "--scaling yarn:factor=4 --length 256 --server http://127.0.0.1:8000" in done.out


@pytest.mark.parametrize("to", ["transformers", "vllm", "sglang"])
def test_the_command_serves_the_revision_that_was_asked_for(to, monkeypatch):
    """Without it a server takes the newest weights, not those of the branch, tag or commit."""
    opened = ("owner/name", "c0ffee", tiny_config())
    monkeypatch.setattr("ropewalk.harness.serve._export.open_config", lambda *_: opened)
    given = {"scaling": "yarn:factor=4", "length": LENGTH, "to": to}
    assert "v2" not in str(rw.export("owner/name", **given))
    command = rw.export("owner/name", revision="v2", **given).command
    assert ("revision='v2'" if to == "transformers" else " --revision v2 ") in command


@pytest.mark.parametrize("to", ["transformers", "vllm", "sglang"])
def test_a_model_of_images_keeps_the_channels_of_their_rows_and_columns(to, tmp_path):
    """Without them a server rotates an image as text; with them, it has no longrope, only yarn.

    So do ``mrope.py`` of the wheels vllm 0.33.0 and sglang 0.5.23, and Qwen's own recipe has them.
    The config is inside of another: servers read its keys from there, with every key of the
    rotary embedding (vLLM's recipes of Qwen3.5), and transformers reads a folder alone.
    """
    sections = {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
    text = {**tiny_config("qwen3").to_dict(), "model_type": "qwen3_5_text"}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, **sections}
    text["layer_types"] = ["full_attention"] * 2
    AutoConfig.for_model("qwen3_5", text_config=text).save_pretrained(tmp_path)
    for scaling in ("ntk", "yarn:factor=4", "pi", "mr_rope"):
        found = rw.export(tmp_path, scaling=scaling, length=LENGTH, to=to)
        kept = {name: found.changed["rope_parameters"].get(name) for name in sections} == sections
        assert kept == (to == "transformers" or scaling in ("ntk", "yarn:factor=4"))
        assert ("--language-model-only" in found.command) == (not kept)
        words = shlex.split(found.command)
        if to == "transformers":
            assert found.command.endswith(", with NEW written by --out NEW")
        else:
            flag = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}[to]
            assert json.loads(words[words.index(flag) + 1]) == {"text_config": found.changed}
            assert found.changed["rope_parameters"]["rope_theta"] > 0


def test_sglang_is_told_base_and_rotated_part_of_a_head_twice(tmp_path):
    """Some of its classes read them beside rope_parameters alone.

    So do those of sglang 0.5.23 for exaone4 and qwen3_next (the base), and for llama, phi and phi3
    (the part).
    """
    model = save_tiny(tmp_path / "m", "gpt_neox")
    keys = rw.export(model, scaling="ntk", length="4x", to="sglang").changed
    assert keys["rope_theta"] == keys["rope_parameters"]["rope_theta"] != 1e4
    assert keys["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize(("family", "scaling", "told"), [
    ("llama", "self_extend", "ropewalk export {} --scaling self_extend --length 256 --to hf-code"),
    ("qwen3_moe", "yarn", "ropewalk export {} --scaling yarn --length 256 --to transformers"),
    ("qwen3_moe", "self_extend", "no command serves it: hf-code cannot serve self_extend at 256 "
     "tokens (the file is checked for cohere"),
])  # fmt: skip
def test_a_line_to_type_next_is_one_that_runs(family, scaling, told, saved):
    folder = saved(family)
    spec = parse(None, {"model": str(folder)})
    assert how_to_serve(spec, scaling, LENGTH).startswith(told.format(folder))


@pytest.mark.parametrize("to", ["transformers", "vllm", "sglang", "mlx"])
def test_a_yarn_that_is_shipped_says_all_that_an_engine_reads(to, tmp_path):
    """SGLang adds the keys of a command to the shipped ones, and its yarn reads mscale."""
    shipped = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
    folder = save_tiny(tmp_path / "m", rope_parameters=shipped, max_position_embeddings=LENGTH)
    found = rw.export(folder, scaling="native", length="4x", to=to)
    told = found.changed["rope_parameters"]
    assert (found.form, found.distance.close) == ("yarn", True)
    assert (told["beta_fast"], told["beta_slow"], told["attention_factor"]) == (32.0, 1.0, 1.0)
    assert to == "mlx" or told.get("mscale") is told.get("mscale_all_dim") is None
    assert rw.export(folder, scaling="none", length="4x", to=to).form == "default"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("xllamacpp"), reason="xllamacpp is not installed")
def test_llama_cpp_gives_the_losses(mine, tmp_path):
    """Its server's next-token probabilities of a rewritten file are those measured, to 1e-4."""
    import xllamacpp

    width = {"attention.key_length": 16, "attention.value_length": 16}
    file = save_gguf(tmp_path / "tiny.gguf", "F32", facts=width)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    for scaling in ("none", "pi", "ntk", "yarn:factor=4", "p_rope", mine):
        out = tmp_path / f"{load('method', scaling).module.__name__}.gguf"
        found = rw.export(file, scaling=scaling, length="4x", to="gguf", out=out)
        wanted = measured(plain, found)
        asked = xllamacpp.CommonParams()
        asked.model.path, asked.n_ctx, asked.n_parallel, asked.port = str(out), 512, 1, free_port()
        asked.warmup, asked.verbosity, asked.n_gpu_layers = False, 0, 0
        asked.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        for cache in ("cache_type_k", "cache_type_v"):
            setattr(asked, cache, xllamacpp.ggml_type.GGML_TYPE_F32)
        running = xllamacpp.Server(asked)
        theirs = ask_losses(connect(running.listening_address), None, TOKENS[0].tolist())
        del running
        assert len(theirs) >= 4
        for at, loss in theirs.items():
            assert loss == pytest.approx(float(wanted[at - 1]), rel=1e-3, abs=2e-3), (scaling, at)
        mean = sum(float(wanted[at - 1]) for at in theirs) / len(theirs)
        assert sum(theirs.values()) / len(theirs) == pytest.approx(mean, rel=1e-4), scaling


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_another_scaling_of_a_dual_chunk_checkpoint_takes_its_key_away(tmp_path):
    """vLLM and SGLang would build a rotary class of dual chunk attention from it."""
    table = {"chunk_size": 64, "local_size": 16, "original_max_position_embeddings": 64}
    model = save_tiny(tmp_path / "m", "qwen2", dual_chunk_attention_config=table)
    found = rw.export(model, scaling="yarn:factor=4", length="4x", to="vllm", out=tmp_path / "out")
    assert "--hf-overrides" not in str(found)
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert "dual_chunk_attention_config" not in written
    with pytest.raises(UserError, match="--to hf-code"):
        rw.export(model, scaling="native", length="4x", to="vllm")
    served = rw.export(model, scaling="native", length="4x", to="hf-code", out=tmp_path / "moved")
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "moved", trust_remote_code=True, dtype=torch.float32
    ).eval()
    assert torch.allclose(losses(again), measured(model, served), atol=2e-4)
