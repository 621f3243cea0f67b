"""Checks for the authors of methods and encodings: each raises AssertionError in one sentence."""

from ropewalk.harness.commands.contracts import check_encoding as check_encoding
from ropewalk.harness.commands.contracts import check_method as check_method
