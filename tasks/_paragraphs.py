"""Read SQuAD or HotpotQA: questions, answers and paragraphs, and fill prompts with these.

The files of their authors (JSON), or the same data as rows of a Hugging Face data set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import cycle, groupby
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

END = "\n\n"  # of every paragraph
Written = Callable[[str], list[int]]  # the tokens of a text
SPLIT = "validation"  # RULER's: the development sets
OPTIONS = ("config", "split", "revision")
KNOWN = "SQuAD's (context, question, answers) or HotpotQA's (context, question, answer)"


class Asked(NamedTuple):
    """A question: the answers of which any counts, its paragraphs, and others of its article."""

    query: str
    answers: tuple[str, ...]
    paragraphs: tuple[str, ...]
    article: tuple[str, ...] = ()


class Data(NamedTuple):
    """The questions of a set in its order, and every paragraph once, sorted as RULER sorts them."""

    questions: tuple[Asked, ...]
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
    try:
        found = _file(name, listed) if name.endswith(".json") else _rows(name, listed)
        questions, every = _squad(found) if _is_squad(found) else _hotpotqa(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{name} is not of the form of {KNOWN}: {type(error).__name__} {error}"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from error
    if not questions:
        raise ValueError(f"{name} has no question with an answer")
    return Data(tuple(questions), tuple(sorted(set(every))))


def _file(name: str, listed: str) -> Any:
    """Return the content of a JSON file; refuse options, which are those of a data set."""
    if listed:
        raise ValueError(
            f"it is a file, which has no {listed.partition('=')[0]}: leave {listed} out"
        )
    return json.loads(Path(name).expanduser().read_text("utf-8-sig"))


def _rows(name: str, listed: str) -> list[dict[str, Any]]:
    """Return the rows of a data set, downloaded if it is on the hub."""
    import datasets

    options = dict(part.partition("=")[::2] for part in listed.split("+") if part)
    if unknown := [key for key in options if key not in OPTIONS]:
        raise ValueError(f"it has no option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    if any((Path(name) / f"dataset_{part}.json").exists() for part in ("info", "dict")):
        return _saved(name, options)
    split, config = options.pop("split", SPLIT), options.pop("config", None)
    return list(datasets.load_dataset(name, config, split=split, **options))


def _saved(name: str, options: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of a data set that was saved to a folder; refuse options that it has not."""
    import datasets

    found = datasets.load_from_disk(name)
    several = isinstance(found, datasets.DatasetDict)
    if other := [key for key in options if key != "split" or not several]:
        raise ValueError(f"it is a saved data set, which has no {other[0]}: leave {other[0]}=… out")
    split = options.get("split", SPLIT)
    if several and split not in found:
        raise ValueError(f"it has no split {split!r}; there are {', '.join(found)}")
    return list(found[split] if several else found)


def _is_squad(found: Any) -> bool:
    return isinstance(found, dict) or (bool(found) and "answers" in found[0])


def _squad(found: Any) -> tuple[list[Asked], list[str]]:
    """Return the questions that have an answer; those of an article share its paragraphs."""
    articles = list(_articles(found))
    asked = [
        Asked(query, answers, (context,), tuple(dict.fromkeys(c for c, *_ in rows if c != context)))
        for rows in articles
        for context, query, answers in rows
        if answers
    ]
    return asked, [context for rows in articles for context, *_ in rows]


def _articles(found: Any) -> Iterator[Sequence[tuple[str, str, tuple[str, ...]]]]:
    """Yield the (context, question, answers) of every article."""
    if isinstance(found, dict):
        for article in found["data"]:
            yield [
                (part["context"], qa["question"], () if qa.get("is_impossible") else _texts(
                    [answer["text"] for answer in qa["answers"]]
                ))
                for part in article["paragraphs"]
                for qa in part["qas"]
            ]  # fmt: skip
        return
    for _, rows in groupby(found, key=lambda row: row["title"]):
        yield [(row["context"], row["question"], _texts(row["answers"]["text"])) for row in rows]


def _hotpotqa(found: Any) -> tuple[list[Asked], list[str]]:
    """Return the questions that have an answer, which two of ten paragraphs of their own have."""
    asked = [
        Asked(row["question"], _texts([row["answer"]]), tuple(_titled(row["context"])))
        for row in found
    ]
    every = [paragraph for one in asked for paragraph in one.paragraphs]
    return [one for one in asked if one.answers], every


def _titled(context: Any) -> Iterator[str]:
    """Yield paragraphs under their titles, of pairs or of two lists."""
    pairs = context
    if isinstance(context, dict):
        pairs = zip(context["title"], context["sentences"], strict=True)
    for title, sentences in pairs:
        yield f"{title}\n{''.join(sentences)}"


def _texts(answers: Sequence[str | None]) -> tuple[str, ...]:
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


def others(known: Data, one: Asked, draw: Random) -> Iterator[str]:
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
    written: Written, one: Asked, more: Iterator[str], space: int, draw: Random
) -> list[int]:
    """Return ``space`` tokens of paragraphs in a drawn order; the one added last is last, cut."""
    texts = [*one.paragraphs]
    held = len(listed(written, texts))
    while held < space:
        texts.append(next(more))
        held += len(written(f"Document {len(texts)}:\n")) + len(written(f"{texts[-1]}{END}"))
    places = [draw.random() for _ in texts]
    order = sorted(range(len(texts) - 1), key=places.__getitem__)
    made = listed(written, [*(texts[place] for place in order), texts[-1]])
    end = written(END)
    if space < held:
        made[space - len(end) : space] = end
    return made[:space]
