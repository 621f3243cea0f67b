"""What comes from elsewhere runs no code, makes no markup and no paths, and breaks nothing."""

import inspect
import json
import os
import pickle
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
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
from ropewalk.harness.sweep.spec import Spec, parse_all
from ropewalk.scaling import pi
from tests.child import in_child
from tests.command_line import status
from tests.tiny import save_tiny

LOUD = 'from pathlib import Path\nPath(r"{marker}").write_text("run")\n'


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


class TestNoCode:
    """Code runs when the user names it, and never because a file does."""

    def coded(self, folder: Path, marker: Path) -> Path:
        """Return a model folder that brings its own classes, as repositories on the hub do."""
        save_tiny(folder)
        for name, part in (
            ("config.json", {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}),
            ("tokenizer_config.json", {"AutoTokenizer": [None, "own.T"]}),
        ):
            told = json.loads((folder / name).read_text())
            told |= {"auto_map": part, "model_type": "own", "tokenizer_class": "T"}
            (folder / name).write_text(json.dumps(told))
        (folder / "own.py").write_text(LOUD.format(marker=marker))
        return folder

    def test_code_of_a_model_repository_is_not_run(self, docs, tmp_path, marker, capsys):
        folder = self.coded(tmp_path / "own", marker)
        words = ["run", "--model", folder, "--docs", docs, "--out", tmp_path / "run"]
        assert status(*words) == 2
        error = capsys.readouterr().err
        assert f"the config of {folder} cannot be read: it needs the repository's own code" in error
        assert status("inspect", folder) == 2
        assert not marker.exists()
        status(*words, "--trust-remote-code")
        assert marker.exists()

    def test_weights_that_are_pickles_are_not_opened(self, tiny, docs, tmp_path, marker):

        class Loud:
            def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
                return os.mkdir, (str(marker),)

        folder = shutil.copytree(tiny, tmp_path / "pickled")
        (folder / "model.safetensors").unlink()
        torch.save({"weight": Loud()}, folder / "pytorch_model.bin")
        (folder / "model.bin").write_bytes(pickle.dumps(Loud()))
        words = ["run", "--model", folder, "--docs", docs, "--task", "perplexity:tail=16"]
        assert status(*words, "--length", "1x", "--out", tmp_path / "run") == 2
        assert not marker.exists()

    def test_code_of_a_data_set_is_not_run(self, tmp_path, marker):
        folder = tmp_path / "books"
        folder.mkdir()
        (folder / "books.py").write_text(LOUD.format(marker=marker))
        with pytest.raises(UserError, match="cannot be read"):
            list(documents.open_documents(f"{folder}:split=train,count=1").read())
        assert not marker.exists()

    @pytest.mark.slow
    def test_a_record_runs_no_code(self, run, marker, tmp_path, capsys):
        own = tmp_path / "mine.py"
        own.write_text(LOUD.format(marker=marker) + "from ropewalk.tasks.perplexity import *\n")
        record = json.loads((run / "run.json").read_text())
        (task,) = record["tasks"].values()
        for given_as, file in ((str(own), "0" * 16), (str(own), None), ("tests.absent", None)):
            task |= {"given": given_as, "file": file}
            (run / "run.json").write_text(json.dumps(record))
            assert status("report", run) == 2
            assert "whose code runs only when named: add --task" in capsys.readouterr().err
        assert not marker.exists()

    @pytest.mark.slow
    def test_a_task_of_ones_own_is_reported_when_it_is_named(self, tiny, docs, tmp_path, capsys):
        own = tmp_path / "mine.py"
        own.write_text('"""Mine."""\nfrom tasks.perplexity import *\nMETRIC = "mine"\n')
        words = ["--model", tiny, "--docs", docs, "--task", f"{own}:tail=16", "--length", "1x"]
        run = tmp_path / "run"
        assert status("run", *words, "--scaling", "none", "--out", run) == 0
        assert status("report", run) == 2
        assert status("report", run, "--task", own) == 0
        own.write_text(own.read_text() + "VERSION = 1\n")
        capsys.readouterr()
        assert status("report", run, "--task", own) == 2
        assert "the same file as then" in capsys.readouterr().err


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


class TestOffline:
    """``--offline`` asks the hub for nothing."""

    def test_libraries_that_were_imported_online_ask_nothing(self):
        done = in_child(ask_the_hub)
        assert (done.status, done.out.split()) == (0, [*["True"] * 2, *["False"] * 2]), done.err


HOSTILE = "a|b [red]*x* `y` <b> $\\frac{1$ [l](http://x) :bomb: \x1b[2J"


class TestNames:
    """A name is text wherever it is shown, and never a place in the file system."""

    @pytest.mark.slow
    def test_names_are_no_markup(self, tiny, docs, tmp_path, capsys):
        """Signs of rich, Markdown, mathtext and terminals come out as they went in, or escaped."""
        texts = tmp_path / "texts"
        texts.mkdir()
        for index, path in enumerate(sorted(docs.iterdir())):
            shutil.copy(path, texts / f"{index}{HOSTILE.replace('/', '')}.txt")
        (texts / f"short{HOSTILE.replace('/', '')}.txt").write_text("too short")
        model = shutil.copytree(tiny, tmp_path / HOSTILE.replace("/", ""))
        own = tmp_path / f"{HOSTILE.replace('/', '').replace(':', '')}.py"
        shutil.copy(inspect.getfile(pi), own)
        words = ["--model", model, "--docs", texts, "--task", "perplexity:tail=16"]
        run = tmp_path / "\x1b[2Jrun"
        words += ["--length", "1x", "4x", "--scaling", "none", own, "--out", run]
        assert status("run", *words, "--dry-run") == 0
        assert status("run", *words) == 0
        assert status("report", run, "--report", "scores", "curves", "differences") == 0
        shown = "".join(capsys.readouterr())
        assert "[red]*x*" in shown
        assert "\x1b" not in shown
        table = (run / "reports" / "scores.md").read_text()
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert {line.replace("\\|", "").count("|") for line in rows} == {4}
        assert "<b>" not in table.replace("\\<b>", "")
        assert "](http" not in table.replace("\\](http", "")
        assert (run / "reports" / "curves.png").exists()


# What a hand or a disk may leave in a file of JSON or YAML.
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["yarn:factor=[", "1x", "../..", "\x1b[2J", "perplexity", "./x.py", "ok"])
)
junk = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(sorted(Spec.model_fields)), inner, max_size=3
        )
    ),
    max_leaves=8,
)
SIGNS = "[]{}-?:&*!|>'\"#%@`~,\n"
SCALARS = ("<<", "!!python/object:os.system", "2001-99-99", "0x", "1_0", ".inf", "1e999", "a")
fuzzing = settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def answered(ask: Callable[[], object]) -> Sequence[str]:
    """Return the sentences that something is refused with, if any; let all else through."""
    try:
        ask()
    except UserError as error:
        return error.sentences
    return ()


class TestFuzz:
    """Whatever a file holds, the answer is a sentence."""

    @fuzzing
    @given(
        st.binary(max_size=60)
        | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
        | junk.map(lambda value: json.dumps(value).encode())
        | st.lists(
            st.sampled_from([*SIGNS, "model:", "scaling:", "docs:", "length:", *SCALARS]),
            max_size=14,
        ).map(lambda parts: " ".join(parts).encode())
    )
    def test_sweep_files_of_any_bytes(self, tmp_path, content):
        file = tmp_path / "sweep.yaml"
        file.write_bytes(content)
        for refused in answered(lambda: parse_all(file, {})):
            assert "\n" not in refused
            assert refused.startswith((f"{file}", f"sweep file {file}"))
