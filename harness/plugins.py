"""Find, load and call the plug-ins, methods to encodings.

The file is the registration. An installed package registers its own modules as entry points, in
the groups ``ropewalk.methods``, ``ropewalk.tasks``, ``ropewalk.reports`` and
``ropewalk.encodings``; the name of a built-in plug-in wins over that of an entry point.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ropewalk.harness.errors import UserError, article, foreign, nearest, printable, reason
from ropewalk.harness.files import recorded
from ropewalk.tasks.types import CodeFolder

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "method": "scaling",
    "task": "tasks",
    "report": "harness/reports",
    "engine": "harness/serve",
    "encoding": "harness/encodings",
}
PACKAGED = ("method", "task", "report", "encoding")  # kinds that installed packages may add
METHOD = ("bands", "frequencies")  # what a method defines; bands where it defines both
CONTRACTS = {
    "method": (),  # one of METHOD
    "task": ("ask", "grade", "score", "VERSION", "METRIC"),
    "report": ("make",),
    "engine": ("express", "computed", "command", "NAMED", "OVERRIDES"),
    "encoding": ("Encoding",),
}
ROPE_TYPES = {"linear": "pi", "dynamic": "dynamic_ntk", "default": "none"}  # of transformers
FUNCTION = "function"  # the digest of a method that is a function of Python
IN_PYTHON = "given in Python"  # the end of the name of documents that are objects of Python
RAISED = BaseException  # of a user's code: an exit there must not end the sweep


@dataclass(frozen=True)
class Plugin:
    """A plug-in as the user named it: its module, and every option with its value.

    Attributes:
        label: the name with the options that were given, as tables and figures show it.
        options: the values of all options as a record holds them.
        arguments: the same values as the plug-in is called with them.
        digest: a hash of the files outside the package; None for a built-in.
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


@cache
def packaged(kind: str) -> dict[str, EntryPoint]:
    """Return the plug-ins of a kind that installed packages register, by name."""
    points = entry_points(group=f"ropewalk.{kind}s") if kind in PACKAGED else ()
    return {point.name: point for point in points if point.name not in names(kind)}


