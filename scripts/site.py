"""The documentation site: pages kept elsewhere, generated pages, and the links between them.

mkdocs calls this file. Pages keep the links of the repository, so that they work where the files
are read on their own; here a link to a file that has a page leads to the page, and any other file
that is linked to is copied into the site. ``python -m scripts.site`` prints ``scaling/methods.md``
anew, from the methods' files and from what they return at one geometry.
"""

from __future__ import annotations

import inspect
import json
import logging
import posixpath
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

import pandas as pd
import torch
from transformers import LlamaConfig

import ropewalk
from ropewalk.harness.cli import app
from ropewalk.harness.commands.list import Description, describe
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import FOLDERS, METHOD, Plugin, catalogue, load, names, parameters
from ropewalk.harness.reports._text import markdown
from ropewalk.harness.serve._export import choose
from ropewalk.harness.serve._parameters import Target
from ropewalk.harness.sweep.spec import bundled
from ropewalk.scaling.types import Bands, Rotation

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

logging.getLogger("transformers").setLevel(logging.ERROR)  # keys that it does not know
ROOT = Path(__file__).resolve().parent.parent
PAGES = {  # whose text is a file elsewhere in the repository
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
    "studies/smollm2-details.md": "results/smollm2/details.md",
    "studies/encodings.md": "results/encodings/README.md",
    "studies/encodings-details.md": "results/encodings/details.md",
    "studies/statistics.md": "results/statistics.md",
    "studies/races.md": "results/races.md",
    "studies/benchmarks.md": "results/benchmarks/README.md",
    "project/contributing.md": ".github/CONTRIBUTING.md",
    "project/tests.md": "tests/README.md",
    "project/changelog.md": "CHANGELOG.md",
}
SOURCES = {source: page for page, source in PAGES.items()} | {
    "scaling/methods.md": "reference/methods.md",
    "scripts/first_steps.ipynb": "tutorials/notebook.md",
}
KINDS = ("task", "report", "engine", "encoding", "sweep")
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^ *```.*?^ *```)", flags=re.DOTALL | re.MULTILINE)
copied: set[str] = set()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages kept elsewhere, the generated pages, and the files that pages link to."""
    from mkdocs.structure.files import File

    texts = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in PAGES.items()}
    for path, text in (texts | generated()).items():
        files.append(File.generated(config, path, content=text))
    for file in list(files.documentation_pages()):
        for target in re.findall(LINK, "".join(FENCE.split(file.content_string)[::2])):
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
    parts[::2] = [LINK.sub(to_site, part) for part in parts[::2]]
    return "".join(parts)


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
    commands = app.generate_docs(output_format="markdown", heading_level=1)
    wide = "---\nhide: [toc]\n---\n"
    options = [_described("method", name, level=2) for name in catalogue("method")]
    pages = {
        "reference/cli.md": commands.replace("# ropewalk\n", "# Command line\n", 1),
        "reference/python.md": python(),
        "reference/methods.md": "\n\n".join((wide + methods(), *options)),
        "tutorials/notebook.md": notebook(ROOT / "scripts/first_steps.ipynb"),
    }
    for kind in KINDS:
        lines = catalogue(kind) if kind in FOLDERS else bundled()
        parts = [f"# {kind.capitalize()}s", *(_described(kind, name, level=2) for name in lines)]
        pages[f"reference/{kind}s.md"] = "\n\n".join(parts)
    return pages


def _described(kind: str, name: str, level: int) -> str:
    one: Description = next(one for one in describe(name) if one.kind == kind)
    text = f"```yaml\n{one.text}\n```" if kind == "sweep" else one.text.replace("<", "&lt;")
    parts = [f"{'#' * level} {name}", text]
    if one.options:
        parts.append("| option | values | default | searched by tune |\n|---|---|---|---|\n")
        parts[-1] += "\n".join(
            f"| `{name}` | {values} | {default} | {searched} |"
            for name, values, default, searched in one.options
        )
    return "\n\n".join((*parts, f"```text\n{one.example}\n```"))


def python() -> str:
    """Return the page of the Python API: every name of ``ropewalk``, from its docstring."""
    parts = [
        "# Python",
        "::: ropewalk\n    options:\n      members: []\n      show_root_heading: false",
        "::: ropewalk.harness.commands.contracts.check_method",
        "::: ropewalk.harness.commands.contracts.check_encoding",
    ]
    for name in dir(ropewalk):
        value = getattr(ropewalk, name)
        if not isinstance(value, ModuleType):
            module = getattr(value, "__module__", "")  # an alias of types has none of ours
            home = module if module.startswith("ropewalk.") else "ropewalk.tasks.types"
            parts.append(f"::: {home}.{name}")
    return "\n\n".join(parts)


def notebook(path: Path) -> str:
    """Return a notebook as a page: its texts, its code, and the outputs it was saved with."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if image := "".join(data.get("image/png", ())).strip():
                parts.append(f'<img alt="figure" src="data:image/png;base64,{image}">')
            elif table := "".join(data.get("text/html", ())):
                parts.append(f'<div markdown="0">{table}</div>')
            elif text := "".join(data.get("text/plain", output.get("text", ""))).strip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts)


