"""The shape of the house: who imports whom, and that everything stays small enough to read."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.plugins import FOLDERS, ROOT, names
from tests import ROOT as REPOSITORY

PACKAGES = ("scaling", "tasks", "harness", "ropewalk")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PLUGINS = [ROOT / FOLDERS[kind] / f"{name}.py" for kind in FOLDERS for name in names(kind)]
FILE_LINES, PLUGIN_LINES, FUNCTION_LINES, ENTRY_CHARACTERS = 250, 80, 40, 100
# What a folder may import beside the standard library: anywhere, and inside functions only.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "scaling": ({"scaling", "torch"}, set()),
    "tasks": ({"tasks"}, {"scipy", "numpy", "datasets", "lm_eval"}),
    # One formula for an interval, in the score and in the difference of two: the tasks'.
    "harness/reports": (
        {"harness.reports", "pandas", "matplotlib", "numpy", "tabulate", "scipy"}
        | {"jinja2", "markupsafe"}
        | {"tasks._intervals"},
        set(),
    ),
}
# Which rooms of harness/ a room may import, from the front door down. Every room may import the
# files beside them in harness/ itself, and those no room.
ROOMS: dict[str, set[str]] = {
    "cli": {
        *("doctor", "export", "recommend", "inspection", "cluster", "tune", "sweep", "published"),
        *("runs", "model", "encodings", "methods", "data", "reports", "publish", "trackers"),
    },
    "doctor": {"sweep", "methods", "model", "rope", "engine", "data"},
    "trackers": {"publish", "runs", "reports"},
    "publish": {"sweep", "runs", "reports"},
    "inspection": {"encodings", "sweep", "methods", "runs", "model", "rope", "reports"},
    "cluster": {"sweep", "engine"},
    "tune": {"sweep", "methods", "runs", "reports"},
    "recommend": {"export", "sweep", "methods", "runs", "reports"},
    "export": {"sweep", "encodings", "methods", "model", "rope"},
    "sweep": {"published", "methods", "runs", "model", "rope", "engine", "data"},
    "published": set(),
    "runs": {"reports"},
    "model": {"encodings", "rope"},
    "rope": {"engine"},
    "encodings": {"methods"},
    "methods": set(),
    "engine": set(),
    "data": set(),
    "reports": set(),
}
NEVER = {"results", "scripts", "tests", "training"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def relative(path: Path) -> str:
    """Return a file's name as a reader of the repository writes it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(part: ast.AST, *, deep: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield every imported module and whether it is imported inside a function."""
    for node in ast.iter_child_nodes(part):
        if isinstance(node, ast.Import):
            yield from ((alias.name, deep) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from ((f"{node.module}.{alias.name}", deep) for alias in node.names)
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from imports(node, deep=deep or isinstance(node, FUNCTIONS))


def within(module: str, allowed: set[str]) -> bool:
    """Tell whether a module is one of the allowed ones or inside one."""
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def code_lines(path: Path) -> int:
    """Count the lines that are neither blank, nor comment, nor docstring."""
    text = path.read_text(encoding="utf-8")
    counted: set[int] = set()
    nothing = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    )  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            counted.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node):
            told = node.body[0]
            counted -= set(range(told.lineno, (told.end_lineno or told.lineno) + 1))
    return len(counted)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    """Mathematics, measurements and reports know nothing of the machine that joins them."""
    anywhere, in_functions = MAY_IMPORT[folder]
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for module, deep in imports(tree(path)):
            allowed = anywhere | (in_functions if deep else set())
            if module.partition(".")[0] not in sys.stdlib_module_names and not within(
                module, allowed
            ):
                wrong.append(f"{relative(path)} imports {module}")
    assert wrong == []


def test_a_room_imports_only_from_rooms_below_it() -> None:
    """The table above is what holds, in both senses: no other arrow, and none that is not used."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    wrong = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        here = path.relative_to(ROOT / "harness").parts
        room = here[0] if len(here) > 1 else None
        for module, _ in imports(tree(path)):
            other = module.split(".")[1] if module.startswith("harness.") else ""
            if other in ROOMS and other != room:
                if room is None and path.name != "__main__.py":
                    wrong.append(f"{relative(path)} imports {module}")
                elif room is not None:
                    found[room].add(other)
    assert wrong == []
    assert found == ROOMS
    order = list(ROOMS)
    assert all(order.index(one) < order.index(other) for one in ROOMS for other in ROOMS[one])


@pytest.mark.slow
def test_data_scripts_and_tests_are_never_imported() -> None:
    """The package stands without results, scripts and tests."""
    wrong = [
        f"{relative(path)} imports {module}"
        for path in FILES
        for module, _ in imports(tree(path))
        if within(module, NEVER)
    ]
    assert wrong == []
    assert not list((REPOSITORY / "results").rglob("*.py"))


def test_no_test_imports_from_another() -> None:
    """What several tests need lies beside them, in a module that is no test."""
    wrong = [
        path.name
        for path in (REPOSITORY / "tests").glob("*.py")
        if re.search(r"^\s*(from|import) tests(\.| import )test_", path.read_text("utf-8"), re.M)
    ]
    assert wrong == []


def test_a_plugin_is_told_in_one_line() -> None:
    """The first docstring line is the catalogue entry: one sentence of 100 characters at most."""
    wrong = {}
    for path in PLUGINS:
        told = ast.get_docstring(tree(path)) or ""
        entry, _, rest = told.partition("\n")
        if not entry.endswith(".") or len(entry) > ENTRY_CHARACTERS or rest[:1].strip():
            wrong[relative(path)] = f"{len(entry)} characters: {entry}"
    assert wrong == {}


def test_a_plugin_fits_on_two_screens() -> None:
    """A method, a task or a report is 80 lines of code at most."""
    lines = {relative(path): code_lines(path) for path in PLUGINS}
    assert {name: count for name, count in lines.items() if count > PLUGIN_LINES} == {}


def test_a_file_fits_in_the_head() -> None:
    """No file of the package is longer than 250 lines, everything counted."""
    lines = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: count for name, count in lines.items() if count > FILE_LINES} == {}


@pytest.mark.slow
def test_a_function_fits_on_a_page() -> None:
    """No function's body is longer than 40 lines, its docstring apart."""
    long = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, FUNCTIONS) and body_lines(node) > FUNCTION_LINES:
                long[f"{relative(path)}:{node.name}"] = body_lines(node)
    assert long == {}


def test_no_module_is_a_drawer_for_everything() -> None:
    """A module is named for what it does."""
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert [relative(path) for path in FILES if path.stem.strip("_") in drawers] == []


def test_lines_are_counted_right(tmp_path: Path) -> None:
    """The counts leave out what they say: blank lines, comments and docstrings."""
    path = tmp_path / "seven.py"
    told = '"""Told\n\nat length."""\n\n# why\nx = """\ntext\n"""\n\n\n'
    path.write_text(f'{told}def f(\n    a,\n):\n    """Say."""\n    # how\n    return a\n')
    assert code_lines(path) == 7
    function = ast.parse(path.read_text()).body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function) == 1


def test_imports_are_found_wherever_they_are() -> None:
    """An import in a function or a branch counts, and the depth tells functions from the rest."""
    text = "import a.b\nif a:\n    from c import d\ndef f():\n    with a:\n        import e\n"
    assert list(imports(ast.parse(text))) == [("a.b", False), ("c.d", False), ("e", True)]
