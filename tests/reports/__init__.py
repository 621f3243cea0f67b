"""Tests of reports and statistics."""
