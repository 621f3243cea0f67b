"""How a task measures, by its samples."""

import pandas as pd
import pytest

from ropewalk.harness.stats.measure import measure
from tests.frames import asked


@pytest.mark.parametrize(("value", "name"), [(0.0, "strict ruler recall"), (1.0, "ruler recall")])
def test_a_score_is_strict_if_the_answer_in_another_format_does_not_count(value, name):
    """RULER counts an answer anywhere in the text; the passkey task does not."""
    rows = asked("ruler", "yarn", 1024, [1.0, value, 0.0], part="niah_single_1")
    samples = pd.DataFrame(rows).assign(metric="recall", found=["exact", "format", "wrong"])
    assert measure(samples).name == name
