"""What a user of lm-eval types, with the program's name changed, is done or answered."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from harness.api.settings import read_specs
from harness.cli.app import app
from harness.cli.conventions import translated
from harness.data.documents import open_documents
from harness.errors import UserError
from harness.plugins import names
from harness.sweep.spec import TASKS, Spec, expand, parse

# A command of lm-eval, and the settings that it is read as.
PLANNED: list[tuple[str, dict[str, Any]]] = [
    (
        "lm-eval run --model hf --model_args pretrained=llama --tasks passkey --device cpu",
        {"model": "llama", "task": ("passkey",), "device": "cpu"},
    ),
    (
        "lm-eval run --model hf --model_args pretrained=o/m,dtype=float32,revision=v2 "
        "--tasks perplexity,passkey:depths=3,trials=2",
        {
            "model": "o/m",
            "dtype": "float32",
            "revision": "v2",
            "task": ("perplexity", "passkey:depths=3,trials=2"),
        },
    ),
    (
        "lm-eval run --model_args pretrained=llama dtype=bfloat16 trust_remote_code=True "
        "--tasks perplexity passkey --output_path out --device cuda:0",
        {
            "model": "llama",
            "dtype": "bfloat16",
            "trust_remote_code": True,
            "task": ("perplexity", "passkey"),
            "out": Path("out"),
            "device": "cuda:0",
        },
    ),
    (
        "lm-eval run -a pretrained=llama -t passkey -L 10 -o out",
        {"model": "llama", "task": ("passkey",), "docs": "embedded:limit=10", "out": Path("out")},
    ),
    (
        "lm-eval run --model_args pretrained=llama --tasks niah:depths=2,lm_eval:tasks=hellaswag "
        "--limit 2",
        {
            "task": ("niah:depths=2,trials=2", "lm_eval:tasks=hellaswag,limit=2"),
            "docs": "embedded:limit=2",
        },
    ),
    (
        "lm-eval run --model_args pretrained=llama,peft=adapter --tasks passkey --seed 1234",
        {"model": "llama", "adapter": "adapter", "seed": 1234},
    ),
    (
        "lm-eval run --model_args pretrained=llama,parallelize=True --tasks passkey",
        {"model": "llama", "device_map": "auto"},
    ),
    (
        "lm-eval run --model_args pretrained=llama --tasks passkey --trust_remote_code",
        {"trust_remote_code": True},
    ),
]
# A command of lm-eval, and what its answer names.
ANSWERED = [
    (
        "lm_eval --model hf --model_args pretrained=llama --tasks passkey",
        "name a command first: ropewalk run --model hf --model_args pretrained=llama",
    ),
    ("lm-eval run -M hf -a pretrained=llama", "write --model or -m"),
    ("lm-eval run --model hf --tasks passkey", "here --model is the model itself"),
    ("lm-eval run --model vllm --model_args pretrained=llama", "write --model llama"),
    ("lm-eval run --model_args pretrained=llama,max_length=4096", "--length 4096"),
    ("lm-eval run --model_args pretrained=llama,load_in_4bit=True", "what is read: pretrained=…"),
    ("lm-eval run --model_args dtype=float16 --dtype float32", "--dtype and dtype of --model-args"),
    ("lm-eval run --tasks passkey --limit 0.1", "a whole number, as in --limit 10"),
    ("lm-eval run --tasks passkey --batch_size auto", "--max-memory 12GB"),
    ("lm-eval run --tasks passkey -b 8", "--max-memory 12GB"),
    ("lm-eval run --tasks hellaswag,arc_easy", "lm_eval:tasks=hellaswag"),
    ("lm-eval run --tasks hellaswag --num_fewshot 5", "lm_eval:tasks=hellaswag,num_fewshot=5"),
    (
        "lm-eval run --tasks niah_single_1 --metadata=max_seq_lengths=[4096,8192]",
        "--length 4096 8192",
    ),
    ("lm-eval run --tasks passkey --apply_chat_template", "--task passkey:chat=true"),
    ("lm-eval run --tasks passkey --include_path folder", "include=FOLDER"),
    ("lm-eval run --tasks passkey --log_samples", "samples.jsonl of the run folder"),
    ("lm-eval run --tasks passkey --use_cache cache", "--out FOLDER"),
    ("lm-eval run --tasks passkey --wandb_args project=mine", "--track wandb:project=NAME"),
    ("lm-eval run --tasks passkey --seed 0,1234,1234,1234", "0,1234,1234,1234 is not a whole"),
    ("lm-eval run --config sweep.yaml", "ropewalk run sweep.yaml"),
    ("lm-eval run --tasks list", "ropewalk list tasks"),
    ("lm-eval validate --tasks passkey", "--dry-run"),
]


def words_of(line: str) -> list[str]:
    """Return a command's words behind the name of its program."""
    return shlex.split(line)[1:]


