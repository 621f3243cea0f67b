"""Lets ``python -m harness`` stand for the console command."""

from harness.cli import main

main()
