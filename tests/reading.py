"""Documents as a user names them, and the sentence they are refused with."""

import pytest

from ropewalk.harness.data.documents import open_documents
from ropewalk.harness.errors import UserError


def read(given: object) -> list[tuple[str, str]]:
    """Return the documents of a name."""
    return list(open_documents(str(given)).read())


def refused(given: object) -> str:
    """Return the sentence documents are refused with."""
    with pytest.raises(UserError) as caught:
        read(given)
    return str(caught.value)
