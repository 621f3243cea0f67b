"""The tasks: every public module is one, and the file is its registration.

A task defines ``ask(source, lengths, *, seed, options)``, ``grade(question, answer, source)``,
``score(samples)``, ``VERSION`` and ``METRIC``. The types are exported here.
"""

from tasks._types import Document, Request, Response, Sample, Score, TaskContext

__all__ = ["Document", "Request", "Response", "Sample", "Score", "TaskContext"]
