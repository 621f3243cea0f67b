"""The check for the authors of methods: it raises AssertionError in one sentence."""

from ropewalk.harness.commands.contracts import check_method as check_method
