"""Describe what is unusual in documents: line ends, markup, rows without text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

TAG = re.compile(
    r"<(?:!doctype html"
    r"|/?(?:html|head|body|div|span|p|br|a|img|ul|li|table|tr|td|h[1-6])\b[^<>]*)>",
    re.IGNORECASE,
)
LOOKED_AT = 100_000  # characters from the beginning in which tags are counted
SPARSE = 500  # characters per tag; prose that quotes a tag has more, a web page has fewer
DOUBTFUL = 0.1  # share of a document's tokens that are unknown
NAMED = 3  # documents that a warning names


def plain(text: str) -> str:
    """Return a text with the line ends of Unix."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def beginning(text: str, longest: int | None) -> str:
    """Return the beginning of a text that has ``longest`` characters once it is ``plain``."""
    if longest is None:
        return text
    end, wider = 0, longest
    while wider > end:  # CRLF is one character
        end, wider = wider, longest + text.count("\r\n", 0, wider)
    return text[:end]


def is_html(text: str) -> bool:
    """Return whether a text is a web page rather than prose."""
    tags = sum(1 for _ in TAG.finditer(text, 0, LOOKED_AT))
    return tags > max(1, min(len(text), LOOKED_AT) / SPARSE)


def notes(documents: Sequence[Mapping[str, Any]], left_out: Mapping[str, int]) -> list[str]:
    """Return sentences on how documents were changed or left out when they were read."""
    lines = []
    ended = sum(document.get("line_ends") == "normalized" for document in documents)
    if ended:
        lines.append(f"{ended:,} of {len(documents):,} documents: line ends CRLF or CR read as LF.")
    if left_out.get("repeated"):
        lines.append(f"{left_out['repeated']:,} documents repeat another one and are left out.")
    if left_out.get("null"):
        lines.append(f"{left_out['null']:,} rows have null instead of a text and are left out.")
    if left_out.get("calibrated"):
        lines.append(
            f"{left_out['calibrated']:,} documents are left out, because a method was calibrated on"
            " them."
        )
    lines += [
        f"{count:,} {files} in a folder of texts are left out; a glob (FOLDER/*) reads both."
        for files, count in left_out.items()
        if files not in ("repeated", "null", "calibrated")
    ]
    unknown = sum(document["unknown"] for document in documents)
    if unknown:
        total = sum(document["tokens"] for document in documents)
        lines.append(f"{unknown:,} of {total:,} tokens are unknown to the tokenizer.")
    return lines


def warnings(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings on documents whose scores say little about prose."""
    pages = [d["name"] for d in documents if d.get("markup")]
    zeros = [d["name"] for d in documents if d.get("nul")]
    strange = [d["name"] for d in documents if d["unknown"] > DOUBTFUL * d["tokens"]]
    lines = []
    if pages:
        look = "looks" if len(pages) == 1 else "look"
        lines.append(
            f"{_listed(pages)} {look} like HTML: the tags are scored as text. "
            "Extract the text first."
        )
    if zeros:
        has = "has" if len(zeros) == 1 else "have"
        lines.append(
            f"{_listed(zeros)} {has} NUL characters, as UTF-16 and files of other programs have: "
            "they are scored as text. Save the text as UTF-8 first."
        )
    if strange:
        lines.append(
            f"More than {DOUBTFUL:.0%} of the tokens of {_listed(strange)} are unknown to the "
            "tokenizer: their scores say little about the text."
        )
    return lines


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
