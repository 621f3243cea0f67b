"""The page of all methods."""

import pytest

from ropewalk.harness.plugins import names
from scripts.site import method_table, methods
from tests import ROOT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_of_methods_is_what_their_files_say():
    assert (ROOT / "scaling/methods.md").read_text(encoding="utf-8") == methods()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_method_has_a_row_with_what_is_known_of_it():
    """Looked up by hand: what it changes, where it acts, who serves it."""
    table = method_table().set_index("method")
    assert list(table.index) == names("method")
    assert table.loc["pi", "served by"] == "all"
    assert table.loc["dpe", "changes"] == "positions by channel"
    assert table.loc["ms_poe", "calibration"] == "needed: heads"
    assert table.loc["rerope", "inside the window"] == "changed"
    assert "(arXiv:2309.00071)" in table.loc["yarn", "what it is"]
