"""What the tests of tasks read: a tale, in a tokenizer of one token per byte."""

import pytest

from ropewalk.harness.data.corpus import make_context
from ropewalk.tasks.types import TaskContext
from tests.tiny import tiny_tokenizer

TALE = "".join(f"This is sentence {n} of a tale. Was there  one\nbefore it? " for n in range(400))


@pytest.fixture(scope="session")
def source() -> TaskContext:
    return make_context(tiny_tokenizer(), lambda: [("tale", TALE)], 512)
