"""From a spec to samples."""
