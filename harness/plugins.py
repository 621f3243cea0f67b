"""Find, load and inspect the plug-ins, methods to encodings. The file is the registration."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from harness.errors import UserError, reason, words
from harness.files import read_regular
from harness.names import article, is_dotted, nearest, printable
from tasks.types import CodeFolder

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "method": "scaling", "task": "tasks", "report": "harness/reports", "engine": "harness/serve",
    "encoding": "harness/encodings", "tracker": "harness/share/trackers",
}  # fmt: skip
REPLACED = {  # reports of earlier versions: which one has their numbers now
    "paired_differences": "differences", "passkey_map": "retrieval",
    "retrieval_table": "retrieval", "seed_curves": "curves:seeds=true",
    "seed_differences": "differences:seeds=true", "short_cost": "differences", "summary": "best",
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
    """Return the built-in plug-ins of a kind: public files, without the module of their types."""
    files = (ROOT / FOLDERS[kind]).glob("[!_]*.py")
    return sorted(path.stem for path in files if path.stem != "types")


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
    if kind == "report" and name in REPLACED:
        raise UserError(f"the report {name!r} was merged: {REPLACED[name]} has its numbers now.")
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


CONTRACTS = {
    "method": (),  # one of METHOD
    "task": ("ask", "grade", "score", "VERSION", "METRIC"),
    "report": ("make",),
    "engine": ("express", "computed", "command", "NAMED"),
    "encoding": ("Encoding",),
    "tracker": ("begin",),
}

METHOD = ("bands", "frequencies")  # what a method defines; bands where it defines both


def defines(name: str, module: ModuleType, part: str) -> bool:
    """Return whether a module has a name; raise UserError where its own code fails there."""
    return call(f"plug-in {name}", lambda: hasattr(module, part))


def check_contract(kind: str, name: str, module: ModuleType) -> None:
    """Raise UserError for a module without the functions and values of its kind."""
    one_of = kind == "method" and not any(defines(name, module, part) for part in METHOD)
    wanted = METHOD[1:] if one_of else CONTRACTS[kind]
    wrong = ", ".join(part for part in wanted if not defines(name, module, part))
    if wrong or not callable(entry(module, kind)):
        why = f"it does not define {wrong}" if wrong else "what it defines is not a function"
        raise UserError(f"{name} is not {article(kind)}: {why}.")


def entry(module: ModuleType, kind: str) -> Callable[..., Any]:
    """Return the function of a plug-in that takes its options."""
    named = METHOD if kind == "method" else CONTRACTS[kind][:1]
    function: Callable[..., Any] = next(getattr(module, n) for n in named if hasattr(module, n))
    return function


RAISED = BaseException  # of a user's code: an exit there must not end the sweep


def call(what: str, function: Callable[[], T]) -> T:
    """Run a user's code; whatever it raises becomes one sentence.

    A ValueError is a plug-in's own sentence; any other error names the file and the line.
    """
    try:
        return function()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{what}: {words(error).removesuffix('.')}.") from error
    except RAISED as error:
        raise UserError(f"{what} failed: {failure(error)}.") from error


def failure(error: BaseException) -> str:
    """Return an error in one line, with its file and line; Ctrl-C is raised again."""
    if type(error) is KeyboardInterrupt:
        raise error
    if isinstance(error, SyntaxError):  # raised where the file is read, not where it is wrong
        return f"SyntaxError: {error.msg} at {error.filename}:{error.lineno}"
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else ""
    return f"{type(error).__name__}: {words(error)}{where}"


@dataclass(frozen=True)
class Options:
    """Every option of a plug-in, in two forms.

    ``recorded`` is what a record holds; ``passed`` is what the plug-in is called with. They differ
    for an option that names a method: a text in the one, its function in the other. ``digests``
    are those of the user's files so named.
    """

    recorded: Mapping[str, Any]
    passed: Mapping[str, Any]
    digests: tuple[str, ...]


def split_options(what: str, listed: str) -> dict[str, str]:
    """Split ``a=1,b=2``; raise UserError where a part is not name=value or comes twice."""
    options: dict[str, str] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not key or not value:
            raise UserError(f"{what}: {part!r} is not option=value.")
        if key in options:
            raise UserError(f"{what}: option {key!r} is given twice.")
        options[key] = value
    return options


def read_options(
    name: str,
    function: Callable[..., Any],
    known: Mapping[str, inspect.Parameter],
    given: Mapping[str, str],
    method: Callable[[str], tuple[Callable[..., Any], str | None]],
) -> Options:
    """Return every option's value, converted to its annotated type, defaults filled in.

    ``method`` loads the method that an option names: its function, and the hash of
    its file where it is the user's. Raises UserError for an option that is unknown, missing, or
    of another type, and for a value that no record can hold.
    """
    hints = hints_of(function)
    recorded: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    digests = []
    for key in given.keys() - known.keys():
        raise UserError(f"{name} has no option {key!r}; {nearest(key, known)}.")
    for key, parameter in known.items():
        if key not in given:
            if parameter.default is inspect.Parameter.empty:
                raise UserError(f"{name} needs the option {key!r}: write {name}:{key}=…")
            passed[key] = parameter.default
            recorded[key] = _recorded(parameter.default)
        elif names_method(hints.get(key)):
            recorded[key] = given[key]
            passed[key], digest = method(inner(given[key]))
            digests += [digest] if digest else []
        else:
            passed[key] = recorded[key] = _converted(name, key, given[key], hints.get(key, str))
    try:
        json.dumps(recorded, allow_nan=False)
    except (TypeError, ValueError):
        raise UserError(
            f"{name}: options must be finite numbers, words or None for the record: {passed}."
        ) from None
    return Options(recorded, passed, tuple(digests))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters, or of a class's."""
    named: Any = function
    return typing.get_type_hints(named.__init__ if inspect.isclass(named) else named)


