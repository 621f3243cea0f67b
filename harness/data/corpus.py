"""The documents of a sweep in the model's tokens: one corpus for all tasks, or one per task."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

from harness.data.documents import Documents, open_documents, recorded_documents
from harness.data.readers import is_html, plain
from harness.data.tokenize import chat_of, make_reader, tokenize
from harness.errors import UserError
from harness.names import nearest, printable
from harness.plugins import Plugin
from tasks._tokens import Tokens
from tasks.types import Document, TaskContext

Entry = dict[str, Any]  # what the record says of one document
LARGEST = 2**30  # characters of all documents of a sweep; some 300 million tokens


class Corpus:
    """The documents of one name in a model's tokens, read on a task's first use.

    ``entries`` are what the record says of each. ``left_out`` counts the repeated texts, the rows
    whose text is null, the documents that a method was calibrated on and, by their kind, the files
    that are not read.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Any,
        trained_length: int,
        calibrated_on: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.label = documents.label
        self.documents = documents
        self.entries: list[Entry] = []
        self.left_out = Counter[str]()
        read = partial(self._read, documents, tokenizer, calibrated_on)
        self.context = context_of(tokenizer, read, trained_length)

    def _read(
        self, documents: Documents, tokenizer: Any, calibrated_on: Callable[[str], bool]
    ) -> list[Document]:
        """Return the documents that are used, and note what the record says of them."""
        self.entries, self.left_out = [], Counter()
        used: list[Document] = []
        seen: set[str] = set()
        size, read = 0, make_reader(tokenizer)
        for name, given in documents.read():
            if given is None:
                self.left_out["null"] += 1
                continue
            text = plain(given)
            size += len(text)
            if size > LARGEST:  # before hours of tokenizing
                raise UserError(
                    f"--docs {documents.label} holds more than {LARGEST:,} characters; take the"
                    " first with count=… or limit=…, or their beginnings with max_chars=…"
                )
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            if digest in seen:  # measured twice, its interval would be too narrow
                self.left_out["repeated"] += 1
                continue
            seen.add(digest)
            if calibrated_on(digest):
                self.left_out["calibrated"] += 1
                continue
            tokens, ends = read(text)
            if len(tokens) < documents.min_tokens:
                continue
            unknown = tokenizer.unk_token_id
            entry = {"name": printable(name), "sha256": digest, "tokens": len(tokens)}
            entry["unknown"] = 0 if unknown is None else int((tokens.numbers() == unknown).sum())
            self.entries.append(entry | _unusual(given, text))
            used.append(Document(printable(name), tokens, ends))
            if len(self.entries) == documents.count:
                break
        else:
            _check_enough(documents, len(self.entries), self.left_out["calibrated"])
        self.left_out.update(documents.left_out())
        return used


@dataclass(frozen=True)
class Corpora:
    """A corpus for every task, by the task's label; tasks may share one."""

    by_task: Mapping[str, Corpus]

    def context(self, task: str) -> TaskContext:
        """Return what a task may know."""
        return self.by_task[task].context

    def entries(self) -> tuple[Entry, ...]:
        """Return an entry per document: name, hash, tokens, unknown tokens, what is unusual.

        Where tasks have documents of their own, each entry has their name too.
        """
        corpora = self._distinct()
        return tuple(
            {**entry, **({"docs": recorded_documents(corpus.label)} if len(corpora) > 1 else {})}
            for corpus in corpora
            for entry in corpus.entries
        )

    def check_unread(self) -> None:
        """Read a text of the documents that no task read: their name may be wrong there too."""
        for corpus in self._distinct():
            if not corpus.entries:
                next(iter(corpus.documents.read()), None)

    def left_out(self) -> dict[str, int]:
        """Return how much is left out: repeated texts, null rows, and files by their kind."""
        return dict(sum((corpus.left_out for corpus in self._distinct()), Counter()))

    def _distinct(self) -> list[Corpus]:
        return [*dict.fromkeys(self.by_task.values())]


