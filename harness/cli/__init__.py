"""The command line: one file per command, without heavy imports before a command runs."""
