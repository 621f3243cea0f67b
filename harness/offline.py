"""Send no request to the hub: only its cache is read."""

from __future__ import annotations

import os
import sys

# What each library read when it was imported; the variables reach those not imported yet, and the
# processes that are started.
READ = {
    "huggingface_hub.constants": ("HF_HUB_OFFLINE",),
    "datasets.config": ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
}


def go_offline() -> None:
    """Set HF_HUB_OFFLINE, also in libraries that have read it, for the rest of the process."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for module, names in READ.items():
        if module in sys.modules:
            for name in names:
                if hasattr(sys.modules[module], name):
                    setattr(sys.modules[module], name, True)
