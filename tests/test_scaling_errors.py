"""What scaling methods refuse, word for word."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from scaling import (
    abf,
    dynamic_ntk,
    giraffe_power,
    giraffe_truncated,
    llama3,
    longrope,
    mr_rope,
    native,
    ntk,
    ntk_by_parts,
    ntk_mixed,
    p_rope,
    pi,
    yarn,
)
from scaling.types import Frequencies, Rope

LLAMA2 = Rope(128, 10000.0, 4096)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (pi, {"factor": 0.5}, "factor must be 1 or more, got 0.5"),
        (ntk, {"factor": math.inf}, "factor must be 1 or more, got inf"),
        (dynamic_ntk, {"factor": 0.0}, "factor must be 1 or more, got 0.0"),
        (ntk_by_parts, {"factor": -1.0}, "factor must be 1 or more, got -1.0"),
        (yarn, {"factor": math.nan}, "factor must be 1 or more, got nan"),
        (llama3, {"factor": 0.999}, "factor must be 1 or more, got 0.999"),
        (
            ntk,
            {"factor": 2.0, "base": 5e5},
            "give factor or base, not both, got factor=2.0 and base=500000.0",
        ),
        (ntk, {"base": 1.0}, "base must be above 1, got 1.0"),
        (ntk, {"base": 1e39}, "base must be at most 3.4e38, which float32 holds, got 1e+39"),
        (ntk, {"base": math.nan}, "base must be above 1, got nan"),
        (
            ntk_by_parts,
            {"alpha": 32.0},
            "beta must be above alpha, and alpha 0 or more, got alpha=32.0, beta=32.0",
        ),
        (
            ntk_by_parts,
            {"alpha": -1.0},
            "beta must be above alpha, and alpha 0 or more, got alpha=-1.0, beta=32.0",
        ),
        (
            yarn,
            {"beta_fast": 1.0},
            "beta_fast must be above beta_slow, and both above 0, got beta_fast=1.0, beta_slow=1.0",
        ),
        (
            yarn,
            {"beta_slow": 0.0},
            "beta_fast must be above beta_slow, and both above 0, "
            "got beta_fast=32.0, beta_slow=0.0",
        ),
        (
            yarn,
            {"beta_fast": math.inf},
            "beta_fast must be above beta_slow, and both above 0, got beta_fast=inf, beta_slow=1.0",
        ),
        (
            yarn,
            {"ramp": "linear"},
            "ramp is code or paper, truncate=False for code only, got linear and True",
        ),
        (
            yarn,
            {"ramp": "paper", "truncate": False},
            "ramp is code or paper, truncate=False for code only, got paper and False",
        ),
        (
            yarn,
            {"mscale": 1.0},
            "give attention_factor, or mscale and mscale_all_dim (not 0), or none of them, "
            "got None, 1.0 and None",
        ),
        (
            yarn,
            {"mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.0},
            "give attention_factor, or mscale and mscale_all_dim (not 0), or none of them, "
            "got 1.0, 1.0 and 1.0",
        ),
        (yarn, {"attention_factor": 0.0}, "attention_factor must be positive, got 0.0"),
        (
            llama3,
            {"low_freq_factor": 4.0},
            "high_freq_factor must be above low_freq_factor, and both above 0, "
            "got low_freq_factor=4.0, high_freq_factor=4.0",
        ),
        (
            llama3,
            {"low_freq_factor": 0.0},
            "high_freq_factor must be above low_freq_factor, and both above 0, "
            "got low_freq_factor=0.0, high_freq_factor=4.0",
        ),
        (abf, {"base": 1.0}, "base must be above 1, got 1.0"),
        (abf, {"base": math.inf}, "base must be above 1, got inf"),
        (p_rope, {"p": 1.01}, "p must be from 0 to 1, got 1.01"),
        (p_rope, {"p": math.nan}, "p must be from 0 to 1, got nan"),
        (giraffe_power, {"power": -0.1}, "power must be 0 or more, got -0.1"),
        (giraffe_power, {"power": math.inf}, "power must be 0 or more, got inf"),
        (
            giraffe_truncated,
            {"cutoff": 0.0},
            "cutoff must be a number of tokens above 0, got 0.0",
        ),
        (
            giraffe_truncated,
            {"cutoff": math.nan},
            "cutoff must be a number of tokens above 0, got nan",
        ),
        (ntk_mixed, {"exponent": 0.0}, "exponent must be above 0 and at most 1, got 0.0"),
        (ntk_mixed, {"exponent": 1.5}, "exponent must be above 0 and at most 1, got 1.5"),
        (ntk_mixed, {"factor": 0.5}, "factor must be 1 or more, got 0.5"),
        (mr_rope, {"kind": "max"}, "kind is uni or pro, got max"),
        (mr_rope, {"factor": 0.5}, "factor must be 1 or more, got 0.5"),
        (
            mr_rope,
            {"beta_slow": 32.0},
            "beta_fast must be above beta_slow, and both above 0, "
            "got beta_fast=32.0, beta_slow=32.0",
        ),
        (
            longrope,
            {},
            "longrope needs a searched table, and the checkpoint ships none: "
            "give factors=PATH, a JSON file with short_factor and long_factor",
        ),
    ],
)
def test_bad_options_are_refused(method: object, options: dict[str, object], message: str) -> None:
    """An option that means nothing is an error with what was given and what is allowed."""
    frequencies: Callable[..., Frequencies] = vars(method)["frequencies"]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        frequencies(LLAMA2, 8192, **options)


def test_ntk_refuses_a_single_pair() -> None:
    """With two rotated channels the NTK exponent has no value, so it is refused."""
    with pytest.raises(ValueError, match=r"^ntk needs a rotary_dim of 4 or more, got 2$"):
        ntk.frequencies(Rope(2, 10000.0, 4096), 8192)


@pytest.mark.parametrize(
    ("shipped", "message"),
    [
        (
            {"rope_type": "proportional"},
            "native reads rope_type default, linear, dynamic, yarn, llama3 and longrope, "
            "the checkpoint ships 'proportional': use another method",
        ),
        (
            {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
            "the shipped factor must be a number, got None",
        ),
        (
            {"rope_type": "longrope", "factor": 4.0},
            "longrope needs a searched table, and the checkpoint ships none: "
            "give factors=PATH, a JSON file with short_factor and long_factor",
        ),
        ({"rope_type": "linear"}, "the shipped factor must be a number, got None"),
        (
            {"rope_type": "yarn", "factor": None},
            "the shipped factor must be a number, got None",
        ),
        (
            {"rope_type": "llama3", "factor": 8.0},
            "the shipped low_freq_factor must be a number, got None",
        ),
        (
            {"rope_type": "yarn", "factor": 8.0, "mscale": "one"},
            "the shipped mscale must be a number, got 'one'",
        ),
    ],
)
def test_native_refuses_what_it_cannot_read(shipped: dict[str, object], message: str) -> None:
    """A shipped scaling that is unknown or incomplete is an error that names what is missing."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        native.frequencies(Rope(128, 10000.0, 4096, shipped), 8192)
