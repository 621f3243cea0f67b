"""The command line: one module per command, which prints what a function of ``api`` returns."""

COMMANDS = (
    "run", "report", "recommend", "tune", "calibrate", "export", "doctor", "inspect", "check",
    "compare", "list", "new",
)  # fmt: skip
