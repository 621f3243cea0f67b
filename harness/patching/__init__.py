"""Run a model with another rotation: the one place that patches transformers."""