def open_all(
    docs: str | Documents | Mapping[str, str | Documents],
    tasks: Sequence[Plugin],
    opening: Callable[[str | Documents], Documents] = open_documents,
) -> dict[str, Documents]:
    """Return the documents of every task by its label, before any is read.

    ``docs`` is one name for all, or a mapping from a task, by name or by label, to a name. Raises
    UserError for a task that the mapping does not name, and for a name that is no task's.
    """
    if isinstance(docs, str | Documents):
        return dict.fromkeys([task.label for task in tasks], opening(docs))
    named = {task.label: task.label.partition(":")[0] for task in tasks}
    known = {*named, *named.values()}
    for key in docs:
        if key not in known:
            raise UserError(
                f"docs names a task {key!r} that the sweep does not have; {nearest(key, known)}."
            )
    opened = {given: opening(given) for given in docs.values()}
    by_task = {}
    for label, name in named.items():
        given = docs.get(label, docs.get(name))
        if given is None:
            raise UserError(f"docs names no documents for task {label}; add {name}: … to it.")
        by_task[label] = opened[given]
    return by_task


def make_corpora(
    opened: Mapping[str, Documents],
    tokenizer: Any,
    trained_length: int,
    calibrated_on: Callable[[str], bool] = lambda _: False,
) -> Corpora:
    """Return the corpora of a tokenizer; documents are read on a task's first use.

    ``calibrated_on`` says by its hash whether a document is to be left out.
    """
    corpora = {
        documents: Corpus(documents, tokenizer, trained_length, calibrated_on)
        for documents in dict.fromkeys(opened.values())
    }
    return Corpora({task: corpora[documents] for task, documents in opened.items()})


def _unusual(given: str, text: str) -> Entry:
    """Return what is unusual about a text as it was given, for the record."""
    return {
        **({} if given == text else {"line_ends": "normalized"}),
        **({"markup": "html"} if is_html(text) else {}),
        **({"nul": zeros} if (zeros := text.count("\0")) else {}),
    }


def _check_enough(documents: Documents, count: int, calibrated: int) -> None:
    """Raise UserError for fewer documents than requested, or for none after calibration."""
    if calibrated and not count:
        raise UserError(
            f"--docs {documents.label} has only documents that a method was calibrated on; name"
            " others."
        )
    requested = documents.count or 1
    if count < requested and (documents.count or documents.min_tokens):
        raise UserError(
            f"--docs {documents.label} holds {count} documents of {documents.min_tokens} tokens or "
            f"more, not {requested}; give more, or ask for fewer or shorter ones."
        )


SHORT = 500  # characters of a text, of which many are remembered


def make_context(
    tokenizer: Any, documents: Callable[[], Iterable[tuple[str, str]]], trained_length: int
) -> TaskContext:
    """Return the context of a tokenizer and of (name, text) documents, read on the first use."""
    return context_of(
        tokenizer,
        lambda: (Document(name, *tokenize(tokenizer, text)) for name, text in documents()),
        trained_length,
    )


def context_of(
    tokenizer: Any, documents: Callable[[], Iterable[Document]], trained_length: int
) -> TaskContext:
    """Return the context of a tokenizer and of documents in its tokens, read on the first use."""

    def encoded(text: str) -> Tokens:
        return tokenize(tokenizer, text)[0]

    # A prompt is mostly made of the same few texts, and of a needle that all lengths have.
    long, short = lru_cache(maxsize=64)(encoded), lru_cache(maxsize=2**16)(encoded)

    def encode(text: str) -> list[int]:
        return list((short if len(text) < SHORT else long)(text))

    def decode(tokens: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text

    read, template = cache(lambda: tuple(documents())), cache(lambda: chat_of(tokenizer))
    return TaskContext(
        encode,
        decode,
        tokenizer.bos_token_id,
        trained_length,
        documents=read,
        chat=lambda beginning: template()(beginning),
        tokenizer=tokenizer,
    )
