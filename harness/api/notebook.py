"""Show a run in a notebook: what to use, and how much worse than the best every method is."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from html import escape
from io import BytesIO

import pandas as pd

from harness.reports import best
from harness.reports.plots.style import drawing, lay_out


def html(frame: pd.DataFrame) -> str:
    """Return the recommendations and the figure of the report ``best``, or why there are none."""
    try:
        table = best.make(frame)
        sentences = best.summary(table)
    except ValueError as error:
        return f"<p>{escape(str(error))}</p>"
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    text = re.sub("`(.+?)`", r"<code>\1</code>", text)
    with suppress(ValueError), drawing():  # fewer than two methods have no figure
        figure, content = best.draw(frame, table), BytesIO()
        lay_out(figure)
        figure.savefig(content, format="png")
        picture = base64.b64encode(content.getvalue()).decode()
        text += f'<img alt="Regret of each method" src="data:image/png;base64,{picture}">'
    return text
