"""Every command of the README runs as it stands there, on a model and documents made for it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from random import Random

import datasets
import pytest

from harness.cli.app import main
from harness.plugins import FOLDERS, catalogue
from harness.sweep.sweep_file import carried
from tests.conftest import WORDS
from tests.tiny import save_tiny

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_every_ropewalk_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder with the files the README names, each command ends with status 0."""
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "my-model", max_position_embeddings=400)
    texts = [" ".join(Random(seed).choices(WORDS, k=600)) for seed in range(2)]
    (tmp_path / "books").mkdir()
    for index, text in enumerate(texts):
        (tmp_path / "books" / f"{index}.txt").write_text(text, encoding="utf-8")
    datasets.Dataset.from_dict({"text": texts}).to_parquet(tmp_path / "my-dataset" / "a.parquet")
    (tmp_path / "mine.py").write_text(blocks("python")[0], encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("ropewalk")]
    assert len(commands) >= 7
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(command[1:])
        output = capsys.readouterr()
        assert ended.value.code == 0, f"{shlex.join(command)}\n{output.out}{output.err}"
    assert (tmp_path / "figures" / "curves.png").exists()


def test_the_other_commands_are_scripts_that_are_there() -> None:
    """What is no ropewalk command is one of the two scripts, and each can be executed."""
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    told = [line.split() for line in lines if line.strip()]
    others = [words[0] for words in told if words[0] != "ropewalk"]
    assert others == ["scripts/run", "scripts/test"]
    assert all((ROOT / script).stat().st_mode & 0o111 for script in others)


def test_the_catalogue_is_that_of_the_list_command() -> None:
    """The list of methods, tasks, reports and sweeps is up to date."""
    found = README.partition("<!-- list -->\n```\n")[2].partition("```\n<!-- /list -->")[0]
    wanted = []
    known = {kind: catalogue(kind) for kind in FOLDERS} | {"sweep": carried()}
    for kind, lines in known.items():
        width = max(map(len, lines))
        wanted += [f"{kind}s", *(f"  {name:<{width}}  {line}" for name, line in lines.items())]
    assert found.rstrip("\n") == "\n".join(wanted)


def test_every_linked_file_exists() -> None:
    """No link of the README leads nowhere."""
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
