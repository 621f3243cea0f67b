"""Every command of the documents runs, every list is current, every link leads somewhere."""

import re
import shlex
from pathlib import Path
from random import Random

import datasets
import pytest

from ropewalk.harness.cli import app, main
from ropewalk.harness.plugins import FOLDERS, catalogue
from ropewalk.harness.runs.store import read_run, runs_in
from ropewalk.harness.sweep.spec import bundled
from tests import ROOT
from tests.conftest import WORDS
from tests.tiny import save_tiny

README = (ROOT / "README.md").read_text(encoding="utf-8")
LISTS = {
    "scaling": ("method",),
    "tasks": ("task",),
    "harness": ("report", "engine", "sweep"),
}
LISTS["harness/encodings"] = ("encoding",)
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob(".github/*.md"),
    *ROOT.glob("docs/**/*.md"),
    *(path for room in ("scaling", "tasks", "harness") for path in (ROOT / room).rglob("*.md")),
    *(ROOT / "results" / name for name in ("README.md", "families.md", "benchmarks/README.md")),
]
PAGES = [
    ROOT / "README.md",
    ROOT / ".github/CONTRIBUTING.md",
    *ROOT.glob("docs/tutorials/*.md"),
    *ROOT.glob("docs/how-to/*.md"),
]
UNREAD = {"recommend", "tune", "sweep.yaml", "pi_paper"}
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Return the ropewalk commands of a page, each as its words."""
    lines = "\n".join(blocks("bash", page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in lines.splitlines()]
    return [line for line in words if line[:1] == ["ropewalk"]]


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the model and the documents that the README names."""
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "my-model", num_hidden_layers=1, max_position_embeddings=256)
    texts = [" ".join(Random(seed).choices(WORDS, k=300)) for seed in range(2)]
    (tmp_path / "books").mkdir()
    for index, text in enumerate(texts):
        (tmp_path / "books" / f"{index}.txt").write_text(text, encoding="utf-8")
    datasets.Dataset.from_dict({"text": texts}).to_parquet(tmp_path / "my-dataset" / "a.parquet")
    return tmp_path


@pytest.mark.slow
def test_the_python_of_the_readme_runs(place):
    names: dict[str, object] = {}
    exec(compile(blocks("python")[0], "README.md", "exec"), names)
    assert "yarn" in next((place / "results").rglob("run.json")).read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_ropewalk_command_runs(place, capsys):
    """Each command of the README and of a tutorial ends with status 0.

    What no later command reads is planned and not measured: that it is, other tests see.
    """
    own = ROOT / "docs/tutorials/own-method.md"
    (place / "mine.py").write_text(blocks("python", own.read_text("utf-8"))[0], encoding="utf-8")
    written = [*commands(ROOT / "README.md"), *commands(own)]
    assert len(written) >= 7
    for command in written:
        if UNREAD & {*command[1:3]} and "--dry-run" not in command:
            command.append("--dry-run")
        with pytest.raises(SystemExit) as ended:
            main(command[1:])
        output = capsys.readouterr()
        assert ended.value.code == 0, f"{shlex.join(command)}\n{output.out}{output.err}"
    assert (place / "results/my-model/samples.jsonl").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_is_understood(page):
    for command in commands(page):
        app.parse_args(command[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("room", LISTS)
def test_the_catalogue_is_that_of_the_list_command(room):
    text = (ROOT / room / "README.md").read_text(encoding="utf-8")
    written = text.partition("<!-- list -->\n```\n")[2].partition("```\n<!-- /list -->")[0]
    wanted = []
    for kind in LISTS[room]:
        lines = catalogue(kind) if kind in FOLDERS else bundled()
        width = max(map(len, lines))
        wanted += [f"{kind}s", *(f"  {name:<{width}}  {line}" for name, line in lines.items())]
    assert written.rstrip("\n") == "\n".join(wanted)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document):
    wrong = []
    for name, heading in LINK.findall(document.read_text(encoding="utf-8")):
        target = document.parent / name if name else document
        if not target.exists() or (heading and heading not in anchors(target)):
            wrong.append((name, heading))
    assert wrong == []


def test_committed_records_name_no_folder_of_the_machine_that_measured():
    places = [ROOT / "results" / "reference", *ROOT.glob("results/*/*.parquet")]
    records = [read_run(run) for run in runs_in(places)]
    assert len(records) > 100
    names = ("model", "docs", "out")
    given = [record["asked"].get(name) for record in records for name in names]
    assert not [path for path in given if path and Path(path).is_absolute()]