def all_names(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind: built-in and of installed packages."""
    return sorted([*names(kind), *packaged(kind)])


def catalogue(kind: str) -> dict[str, str]:
    """Return a line on each plug-in, without importing any.

    It is the first docstring line of a built-in one, and the origin of a package's.
    """
    lines = {}
    for name in names(kind):
        tree = ast.parse((ROOT / FOLDERS[kind] / f"{name}.py").read_text(encoding="utf-8"))
        lines[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    for name, point in packaged(kind).items():
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        lines[name] = f"From {origin} ({point.value})."
    return dict(sorted(lines.items()))


def load(
    kind: str, given: str | Callable[..., Any], more: Mapping[str, str] | None = None
) -> Plugin:
    """Load ``name``, ``name:option=value,…``, a path to a .py file, a dotted module or a function.

    A name is that of a built-in plug-in or of an installed package's entry point. A method is also
    a .json file that ``ropewalk tune`` wrote, or a table of LongRoPE's factors. ``more`` are
    options beside those of the text, whose values may have commas.
    Raises UserError for an unknown name, a file without the contract, or a bad option.
    """
    if not isinstance(given, str):  # a function f(rope, length) -> Rotation
        name = function_name(given)
        module = ModuleType(name)
        vars(module)["frequencies"] = given
        read = call(f"method {name}", lambda: _read_options(name, module, "method", {}))
        # A function has no file: what it gives is recorded number by number, and keys its samples.
        return Plugin("method", name, name, module, read[0], read[1], FUNCTION)
    name, _, listed = given.strip().partition(":")
    if kind == "method" and name.endswith(".json"):
        inner = load(kind, *load_method_file(name, listed))
        return replace(inner, given=given, label=printable(Path(name).stem))
    module, digest = module_of(kind, name)
    check_contract(kind, name, module)
    short = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
    requested = split_options(short, listed) | dict(more or {})
    options, arguments, inner_digests = call(
        f"{kind} {name}", lambda: _read_options(short, module, kind, requested)
    )
    digests = [part for part in (digest, *inner_digests) if part]
    joined = _digest("".join(digests).encode()) if len(digests) > 1 else "".join(digests) or None
    label = printable(recorded_entry(f"{short}:{listed}" if listed else short))
    return Plugin(kind, given, label, module, options, arguments, joined)


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function's results, with the options of a ``functools.partial``.

    A method's own function, as ``ropewalk.methods`` has it, has the name of its file.
    """
    if isinstance(function, partial):
        values = function.keywords.items()
        options = [f"{key}={function_name(of) if callable(of) else of}" for key, of in values]
        return ":".join(filter(None, (function_name(function.func), ",".join(options))))
    name = str(getattr(function, "__name__", type(function).__name__)).strip("<>")
    module = str(getattr(function, "__module__", None) or "__main__")
    return module.rpartition(".")[2] if name in METHOD and module != "__main__" else name


def names_code(kind: str, given: str | Callable[..., Any]) -> bool:
    """Return whether loading a plug-in would execute code that is not of the package."""
    if not isinstance(given, str):
        return True
    name, _, listed = given.strip().partition(":")
    if kind == "method" and name.endswith(".json"):
        return names_code(kind, load_method_file(name, listed)[0])
    if name not in names(kind):
        return True
    hints = hints_of(entry(module_of(kind, name)[0], kind))
    return any(
        hints.get(key) is CodeFolder
        or (names_method(hints.get(key)) and names_code("method", text.replace("+", ",")))
        for key, text in split_options(name, listed).items()
    )


def recorded_entry(text: str) -> str:
    """Return what a record holds of NAME:option=value,…, none of whose names has a folder."""
    name, colon, listed = text.partition(":")
    parts = (part.partition("=") for part in listed.split(","))
    options = ",".join(f"{key}{equals}{recorded(value)}" for key, equals, value in parts)
    return f"{recorded(name)}{colon}{options}"


# Modules: built-in by name, a user's by file, dotted name or entry point.


def module_of(kind: str, name: str) -> tuple[ModuleType, str | None]:
    """Return the module of a name, a file or a dotted name, and the hash of a user's file."""
    if kind in FOLDERS and name in names(kind):
        package = FOLDERS[kind].replace("/", ".")
        return importlib.import_module(f"ropewalk.{package}.{name}"), None
    check_name(kind, name)
    path, is_file = Path(name), name.endswith(".py")
    if is_file and not path.is_file():
        raise UserError(f"{kind} file {path} does not exist.")
    what = f"{kind} file {path}" if is_file else f"{kind} {name!r}"
    try:
        if not is_file:
            point = packaged(kind).get(name)
            module = importlib.import_module(point.value if point else name)
            return module, _digest(Path(module.__file__).read_bytes()) if module.__file__ else None
        # Not by importlib: its bytecode of a text edited within the same second looks current.
        source = path.read_bytes()
        digest = _digest(source)
        module = ModuleType(f"_ropewalk_{path.stem}_{digest}")
        module.__file__ = str(path.absolute())
        sys.modules[module.__name__] = module
        exec(compile(source, module.__file__, "exec"), vars(module))
        return module, digest
    except ImportError as error:
        raise UserError(f"{what} cannot be imported: {error}.") from None
    except UserError:
        raise
    except RAISED as error:
        raise UserError(f"{what} failed: {failure(error)}.") from error


def check_name(kind: str, name: str) -> None:
    """Raise UserError for a name that no plug-in has; a file or a module is not looked for."""
    is_module = "." in name and all(part.isidentifier() for part in name.split("."))
    every = all_names(kind) if kind in FOLDERS else []
    if is_module or name.endswith(".py") or name in every:
        return
    more = f"a task of lm-eval is lm_eval:tasks={reason(name)}; " if kind == "task" else ""
    meant, _, known = nearest(ROPE_TYPES.get(name, name), every).partition("known: ")
    raise UserError(
        f"no {kind} is called {reason(repr(name))}; {meant}{more}known: {known}, or a path to a "
        ".py file."
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# Contracts: what a module of each kind defines.


def check_contract(kind: str, name: str, module: ModuleType) -> None:
    """Raise UserError for a module without the functions and values of its kind."""
    one_of = kind == "method" and not any(hasattr(module, part) for part in METHOD)
    required = METHOD[1:] if one_of else CONTRACTS[kind]
    missing = ", ".join(part for part in required if not hasattr(module, part))
    if missing or not callable(entry(module, kind)):
        why = f"it does not define {missing}" if missing else "what it defines is not a function"
        raise UserError(f"{name} is not {article(kind)}: {why}.")
    if kind == "task" and not (isinstance(module.VERSION, int) and isinstance(module.METRIC, str)):
        raise UserError(f"{name} is not a task: VERSION must be a whole number and METRIC a text.")


def entry(module: ModuleType, kind: str) -> Callable[..., Any]:
    """Return the function of a plug-in that takes its options."""
    named = METHOD if kind == "method" else CONTRACTS[kind][:1]
    function: Callable[..., Any] = next(getattr(module, n) for n in named if hasattr(module, n))
    return function


# Options: the keyword-only parameters.


def parameters(module: ModuleType, kind: str) -> dict[str, inspect.Parameter]:
    """Return the options of a plug-in: its function's keyword-only parameters, less the seed."""
    signature = inspect.signature(entry(module, kind))
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "seed"
    }


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters, or of a class's."""
    hinted: Any = function.__init__ if inspect.isclass(function) else function
    return typing.get_type_hints(hinted, include_extras=True)


def names_method(hint: Any) -> bool:
    """Return whether an option's annotation is that of a method (``scaling/types.py``)."""
    return typing.get_origin(hint) is Callable


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


def typed(what: str, key: str, text: str, hint: Any) -> Any:
    """Return an option's text as its annotation wants it; raise UserError in pydantic's words."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise UserError(f"{what}: {key}={text} should be {expected}.") from None


def _read_options(
    name: str, module: ModuleType, kind: str, given: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any], list[str | None]]:
    """Return every option's value as recorded and as passed, defaults filled in.

    They differ for an option that names a method: its text, and its function with the method's own
    options; the third value holds the digests of the users' files so named. Raises UserError for
    an option that is unknown, missing, or of another type, and for a value that no record can hold.
    """
    known = parameters(module, kind)
    for key in given.keys() - known.keys():
        inner = " In a name inside an option, write + for a comma."
        hint = inner if any(":" in text for text in given.values()) else ""
        raise UserError(f"{name} has no option {key!r}; {nearest(key, known)}.{hint}")
    hints = hints_of(entry(module, kind)) if given else {}
    options: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    digests = []
    for key, parameter in known.items():
        default, hint = parameter.default, hints.get(key, str)
        if key not in given:
            if default is inspect.Parameter.empty:
                raise UserError(f"{name} needs the option {key!r}: write {name}:{key}=…")
            arguments[key] = default
            options[key] = function_name(default) if callable(default) else default
        elif names_method(hint):
            method = load("method", given[key].replace("+", ","))  # in a name, + is a comma
            options[key] = given[key]
            arguments[key] = partial(entry(method.module, "method"), **method.arguments)
            digests.append(method.digest)
        else:
            arguments[key] = options[key] = typed(name, key, given[key], hint)
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError):
        raise UserError(
            f"{name}: options must be finite numbers, words or None for the record: {arguments}."
        ) from None
    return options, arguments, digests


def load_method_file(name: str, options: str = "") -> tuple[str, dict[str, str]]:
    """Return the method that a file names, and options beside those it has there.

    A file with LongRoPE's two lists is ``longrope`` with these factors; so is one with ``layers``,
    a list of such tables. Its path is a separate option, since it may contain a comma.

    Raises UserError for a file that has neither, and for options given behind it.
    """
    if options:
        raise UserError(f"method file {name} has its options in it; leave out {options!r}.")
    with foreign(f"method file {name} cannot be read as JSON"):
        table: Any = json.loads(Path(name).read_bytes())
    named = table.get("scaling") if isinstance(table, dict) else None
    if isinstance(named, str) and not named.endswith(".json"):
        return named, {}
    factors = {"short_factor", "long_factor"}
    if isinstance(table, dict) and ("layers" in table or factors <= table.keys()):
        return "longrope", {"factors": str(Path(name))}
    raise UserError(
        f'method file {name} names no method: it needs "scaling", as ropewalk tune writes it, or'
        " short_factor and long_factor, or layers, a list of such tables."
    )


# Calls of a user's code.


def call(what: str, function: Callable[[], T]) -> T:
    """Run a user's code; whatever it raises becomes one sentence.

    A ValueError is a plug-in's own sentence; any other error names the file and the line.
    """
    try:
        return function()
    except UserError:
        raise
    except ValueError as error:
        text = " ".join((str(error) or type(error).__name__).split())
        raise UserError(f"{what}: {text.removesuffix('.')}.") from error
    except RAISED as error:
        raise UserError(f"{what} failed: {failure(error)}.") from error


def failure(error: BaseException) -> str:
    """Return an error in one line, with its file and line; Ctrl-C is raised again."""
    if type(error) is KeyboardInterrupt:
        raise error
    if isinstance(error, SyntaxError):  # raised where the file is read, not where it is wrong
        return f"SyntaxError: {error.msg} at {Path(str(error.filename)).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    # A record has the names of files, not their folders.
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + where
