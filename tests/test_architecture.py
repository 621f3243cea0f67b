"""The architecture: who imports whom."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ropewalk.harness.plugins import ROOT

# What a folder may import beside the standard library: anywhere, and inside functions only.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "scaling": ({"ropewalk.scaling", "torch"}, set()),
    "tasks": ({"ropewalk.tasks"}, {"scipy", "numpy", "datasets", "lm_eval"}),
    # One formula for an interval, in the score and in the difference of two: the tasks'.
    "harness/reports": (
        {"ropewalk.harness.reports", "pandas", "matplotlib", "numpy", "tabulate", "scipy"}
        | {"jinja2", "markupsafe"}
        | {"ropewalk.tasks._intervals", "ropewalk.harness.stats"},
        set(),
    ),
    "harness/stats": (
        {"ropewalk.harness.stats", "numpy", "pandas", "scipy", "ropewalk.tasks._intervals"},
        set(),
    ),
}
# The packages of harness/, from the front door down: one may import those below it, and the files
# beside them in harness/ itself, which import none of them.
PACKAGES_DOWN = (
    "cli", "api", "recommend", "trackers", "card", "serve", "reports", "sweep", "runs", "models",
    "patching", "testing", "encodings", "engine", "data", "stats",
)  # fmt: skip
# These alone among the reports know runs, files and plug-ins.
WRITERS = {
    "harness/reports/_write.py",
    "harness/reports/_inspection.py",
    "harness/reports/_published.py",
    "harness/reports/_page.py",
}
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


def test_everything_is_imported_as_part_of_ropewalk():
    """A user's own folder called tasks hides nothing, and no module is there twice."""
    files = [p for name in ("harness", "scaling", "tasks") for p in (ROOT / name).rglob("*.py")]
    files += [*(ROOT / "ropewalk").glob("*.py"), *(ROOT / "scripts").glob("*.py")]
    wrong = [
        f"{relative(path)} imports {module}"
        for path in files
        for module, _ in imports(tree(path))
        if module.partition(".")[0] in ("harness", "scaling", "tasks")
    ]
    assert wrong == []


def within(module: str, allowed: set[str]) -> bool:
    """Tell whether a module is one of the allowed ones or inside one."""
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder):
    anywhere, in_functions = MAY_IMPORT[folder]
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for module, deep in imports(tree(path)) if relative(path) not in WRITERS else ():
            allowed = anywhere | (in_functions if deep else set())
            if module.partition(".")[0] not in sys.stdlib_module_names and not within(
                module, allowed
            ):
                wrong.append(f"{relative(path)} imports {module}")
    assert wrong == []


def test_a_package_imports_only_from_packages_below_it():
    wrong = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        here = path.relative_to(ROOT / "harness").parts
        alone = "cli" if path.stem == "__main__" else "stats"  # errors, names, plug-ins, files
        alone = path.stem if path.stem in PACKAGES_DOWN else alone
        package = here[0] if len(here) > 1 else alone
        for module, _ in imports(tree(path)):
            other = module.split(".")[2] if module.startswith("ropewalk.harness.") else ""
            if other in PACKAGES_DOWN and other != package:
                below = PACKAGES_DOWN.index(other) > PACKAGES_DOWN.index(package)
                wrong += [] if below else [f"{relative(path)} imports {module}"]
    assert wrong == []
    folders = {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")}
    assert folders <= set(PACKAGES_DOWN)
