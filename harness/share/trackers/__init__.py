"""Where a run is sent while it is measured: one file a tracker."""
