"""Sweep files: mistakes by line, grids, several models, documents by task, bundled settings."""

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.plugins import split_options
from harness.sweep.spec import bundled, expand, parse, parse_all
from tests.command_line import lines_of, status
from tests.tiny import save_tiny

SWEEPS = Path(__file__).parent.parent.parent / "harness" / "published" / "sweeps"


@pytest.fixture
def sheet(tmp_path: Path) -> Callable[[str], Path]:

    def write(text: str) -> Path:
        file = tmp_path / "sweep.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def refused(file: Path, **flags: Any) -> str:
    with pytest.raises(UserError) as caught:
        parse_all(file, flags)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("seed: 1\nscalings: [none]\n", 2, "no setting is called 'scalings'; did you mean"),
        ("# first\n\nlength:\n  - 512\n  - 4q\n", 5, "length: '4q' is not a length; write 512"),
        ("model: a\nscaling:\n- none\n- {pi: 4}\n", 4, "scaling: it must be a valid string"),
        ("scaling:\n- none\n- yarn:factor=[4,\n", 3, "scaling: the brackets of 'yarn:factor=[4,'"),
        ("scaling:\n- pi:factor=[]\n", 2, "scaling: 'factor=[]' in 'pi:factor=[]' is not a list"),
        ("task: passkey\nseed: often\n", 2, "seed: it must be a valid integer"),
        ("task: passkey\nseed: 1\ntask: [perplexity]\n", 3, "task is on line 1 too; keep one."),
        ("docs:\n  passkey: a\n  passkey: b\n", 3, "passkey is on line 2 too; keep one."),
        ("seed: !!python/name:os.system\n", 1, "seed: it must be a valid integer"),
        ("seed: 1:30\n", 1, "seed: it must be a valid integer"),
        ("seed: 1\nmodel: [a, a]\n", 2, "model: 'a' is named twice; leave one out."),
        ("seed: 1\nmodel: []\n", 2, "model: name at least one (given: [])."),
        ("revision: x\nmodel: [a, b]\n", 2, "model: a revision is one model's; write each as"),
        (f"seed: 0x{'f' * 5000}\n", 1, "seed: it must be a valid integer"),
        ("max_memory: 1.0e+400\n", 1, "max_memory: '1.0e+400' is not a size;"),
        (f"length: {list(range(1, 10_002))}\n", 1, "length: 10,001 entries; name at most 10,000"),
        ("seed: 99999999999999999999\n", 1, "seed: it must be less than"),
    ],
)
def test_a_mistake_is_told_with_its_line(sheet, text, line, message):
    file = sheet(text)
    assert refused(file).startswith(f"{file}, line {line}: {message}")


def test_a_flag_that_wins_is_blamed_alone(sheet):
    file = sheet("seed: often\nlength: [4q]\n")
    assert parse(file, {"seed": 1, "length": ("1x",)}).seed == 1
    assert refused(file, seed=1, length=("x",)).startswith("length: 'x' is not a length")


def test_a_grid_is_every_combination():
    wanted = [f"yarn:factor={f},ramp=paper,beta_fast={b}" for f in (4, 8) for b in (16, 32)]
    assert expand("yarn:factor=[4, 8],ramp=paper,beta_fast=[16,32]") == wanted
    assert expand("./odd[1].py:factor=[2]") == ["./odd[1].py:factor=2"]


names = st.text("abcdef_", min_size=1, max_size=4)
values = st.text("0123456789.", min_size=1, max_size=4)


@given(st.dictionaries(names, st.lists(values, min_size=1, max_size=3), min_size=1, max_size=3))
def test_grids_expand_to_the_product_of_their_options(options):
    written = ",".join(f"{key}=[{','.join(chosen)}]" for key, chosen in options.items())
    found = [split_options("yarn", entry.partition(":")[2]) for entry in expand(f"yarn:{written}")]
    assert found == [
        dict(zip(options, chosen, strict=True)) for chosen in product(*options.values())
    ]


def test_grids_are_taken_from_flags_and_files(sheet):
    wanted = ("none", "yarn:factor=4", "yarn:factor=8")
    file = sheet("scaling:\n- none\n- yarn:factor=[4,8]\n")
    assert parse(file, {}).scaling == wanted
    assert parse(None, {"scaling": ("none", "yarn:factor=[4,8]")}).scaling == wanted
    numbers = ",".join(map(str, range(40)))
    with pytest.raises(UserError, match="is more than 1000 entries"):
        parse(None, {"scaling": (f"yarn:factor=[{numbers}],beta_fast=[{numbers}]",)})


