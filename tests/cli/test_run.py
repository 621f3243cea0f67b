"""The command line end to end: what it writes, what it refuses, and what a kill costs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropewalk.harness.cli import COMMANDS
from ropewalk.harness.runs.store import RUN, SAMPLES
from tests import ROOT
from tests.command_line import CELLS, QUESTIONS, lines_of, samples, status, sweep
from tests.tiny import save_tiny, tiny_tokenizer


@pytest.fixture(scope="module")
def bare(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with config and tokenizer, and no weights at all."""
    folder = tmp_path_factory.mktemp("bare") / "tiny"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.fixture(scope="module")
def whole(tiny: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert status(*sweep(tiny, docs, folder)) == 0
    return folder


class TestRun:
    def test_a_sweep_leaves_a_whole_run(self, whole):
        found = samples(whole)
        assert len(found) == QUESTIONS
        assert {record["status"] for record in found.values()} == {"ok"}
        run = json.loads((whole / RUN).read_text(), parse_constant=pytest.fail)
        assert (run["schema"], run["model"]["type"], run["lengths"]) == (1, "llama", [256, 320])
        assert run["model"]["trained_length"] == 64
        assert len(run["cells"]) == CELLS
        for cell in run["cells"]:
            questions = run["tasks"][cell["task"]]["questions"][str(cell["length"])]
            assert {(cell["key"], question) for question in questions} <= set(found)
            assert cell["frequencies"] in run["frequencies"]
        assert [document["name"] for document in run["documents"]["read"]] == [
            f"document-{index}.txt" for index in range(3)
        ]

    @pytest.mark.slow
    @pytest.mark.usefixtures("default_reports", "weightless")
    def test_tables_and_figures_are_made(self, whole, tiny, docs, tmp_path, ropewalk):
        """A run ends with its numbers; made again from its files, they are the same bytes."""
        folder = shutil.copytree(whole, tmp_path / "run")
        done = ropewalk(*sweep(tiny, docs, folder))
        assert done.status == 0
        assert "5x: use " in done.out
        files = {path.name for path in (folder / "reports").iterdir()}
        usual = {"results.json", "cells.csv", "report.md", "index.html", "curves.png", "answer.png"}
        usual |= {"retrieval.csv", "retrieval.md"}
        assert files == usual  # no key is found, so that retrieval has no figure
        assert len((folder / "reports" / "cells.csv").read_text().splitlines()) == 1 + CELLS
        done = ropewalk("report", folder, "--out", tmp_path / "again")
        assert done.status == 0
        assert "5x: use " in done.out
        made = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
        assert made == {name: (folder / "reports" / name).read_bytes() for name in files}

    @pytest.mark.usefixtures("weightless")
    def test_the_same_command_measures_nothing_again(self, whole, tiny, docs, ropewalk):
        before = (whole / SAMPLES).read_bytes()
        assert ropewalk(*sweep(tiny, docs, whole)).status == 0
        assert (whole / SAMPLES).read_bytes() == before

    @pytest.mark.slow
    def test_a_wider_sweep_measures_only_what_is_new(self, whole, tiny, docs, tmp_path, ropewalk):
        folder = shutil.copytree(whole, tmp_path / "wider")
        before = (folder / SAMPLES).read_bytes()
        ropewalk(*sweep(tiny, docs, folder, scaling=["none", "yarn:factor=4", "ntk"]))
        assert (folder / SAMPLES).read_bytes().startswith(before)
        assert len(samples(folder)) == QUESTIONS * 3 // 2

    @pytest.mark.usefixtures("weightless")
    def test_a_dry_run_writes_nothing(self, bare, docs, tmp_path, ropewalk):
        done = ropewalk(*sweep(bare, docs, tmp_path / "run"), "--dry-run")
        assert (done.status, done.err) == (0, "")
        assert f"To measure: {QUESTIONS} samples, " in done.out
        alone = ropewalk(
            *sweep(bare, docs, tmp_path / "run", task=["perplexity:tail=16"]), "--dry-run"
        )
        assert f"To measure: 12 samples, {6 * (256 + 320):,} tokens" in alone.out
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.usefixtures("weightless")
    def test_a_dry_run_knows_what_is_done(self, whole, tiny, docs, ropewalk):
        before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
        done = ropewalk(*sweep(tiny, docs, whole), "--dry-run")
        assert "Complete: nothing to measure" in done.out
        assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before

    @pytest.mark.usefixtures("weightless")
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"task": ["perplexity:tail=8"]}, "has another sweep, with other protocols; choose"),
            ({"seed": ["1"]}, "has another sweep, with other seeds; choose another --out."),
            ({"dtype": ["bfloat16"]}, "has another sweep, with another model (dtype: "),
        ],
    )
    def test_a_dry_run_is_refused_where_the_run_is(
        self, whole, tiny, docs, ropewalk, changes, told
    ):
        words = sweep(tiny, docs, whole, **changes)
        done = ropewalk(*words, "--dry-run")
        assert (done.status, done.out) == (2, "")
        assert told in " ".join(done.err.split())
        assert ropewalk(*words).err == done.err


