"""Find, load and inspect the plug-ins, methods to encodings. The file is the registration."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from harness.calling import RAISED, failure
from harness.calling import call as call
from harness.contracts import check_contract
from harness.contracts import entry as entry
from harness.errors import UserError
from harness.found import found_in
from harness.names import is_dotted, nearest, printable
from harness.options import Options, hints_of, inner, names_method, read_options, split_options
from tasks._types import CodeFolder

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "method": "scaling", "task": "tasks", "report": "harness/reports", "engine": "harness/export",
    "encoding": "harness/encodings", "tracker": "harness/trackers",
}  # fmt: skip
FUNCTION = "function"  # the digest of a method that is a function of Python


@dataclass(frozen=True)
class Plugin:
    """A plug-in as the user named it: its module, and every option with its value.

    ``label`` is the name with the options that were given, as tables and figures show it;
    ``options`` are their values as a record holds them, ``arguments`` as the plug-in is called;
    ``digest`` is a hash of the files outside the package, None for a built-in.
    """

    kind: str
    given: str
    label: str
    module: ModuleType
    options: Mapping[str, Any]
    arguments: Mapping[str, Any]
    digest: str | None


def names(kind: str) -> list[str]:
    """Return the built-in plug-ins of a kind: the files without a leading underscore."""
    folder = ROOT / FOLDERS[kind]
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def catalogue(kind: str) -> dict[str, str]:
    """Return each built-in plug-in's first docstring line, read without importing anything."""
    lines = {}
    for name in names(kind):
        tree = ast.parse((ROOT / FOLDERS[kind] / f"{name}.py").read_text(encoding="utf-8"))
        lines[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return lines


def load(
    kind: str, given: str | Callable[..., Any], more: Mapping[str, str] | None = None
) -> Plugin:
    """Load ``name``, ``name:option=value,…``, a path to a .py file, a dotted module or a function.

    A method is also a .json file that ``ropewalk tune`` wrote, or a table of LongRoPE's factors.
    ``more`` are options beside those of the text, whose values may have commas.
    Raises UserError for an unknown name, a file without the contract, or a bad option.
    """
    if not isinstance(given, str):
        return _of_function(given)
    name, _, listed = given.strip().partition(":")
    if kind == "method" and name.endswith(".json"):
        inner = load(kind, *found_in(name, listed))
        return replace(inner, given=given, label=printable(Path(name).stem))
    module, digest = module_of(kind, name)
    check_contract(kind, name, module)
    if kind == "task" and not (isinstance(module.VERSION, int) and _is_word(module.METRIC)):
        raise UserError(
            f"{name} is not a task: VERSION must be a whole number and METRIC a printable text."
        )
    short = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
    named = split_options(short, listed) | dict(more or {})
    options = _options(f"{kind} {name}", short, module, kind, named)
    label = printable(f"{short}:{listed}" if listed else short)
    digests = [part for part in (digest, *options.digests) if part]
    return Plugin(
        kind=kind,
        given=given,
        label=label,
        module=module,
        options=options.recorded,
        arguments=options.passed,
        digest=_joined(digests) if len(digests) > 1 else next(iter(digests), None),
    )


def _of_function(function: Callable[..., Any]) -> Plugin:
    """Return a function ``f(rope, length) -> Rotation`` as a method of its name."""
    name = function_name(function)
    module = ModuleType(name)
    vars(module)["frequencies"] = function
    options = _options(f"method {name}", name, module, "method", {})
    # A function has no file: what it gives is recorded number by number, and keys its samples.
    return Plugin("method", name, name, module, options.recorded, options.passed, FUNCTION)


def _options(
    what: str, name: str, module: ModuleType, kind: str, given: Mapping[str, str]
) -> Options:
    def read() -> Options:
        return read_options(name, entry(module, kind), parameters(module, kind), given, _method)

    return call(what, read)


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function's results."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def _method(given: str) -> tuple[Callable[..., Any], str | None]:
    """Return the function that an option names, its own options filled in, and its digest."""
    plugin = load("method", given)
    return partial(entry(plugin.module, "method"), **plugin.arguments), plugin.digest


def names_code(kind: str, given: str | Callable[..., Any]) -> bool:
    """Return whether loading a plug-in would execute code that is not of the package."""
    if not isinstance(given, str):
        return True
    name, _, listed = given.strip().partition(":")
    if kind == "method" and name.endswith(".json"):
        return names_code(kind, found_in(name, listed)[0])
    if name not in names(kind):
        return True
    module, _ = module_of(kind, name)
    hints = hints_of(entry(module, kind))
    return any(
        hints.get(key) is CodeFolder
        or (names_method(hints.get(key)) and names_code("method", inner(text)))
        for key, text in split_options(name, listed).items()
    )


def _is_word(text: Any) -> bool:
    return isinstance(text, str) and text.isprintable()


def module_of(kind: str, name: str) -> tuple[ModuleType, str | None]:
    """Return the module of a name, a file or a dotted name, and a hash of a user's."""
    if name.endswith(".py"):
        return _from_file(kind, Path(name))
    if kind in FOLDERS and name in names(kind):
        package = FOLDERS[kind].replace("/", ".")
        return importlib.import_module(f"{package}.{name}"), None
    if is_dotted(name):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"{kind} {name!r} cannot be imported: {error}.") from None
        except RAISED as error:
            raise UserError(f"{kind} {name!r} failed: {failure(error)}.") from error
        return module, _digest(Path(module.__file__)) if module.__file__ else None
    raise UserError(
        f"no {kind} is called {name!r}; {nearest(name, names(kind))}, or a path to a .py file."
    )


def _from_file(kind: str, path: Path) -> tuple[ModuleType, str]:
    if not path.is_file():
        raise UserError(f"{kind} file {path} does not exist.")
    digest = _digest(path)
    unique = f"_ropewalk_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{kind} file {path} cannot be read as Python.")
    spec.loader = _Source(unique, str(path.absolute()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except RAISED as error:
        raise UserError(f"{kind} file {path} failed: {failure(error)}.") from error
    return module, digest


class _Source(SourceFileLoader):
    """Compile the file itself: bytecode of a text edited within the same second looks current."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def parameters(module: ModuleType, kind: str) -> dict[str, inspect.Parameter]:
    """Return the options of a plug-in: its function's keyword-only parameters, less the seed."""
    signature = inspect.signature(entry(module, kind))
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "seed"
    }