@pytest.mark.parametrize(("line", "settings"), PLANNED)
def test_a_command_of_lm_eval_is_read_as_it_is_meant(line, settings):
    """Its flags are settings of the sweep; what it does not name is the default."""
    _, bound, _ = app.parse_args(words_of(line), exit_on_error=False, print_error=False)
    (spec,) = read_specs(None, translated(bound.kwargs))
    assert spec == Spec(**{"model": "llama", "task": ("passkey",), **settings})


@pytest.mark.parametrize(("line", "answer"), ANSWERED)
def test_what_has_no_counterpart_is_answered_with_the_right_flag(line, answer, ropewalk):
    """In one message, with exit status 2."""
    done = ropewalk(*words_of(line))
    assert (done.status, done.out) == (2, "")
    assert answer in done.err


def test_tasks_are_listed_by_the_command_of_lm_eval(ropewalk):
    """Only tasks, and all of them."""
    done = ropewalk(*words_of("lm-eval ls tasks"))
    heading, *lines = done.out.splitlines()
    assert (done.status, heading) == (0, "tasks")
    assert [line.split()[0] for line in lines] == names("task")


@pytest.mark.parametrize(
    ("entry", "entries"),
    [
        ("none,yarn", ["none", "yarn"]),
        (
            "none, yarn:factor=4,beta_fast=32,./mine.py:x=1,pi",
            ["none", "yarn:factor=4,beta_fast=32", "./mine.py:x=1", "pi"],
        ),
        ("yarn:factor=[2,4],none", ["yarn:factor=2", "yarn:factor=4", "none"]),
        ("lm_eval:tasks=a+b,passkey", ["lm_eval:tasks=a", "lm_eval:tasks=b", "passkey"]),
        ("yarn:factor=1,024", ["yarn:factor=1,024"]),
        ("yarn:ramp=[code,paper]", ["yarn:ramp=code", "yarn:ramp=paper"]),
    ],
)
def test_a_comma_before_a_name_separates_entries(entry, entries):
    """One before an option, within a number or in brackets does not."""
    assert expand(entry) == entries


def test_a_file_may_have_a_comma_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my,own.py").write_text("")
    assert expand("my,own.py:x=1") == ["my,own.py:x=1"]


def test_limit_lowers_trials_and_documents_and_raises_none(tmp_path):
    """What is below it stays, so that samples are found again; others have it as their number."""
    (tmp_path / "a.txt").write_text("text")
    docs = f"{tmp_path}:limit=3"
    task = ["passkey:trials=2", "niah", "perplexity"]
    wide = parse(None, {"limit": "4", "docs": docs, "task": task})
    assert (wide.docs, wide.task) == (docs, ("passkey:trials=2", "niah:trials=4", "perplexity"))
    assert parse(None, {"limit": 100}).task == TASKS
    narrow = parse(None, {"limit": 1, "docs": {"perplexity": docs}})
    assert narrow.docs == {"perplexity": f"{tmp_path}:limit=1"}
    assert len(list(open_documents(parse(None, {"limit": 2}).docs).read())) == 2
    for wrong in ("0", "-1", "ten", "1.5"):
        with pytest.raises(UserError, match="is not a number of documents and trials"):
            parse(None, {"limit": wrong})
