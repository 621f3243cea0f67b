"""The page of all methods."""

import pytest

from ropewalk.harness.plugins import module_of, names, parameters
from scripts.site import CALIBRATION, method_table, methods
from tests import ROOT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_of_methods_is_what_their_files_say():
    assert (ROOT / "scaling/methods.md").read_text(encoding="utf-8") == methods()


def test_methods_with_options_that_a_model_decides_say_how_they_are_calibrated():
    decided = {"heads", "factors", "span", "start"}
    modules = {name: module_of("method", name)[0] for name in names("method")}
    found = {name for name in modules if decided & parameters(modules[name], "method").keys()}
    assert found == CALIBRATION.keys()


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
