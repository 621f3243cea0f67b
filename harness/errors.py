"""The one error a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """What was given, what is allowed, what to do; shown as one sentence, exit status 2."""
