"""The machine that joins methods and tasks: command line, plan, engine, store, reports."""
