"""Find, load and question the plug-ins: methods, tasks, reports. The file is the registration."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from harness.errors import UserError
from harness.names import printable

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"method": "scaling", "task": "tasks", "report": "harness/reports"}
RAISED = BaseException  # of a user's code: where it exits, the sweep is not to
CONTRACTS = {
    "method": (),  # one of METHOD
    "task": ("ask", "grade", "score", "VERSION", "METRIC"),
    "report": ("make",),
}


METHOD = ("bands", "frequencies")  # what a method defines; bands where it defines both


@dataclass(frozen=True)
class Plugin:
    """A plug-in as the user named it: its module, and every option with its value.

    ``label`` is the name with the options that were given, as tables and figures show it;
    ``digest`` is a hash of a file outside the package, None for a built-in.
    """

    kind: str
    given: str
    label: str
    module: ModuleType
    options: Mapping[str, Any]
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


def load(kind: str, given: str) -> Plugin:
    """Load ``name``, ``name:option=value,…``, a path to a .py file or a dotted module.

    Raises UserError for an unknown name, a file without the contract, or a bad option.
    """
    name, _, listed = given.strip().partition(":")
    module, digest = module_of(kind, name)
    missing = [part for part in CONTRACTS[kind] if not hasattr(module, part)]
    if kind == "method" and not any(hasattr(module, part) for part in METHOD):
        missing = ["frequencies"]
    if missing:
        message = f"{name} is no {kind}: it does not define {', '.join(missing)}."
        raise UserError(message)
    if kind == "task" and not (isinstance(module.VERSION, int) and _is_word(module.METRIC)):
        message = f"{name} is no task: VERSION must be a whole number and METRIC a printable text."
        raise UserError(message)
    short = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
    options = call(f"{kind} {name}", lambda: _options(short, module, kind, listed))
    label = printable(f"{short}:{listed}" if listed else short)
    return Plugin(kind, given, label, module, options, digest)


def _is_word(text: Any) -> bool:
    return isinstance(text, str) and text.isprintable()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the words allowed, and the one probably meant."""
    allowed = sorted(known)
    parts = [known for known in allowed if known in word.split("_")]  # dynamic_yarn: yarn
    close = parts or difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    close = close or [name for name in allowed if word and _shortens(word, name)]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(allowed) or 'none'}"


def _shortens(word: str, name: str) -> bool:
    """Tell whether a word has some of a name's letters in their order: ppl for perplexity."""
    letters = iter(name)
    return word[0] == name[0] and all(letter in letters for letter in word)


def module_of(kind: str, name: str) -> tuple[ModuleType, str | None]:
    """Return the module of a name, a file or a dotted name, and a hash of a user's."""
    if name.endswith(".py"):
        return _from_file(kind, Path(name))
    if kind in FOLDERS and name in names(kind):
        package = FOLDERS[kind].replace("/", ".")
        return importlib.import_module(f"{package}.{name}"), None
    if "." in name:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            message = f"{kind} {name!r} cannot be imported: {error}."
            raise UserError(message) from None
        except RAISED as error:
            message = f"{kind} {name!r} failed: {_failure(error)}."
            raise UserError(message) from error
        return module, _digest(Path(module.__file__)) if module.__file__ else None
    message = (
        f"no {kind} is called {name!r}; {nearest(name, names(kind))}, or a path to a .py file."
    )
    raise UserError(message)


def _from_file(kind: str, path: Path) -> tuple[ModuleType, str]:
    if not path.is_file():
        message = f"{kind} file {path} does not exist."
        raise UserError(message)
    digest = _digest(path)
    unique = f"_ropewalk_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        message = f"{kind} file {path} cannot be read as Python."
        raise UserError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except RAISED as error:
        message = f"{kind} file {path} failed: {_failure(error)}."
        raise UserError(message) from error
    return module, digest


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def call(what: str, function: Callable[[], T]) -> T:
    """Run a user's code; whatever it raises becomes one sentence.

    A ValueError is a plug-in's own sentence; any other error names the file and the line.
    """
    try:
        return function()
    except UserError:
        raise
    except ValueError as error:
        message = f"{what}: {error}."
        raise UserError(message.replace("..", ".")) from error
    except RAISED as error:
        message = f"{what} failed: {_failure(error)}."
        raise UserError(message) from error


def _failure(error: BaseException) -> str:
    """Return an error in one line, with its file and line; Ctrl-C is none and is raised again."""
    if type(error) is KeyboardInterrupt:
        raise error
    if isinstance(error, SyntaxError):  # raised where the file is read, not where it is wrong
        return f"SyntaxError: {error.msg} at {error.filename}:{error.lineno}"
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def entry(module: ModuleType, kind: str) -> Callable[..., Any]:
    """Return the function of a plug-in that takes its options."""
    named = METHOD if kind == "method" else CONTRACTS[kind][:1]
    function: Callable[..., Any] = next(getattr(module, n) for n in named if hasattr(module, n))
    return function


def parameters(module: ModuleType, kind: str) -> dict[str, inspect.Parameter]:
    """Return the options of a plug-in: its function's keyword-only parameters, less the seed."""
    signature = inspect.signature(entry(module, kind))
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "seed"
    }


def split_options(what: str, listed: str) -> dict[str, str]:
    """Split ``a=1,b=2``; raise UserError where a part is not name=value or comes twice."""
    options: dict[str, str] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not key or not value:
            message = f"{what}: {part!r} is not option=value."
            raise UserError(message)
        if key in options:
            message = f"{what}: option {key!r} is given twice."
            raise UserError(message)
        options[key] = value
    return options


def _options(name: str, module: ModuleType, kind: str, listed: str) -> dict[str, Any]:
    """Return every option's value, converted to its annotated type, defaults filled in."""
    from pydantic import TypeAdapter, ValidationError

    known = parameters(module, kind)
    given = split_options(name, listed)
    hints = typing.get_type_hints(entry(module, kind))
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            message = f"{name} has no option {key!r}; {nearest(key, known)}."
            raise UserError(message)
        try:
            values[key] = TypeAdapter(hints.get(key, str)).validate_python(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input should be ")
            message = f"{name}: {key}={text} should be {reason}."
            raise UserError(message) from None
    for key, parameter in known.items():
        if key not in values:
            if parameter.default is inspect.Parameter.empty:
                message = f"{name} needs the option {key!r}: write {name}:{key}=…"
                raise UserError(message)
            values[key] = parameter.default
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError):
        message = f"{name}: options must be finite numbers, words or None for the record: {values}."
        raise UserError(message) from None
    return values
