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
    "doctor": "Find faults of a model's config, its patch, its cache, and of a server; status 1 "
    "if any.",
    "inspect": "Show what each scaling does to a model's channels, from its config alone.",
    "check": "Test the contract of a method or an encoding, and say what it does.",
    "compare": "Compare a run with a published table, value by value.",
    "publish": "Write a run for readers elsewhere, or send it to a tracker.",
    "rerun": "Measure a run again from its record, and compare the two sample by sample.",
    "list": "List methods, tasks, reports, engines, encodings and sweeps, or describe one.",
    "new": "Write NAME.py, a plug-in of ten lines or so that runs as it is.",
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