def test_models_come_one_spec_each(sheet):
    file = sheet("model: [own/one, own/two@v2, ./here@home]\nseed: 3\n")
    specs = parse_all(file, {})
    assert [(s.model, s.revision, s.seed) for s in specs] == [
        ("own/one", None, 3),
        ("own/two", "v2", 3),
        ("./here@home", None, 3),
    ]
    (flag,) = parse_all(file, {"model": ("own/three",)})
    assert flag.model == "own/three"


@pytest.mark.usefixtures("scored")
@pytest.mark.slow
def test_several_models_are_measured_and_reported_together(tiny, docs, tmp_path, ropewalk):
    other = save_tiny(tmp_path / "other", seed=7)
    words = ["--docs", docs, "--task", "perplexity:tail=16", "--scaling", "none", "--length", "1x"]
    words = ["--model", tiny, other, *words]
    assert "several models are measured: name the folder" in ropewalk("run", *words).err
    assert ropewalk("run", *words, "--out", tmp_path / "runs").status == 0
    for name in ("llama", "other"):
        record = json.loads((tmp_path / "runs" / name / "run.json").read_text())
        assert record["model"]["name"] == name
        assert record["asked"]["model"] == name
    table = pd.read_csv(tmp_path / "runs" / "reports" / "scores.csv")
    assert list(table["scaling"]) == ["llama", "other"]
    assert table["score"].nunique() == 2
    done = ropewalk("run", *words, "--out", tmp_path / "runs", "--dry-run")
    assert (done.status, done.out.count("Complete: nothing to measure")) == (0, 2)


@pytest.mark.slow
def test_a_refused_model_costs_the_others_nothing(tiny, docs, tmp_path, ropewalk):
    """One is refused by its config, one by its weights: the other is measured, status 1."""
    unlike, hollow = tmp_path / "unlike", save_tiny(tmp_path / "hollow")
    save_tiny(unlike, max_position_embeddings=-1)
    (hollow / "model.safetensors").write_bytes(b"none")
    words = ["--docs", docs, "--length", "1x", "--scaling", "none", "--task", "perplexity:tail=16"]
    out = tmp_path / "runs"
    done = ropewalk("run", "--model", unlike, hollow, tiny, *words, "--out", out)
    assert (done.status, done.err.count(" is left out: ")) == (1, 2)
    assert (out / tiny.name / "samples.jsonl").stat().st_size
    done = ropewalk("run", "--model", unlike, hollow, *words, "--out", tmp_path / "none")
    assert done.status == 2


