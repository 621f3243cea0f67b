"""No encoding: only the causal mask shows the order (NoPE, Kazemnejad 2023, arXiv:2305.19466)."""

from torch import nn

from ropewalk.harness.encodings.types import Shape


class Encoding(nn.Module):
    """It adds nothing."""

    def __init__(self, shape: Shape) -> None:
        del shape
        super().__init__()
