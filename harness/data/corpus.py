"""The documents of a sweep in the model's tokens: one corpus for all tasks, or one per task."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from ropewalk.harness.data.documents import Documents, open_documents, recorded_documents
from ropewalk.harness.data.tokenize import chat_of, make_reader, opening_of, tokenize, turns_of
from ropewalk.harness.errors import UserError, foreign, nearest, printable
from ropewalk.harness.plugins import Plugin
from ropewalk.tasks._tokens import Tokens
from ropewalk.tasks.types import Document, TaskContext

Entry = dict[str, Any]  # what the record says of one document
SHORT = 500  # characters of a text, of which many are remembered
TAG = re.compile(  # a web page has one in less than 500 characters
    r"</?(?:html|head|body|div|span|p|br|a|img|ul|li|tr|td|h[1-6])\b[^<>]*>", re.IGNORECASE
)


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
        calibrated: Container[str] = (),
    ) -> None:
        self.documents = documents
        self.entries: list[Entry] = []
        self.left_out = Counter[str]()
        self._calibrated = calibrated  # the hashes of texts that a method was calibrated on

        def encoded(text: str) -> Tokens:
            return tokenize(tokenizer, text)[0]

        # A prompt is mostly made of the same few texts, and of a needle that all lengths have.
        long, short = lru_cache(maxsize=64)(encoded), lru_cache(maxsize=2**16)(encoded)
        template, turns = cache(partial(chat_of, tokenizer)), cache(lambda: turns_of(tokenizer))
        self.context = TaskContext(
            lambda text: list((short if len(text) < SHORT else long)(text)),
            lambda tokens: str(tokenizer.decode([*tokens], clean_up_tokenization_spaces=False)),
            opening_of(tokenizer),
            trained_length,
            documents=cache(lambda: tuple(self._read(tokenizer))),
            chat=lambda beginning, thinking=None: template(thinking)(beginning),
            turns=lambda message, place: turns()(message, place),
            tokenizer=tokenizer,
        )

    def _read(self, tokenizer: Any) -> list[Document]:
        documents, used, seen = self.documents, list[Document](), set[str]()
        self.entries, self.left_out = [], Counter()
        read = make_reader(tokenizer)
        for raw_name, text in documents.read():
            if text is None:
                self.left_out["null"] += 1
                continue
            name = printable(raw_name)
            with foreign(f"{name} is not text"):
                digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            if digest in seen:  # measured twice, its interval would be too narrow
                self.left_out["repeated"] += 1
                continue
            seen.add(digest)
            if digest in self._calibrated:
                self.left_out["calibrated"] += 1
                continue
            tokens, ends = read(text)
            if len(tokens) < documents.min_tokens:
                continue
            unknown = tokenizer.unk_token_id
            count = 0 if unknown is None else int((tokens.numbers() == unknown).sum())
            entry = {"name": name, "sha256": digest, "tokens": len(tokens), "unknown": count}
            entry |= {"nul": nul} if (nul := text.count("\0")) else {}
            begin = text[:100_000]
            is_html = len(TAG.findall(begin)) > max(1, len(begin) / 500)
            self.entries.append(entry | ({"markup": "html"} if is_html else {}))
            used.append(Document(name, tokens, ends))
            if len(used) == documents.count:
                break
        if self.left_out["calibrated"] and not used:
            raise UserError(
                f"--docs {documents.label} has only documents that a method was calibrated on; name"
                " others."
            )
        requested = documents.count or min(documents.min_tokens, 1)
        if len(used) < requested:
            held = f"{len(used)} document" + "s" * (len(used) != 1)
            raise UserError(
                f"--docs {documents.label} holds {held} of {documents.min_tokens} tokens or more, "
                f"not {requested}; give more, or ask for fewer or shorter ones."
            )
        self.left_out.update(documents.left_out())
        return used


def entries_of(corpora: Collection[Corpus]) -> tuple[Entry, ...]:
    """Return an entry per document; where tasks have documents of their own, with their name."""
    return tuple(
        entry | ({"docs": recorded_documents(corpus.documents)} if len(corpora) > 1 else {})
        for corpus in corpora
        for entry in corpus.entries
    )


def open_all(
    docs: str | Documents | Mapping[str, str | Documents], tasks: Sequence[Plugin]
) -> dict[str, Documents]:
    """Return the documents of every task by its label, before any is read.

    ``docs`` is one name for all, or a mapping from a task, by name or by label, to a name. Raises
    UserError for a task that the mapping does not name, and for a name that is no task's.
    """
    names = {task.label: task.label.partition(":")[0] for task in tasks}
    if isinstance(docs, str | Documents):
        return dict.fromkeys(names, open_documents(docs))
    known = {*names, *names.values()}
    for key in docs:
        if key not in known:
            raise UserError(
                f"docs names a task {key!r} that the sweep does not have; {nearest(key, known)}."
            )
    opened = dict[str, Documents]()
    for label, name in names.items():
        if (source := docs.get(label) or docs.get(name)) is None:
            raise UserError(f"docs names no documents for task {label}; add {name}: … to it.")
        opened[label] = open_documents(source)
    return opened


def make_context(
    tokenizer: Any, documents: Callable[[], Iterable[tuple[str, str]]], trained_length: int
) -> TaskContext:
    """Return the context of a tokenizer and of (name, text) documents, read on the first use."""
    return Corpus(Documents("texts", documents), tokenizer, trained_length).context
