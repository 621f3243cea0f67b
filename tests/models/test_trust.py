"""What comes from elsewhere runs no code, and its names are text wherever they are shown."""

import json
import os
import pickle
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.harness.data import documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import open_checkpoint
from ropewalk.harness.models.files import go_offline
from ropewalk.harness.sweep.spec import parse_all
from tests.child import in_child
from tests.command_line import status
from tests.tiny import save_tiny

LOUD = 'from pathlib import Path\nPath(r"{marker}").write_text("run")\n'


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return a file that is written if foreign code runs."""
    return tmp_path / "marker"


def test_code_of_a_model_repository_is_not_run(docs, tmp_path, marker, rejected):
    folder = save_tiny(tmp_path / "own")
    for name, part in (
        ("config.json", {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": [None, "own.T"]}),
    ):
        content = json.loads((folder / name).read_text())
        content |= {"auto_map": part, "model_type": "own", "tokenizer_class": "T"}
        (folder / name).write_text(json.dumps(content))
    (folder / "own.py").write_text(LOUD.format(marker=marker))
    words = ["run", "--model", folder, "--docs", docs, "--out", tmp_path / "run"]
    sentence = f"the config of {folder} cannot be read: it needs the repository's own code"
    assert sentence in rejected(*words)
    assert sentence in rejected("inspect", folder)
    assert not marker.exists()
    status(*words, "--trust-remote-code")
    assert marker.exists()


def test_weights_that_are_pickles_are_not_opened(tiny, docs, tmp_path, marker, rejected):
    class Loud:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return os.mkdir, (str(marker),)

    folder = shutil.copytree(tiny, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Loud()}, folder / "pytorch_model.bin")
    (folder / "model.bin").write_bytes(pickle.dumps(Loud()))
    words = ["--model", folder, "--docs", docs, "--task", "perplexity:tail=16", "--length", "1x"]
    assert "--allow-pickle" in rejected("run", *words, "--out", tmp_path / "run")
    assert not marker.exists()


def test_code_of_a_data_set_is_not_run(tmp_path, marker):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "books.py").write_text(LOUD.format(marker=marker))
    with pytest.raises(UserError, match="cannot be read"):
        list(documents.open_documents(f"{folder}:split=train,count=1").read())
    assert not marker.exists()


@pytest.mark.slow
def test_a_record_runs_no_code(run, marker, tmp_path, rejected):
    own = tmp_path / "mine.py"
    own.write_text(LOUD.format(marker=marker) + "from ropewalk.tasks.perplexity import *\n")
    record = json.loads((run / "run.json").read_text())
    (task,) = record["tasks"].values()
    for given_as, file in ((str(own), "0" * 16), (str(own), None), ("tests.absent", None)):
        task |= {"given": given_as, "file": file}
        (run / "run.json").write_text(json.dumps(record))
        assert "whose code runs only when named: add --task" in rejected("report", run)
    assert not marker.exists()


@pytest.mark.slow
def test_a_task_of_ones_own_is_reported_when_it_is_named(tiny, docs, tmp_path, rejected):
    own = tmp_path / "mine.py"
    own.write_text('"""Mine."""\nfrom tasks.perplexity import *\nMETRIC = "mine"\n')
    words = ["--model", tiny, "--docs", docs, "--task", f"{own}:tail=16", "--length", "1x"]
    run = tmp_path / "run"
    assert status("run", *words, "--scaling", "none", "--out", run) == 0
    assert rejected("report", run)
    assert status("report", run, "--task", own) == 0
    own.write_text(own.read_text() + "VERSION = 1\n")
    assert "the same file as then" in rejected("report", run, "--task", own)


def ask_the_hub() -> None:
    """Ask for documents and a model, online and offline, and write how often each connected."""
    tried = []

    def connect(*given: Any) -> None:
        tried.append(given)
        sys.exit("asked the network")

    socket.socket.connect = connect
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = False  # as if imported online
    for begin in (lambda: None, go_offline):
        begin()
        for ask in (
            lambda: list(documents.open_documents("nobody/nothing:count=1").read()),
            lambda: open_checkpoint("nobody/nothing", device="cpu"),
        ):
            with pytest.raises((UserError, SystemExit)):
                ask()
            sys.stdout.write(f"{bool(tried)} ")
            tried.clear()


def test_offline_libraries_that_were_imported_online_ask_nothing():
    done = in_child(ask_the_hub)
    assert (done.status, done.out.split()) == (0, [*["True"] * 2, *["False"] * 2]), done.err


HOSTILE = "a|b [red]*x* `y` <b> $\\frac{1$ [l](http:x) :bomb: \x1b[2J"


@pytest.mark.slow
def test_names_are_no_markup(tiny, docs, tmp_path, ropewalk):
    """Signs of rich, Markdown, mathtext and terminals come out as they went in, or escaped."""
    texts, model = tmp_path / "texts", shutil.copytree(tiny, tmp_path / HOSTILE)
    texts.mkdir()
    for path in docs.iterdir():
        shutil.copy(path, texts / f"{HOSTILE}{path.name}")
    words = ["--model", model, "--docs", texts, "--task", "perplexity:tail=16", "--length", "1x"]
    done = ropewalk("run", *words, "--scaling", "none", "--out", tmp_path / "\x1b[2J", "--dry-run")
    assert done.status == 0
    assert "[red]*x*" in done.out + done.err
    assert "\x1b" not in done.out + done.err


# What a hand or a disk may put into a sweep file.
SWEEP = "model: reference\nscaling: [none, yarn:factor=4]\nlength: [1x]\ndocs: embedded\n"
WORDS = [
    *"[]{}-?:&*!|>'\"#%@`~,\n\x1b", "scaling:", "docs:", "<<", "a", ".inf", "2001-99-99", "0x",
    "1e999", "!!python/object:os.system", "yarn:factor=[", "../..", "./x.py", "null", "10" * 20,
]  # fmt: skip


@settings(max_examples=60, suppress_health_check=[*HealthCheck])
@given(st.lists(st.tuples(st.integers(0, len(SWEEP)), st.sampled_from(WORDS)), max_size=4),
       st.integers(0, 2 * len(SWEEP)))  # fmt: skip
def test_a_sweep_file_with_anything_in_it_is_read_or_one_sentence(tmp_path, inserted, end):
    text = SWEEP
    for place, word in inserted:
        text = text[:place] + word + text[place:]
    file = tmp_path / "sweep.yaml"
    file.write_text(text[:end])
    try:
        parse_all(file, {})
    except UserError as error:
        for sentence in error.sentences:
            assert "\n" not in sentence
            assert sentence.startswith((f"{file}", f"sweep file {file}"))
