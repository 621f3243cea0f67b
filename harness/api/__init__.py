"""The commands as functions: settings in, objects out; progress goes to an observer."""
