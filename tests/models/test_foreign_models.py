"""Files of a model that anyone may have written: each is read, or refused in one sentence."""

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.harness.data.tokenize import tokenize
from ropewalk.harness.errors import UserError
from ropewalk.harness.models.checkpoint import check_rope
from ropewalk.harness.models.weights import load_weights
from ropewalk.harness.sweep.plan import open_model
from ropewalk.harness.sweep.spec import Spec
from tests.child import bounded
from tests.quantized import save_gguf
from tests.tiny import YARN, save_tiny

# One of each kind of value that JSON has, numbers at the ends of what computers count to, and names
# that these files know.
VALUES = st.sampled_from([
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**62, 2**70, 10**30, 0.5, -0.5, 1e38, math.nan,
    math.inf, "", "x", "\0", "../x", "é" * 300, [], [None], ["x"], [[]], [7] * 9, {}, {"x": {}},
    "linear", "dynamic", "longrope", "Split", "Replace", "Precompiled", {"Regex": "(a*)*b"},
])  # fmt: skip


def sentence(place: Path) -> str:
    """Read a model and a text with its tokenizer; return the sentence it is refused with."""
    try:
        checkpoint = open_model(Spec(model=str(place), device="cpu"))
        check_rope(checkpoint.config, checkpoint.rope)
        load_weights(checkpoint)
        tokenize(checkpoint.tokenizer, "a rope of tarred hemp, a lane to walk " * 3)
    except UserError as error:
        assert 10 < len(str(error)) < 700  # noqa: PT017  # the other outcome is none
        assert "\n" not in str(error)  # noqa: PT017
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_damaged_file_is_read_or_refused(kind, tmp_path):
    """It ends anywhere, and is then named; or some of its bytes are others."""
    if kind == "gguf":
        save_gguf(tmp_path / "whole" / "m.gguf", "F32")
        names, within = [f"{tmp_path}/whole/m.gguf"], 9000  # its header
    else:
        save_tiny(tmp_path / "whole")
        names, within = [str(path) for path in (tmp_path / "whole").iterdir()], 10**6

    @given(
        st.sampled_from(sorted(names)), st.integers(0, within), st.none() | st.binary(max_size=8)
    )
    def check(name: str, at: int, new: bytes | None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(shutil.copytree(tmp_path / "whole", f"{folder}/m")) / Path(name).name
            whole = file.read_bytes()
            at %= len(whole)
            file.write_bytes(whole[:at] + (new + whole[at + len(new) :] if new else b""))
            place = str(file if kind == "gguf" else file.parent)
            told = sentence(Path(place))
            assert new or not told or place in told

    bounded(check)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_value_of_any_kind_is_read_or_refused(name, tmp_path):
    """Anywhere in a file of a model that ships YaRN."""
    save_tiny(tmp_path / "whole", rope_parameters=YARN, max_position_embeddings=256)

    @given(st.lists(st.integers(0, 400), min_size=1, max_size=4), VALUES)
    def check(path: list[int], value: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(shutil.copytree(tmp_path / "whole", f"{folder}/m")) / name
            part = tree = json.loads(file.read_text())
            for step in path:  # into the tree, as deep as it goes
                keys = list(part) if isinstance(part, dict) else list(range(len(part)))
                if not keys:
                    break
                key, inside = keys[step % len(keys)], part
                part = inside[key]
                if not isinstance(part, dict | list):
                    break
            inside[key] = value
            file.write_text(json.dumps(tree))
            sentence(file.parent)

    bounded(check)
