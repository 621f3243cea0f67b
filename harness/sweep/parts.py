"""Join the replies to the parts of one question, which are graded together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from harness.sweep.answer import Reply
from harness.sweep.cells import Item, Key
from harness.sweep.plan import Plan
from tasks.types import Group, GroupResponse, ModelResponse


class Parts:
    """Holds replies until all parts of their question have one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.replies: dict[Key, dict[Key, Reply]] = {}

    @cached_property
    def whole(self) -> dict[Key, Item]:
        """The question of every part, made when the first reply comes."""
        return {
            Item(cell, part).key: Item(cell, question)
            for cell in self.plan.cells
            for question in cell.questions
            for part in question.model_requests
        }

    def add(self, item: Item, reply: Reply) -> tuple[Item, Reply] | None:
        """Return the whole question with its reply; None while a part is missing."""
        whole = self.whole[item.key]
        if not isinstance(whole.question, Group):
            return item, reply
        found = self.replies.setdefault(whole.key, {})
        found[item.key] = reply
        if len(found) < len(whole.question.parts):
            return None
        del self.replies[whole.key]
        keys = [Item(whole.cell, part).key for part in whole.question.model_requests]
        return whole, _joined([found[key] for key in keys])


def _joined(replies: Sequence[Reply]) -> Reply:
    """Return one reply of many: the first failure, or all answers."""
    outcomes = [reply.outcome for reply in replies]
    failed = [outcome for outcome in outcomes if not isinstance(outcome, ModelResponse)]
    answers = tuple(outcome for outcome in outcomes if isinstance(outcome, ModelResponse))
    return Reply(
        failed[0] if failed else GroupResponse(answers),
        sum(reply.seconds for reply in replies),
        max(reply.peak_mib for reply in replies),
        all(reply.shared for reply in replies),
    )
