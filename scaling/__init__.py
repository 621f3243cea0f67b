"""The scaling methods: every public module is one, and the file is its registration.

A method is a function ``frequencies(rope, length, *, options) -> Frequencies``, or
``PerLayerFrequencies``, those of each layer; or where it also moves relative positions
``bands(rope, length, *, options) -> Bands``. The types are exported here.
"""

from ropewalk.scaling.types import Band as Band
from ropewalk.scaling.types import Bands as Bands
from ropewalk.scaling.types import Frequencies as Frequencies
from ropewalk.scaling.types import PerLayerFrequencies as PerLayerFrequencies
from ropewalk.scaling.types import Range as Range
from ropewalk.scaling.types import Rope as Rope
from ropewalk.scaling.types import Rotation as Rotation
from ropewalk.scaling.types import by_distance as by_distance
