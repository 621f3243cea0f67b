"""The package from Python: names, a loaded model, functions as methods, figures in place."""

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropewalk as rw
from ropewalk.harness.models.checkpoint import hold
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import load, names
from ropewalk.harness.recommend import race
from ropewalk.harness.runs.provenance import command
from tests import ROOT
from tests.child import in_child
from tests.tiny import save_tiny


def half(rope: rw.Rope, length: int, *, strength: float = 1.0) -> rw.Frequencies:
    return rw.Frequencies(rope.inv_freq() / rope.stretch(length) ** strength)


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> tuple[Any, Any]:
    """Return a tiny Llama and its tokenizer as a user loads them."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(tiny)


def test_every_public_name_is_there_and_the_import_is_light():
    assert all(getattr(rw, name) is not None for name in dir(rw))
    program = "import sys, ropewalk; print(*sorted({'torch', 'pandas'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
    with pytest.raises(AttributeError, match="nothing"):
        _ = rw.nothing


def test_every_method_is_a_function():
    assert dir(rw.methods) == names("method")
    rope = rw.Rope(16, 10_000.0, 64)
    plain, scaled = rw.methods.none(rope, 256), rw.methods.pi(rope, 256, factor=4)
    assert torch.equal(scaled.inv_freq, plain.inv_freq / 4)
    with pytest.raises(AttributeError, match="no method is called 'yran'"):
        _ = rw.methods.yran


def test_a_loaded_model_runs_under_a_rotation_and_is_restored(loaded):
    """Inside the context its output changes, afterwards it is bit for bit what it was."""
    model, _ = loaded
    tokens = torch.arange(1, 100)[None]
    rope = rw.rope_of(model.config)
    with torch.inference_mode():
        before = model(tokens).logits
        with rw.patched(model, rw.methods.pi(rope, 100, factor=4)) as patched:
            inside = patched(tokens).logits
            generated = patched.generate(tokens, max_new_tokens=2, do_sample=False)
        assert torch.equal(model(tokens).logits, before)
    assert not torch.equal(inside, before)
    assert int(generated[0, tokens.shape[1]]) == int(inside[0, -1].argmax())
    served = rw.methods.dynamic_ntk(rope, 100, mode="transformers")
    with pytest.raises(rw.UserError, match="stateful"), rw.patched(model, served):
        pass


@pytest.mark.slow
def test_a_loaded_model_gives_the_samples_of_its_folder(loaded, tiny, docs, tmp_path):
    """A model object is a model: same values, own fingerprint, and a function is a method."""
    model, tokenizer = loaded
    settings = {"task": "perplexity:tail=16", "length": ["1x", "2x"], "docs": str(docs)}
    names = ["none", "pi", half]
    one = rw.run(model, tokenizer=tokenizer, scaling=names, out=tmp_path / "a", **settings)
    other = rw.run(str(tiny), scaling=["none", "pi"], out=tmp_path / "b", **settings)
    assert one.missing.empty
    columns = ["scaling", "length", "unit", "value"]
    ours, theirs = one.frame()[columns], other.frame()[columns]
    both = ours[ours["scaling"] != "half"].reset_index(drop=True)
    assert both.equals(theirs)
    mine = ours[ours["scaling"] == "half"]["value"].tolist()
    assert mine == ours[ours["scaling"] == "pi"]["value"].tolist()  # the same numbers
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["asked"]["scaling"] == ["none", "pi", "half"]
    assert command(record) == ""
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(rw.UserError, match="fingerprint"):
        rw.run(model, tokenizer=tokenizer, scaling=names, out=tmp_path / "a", **settings)
    with torch.no_grad():
        model.lm_head.weight[0, 0] -= 1
    assert isinstance(one.report("curves"), Figure)
    assert set(one.report("cells", baseline="none")["baseline"].dropna()) == {"none"}
    assert rw.frame(tmp_path / "a").equals(one.frame())


def test_a_method_with_options_is_named_as_on_the_command_line():
    """Every method's function is called frequencies or bands, and a partial has no name."""
    assert load("method", rw.methods.self_extend).label == "self_extend"
    method = load("method", partial(rw.methods.resonance, on=partial(rw.methods.yarn, factor=4.0)))
    assert method.label == "resonance:on=yarn:factor=4.0"
    assert method.options == {"on": "yarn:factor=4.0"}
    rope = rw.Rope(16, 10_000.0, 64)
    given = load("method", "resonance:on=yarn:factor=4")
    assert resolve(method, rope, 256).fingerprint == resolve(given, rope, 256).fingerprint


def test_what_is_given_in_python_by_mistake_is_one_sentence(loaded):
    model, _ = loaded
    for words, call in (
        ("patched takes what a method returns, not str", rw.patched(model, "yarn").__enter__),
        ("not function", rw.patched(model, rw.methods.yarn).__enter__),
        ("Only run and recommend take a loaded model", lambda: rw.tune(model)),
        ("Only run and recommend take a loaded model", lambda: rw.inspect(model)),
    ):
        with pytest.raises(rw.UserError, match=words):
            call()


