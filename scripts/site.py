"""Build hook of the documentation site: pages kept elsewhere, generated pages, and links.

Pages keep the links of the repository, so that they work where the files are read on their own.
Here a link to a file that has a page becomes one to the page, and any other file of the repository
that is linked to is copied into the site.
"""

from __future__ import annotations

import json
import logging
import math
import posixpath
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from methods_table import Entry, entries, method_table
from methods_table import page as method_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from harness.api.describe import Description, describe
from harness.cli import COMMANDS, EXAMPLES, USAGE
from harness.cli.app import app
from harness.cli.plain import document
from harness.plugins import FOLDERS, catalogue
from harness.sweep.spec import bundled
from ropewalk import HOMES
from scaling.types import Bands

logging.getLogger("transformers").setLevel(logging.ERROR)  # keys that it does not know
ROOT = Path(__file__).resolve().parent.parent
# The pages whose text is a file elsewhere in the repository.
PAGES = {
    "index.md": "README.md",
    "reference/serving.md": "harness/serve/README.md",
    "reference/method-contract.md": "scaling/README.md",
    "reference/task-contract.md": "tasks/README.md",
    "reference/encoding-contract.md": "harness/encodings/README.md",
    "reference/run-folder.md": "results/README.md",
    "reference/families.md": "results/families.md",
    "reference/reference-model.md": "harness/models/reference/README.md",
    "explanation/derivation.md": "scaling/derivation.md",
    "explanation/architecture.md": "harness/README.md",
    "explanation/security.md": ".github/SECURITY.md",
    "studies/smollm2.md": "results/smollm2/README.md",
    "studies/encodings.md": "results/encodings/README.md",
    "studies/statistics.md": "results/statistics.md",
    "studies/races.md": "results/races.md",
    "studies/benchmarks.md": "results/benchmarks/README.md",
    "project/contributing.md": ".github/CONTRIBUTING.md",
    "project/tests.md": "tests/README.md",
    "project/changelog.md": "CHANGELOG.md",
}
KINDS = {
    "task": "tasks",
    "report": "reports",
    "engine": "engines",
    "tracker": "trackers",
    "encoding": "encodings",
    "sweep": "sweeps",
}
SOURCES = {source: page for page, source in PAGES.items()} | {
    "scaling/methods.md": "reference/methods/index.md",
    "scripts/first_steps.ipynb": "tutorials/notebook.md",
}
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^ *```.*?^ *```)", flags=re.DOTALL | re.MULTILINE)
copied: set[str] = set()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the page of every method below the table of all."""
    pages = [{name: f"reference/methods/{name}.md"} for name in catalogue("method")]
    for section in config.nav or []:
        for entry in section.get("Reference", []):
            if "Methods" in entry:
                entry["Methods"] = [entry["Methods"], *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages kept elsewhere, the generated pages, and the files that pages link to."""
    texts = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in PAGES.items()}
    texts |= generated()
    for path, text in texts.items():
        files.append(File.generated(config, path, content=text))
    for file in list(files.documentation_pages()):
        for target in re.findall(LINK, _prose(file.content_string)):
            linked = _linked(file.src_uri, target[1])
            if linked in SOURCES or linked.startswith("docs/") or not (ROOT / linked).is_file():
                continue
            if linked not in copied:
                copied.add(linked)
                content = (ROOT / linked).read_bytes()
                files.append(File.generated(config, _copy(linked), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links into the repository into links within the site."""

    def to_site(found: re.Match[str]) -> str:
        linked = _linked(page.file.src_uri, found[2])
        if linked in SOURCES:
            target = SOURCES[linked]
        elif linked in copied:
            target = _copy(linked)
        elif linked.startswith("docs/"):
            target = linked.removeprefix("docs/")
        else:
            return found[0]  # mkdocs says what is wrong with it
        relative = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found[1]}{relative}{found[3] or ''}{found[4]}"

    parts = FENCE.split(markdown)
    return "".join(
        part if index % 2 else LINK.sub(to_site, part) for index, part in enumerate(parts)
    )


def _prose(text: str) -> str:
    return "".join(FENCE.split(text)[::2])


def _linked(page: str, target: str) -> str:
    """Return the path in the repository that a page's link names; for a folder, its README."""
    source = PAGES.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return posixpath.join(path, "README.md") if (ROOT / path).is_dir() else path


def _copy(path: str) -> str:
    """Return where the site has a file of the repository; text is shown unchanged."""
    shown = f"{path}.txt" if path.endswith((".md", ".py", ".yaml")) else path
    return f"files/{shown.lstrip('.')}"


def generated() -> dict[str, str]:
    """Return the text of every generated page, by its path."""
    pages = {
        "reference/cli.md": command_line(),
        "reference/json-schema.md": json_schema(),
        "reference/python.md": python(),
        "reference/methods/index.md": methods(),
        "tutorials/notebook.md": notebook(ROOT / "scripts/first_steps.ipynb"),
    }
    pages |= {f"reference/methods/{name}.md": method(one) for name, one in every_method().items()}
    return pages | {f"reference/{plural}.md": plugins(kind) for kind, plural in KINDS.items()}


def command_line() -> str:
    """Return the page of all commands, from the functions that define them."""
    text = app.generate_docs(output_format="markdown", heading_level=1)
    text = re.sub(r"## Table of Contents.*?(?=\*\*Commands)", "", text, flags=re.DOTALL)
    for name in COMMANDS:
        line = f"ropewalk {name} {USAGE[name]}\n"
        example = f"\n# for example\n{EXAMPLES[name]}\n"
        text = text.replace(line.replace(name, f"{name} {name}", 1), line + example)
    return text.replace("# ropewalk\n", "# Command line\n", 1)


def json_schema() -> str:
    """Return the page of the JSON schema of every command, from the types of the results."""
    parts = ["# JSON schema", "What [`--json`](json.md) prints, one schema per command."]
    for name in COMMANDS:
        schema = json.dumps(document(name), indent=2)
        parts.append(f"## {name}\n\n```json\n{schema}\n```")
    return "\n\n".join(parts)


def methods() -> str:
    """Return the table of all methods, each with a link to its page."""
    table = re.sub(r"^\| (\w+)( +)\|", r"| [\1](\1.md)\2|", method_page(), flags=re.MULTILINE)
    return "---\nhide: [toc]\n---\n" + table.replace("| [method](method.md)", "| method")


def method(one: Entry) -> str:
    """Return the page of a method: what it is, its figure, and its options."""
    row = method_table_rows()[one.name]
    facts = "".join(f"| {key} | {value} |\n" for key, value in row.items() if key != "method")
    return "\n\n".join(
        (
            _described(describe_only("method", one.name), level=1),
            f"| | |\n|---|---|\n{facts}",
            figure(one),
        )
    )


@cache
def method_table_rows() -> dict[str, dict[str, str]]:
    """Return the row of every method in the table of all."""
    return {str(row["method"]): row for row in method_table().to_dict("records")}  # type: ignore[misc]


def describe_only(kind: str, name: str) -> Description:
    """Return the description of a plug-in of one kind; ``none`` is a method and an encoding."""
    return next(one for one in describe(name) if one.kind == kind)


def plugins(kind: str) -> str:
    """Return the page of all plug-ins of a kind."""
    lines = catalogue(kind) if kind in FOLDERS else bundled()
    parts = [_described(describe_only(kind, name), level=2) for name in lines]
    return "\n\n".join((f"# {KINDS[kind].capitalize()}", *parts))


def _described(one: Description, level: int) -> str:
    text = f"```yaml\n{one.text}\n```" if one.kind == "sweep" else _definitions(one.text)
    parts = [f"{'#' * level} {one.name}", text]
    if one.options:
        searched = any(option.searched for option in one.options)
        titles = ["option", "values", "default", *["searched by tune"] * searched]
        rows = [titles, ["---"] * len(titles)]
        rows += [[f"`{o.name}`", o.type, o.default, *[o.searched] * searched] for o in one.options]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join((*parts, f"```text\n{one.example}\n```"))


def _definitions(text: str) -> str:
    """Return a docstring as Markdown: what it indents is code."""
    return text.replace("<", "&lt;")


def figure(one: Entry) -> str:
    """Return what a method does at four trained windows, as a small drawing."""
    if isinstance(one.far, Bands) and not all(band.unmoved for band in one.far.bands):
        return _positions(one.far)
    ratio = one.far.farthest.inv_freq.double() / inv_freq_unscaled()
    top = max(1.0, float(ratio.max()))
    caption = (
        "Frequency of each channel pair relative to the unscaled one, at 16,384 tokens for a window"
        f" of 4,096. Left: the fastest pair. Vertical axis: 0 to {top:.3g}."
    )
    steps = [index / (len(ratio) - 1) for index in range(len(ratio))]
    return _drawing(list(zip(steps, (ratio / top).tolist(), strict=True)), caption)


@cache
def every_method() -> dict[str, Entry]:
    """Return what every method returns at one geometry, by name."""
    return {one.name: one for one in entries()}


def inv_freq_unscaled() -> torch.Tensor:
    """Return the frequencies without any method."""
    return every_method()["none"].far.last.inv_freq.double()


def _positions(bands: Bands) -> str:
    relative = bands.relative(bands.length - 1).flip(0)[:: bands.length // 256]
    top = float(relative.nan_to_num().max())
    caption = (
        "Relative position of each key to the last of 16,384 tokens, for a window of 4,096. Left:"
        f" the nearest key. Vertical axis: 0 to {top:,.0f} tokens. A gap: keys not attended to."
    )
    steps = [index / (len(relative) - 1) for index in range(len(relative))]
    return _drawing(list(zip(steps, (relative / top).tolist(), strict=True)), caption)


def _drawing(points: list[tuple[float, float]], caption: str) -> str:
    width, height = 560, 160
    line, pen = "", "M"
    for x, y in points:
        if math.isnan(y):
            pen = "M"
            continue
        line += f"{pen}{10 + x * (width - 20):.1f},{height - 10 - y * (height - 20):.1f}"
        pen = "L"
    return (
        '<figure class="ropewalk-figure" markdown="0">'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{caption}">'
        f'<path d="M10 10V{height - 10}H{width - 10}" fill="none" stroke="currentColor"'
        f' opacity=".4"/><path d="{line}" fill="none" stroke="#5c6bc0" stroke-width="2.5"/></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def python() -> str:
    """Return the page of the Python API: every name of ``ropewalk``, from its docstring."""
    parts = [
        "# Python",
        "::: ropewalk\n    options:\n      members: []\n      show_root_heading: false",
    ]
    parts += [f"::: {_defined(home, name)}" for name, home in HOMES.items() if name != "methods"]
    return "\n\n".join(parts)


def _defined(home: str, name: str) -> str:
    """Return the dotted name where an object is defined, which is read without an import."""
    module = getattr(getattr(import_module(home), name), "__module__", home)
    if module.partition(".")[0] not in ("harness", "scaling", "tasks"):  # of an alias of types
        module = f"{home}.types"
    return f"{module}.{name}"


def notebook(path: Path) -> str:
    """Return a notebook as a page: its texts, its code, and the outputs it was saved with."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(part for part in parts if part)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return (
            f'<img alt="figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        )
    if "text/html" in data:
        return f'<div markdown="0">{"".join(data["text/html"])}</div>'
    text = "".join(data.get("text/plain", output.get("text", "")))
    return f"```text\n{text}\n```" if text.strip() else ""