def names_method(hint: Any) -> bool:
    """Return whether an option's annotation is that of a method (``scaling.types.Method``)."""
    return typing.get_origin(hint) is Callable


def inner(text: str) -> str:
    """Return the method that an option names, its options joined by commas, not plus signs."""
    return text.replace("+", ",")


def _recorded(default: Any) -> Any:
    """Return a default as a record holds it: of a method, its name."""
    return default.__module__.rpartition(".")[2] if inspect.isfunction(default) else default


def _converted(name: str, key: str, text: str, hint: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise UserError(f"{name}: {key}={text} should be {reason}.") from None


LARGEST = 2**20  # bytes; a table of factors has some thousand


def found_in(name: str, options: str = "") -> tuple[str, dict[str, str]]:
    """Return the method that a file names, and options beside those it has there.

    One with LongRoPE's two lists is ``longrope`` of them; so is one with ``layers``, such lists for
    each layer. The path of these is an option apart: it may have a comma.

    Raises UserError for a file that has neither, and for options given behind it.
    """
    path = Path(name)
    if options:
        raise UserError(f"method file {path} has its options in it; leave out {options!r}.")
    try:
        table: Any = json.loads(read_regular(path, limit=LARGEST))
    except FileNotFoundError:
        raise UserError(f"method file {path} does not exist.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"method file {path} cannot be read as JSON: {reason(error)}.") from None
    named = table.get("scaling") if isinstance(table, dict) else None
    if isinstance(named, str) and not named.endswith(".json"):
        return named, {}
    if isinstance(table, dict) and (
        "layers" in table or {"short_factor", "long_factor"} <= table.keys()
    ):
        return "longrope", {"factors": str(path)}
    raise UserError(
        f'method file {path} names no method: it needs "scaling", as ropewalk tune writes it, or'
        " short_factor and long_factor, or layers, a list of such tables."
    )