def test_two_models_of_one_name_are_refused(docs, tmp_path, rejected):
    models = [save_tiny(tmp_path / place / "same") for place in "ab"]
    words = ["--docs", docs, "--task", "perplexity:tail=16", "--length", "1x"]
    assert "has room for one folder called 'same'" in rejected(
        "run", "--model", *models, *words, "--out", tmp_path / "runs"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_task_may_have_documents_of_its_own(tiny, docs, tmp_path, sheet):
    (tmp_path / "filler.txt").write_text("The rope is long. " * 40, encoding="utf-8")
    file = sheet(
        f"model: {tiny}\nlength: 320\nscaling: none\nout: {tmp_path / 'run'}\n"
        "task: ['perplexity:tail=16', 'passkey:depths=1,trials=1,filler=documents']\n"
        f"docs:\n  perplexity: {docs}\n  passkey: {tmp_path / 'filler.txt'}\n"
    )
    assert status("run", file) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    read = {(entry["docs"], entry["name"]) for entry in record["documents"]["read"]}
    assert read == {
        *((docs.name, f"document-{index}.txt") for index in range(3)),
        ("filler.txt", "filler.txt"),
    }
    assert record["documents"]["given"]["passkey"] == "filler.txt"
    lines = lines_of(tmp_path / "run" / "samples.jsonl")
    assert {line["unit"] for line in lines if line["task"].startswith("perplexity")} == {
        f"document-{index}.txt" for index in range(3)
    }


@pytest.mark.parametrize(("text", "told"), [
    ("scaling:\n  - none\n  - yarn:factr=4", "line 3: yarn has no option 'factr'; did you mean"),
    ("scaling:\n - none\n - 'yarn:factor=[2,abc]'", "line 3: yarn: factor=abc should be a valid"),
    ("length: 1x\nscaling: linear", "line 2: no method is called 'linear'; did you mean 'pi'?"),
    ("length: 1x\nscaling: yran", "line 2: no method is called 'yran'; did you mean 'yarn'?"),
    ("task:\n- perplexity\n- paskey", "line 3: no task is called 'paskey'; did you mean"),
    ("docs:\n  passkey: ./absent", "line 2: documents ./absent do not exist;"),
    ("length: 1x\ndocs: embedded:cout=3", "line 2: --docs embedded has no option 'cout'; did"),
    ("published: lceg_pg19", "line 1: no published table is called 'lceg_pg19'; did you mean"),
])  # fmt: skip
def test_a_name_in_a_file_is_refused_on_its_line(text, told, sheet):
    with pytest.raises(UserError, match=re.escape(told)):
        parse_all(sheet(text), {})


def test_a_name_of_any_length_is_quoted_in_part(sheet):
    """Three names of 5000 letters make a message that a person can read."""
    name = "x" * 5000
    with pytest.raises(UserError) as raised:
        parse_all(sheet(f"scaling: {name}\ntask: {name}\npublished: {name}"), {})
    assert len(str(raised.value)) < 3000


def test_a_key_without_a_name_is_refused_on_its_line(sheet):
    with pytest.raises(UserError, match=r"sweep.*\.yaml, line 2: no setting is called 'None'"):
        parse_all(sheet("seed: 1\n? \n"), {})


def test_all_mistakes_are_told_at_once(tiny, sheet, capsys):
    text = f"model: {tiny}\nscaling: [none, yran]\ntask: [niah, qa, passkey]\nlength: [1x, 4q]\n"
    file = sheet(text)
    assert status("run", file, "--dry-run") == 2
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "ropewalk: 5 problems with this sweep:"
    beginnings = [
        f"  {file}, line 4: length: '4q' is not a length; write 512",
        f"  {file}, line 2: no method is called 'yran'; did you mean 'yarn'?",
        "  task niah: a prompt and its answer need at least ",
        "  task qa: no questions given; add data=FILE.json",
        "  task passkey: a prompt needs at least ",
    ]
    assert [line[: len(one)] for line, one in zip(lines, beginnings, strict=True)] == beginnings
    assert status("run", "--task", "foo,bar,perplexity") == 2
    assert [line[:27] for line in capsys.readouterr().err.splitlines()[-2:]] == [
        "  no task is called 'foo'; ",
        "  no task is called 'bar'; ",
    ]
    assert status("run", "--model", tiny, "--task", "niah", "qa", "--length", "1x") == 2
    assert capsys.readouterr().err.startswith("ropewalk: 2 problems with this sweep:\n  task niah")


@pytest.mark.slow
def test_a_carried_sweep_is_run_by_its_name_and_flags_win(tiny, docs, tmp_path, capsys):
    """The published settings of PI, on a model and texts that are here."""
    text = docs / "document-0.txt"
    words = ["pi_paper", "--model", tiny, "--docs", text, "--length", "300", "600"]
    assert status("run", *words, "--out", tmp_path / "run") == 0
    asked = json.loads((tmp_path / "run" / "run.json").read_text())["asked"]
    assert asked["scaling"] == ["none", "pi:factor=4", "pi:factor=8"]
    assert asked["task"] == ["perplexity:protocol=sliding,stride=256"]
    assert asked["published"] == "pi-pg19"
    status("report", tmp_path / "run", "--report", "best")
    assert "Its sliding perplexity, " in capsys.readouterr().out
    status("compare", tmp_path / "run", "--mixed")  # its lengths are none of the table's
    assert "pi:factor=4, pi:factor=8 at a length of 2048" in " ".join(
        capsys.readouterr().err.split()
    )
    status("compare", tmp_path / "run", "--published", "pi-pg19", "--mixed")
    assert "Warning" not in capsys.readouterr().err


def test_an_unknown_sweep_is_answered_with_those_bundled(capsys):
    assert status("run", "pi_papper") == 2
    told = capsys.readouterr().err
    assert (
        "sweep file pi_papper does not exist; among the bundled sweeps, did you mean 'pi_paper'?"
        in told
    )
    assert all(name in told for name in bundled())
    assert len(bundled()) == len(list(SWEEPS.iterdir())) >= 4
