"""The methods that a race begins with where none are named."""

from __future__ import annotations

from harness.plugins import module_of, names, parameters

OWN = "none"  # the model without scaling, by which a price is measured
SHIPPED = "native"  # the checkpoint's own scaling
LEFT_OUT = (SHIPPED, "longrope")  # of the latter the factors are searched
ADDED = ("log_n", "temperature")  # what is used on top of another method: here of YaRN


def usual(stretch: float, *, ships: bool = False) -> tuple[str, ...]:
    """Return every training-free method with its usual options, at the fixed factor of a target.

    A server has one factor for all lengths. Methods whose authors train with them are left out:
    their files have TRAINING. What a checkpoint ``ships`` is a candidate: it is the model as it is.
    """
    factor = f"factor={stretch:g}"
    found = [OWN, *[SHIPPED] * ships]
    for name in names("method"):
        module = module_of("method", name)[0]
        if name in (OWN, *LEFT_OUT) or hasattr(module, "TRAINING"):
            continue
        option = parameters(module, "method").get("factor")
        if name in ADDED:
            found.append(f"{name}:on=yarn:{factor}")
        else:
            found.append(f"{name}:{factor}" if option and option.default is None else name)
    return tuple(found)
