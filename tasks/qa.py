"""RULER's questions on paragraphs, of SQuAD or HotpotQA, among other paragraphs (arXiv:2404.06654).

``data`` is a JSON file as its authors publish it, or a dataset. A text of ``new`` tokens counts if
any of the answers occurs in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import cycle, groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ropewalk.tasks._prompt import Chat, around, continued
from ropewalk.tasks._retrieval import answer_of, sample, score, shown
from ropewalk.tasks.types import Count, Fact, Generate, Generated, Request, Sample, TaskContext

__all__ = ["METRIC", "VERSION", "about", "ask", "grade", "score"]
VERSION = 1
METRIC = "accuracy"
EXAMPLE_OPTIONS = "data=rajpurkar/squad_v2"
TOLD = (
    "Answer the question based on the given documents."
    " Only give me the answer and do not output any other words.\n\n"
)
BEFORE = f"{TOLD}The following are given documents.\n\n"
AFTER = f"{TOLD}Question: {{query}}"
REPLY = " Answer:"
LINE = "\n"  # between answers in a record
END = "\n\n"  # of every paragraph
Written = Callable[[str], list[int]]  # the tokens of a text
SPLIT = "validation"  # RULER's: the development sets
KNOWN = "SQuAD's (context, question, answers) or HotpotQA's (context, question, answer)"


def ask(
    context: TaskContext,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    data: str = "",
    new: Count = 32,
    trials: Count = 25,
    chat: Chat = False,
) -> Iterator[Request]:
    """Yield ``trials`` prompts of every length, each of the exact length.

    Question, paragraphs and their order depend only on seed and trial. A longer prompt has more
    paragraphs, and the paragraph that was added last is cut. Raises ValueError if the paragraphs of
    a question do not fit, naming the least length.
    """
    if not data:
        raise ValueError(
            "no questions given; add data=FILE.json, or data=NAME:config=…+split=… of a data set"
        )
    known = read(data)
    if trials > len(known.questions):
        raise ValueError(f"{data} has {len(known.questions)} questions, fewer than trials={trials}")
    drawn = Random(f"{seed}/questions").sample(known.questions, trials)
    written = cache(lambda text: continued(context, text))
    for length in lengths:
        for trial, one in enumerate(drawn):
            after = AFTER.format(query=one.query)
            frame = around(context, BEFORE, after, REPLY, new=new, chat=chat)
            space = frame.room(length, len(listed(written, one.paragraphs)))
            more = others(known, one, Random(f"{seed}/{trial}/others"))
            tokens = filled(written, one, more, space, Random(f"{seed}/{trial}/order"))
            answer = LINE.join(one.answers)
            facts: dict[str, Fact] = {"trial": trial, "query": one.query, "answer": answer}
            request = frame.request(f"trial {trial}", tokens, facts)
            yield replace(request, graded_by=answer)  # which no prompt holds


def about(requests: Sequence[Request], *, data: str, **options: Any) -> Mapping[str, Any]:
    """Return what the record says of the data."""
    return {"data": read(data).facts}


def grade(request: Generate, response: Generated, context: TaskContext) -> Sample:
    """Score 1 when any of the answers occurs in the text, case aside."""
    text = answer_of(request, response)
    said = text.lower()
    hit = any(one.lower() in said for one in str(request.metadata["answer"]).split(LINE))
    return sample(request, hit, said=shown(text))


class Question(NamedTuple):
    """A question: the answers of which any counts, its paragraphs, and others of its article."""

    query: str
    answers: tuple[str, ...]
    paragraphs: tuple[str, ...]
    article: tuple[str, ...] = ()


class Data(NamedTuple):
    """The questions of a set in its order, and every paragraph once, sorted as RULER sorts them."""

    questions: tuple[Question, ...]
    paragraphs: tuple[str, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        digest = sha256(json.dumps(self).encode()).hexdigest()[:16]
        counts = {"questions": len(self.questions), "paragraphs": len(self.paragraphs)}
        return {**counts, "hash": digest}


def read(given: str) -> Data:
    """Return the data of a JSON file, or of ``NAME:config=…+split=…``: on the hub, or a folder.

    Raises ValueError for what cannot be read, and for data of another form.
    """
    name, _, listed = given.partition(":")
    options = dict(part.partition("=")[::2] for part in listed.split("+") if part)
    try:
        data = _loaded(name, options)
        squad = isinstance(data, dict) or (data and "answers" in data[0])
        questions, every = _squad(data) if squad else _hotpotqa(data)
    except Exception as error:  # the file may hold anything
        why = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise ValueError(f"{name} cannot be read as {KNOWN}: {why}") from error
    if not questions:
        raise ValueError(f"{name} has no question with an answer")
    return Data(tuple(questions), tuple(sorted(set(every))))


def _loaded(name: str, options: dict[str, str]) -> Any:
    """Return the content of a JSON file, or the rows of a dataset on the hub or in a folder."""
    import datasets

    if name.endswith(".json") and not options:
        return json.loads(Path(name).expanduser().read_text("utf-8-sig"))
    if (Path(name) / "dataset_info.json").exists() and not options:
        return list(datasets.load_from_disk(name))
    if (Path(name) / "dataset_dict.json").exists() and not options.keys() - {"split"}:
        return list(datasets.load_from_disk(name)[options.get("split", SPLIT)])
    split, config = options.pop("split", SPLIT), options.pop("config", None)
    return list(datasets.load_dataset(name, config, split=split, **options))


def _squad(data: Any) -> tuple[list[Question], list[str]]:
    """Return the questions that have an answer; those of an article share its paragraphs."""
    if isinstance(data, dict):  # as the authors publish it
        rows = [
            (number, part["context"], qa["question"], [answer["text"] for answer in qa["answers"]])
            for number, article in enumerate(data["data"])
            for part in article["paragraphs"]
            for qa in part["qas"]
        ]
    else:
        rows = [(r["title"], r["context"], r["question"], r["answers"]["text"]) for r in data]
    questions = list[Question]()
    for _, group in groupby(rows, key=itemgetter(0)):
        article = list(group)
        contexts = tuple(dict.fromkeys(context for _, context, *_ in article))
        for _, context, query, texts in article:
            if answers := _texts(texts):
                others = tuple(text for text in contexts if text != context)
                questions.append(Question(query, answers, (context,), others))
    return questions, [context for _, context, *_ in rows]


def _hotpotqa(data: Any) -> tuple[list[Question], list[str]]:
    """Return the questions that have an answer, which two of ten paragraphs of their own have."""
    questions = [
        Question(row["question"], _texts([row["answer"]]), tuple(_titled(row["context"])))
        for row in data
    ]
    every = [paragraph for one in questions for paragraph in one.paragraphs]
    return [one for one in questions if one.answers], every


def _titled(context: Any) -> Iterator[str]:
    """Yield paragraphs under their titles, of pairs or of two lists."""
    if isinstance(context, dict):
        context = zip(context["title"], context["sentences"], strict=True)
    yield from (f"{title}\n{''.join(sentences)}" for title, sentences in context)


def _texts(answers: Iterable[str | None]) -> tuple[str, ...]:
    """Return every answer once, in one line; test sets have None or nothing, which any text has."""
    lines = (" ".join(answer.splitlines()) for answer in answers if answer is not None)
    return tuple(dict.fromkeys(line for line in lines if line.strip()))


def listed(written: Written, paragraphs: Sequence[str]) -> list[int]:
    """Return the tokens of numbered paragraphs, each followed by an empty line."""
    return [
        token
        for number, text in enumerate(paragraphs, 1)
        for token in (*written(f"Document {number}:\n"), *written(f"{text}{END}"))
    ]


def others(known: Data, one: Question, draw: Random) -> Iterator[str]:
    """Yield the other paragraphs of the article, then of all, each once; then all again."""
    yield from draw.sample(one.article, len(one.article))
    seen = {*one.paragraphs, *one.article}
    while len(seen) < len(known.paragraphs):
        paragraph = draw.choice(known.paragraphs)
        if paragraph not in seen:
            seen.add(paragraph)
            yield paragraph
    yield from cycle(known.paragraphs)


def filled(
    written: Written, one: Question, more: Iterator[str], space: int, draw: Random
) -> list[int]:
    """Return ``space`` tokens of paragraphs in a drawn order; the one added last is last, cut."""
    texts = [*one.paragraphs]
    held = len(listed(written, texts))
    while held < space:
        texts.append(next(more))
        held += len(written(f"Document {len(texts)}:\n")) + len(written(f"{texts[-1]}{END}"))
    places = [draw.random() for _ in texts]
    order = sorted(range(len(texts) - 1), key=places.__getitem__)
    tokens = listed(written, [*(texts[place] for place in order), texts[-1]])
    end = written(END)
    if space < held:
        tokens[space - len(end) : space] = end
    return tokens[:space]
