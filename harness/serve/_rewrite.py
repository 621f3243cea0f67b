"""Write a GGUF file again with other keys and a tensor of factors; all other data stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness.files import replacing
from harness.serve.gguf import SCALING, TENSOR

KINDS: dict[type, str] = {str: "STRING", int: "UINT32", float: "FLOAT32"}


def rewrite(source: Path, target: Path, changed: dict[str, Any]) -> None:
    """Write ``source`` to ``target`` with the keys of ``changed`` (each of its architecture).

    Keys of a scaling that the file had, and its tensor of factors, are left out.
    """
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    keys = {f"{arch}.{name}": value for name, value in changed.items() if name != TENSOR}
    with replacing(target) as file:
        writer = GGUFWriter(file.name, arch, endianess=reader.endianess)
        writer.data_alignment = reader.alignment
        for name, field in reader.fields.items():
            own = name.startswith(("GGUF.", f"{arch}.{SCALING}")) or name in keys
            if not own and name != "general.architecture":
                kinds = field.types
                inner = kinds[-1] if len(kinds) > 1 else None
                writer.add_key_value(name, field.contents(), kinds[0], sub_type=inner)
        for name, value in keys.items():
            writer.add_key_value(name, value, getattr(GGUFValueType, KINDS[type(value)]))
        tensors = [tensor for tensor in reader.tensors if tensor.name != TENSOR]
        new = np.array(changed[TENSOR], dtype=np.float32) if TENSOR in changed else None
        if new is not None:
            writer.add_tensor_info(TENSOR, new.shape, new.dtype, new.nbytes)
        for tensor in tensors:
            shape = tensor.data.shape
            writer.add_tensor_info(
                tensor.name, shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for data in ([] if new is None else [new]) + [tensor.data for tensor in tensors]:
            writer.write_tensor_data(data, tensor_endianess=reader.endianess)
        writer.close()
