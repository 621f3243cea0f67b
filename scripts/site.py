"""The documentation site: the files of the repository at their own paths, and generated pages.

mkdocs calls this file. Links are those of the repository, and work in both places.
``python -m scripts.site`` prints ``scaling/methods.md`` anew, from the methods' files and from what
they return at one geometry.
"""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pandas as pd
from tabulate import tabulate
from transformers import LlamaConfig

import ropewalk
from ropewalk.harness.cli import app
from ropewalk.harness.commands.list import describe
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.config import rope_of
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import FOLDERS, METHOD, catalogue, load, names
from ropewalk.harness.reports._text import markdown
from ropewalk.harness.serve._export import choose
from ropewalk.harness.serve._parameters import Target
from ropewalk.harness.sweep.spec import bundled
from ropewalk.scaling.types import Bands, Rotation

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

logging.getLogger("transformers").setLevel(logging.ERROR)  # keys that it does not know
ROOT = Path(__file__).resolve().parent.parent
KINDS = ("task", "report", "engine", "encoding", "sweep")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Publish the generated pages and every file of the repository, at its path there."""
    from mkdocs.structure.files import File, Files

    published = {file.src_uri: file for file in files if file.src_dir != config.docs_dir}
    for path in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if (ROOT / path).is_file():
            file = File.generated(config, path, abs_src_path=str(ROOT / path))
            if path.endswith((".py", ".yaml")):
                file.dest_uri += ".txt"  # which a browser shows
            published[path] = file
    for path, text in generated().items():
        published[path] = File.generated(config, path, content=text)
    return Files([*published.values()])


def generated() -> dict[str, str]:
    """Return the text of every generated page, by its path."""
    commands = app.generate_docs(output_format="markdown", heading_level=1)
    commands = commands.replace("(#ropewalk-install", "(#ropewalk---install")  # as it is linked to
    wide = "---\nhide: [toc]\n---\n"
    options = [_described("method", name) for name in catalogue("method")]
    pages = {
        "docs/reference/cli.md": commands.replace("# ropewalk\n", "# Command line\n", 1),
        "docs/reference/python.md": python(),
        "scaling/methods.md": "\n\n".join((wide + methods(), *options)),
        "scripts/first_steps.md": notebook(ROOT / "scripts/first_steps.ipynb"),
    }
    for kind in KINDS:
        lines = catalogue(kind) if kind in FOLDERS else bundled()
        parts = [f"# {kind.capitalize()}s", *(_described(kind, name) for name in lines)]
        pages[f"docs/reference/{kind}s.md"] = "\n\n".join(parts)
    return pages


def _described(kind: str, name: str) -> str:
    one = next(one for one in describe(name) if one.kind == kind)
    parts = [f"```yaml\n{one.text}\n```" if kind == "sweep" else one.text.replace("<", "&lt;")]
    if one.options:
        rows = [(f"`{option}`", *rest) for option, *rest in one.options]
        heads = ("option", "values", "default", "searched by tune")
        parts.append(tabulate(rows, heads, "github", disable_numparse=True))
    return "\n\n".join((f"## {name}", *parts, f"```text\n{one.example}\n```"))


def python() -> str:
    """Return the page of the Python API: every name of ``ropewalk``, from its docstring."""
    parts = [
        "# Python",
        "::: ropewalk\n    options:\n      members: []\n      show_root_heading: false",
        "::: ropewalk.harness.commands.contracts.check_method",
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
ENGINES = ("transformers", "vllm", "sglang", "gguf", "mlx")
# The shape of SmolLM2-135M, of which a file of ranked heads is committed.
HEADS = ROOT / "results" / "smollm2" / "heads.json"
CONFIG = LlamaConfig(
    hidden_size=576, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=30,
    max_position_embeddings=WINDOW,
)  # fmt: skip
FACTORS = {"short_factor": [1.0] * 32, "long_factor": [2.0 + pair / 32 for pair in range(32)]}
NEEDED = {"logit_scale": "scale=1.5", "ms_poe": f"heads={HEADS}"}  # options without a default
CALIBRATION = {
    "critical_band": "start and end", "dpe": "group sizes; optionally heads",
    "lampe": "span, for other models than the authors'", "longrope": "needed: factors",
    "ms_poe": "needed: heads",
}  # fmt: skip
DIFFERENCES, OUT_OF_SCOPE = (
    "\n\n## Where a method differs from its paper or its authors' code\n\n",
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
    plain, rows = rope_of(CONFIG), []
    unchanged = resolve(load("method", "none"), plain, WINDOW).fingerprint
    for name, line in catalogue("method").items():
        method = load("method", f"{name}:{NEEDED[name]}" if name in NEEDED else name)
        rope = replace(plain, shipped=FACTORS) if name == "longrope" else plain
        far, near = (resolve(method, rope, length) for length in (4 * WINDOW, WINDOW))
        usual = "made for training" if hasattr(method.module, "TRAINING") else "none"
        rows.append(
            {
                "method": name,
                "what it is": line,
                "changes": _changes(far),
                "inside the window": "unchanged" if near.fingerprint == unchanged else "changed",
                "calibration": CALIBRATION.get(name, usual),
                "served by": _served(Target(method, 4 * WINDOW, rope, far, "model", CONFIG)),
                "authors' code": getattr(method.module, "CODE", "–"),
            }
        )
    return pd.DataFrame(rows)


def _changes(rotation: Rotation) -> str:
    if rotation.per_layer:
        return "frequencies of each layer"
    what = "" if (scaled := rotation.last.logit_scale != 1) else "frequencies"
    logits = scaled or rotation.last.attention_factor != 1
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


def _served(target: Target) -> str:
    """Return the engines that express a method at four windows from their config."""
    if target.rotation.needs_code or target.rotation.stateful:
        return "hf-code"
    served = []
    for engine in ENGINES:
        with suppress(UserError):
            choose(target, load("engine", engine))
            served.append(engine)
    return "all" if len(served) == len(ENGINES) else ", ".join(served) or "–"


if __name__ == "__main__":
    print(methods(), end="")