WINDOW = 4096
CONFIG = LlamaConfig(
    hidden_size=512, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=4,
    max_position_embeddings=WINDOW,
)  # fmt: skip
ENGINES = ("transformers", "vllm", "sglang", "gguf", "mlx")
DIFFERENCES, OUT_OF_SCOPE = (
    "\n## Where a method differs from its paper or its authors' code\n\n",
    "\n## Out of scope\n",
)


def methods() -> str:
    """Return ``scaling/methods.md`` with its table and its differences made anew."""
    text = (ROOT / "scaling/methods.md").read_text(encoding="utf-8")
    head, (_, *tail) = text.partition("| method")[0], text.partition(OUT_OF_SCOPE)
    lines = []
    for name in names("method"):
        module = load("method", name).module
        functions = [getattr(module, part, None) for part in METHOD]
        texts = [inspect.getdoc(one) or "" for one in functions if one is not None]
        paragraphs = [" ".join(part.split()) for part in "\n\n".join(texts).split("\n\n")]
        if found := [part for part in paragraphs if part.startswith("Differs ")]:
            lines.append(f"- `{name}`: {' '.join(found)}\n")
    return "".join((head, markdown(method_table()), DIFFERENCES, *lines, *tail))


def method_table() -> pd.DataFrame:
    """Return one row per method; the page explains the columns."""
    rope, rows = rope_of(CONFIG), []
    plain = resolve(load("method", "none"), rope, WINDOW).fingerprint
    with TemporaryDirectory() as folder:
        files = _files(Path(folder))
        for name in names("method"):
            method = load("method", f"{name}:{files[name]}" if name in files else name)
            far, near = (resolve(method, rope, length) for length in (4 * WINDOW, WINDOW))
            year, paper = _source(method.module)
            rows.append(
                {
                    "method": name,
                    "changes": _changes(far),
                    "inside the window": "unchanged" if near.fingerprint == plain else "changed",
                    "calibration": _calibration(method),
                    "served by": _served(method, far),
                    "year": year,
                    "paper": paper,
                    "authors' code": getattr(method.module, "CODE", "–"),
                }
            )
    return pd.DataFrame(rows)


def _files(folder: Path) -> dict[str, str]:
    """Write the files without which a method is an error; return the options that name them."""
    heads, pairs = CONFIG.num_attention_heads, CONFIG.hidden_size // CONFIG.num_attention_heads // 2
    ranks = torch.arange(CONFIG.num_hidden_layers * heads).reshape(-1, heads).double()
    lists = {"short_factor": [1.0] * pairs, "long_factor": [2.0 + i / pairs for i in range(pairs)]}
    (folder / "heads.json").write_text(json.dumps({"outlier_shares": ranks.tolist()}))
    (folder / "factors.json").write_text(json.dumps(lists))
    return {
        "logit_scale": "scale=1.5",
        "longrope": f"factors={folder / 'factors.json'}",
        "ms_poe": f"heads={folder / 'heads.json'}",
    }


def _changes(rotation: Rotation) -> str:
    what = "" if (scaled := rotation.last.logit_scale != 1) else "frequencies"
    logits = scaled or rotation.last.attention_factor != 1
    if rotation.per_layer:
        return "frequencies of each layer"
    if isinstance(rotation, Bands):
        logits = logits or rotation.query_scale is not None
        moved = not all(band.unmoved for band in rotation.bands)
        what = "positions" if moved else ""
        if rotation.by_head:
            what = "positions by head"
        elif any(band.column is not None for band in rotation.bands):
            what = "positions by channel"
        elif any(band.blended for band in rotation.bands):
            what = "positions, blended"
    return ", ".join(part for part in (what, "logits" * logits) if part)


def _calibration(method: Plugin) -> str:
    known = parameters(method.module, "method")
    if "heads" in known:
        return "needed: heads" if method.options["heads"] else "group sizes; optionally heads"
    if "factors" in known:
        return "needed: factors"
    if "span" in known:
        return "span, for other models than the authors'"
    if "start" in known:
        return "start and end"
    return "made for training" if hasattr(method.module, "TRAINING") else "none"


def _served(method: Plugin, far: Rotation) -> str:
    """Return the engines that express a method at four windows from their config."""
    if far.needs_code or far.stateful:
        return "hf-code"
    target = Target(method, 4 * WINDOW, rope_of(CONFIG), far, "model", CONFIG)
    served = []
    for engine in ENGINES:
        try:
            choose(target, load("engine", engine))
        except UserError:
            continue
        served.append(engine)
    return "all" if len(served) == len(ENGINES) else ", ".join(served) or "–"


def _source(module: ModuleType) -> tuple[str, str]:
    """Return the year and the paper in the first line of a method's file."""
    line = (module.__doc__ or "").partition("\n")[0]
    if found := re.search(r"(?:arXiv:)?\b(\d{2})(\d{2}\.\d{5})\b", line):
        return str(getattr(module, "YEAR", f"20{found[1]}")), f"arXiv:{found[1]}{found[2]}"
    named = re.search(r"\(([^()]*)\)\.$", line)
    return str(getattr(module, "YEAR", "–")), named[1] if named else "–"


if __name__ == "__main__":
    print(methods(), end="")