@pytest.mark.slow
def test_a_race_answers_with_a_text_and_a_table(loaded, docs, tmp_path, monkeypatch):
    """A loaded model and a function race like names; only names have a command for an engine."""
    monkeypatch.setattr(race, "FIRST", 2)
    model, tokenizer = loaded
    settings = {"docs": str(docs), "out": tmp_path / "race", "budget": 40}
    found = rw.recommend(model, tokenizer=tokenizer, scaling=["pi:factor=4", half], **settings)
    assert set(found.table["scaling"]) == {"none", "pi:factor=4", "truncation"}
    assert "half" in found.table["same"].tolist()  # the function is PI at this length
    assert found.scaling in found.text
    assert not found.winner
    assert found.next == ""
    assert found.files[0].is_file()
    assert rw.frame(found.folder)["length"].max() == 256
    with pytest.raises(rw.UserError, match="budget .soon. is invalid"):
        rw.recommend(model, tokenizer=tokenizer, **{**settings, "budget": "soon"})


def test_commands_are_functions_that_print_nothing(tmp_path, capsys):
    run = ROOT / "results" / "reference"
    reports = rw.report(run, report=["cells"], card=True, out=tmp_path / "reports")
    assert reports.status == 0
    assert reports.card.is_file()
    assert (tmp_path / "reports" / "cells.csv") in reports.written.files
    (finding,) = rw.check("yarn", model="reference", length="2x")
    assert (finding.about, finding.verdict) == ("method yarn", "passed")
    inspection = rw.inspect(scaling=["pi"], length="2x")
    assert inspection.channels["ratio"][0] == 0.5
    with pytest.raises(rw.UserError, match="name one with --published"):
        rw.compare(run)
    with pytest.raises(rw.UserError, match="tune searches one --scaling"):
        rw.tune(scaling=["yarn", "pi"])
    assert capsys.readouterr() == ("", "")


def test_a_mistake_is_one_sentence(loaded):
    model, tokenizer = loaded
    with pytest.raises(rw.UserError, match="needs its tokenizer"):
        rw.run(model)
    for setting in (
        {"workers": 2}, {"cluster": "auto"}, {"adapter": "lora"}, {"dtype": "bfloat16"},
        {"revision": "main"}, {"device": "cuda"}, {"device_map": "auto"},
        {"trust_remote_code": True}, {"allow_pickle": True},
    ):  # fmt: skip
        for ask in (rw.run, rw.recommend):
            with pytest.raises(rw.UserError, match=f"leave out {next(iter(setting))}"):
                ask(model, tokenizer=tokenizer, **setting)
    with pytest.raises(rw.UserError, match="no setting is called 'lenght'; did you mean 'length'"):
        rw.run(lenght="2x")
    model.train()
    with pytest.raises(rw.UserError, match=r"call model\.eval\(\)"):
        rw.run(model, tokenizer=tokenizer)
    model.eval()


@pytest.mark.parametrize(("name", "value"), [("suppress_tokens", [1]), ("eos_token_id", 7)])
def test_what_changes_a_text_changes_the_fingerprint(loaded, monkeypatch, name, value):
    model, tokenizer = loaded
    before = hold(model, tokenizer).fingerprint
    assert hold(model, tokenizer).fingerprint == before
    monkeypatch.setattr(model.generation_config, name, value)
    assert hold(model, tokenizer).fingerprint != before


def test_folders_of_the_same_names_hide_nothing(tmp_path):
    """A repository may have a tasks/ of its own: it is imported, and so is Ropewalk."""
    for name in ("harness", "scaling", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    code = (
        "import harness, scaling, tasks, ropewalk as rw\n"
        "assert harness.MINE and scaling.MINE and tasks.MINE\n"
        "print(rw.methods.yarn(rw.Rope(64, 10000.0, 2048), 4096).attention_factor)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stderr == ""
    assert float(done.stdout) == pytest.approx(0.1 * math.log(2) + 1)


def execute(notebook: Path, folder: Path) -> None:
    """Run a notebook's code cells in IPython, and write the forms in which each result is shown.

    The model is a tiny one in place of the reference.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    os.chdir(folder)
    save_tiny(Path("tiny"), max_position_embeddings=512)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            done = shell.run_cell("".join(cell["source"]).replace('"reference"', '"tiny"'))
            done.raise_error()
            sys.stdout.write(" ".join(shell.display_formatter.format(done.result)[0]) + "\n")


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_figures(tmp_path):
    done = in_child(execute, ROOT / "scripts" / "first_steps.ipynb", tmp_path)
    assert done.status == 0, done.err
    assert {"image/png", "text/html"} <= set(done.out.split())
