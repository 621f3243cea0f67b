"""What the command line asks for: the files of rows, or one sentence on what is wrong."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
from typing import Any, NoReturn

import torch

from benchmarks import rows


class Parser(argparse.ArgumentParser):
    """Say what is wrong in one sentence, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence alone."""
        self.exit(2, f"{self.prog}: {message}\n")


def check(parser: Parser, given: argparse.Namespace) -> None:
    """Stop where the place, the repeats or the device cannot be."""
    if given.quick and given.out is None:
        parser.error("--quick needs --out FOLDER: its numbers are of other lengths.")
    if given.repeats < 1:
        parser.error(f"--repeats is a number from 1 on, not {given.repeats}.")
    places = () if given.out is None else (given.out, *given.out.parents)
    if any(place.exists() and not place.is_dir() for place in places):
        parser.error(f"--out takes a folder, and {given.out} is or lies under a file.")
    if re.fullmatch(r"cpu|cuda(:\d+)?", given.device) is None:
        parser.error(f"--device is cpu, cuda or cuda:N, not {given.device}.")
    kind, _, index = given.device.partition(":")
    seen = torch.cuda.device_count()
    if kind == "cuda" and int(index or 0) >= seen:
        parser.error(f"--device {given.device} is not here: the GPUs that PyTorch sees are {seen}.")


def asked(parser: Parser, given: argparse.Namespace) -> list[Any]:
    """Return the files of rows that are asked for and are of this device; stop at a wrong name."""
    names = [module.name for module in pkgutil.iter_modules(rows.__path__)]
    known = list(dict.fromkeys(name.partition("_")[0] for name in names))
    for name in given.only:
        if name not in known:
            told = ", ".join(known)
            parser.error(f"--only takes rows, with spaces between them ({told}), not {name}.")
    kind = given.device.partition(":")[0]
    found = []
    for name in names:
        row = name.partition("_")[0]
        if given.only and row not in given.only:
            continue
        module = importlib.import_module(f"benchmarks.rows.{name}")
        on = getattr(module, "DEVICE", kind)
        if on == kind:
            found.append(module)
        elif given.only:
            parser.error(f"--only {row} needs --device {on}: the row is of no other device.")
    return found
