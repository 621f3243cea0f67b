"""``python -m ropewalk`` is the command line."""

from ropewalk.harness.cli import main

if __name__ == "__main__":
    main()
