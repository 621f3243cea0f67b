"""``python -m ropewalk`` is the command line."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python lets what -m starts import from the current directory; the console command does not.
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(__file__).parent.parent)
    from ropewalk.harness.cli import main

    main()
