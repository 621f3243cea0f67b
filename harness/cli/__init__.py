"""The command line, and its own help, which is printed without importing what parses it."""

HELP = (
    "Measure how far a rotary language model reads past its trained window, and which scaling "
    "method carries it furthest."
)
COMMANDS = {
    "run": "Run a sweep: every scaling x task x length. The same command continues where it "
    "stopped.",
    "report": "Make the tables, figures and page of one or more runs from their files.",
    "recommend": "Name the method for a target length, by a race on your documents.",
    "tune": "Search a method's options, or free factors of its channels, by CMA-ES at one length.",
    "calibrate": "Measure a model's heads on documents, for the methods that treat them "
    "differently.",
    "export": "Write a scaling as a serving engine reads it, with its numerical error there.",
    "doctor": "Find faults of one model: its config, patch, cache and server.",
    "inspect": "Show what each scaling does to a model's channels, from its config alone.",
    "check": "Test the code of a method or an encoding against its contract, without a model.",
    "compare": "Compare two runs cell by cell, or one run with a published table.",
    "publish": "Write a run for readers elsewhere, or send it to a tracker.",
    "list": "List methods, tasks, reports, engines, encodings and sweeps, or describe one.",
    "new": "Write NAME.py, a working plug-in of about ten lines.",
}
# What is written behind each command, and an example of it.
USAGE = {
    "run": "[SWEEP] [OPTIONS]",
    "report": "RUN... [OPTIONS]",
    "recommend": "MODEL [OPTIONS]",
    "tune": "[MODEL] [OPTIONS]",
    "calibrate": "MODEL [OPTIONS]",
    "export": "[MODEL] --scaling METHOD --length LENGTH --to ENGINE [OPTIONS]",
    "doctor": "MODEL [OPTIONS]",
    "inspect": "[MODEL] [OPTIONS]",
    "check": "PLUGIN [OPTIONS]",
    "compare": "RUN [OTHER] [OPTIONS]",
    "publish": "RUN --to FORM [OPTIONS]",
    "list": "[NAME]",
    "new": "KIND NAME [--out FOLDER]",
}
EXAMPLES = {
    "run": "ropewalk run --model my-model --docs books --scaling none yarn --length 1x 2x 4x",
    "report": "ropewalk report results/run-my-model --report curves differences",
    "recommend": "ropewalk recommend my-model --docs books --length 4x --to vllm --budget 2h",
    "tune": "ropewalk tune my-model --docs books --scaling yarn:beta_fast=8..64 --length 4x",
    "calibrate": "ropewalk calibrate my-model --docs other-books --out heads.json",
    "export": "ropewalk export my-model --scaling yarn:factor=4 --length 4x --to vllm --out served",
    "doctor": "ropewalk doctor my-model --scaling yarn:factor=4 --length 4x",
    "inspect": "ropewalk inspect my-model --scaling none yarn --length 4x --out figures",
    "check": "ropewalk check ./mine.py --model my-model",
    "compare": "ropewalk compare results/before results/after",
    "publish": "ropewalk publish results/run-my-model --to card",
    "list": "ropewalk list methods",
    "new": "ropewalk new method mine",
}


def help_text(width: int) -> str:
    """Return the help of the program: every command with its first sentence."""
    from textwrap import fill

    lines = ["Usage: ropewalk COMMAND", "", fill(HELP, width), "", "Commands:"]
    for name, text in COMMANDS.items():
        lines.append(
            fill(f"  {name:<10} {text}", width, subsequent_indent=" " * 13, break_on_hyphens=False)
        )
    return "\n".join([*lines, "", "ropewalk COMMAND --help has the options of a command."])
