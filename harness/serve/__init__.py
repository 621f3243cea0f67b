"""Write what was measured as each serving engine reads it: one file an engine."""