@pytest.mark.usefixtures("weightless")
class TestRefused:
    """A user's error is one sentence on stderr and exit status 2, before any weight is read."""

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_the_folder_of_another_model_is_refused(self, whole, docs, ropewalk):
        """A run folder holds one model; other weights of the same name are another model."""
        shutil.copytree(whole, "run")
        other = save_tiny(Path("llama"), seed=1)
        done = ropewalk(*sweep(other, docs, Path("run")))
        assert done.status == 2
        assert "run has another sweep, with another model (fingerprint: " in done.err
        assert done.err.endswith("; choose another --out.\n")
        assert (Path("run") / RUN).read_bytes() == (whole / RUN).read_bytes()

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("run", "--lenght", "512"), "Unknown option: --lenght. Did you mean --length?"),
            (("run", "--compile"), "Unknown option: --compile.\n"),  # not: --allow-pickle
            (("run", "--scaling", "yarn", "factor=4"), "write it behind its name, as in NAME:fac"),
            (("run", "--scaling", "sweep.yaml"), "which stands first: ropewalk run sweep.yaml"),
            (("run", ROOT / "scaling" / "yarn.py"), "yarn.py is code, not a sweep file; name it"),
            (("run", "--seed", "0.5"), "seed: it must be a valid integer"),
            (("tune", "--trials", "1.7"), "Invalid value for --trials: 1.7 is not a whole number."),
            (("recommend", "--length", "4x"), "parameter --model requires an argument"),
            (("inspect", "--out", ""), "name a folder; for the working folder, write its path"),
            (("rnu",), 'Unknown command "rnu". Did you mean "run"?'),
            (("run", "--scaling", "pi", "pi"), "--scaling names 'pi' twice"),
            (("report",), 'Command "report" parameter RUNS requires an argument.'),
            (("list", "paskey"), "did you mean 'passkey'?"),
        ],
    )
    def test_words_that_are_no_command_are_refused(self, words, told, ropewalk):
        done = ropewalk(*words)
        assert (done.status, done.out) == (2, "")
        assert told in done.err


@pytest.mark.slow
def test_pickled_weights_need_leave(tiny, bare, whole, docs, tmp_path, ropewalk):
    """Weights that could run code are refused unless asked for; then they give the same losses."""
    model = shutil.copytree(bare, tmp_path / "pickled")
    torch.save(load_file(tiny / "model.safetensors"), model / "pytorch_model.bin")
    words = sweep(model, docs, tmp_path / "run", task=["perplexity:tail=16"], scaling=["none"])
    done = ropewalk(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith(
        f"ropewalk: the weights of {model} cannot be read: it has no weights in safetensors; "
    )
    assert "Traceback" not in done.err
    assert ropewalk(*words, "--allow-pickle").status == 0
    values = {(r["question"], r["frequencies"]): r["value"] for r in samples(whole).values()}
    for record in samples(tmp_path / "run").values():
        assert record["value"] == values[record["question"], record["frequencies"]]


LOADED = """
import sys
from ropewalk.harness.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split("|"))
    except SystemExit as ended:
        assert (ended.code or 0) == 2 * (line in WRONG), line
heavy = {"torch", "transformers", "datasets", "scipy", "pandas", "matplotlib", "numpy"}
print("loaded:", *sorted(heavy & set(sys.modules)))
"""


@pytest.mark.slow
def test_help_lists_and_wrong_names_load_nothing_heavy():
    helps = [f"{command}|--help" for command in COMMANDS]
    wrong = ["run|--length|4q", "run|absent"]
    code = f"WRONG = {wrong}{LOADED}"
    done = subprocess.run(
        [sys.executable, "-c", code, "list", *helps, *wrong],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.usefixtures("scored")
@pytest.mark.slow
def test_a_loss_without_a_number_is_a_status_and_exit_1_each_time(tmp_path, docs, ropewalk):
    """A model that overflows gives not_finite samples, no number and no NaN in any file."""
    folder = save_tiny(tmp_path / "overflow", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    (letter,) = tiny_tokenizer()("t")["input_ids"]
    weights["model.embed_tokens.weight"][letter] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    asked = {"task": ["perplexity:tail=32"], "length": ["1x"], "scaling": ["none"]}
    for _ in range(2):
        done = ropewalk(*sweep(folder, docs, tmp_path / "run", **asked))
        assert (done.status, "not finite" in done.out) == (1, True)
    records = lines_of(tmp_path / "run")
    assert [record["status"] for record in records] == ["not_finite"] * 3
    assert all(record["value"] is None for record in records)
    assert all(record["facts"]["position"] == 32 for record in records)
