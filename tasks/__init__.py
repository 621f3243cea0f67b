"""The tasks: every public module is one, and the file is its registration.

A task defines ``ask(source, lengths, *, seed, options)``, ``grade(question, answer, source)``,
``score(samples)``, ``VERSION`` and ``METRIC``. The types are exported here.
"""

from tasks._types import Answer, Passage, Question, Sample, Score, Source

__all__ = ["Answer", "Passage", "Question", "Sample", "Score", "Source"]
