"""The files that ``ropewalk new`` copies: one plug-in of each kind, which runs unchanged."""
