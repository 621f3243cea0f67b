"""A chat template around a pass key prompt: the template's own tokens, the exact length."""

import json
from collections.abc import Sequence
from string import printable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from ropewalk.harness.data.corpus import make_context
from ropewalk.tasks import niah, passkey
from ropewalk.tasks._prompt import THINKING
from ropewalk.tasks.types import Generate, Generated, Request, TaskContext
from tests.tiny import save_tiny, tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ' ' + strftime_now('%d %b %Y') + '\n' "
    "+ m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def chatting(template: str = TEMPLATE) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def asked(source: TaskContext, lengths: Sequence[int] = (600,), **options: Any) -> list[Request]:
    return list(passkey.ask(source, lengths, depths=2, trials=1, **options))


def test_a_chat_prompt_is_the_template_s_own_text_and_has_the_exact_length():
    tokenizer = chatting()
    for question in asked(make_context(tokenizer, list, 512), (600, 700), chat=True):
        assert len(question.tokens) == question.length
        text = tokenizer.decode(question.tokens[: question.start])
        message = text.partition("\n")[2].partition("</s>")[0]
        fixed = TEMPLATE.replace("strftime_now('%d %b %Y')", "'26 Jul 2024'")
        whole = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}],
            chat_template=fixed, add_generation_prompt=True, return_dict=False,
        )  # fmt: skip
        reply = tokenizer("The pass key is", add_special_tokens=False)["input_ids"]
        assert list(question.tokens[: question.start]) == [*whole, *reply]
        assert tokenizer.decode(question.tokens[question.start :]) == f" {question.metadata['key']}"


@pytest.mark.parametrize("reply", [" {{ m['content'] }} </s>", "</s>", "{{ raise_exception('') }}"])
def test_a_chat_has_the_template_s_spaces(reply):
    words = {word: place for place, word in enumerate(["<s>", "▁", *printable])}
    inner = Tokenizer(models.BPE(vocab=words, merges=[]))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m['content'] }}"
        f" [/INST]{{% else %}}{reply}{{% endif %}}{{% endfor %}}"
    )
    question = asked(make_context(tokenizer, list, 512), chat=True)[0]
    text = tokenizer.decode(question.tokens)
    assert text.startswith("<s> [INST] There is an important info")
    space = " " if reply.startswith(" ") else ""
    assert f"key? [/INST]{space}The pass key is {question.metadata['key']}" in text
    whole = tokenizer(text.replace("<s> ", "<s>"), add_special_tokens=False)["input_ids"]
    assert list(question.tokens) == whole


@pytest.mark.parametrize(("template", "words"), [
    (None, "no chat template"),
    ("{{ raise_exception('system first') }}", "system first"),
    ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "as it is"),
])  # fmt: skip
def test_a_template_that_cannot_hold_the_message_is_an_error(template, words):
    tokenizer = tiny_tokenizer() if template is None else chatting(template)
    with pytest.raises(ValueError, match=words):
        asked(make_context(tokenizer, list, 512), chat=True)


@pytest.mark.slow
def test_the_record_and_the_terminal_say_where_the_template_is_applied(tmp_path, ropewalk):
    model = save_tiny(tmp_path / "model")
    chatting().save_pretrained(model)
    tasks = ["passkey:depths=1,trials=1,chat=true", "passkey:depths=1,trials=1"]
    words = ["--model", model, "--scaling", "none", "--length", "600", "--task", *tasks]
    done = ropewalk("run", *words, "--out", tmp_path / "run")
    assert f"is not applied in {tasks[1]}." in " ".join(done.err.split())
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["chat_template"] == f"applied in {tasks[0]}"


QWEN = (  # what the template of Qwen3 does with a user's message
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% if enable_thinking is defined and "
    "enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def needles(chat: Any, template: str = QWEN, **options: Any) -> list[Generate]:
    context = make_context(chatting(template), lambda: iter([("a", "It rains. " * 900)]), 512)
    found = niah.ask(context, [2400], trials=1, depths=1, new=64, chat=chat, **options)
    return [one for one in found if isinstance(one, Generate)]


def test_thinking_is_switched_off_before_the_reply_or_comes_before_the_answer():
    tokenizer = chatting(QWEN)
    (raw,), (off,), (on,) = (needles(chat) for chat in (True, "direct", "think"))
    texts = [tokenizer.decode(one.prompt) for one in (raw, off, on)]
    assert "<think>" not in texts[0]
    assert "<s>assistant\n<think>\n\n</think>\n\n" in texts[1]
    assert texts[1].endswith(texts[0].partition("<s>assistant\n")[2])  # the same reply begun
    assert texts[2].endswith("<s>assistant\n")
    assert [one.max_new_tokens for one in (raw, off, on)] == [64, 64, 64 + THINKING]
    assert {len(one.prompt) + one.max_new_tokens for one in (raw, off, on)} == {2400}


def test_an_answer_is_what_follows_the_reasoning():
    """A key in the reasoning alone, or reasoning that does not end, is no answer."""
    (asked,) = needles("think")
    context, key = make_context(chatting(QWEN), list, 512), str(asked.metadata["answer"])
    for text, value in (
        (f"<think>It is 1.</think>\n\nIt is {key}.", 1.0),
        (f"<think>It is {key}.</think>\n\nIt is 1.", 0.0),
        (f"<think>It is {key}", 0.0),
    ):
        assert niah.grade(asked, Generated(text, (1,), (0.0,)), context).value == value
    assert asked.metadata["thinking"] == "on"


def test_a_template_whose_reasoning_is_not_known_is_an_error():
    with pytest.raises(ValueError, match="does not switch thinking on or off"):
        needles("direct", TEMPLATE)
    with pytest.raises(ValueError, match="reasoning does not end with </think>"):
        needles("think", QWEN.replace("think>", "seed:think>"))
    with pytest.raises(ValueError, match="use chat=direct, or a task that writes"):
        asked(make_context(chatting(QWEN), list, 512), chat="think")
    tokenizer = chatting(QWEN)  # a special token is left out of a text: no answer would be found
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    with pytest.raises(ValueError, match="reasoning does not end with </think>"):
        list(niah.ask(make_context(tokenizer, list, 2400), [2400], chat="think"))
