"""Ropewalk in Python: all that is public, under one name. Each name is imported on first use.

- ``rope_of(model.config)`` reads the rotary geometry.
- ``methods.yarn(rope, length, factor=4)`` returns a rotation.
- ``patched(model, rotation)`` runs a loaded model with it.
- ``run(...)`` measures a sweep, and ``recommend(...)`` races methods.
- ``export(...)``, ``doctor(...)`` and the other commands are functions of the same names.
- ``testing.check_method(…)`` and ``testing.check_encoding(…)`` check what you wrote.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
