"""The tasks of the study of SmolLM2 that measure truncation."""

import pytest

from ropewalk.harness.sweep.plan import make_plan
from ropewalk.harness.sweep.spec import Spec
from tests import ROOT
from tests.tiny import save_tiny

STUDY = ROOT / "results" / "smollm2"
WINDOW, FAR = 8192, 16_384


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passkey", "ruler"])
def test_a_truncated_prompt_is_the_end_of_the_whole_one(name, tmp_path):
    """Inside the window it is the prompt; beyond, its begin token and as many last ones as fit."""
    save_tiny(tmp_path, num_hidden_layers=1, max_position_embeddings=8192)
    given = f"{name}:trials=1", f"{STUDY}/truncated/truncated_{name}.py:trials=1"
    books = str(STUDY / "books" / "en-dracula.txt.gz")
    settings = {"task": given, "scaling": ("none",), "length": ("1x", "2x"), "docs": books}
    cells = make_plan(Spec(model=str(tmp_path), **settings)).cells
    near, far, own, cut = (cell.questions for cell in cells)
    assert [one.digest for one in near] == [one.digest for one in own]
    for whole, short in zip(far, cut, strict=True):
        assert (whole.length, short.length) == (FAR, WINDOW)
        assert whole.doc_id == short.doc_id
        kept = len(short.tokens) - 1
        assert list(short.tokens) == [whole.tokens[0], *whole.tokens[-kept:]]
        assert whole.length - whole.start == short.length - short.start
