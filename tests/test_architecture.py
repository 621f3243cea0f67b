"""The architecture: who imports whom."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ropewalk.harness.plugins import ROOT

# From the front door down: each imports only those below it. Nothing in scaling or tasks imports
# harness.
DOWN = (
    "cli", "show", "commands", "recommend", "serve", "reports", "sweep", "runs",
    "models", "patching", "encodings", "data", "engine", "stats", "plugins", "files",
    "errors",
)  # fmt: skip
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


def test_a_package_imports_only_from_packages_below_it():
    wrong = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        here = path.relative_to(ROOT / "harness").parts
        package = here[0].removesuffix(".py")
        for module, _ in imports(tree(path)):
            other = module.split(".")[2] if module.startswith("ropewalk.harness.") else package
            if other != package and DOWN.index(other) <= DOWN.index(package):
                wrong.append(f"{relative(path)} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("folder", ["scaling", "tasks"])
def test_methods_and_tasks_know_nothing_of_the_harness(folder):
    wrong = [
        f"{relative(path)} imports {module}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for module, _ in imports(tree(path))
        if module.startswith("ropewalk.") and module.split(".")[1] != folder
    ]
    assert wrong == []
