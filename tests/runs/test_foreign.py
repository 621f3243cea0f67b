"""Foreign files whose fields hold anything: a result or one sentence, in bounded time and memory.

Each mutation is drawn from the schema of the file: a field of it, known to a run or not, is taken
out or holds a value of another kind or size.
"""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from harness.cli.app import main
from harness.errors import UserError
from harness.runs.record import Run, _Sample
from harness.runs.store import RUN, SAMPLES
from harness.sweep.spec import Spec, parse_all
from tests.child import bounded
from tests.command_line import lines_of

GONE = object()
DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]
VALUES = (
    GONE, None, True, 0, -1, 2**31, 2**63, 10**30, 1e308, -0.5, float("nan"), float("inf"), "", "x",
    "x" * 5000, "\x1b[2J", "\udcff", "\0", "../..", "/dev/zero", "a:b=[", "no:such=1", "x.py",
    "9" * 30, [], [None], ["a", 5], {}, {"a": None}, {"": []}, DEEP, [[1]] * 100,
)  # fmt: skip
Place = tuple[str | int, ...]


def places(schema: Any, value: Any, defs: Any, place: Place = ()) -> Iterator[Place]:
    """Yield every field of a schema and of a value of it; of a list the first item."""
    kinds = schema if isinstance(schema, dict) else {}
    for kind in (kinds, *kinds.get("anyOf", ())):
        kinds = kinds | defs.get(kind.get("$ref", "").rpartition("/")[2], kind)
    if place:
        yield place
    known = kinds.get("properties", {})
    if isinstance(value, dict):
        for name in dict.fromkeys([*known, *value]):
            inner = known.get(name, kinds.get("additionalProperties"))
            yield from places(inner, value.get(name), defs, (*place, name))
    elif isinstance(value, list) and value:
        yield from places(kinds.get("items"), value[0], defs, (*place, 0))


def mutations(model: type[BaseModel], value: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a model with one or two fields changed."""
    schema = model.model_json_schema()
    every = [*dict.fromkeys(places(schema, value, schema.get("$defs", {})))]
    changes = st.tuples(st.sampled_from(every), st.sampled_from(VALUES))
    return st.lists(changes, min_size=1, max_size=2).map(
        lambda changes: _changed(deepcopy(value), changes)
    )


def _changed(value: Any, changes: list[tuple[Place, Any]]) -> Any:
    for (*above, last), new in changes:
        inner = value
        try:
            for part in above:
                inner = inner[part]
            if new is GONE:
                del inner[last]
            else:
                inner[last] = deepcopy(new)  # a value may be given twice, and would hold itself
        except (KeyError, IndexError, TypeError):
            continue  # another change took the place away
    return value


def answers(*words: object) -> None:
    """Fail unless a command ends with a result or one sentence, and no escape characters."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    status, told = ended.value.code or 0, out.getvalue() + err.getvalue()
    assert status in (0, 1, 2), told
    assert "Traceback" not in told
    assert "\x1b" not in told
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("  ")]
    assert status != 2 or lines[-1].startswith("ropewalk: "), told


def sentence(ask: Callable[[], object]) -> None:
    """Fail unless something is answered, or refused by a UserError of short lines."""
    try:
        ask()
    except UserError as error:
        assert all("\n" not in one for one in error.sentences)  # noqa: PT017
        assert len(str(error)) < 6000  # noqa: PT017


@pytest.mark.slow
@pytest.mark.usefixtures("real_page")
def test_a_record_of_any_content(small, docs, tiny, tmp_path):
    record = json.loads((small / RUN).read_text())
    lines = lines_of(small)
    foreign = tmp_path / "foreign"
    again = ["--model", tiny, "--docs", docs, "--out", tmp_path / "again", "--dry-run"]
    commands: list[list[object]] = [
        ["report", foreign, "--report", "scores", "best", "--out", tmp_path / "out"],
        ["report", foreign, "--report", "bits_per_byte", "--page", tmp_path / "page.html"],
        ["report", small, foreign, "--mixed", "--report", "scores", "--out", tmp_path / "out"],
        ["compare", foreign, "--published", "yarn-table-1", "--mixed"],
        ["run", "--from", foreign, *again],
        ["report", foreign, "--card", "--out", tmp_path / "card"],
        ["run", "--model", tiny, "--docs", docs, "--task", "perplexity:tail=16", "--length", "2x",
         "--scaling", "pi", "--out", foreign, "--dry-run"],
    ]  # fmt: skip

    @settings(max_examples=50)
    @given(
        st.tuples(mutations(Run, record), st.just(lines[0]))
        | st.tuples(st.just(record), mutations(_Sample, lines[0])),
        st.sampled_from(commands),
    )
    def check(mutated: tuple[Any, Any], words: list[object]) -> None:
        for left in tmp_path.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        foreign.mkdir()
        run, sample = mutated
        (foreign / RUN).write_text(json.dumps(run))
        text = "".join(json.dumps(line) + "\n" for line in [sample, *lines[1:]])
        (foreign / SAMPLES).write_text(text)
        answers(*words)

    bounded(check)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("methods", "pi", "options"), [None]),
        (("tasks", "perplexity:tail=16", "options"), [None]),
        (("sessions", 0, "versions"), [None]),
        (("sessions", 0, "workers"), 5),
        (("documents", "given"), 5),
        (("model", "rotary_dim"), "x"),
        (("frequencies",), {"a": {"x": float("nan")}}),
    ],
)
def test_a_field_of_another_kind_is_named(place, value, run, rejected, tmp_path):
    record = json.loads((run / RUN).read_text())
    (run / RUN).write_text(json.dumps(_changed(record, [(place, value)])))
    for words in (["report", run], ["run", "--from", run]):
        assert f"{run / RUN} is " in rejected(*words, "--out", tmp_path / "out")


def test_a_sweep_file_of_any_content(tmp_path):
    """It is read or refused in one sentence, with tags of YAML too."""
    file = tmp_path / "sweep.yaml"
    usual = {name: field.default for name, field in Spec.model_fields.items()}
    usual |= {"scaling": ["none", "yarn"], "task": ["perplexity"], "length": ["1x", 512]}
    usual |= {"out": "a"}

    @settings(max_examples=150)
    @given(mutations(Spec, usual).map(yaml.dump))
    def check(content: str) -> None:
        file.write_text(content)
        sentence(lambda: parse_all(file, {}))

    bounded(check)
