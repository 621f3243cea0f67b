"""RULER's questions on paragraphs: its own text, both forms of data, exact lengths, any answer."""

import json
import re
from itertools import groupby, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ropewalk.tasks import Generate, Generated, qa, ruler
from ropewalk.tasks._prompt import around, continued
from ropewalk.tasks.qa import END, listed, others, read

RULER: dict[str, Any] = json.loads((Path(__file__).parent / "ruler_texts.json").read_text())
NUMBERED = re.compile(r"Document \d+:\n")
BOTH = pytest.mark.parametrize("name", ["qa_1", "qa_2"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return files of both forms, as their authors publish them."""
    folder = tmp_path_factory.mktemp("qa")
    for name in ("qa_1", "qa_2"):
        (folder / f"{name}.json").write_text(json.dumps(RULER[name]["data"]))
    return {name: str(folder / f"{name}.json") for name in ("qa_1", "qa_2")}


@BOTH
def test_the_text_is_rulers(source, files, name):
    """To the letter, of the same paragraphs in the same order; and the question's own answers."""
    text, data = RULER[name]["text"], read(files[name])
    context = text.removeprefix(qa.BEFORE).partition(qa.TOLD)[0]
    paragraphs = [part.removesuffix(END) for part in NUMBERED.split(context)[1:]]
    query = re.findall(r"Question: (.*) Answer:$", text)[0]
    one = next(asked for asked in data.questions if asked.query == query)
    made = listed(lambda part: continued(source, part), paragraphs)
    frame = around(source, qa.BEFORE, qa.AFTER.format(query=query), qa.REPLY)
    assert source.decode([*frame.head[1:], *made, *frame.tail]) == text
    assert [*one.answers] == [*dict.fromkeys(RULER[name]["answers"])]
    assert {*one.paragraphs, *one.article} <= set(paragraphs) <= set(data.paragraphs)


def test_questions_without_an_answer_are_left_out(files):
    data = read(files["qa_1"])
    assert len(data.questions) == 15
    assert "Who wove the first rope?" not in {one.query for one in data.questions}
    texts = (*data.questions[0].paragraphs, *data.questions[0].article)
    assert [text.split()[0] for text in texts] == ["A", "Hemp,", "Tar"]
    assert list(data.paragraphs) == sorted(set(data.paragraphs))


@pytest.mark.parametrize("answer", [None, "", " "])
def test_a_test_set_has_no_question_to_ask(answer, tmp_path):
    """Nothing is in every text, so that all would be found; and None is no answer "none"."""
    row = {"question": "Who?", "answer": answer, "context": [["Title", ["A man. ", "A sea."]]]}
    article = [{"context": "A man.", "qas": [{"question": "Who?", "answers": [{"text": answer}]}]}]
    for found in ([row], {"data": [{"paragraphs": article}]}):
        (tmp_path / "data.json").write_text(json.dumps(found))
        with pytest.raises(ValueError, match="no question with an answer"):
            read(str(tmp_path / "data.json"))


def test_other_paragraphs_are_those_of_the_article_first(files):
    """Then all others, each once; then all again, as where RULER's paragraphs run out."""
    data = read(files["qa_1"])
    one = data.questions[0]
    found = list(islice(others(data, one, Random(0)), 2 * len(data.paragraphs)))
    assert set(found[:2]) == set(one.article)
    assert {*found[: len(data.paragraphs) - 1], *one.paragraphs} == set(data.paragraphs)
    assert found[len(data.paragraphs) - 1 :] == [*data.paragraphs, data.paragraphs[0]]


def test_other_answers_are_another_question(source, files, tmp_path):
    other = tmp_path / "qa_2.json"
    data = [{**row, "answer": "none of these"} for row in RULER["qa_2"]["data"]]
    other.write_text(json.dumps(data))
    one, two = (
        next(qa.ask(source, [3000], data=data, trials=1)) for data in (files["qa_2"], str(other))
    )
    assert one.tokens == two.tokens
    assert one.digest != two.digest


def rows(name: str) -> list[dict[str, Any]]:
    """Return the data as the rows of the hub's sets have them."""
    data = RULER[name]["data"]
    if name == "qa_2":
        return [
            {
                "question": row["question"], "answer": row["answer"],
                "context": {
                    "title": [title for title, _ in row["context"]],
                    "sentences": [sentences for _, sentences in row["context"]],
                },
            }
            for row in data
        ]  # fmt: skip
    return [
        {
            "title": article["title"], "context": part["context"], "question": asked["question"],
            "answers": {"text": [one["text"] for one in asked["answers"]]},
        }
        for article in data["data"]
        for part in article["paragraphs"]
        for asked in part["qas"]
    ]  # fmt: skip


@BOTH
def test_a_data_set_is_read_as_its_file(files, name, tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "folder"
    folder.mkdir()
    lines = [json.dumps(row) for row in rows(name)]
    (folder / "validation.jsonl").write_text("\n".join(lines))
    datasets.Dataset.from_list(rows(name)).save_to_disk(tmp_path / "saved")
    for given in (f"{folder}", f"{folder}:split=validation", f"{tmp_path}/saved"):
        assert read(given) == read(files[name])


@pytest.mark.slow
@BOTH
def test_every_prompt_is_exact_and_shared(source, files, name):
    data = read(files[name])
    for seed in range(3):
        asked = list(qa.ask(source, range(900, 960, 7), seed=seed, data=files[name], trials=3))
        for one in asked:
            assert len(one.tokens) + 32 == one.length
            text = source.decode(one.tokens[1:])
            known = next(q for q in data.questions if q.query == one.metadata["query"])
            whole = [part.removesuffix(END) for part in NUMBERED.split(text)[1:-1]]
            assert {*known.paragraphs} <= set(whole) <= set(data.paragraphs)
            assert text.endswith(f"\n\n{qa.AFTER.format(query=known.query)}{qa.REPLY}")
        queries = [{q.metadata["query"] for q in g} for _, g in groupby(asked, lambda q: q.length)]
        assert all(len(some) == 3 and some == queries[0] for some in queries)


@pytest.mark.parametrize(
    ("said", "value"), [("It is A Sheet Bend.", 1.0), ("hemp, tar", 1.0), ("Hemp", 0.0)]
)
def test_any_answer_counts(source, said, value):
    """Case aside, as RULER's string_match_part; a comma divides nothing."""
    asked = Generate(
        [1] * 3, 10, doc_id="q", metadata={"query": "?", "answer": "Hemp, tar\nsheet bend"}
    )
    for task in (qa, ruler):
        assert task.grade(asked, Generated(said, (5,), (0.1,)), source).value == value


@pytest.mark.slow
def test_ruler_has_thirteen_parts_with_the_data(source, files):
    """Eleven without, and any of the two that is given; the record says what was read."""
    given = {"squad": files["qa_1"], "hotpotqa": files["qa_2"]}
    parts = [q.metadata["part"] for q in ruler.ask(source, [3500], trials=2, **given)]
    assert [parts.count(part) for part in {*parts}] == [2] * 13
    assert ruler.about([], trials=2, **given)["qa_1"]["questions"] == 15
    parts = [q.metadata["part"] for q in ruler.ask(source, [3500], trials=1, squad=files["qa_1"])]
    assert (len(parts), parts[-1]) == (12, "qa_1")


def test_what_cannot_be_asked_is_refused(source, tmp_path):
    (tmp_path / "other.json").write_text('[{"text": "a"}]')
    for data, told in (
        ("", "data=FILE.json"), ("absent.json", "absent.json cannot be read"),
        (str(tmp_path / "other.json"), "cannot be read as SQuAD"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            list(qa.ask(source, [1000], data=data))
