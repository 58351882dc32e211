# SPDX-License-Identifier: Apache-2.0
"""Reads and writes .safetensors: 8 bytes of header length, a JSON header, then raw tensors.

Written here because the whole format is a page, because bfloat16 does not exist in numpy, and
because the bytes written must depend on the values alone (sorted names, fixed alignment).
bfloat16 tensors are uint16 arrays wrapped in Bf16.
"""
import json
import struct

import numpy as np


class Bf16:
    """bfloat16 values, kept as the uint16 upper halves of float32 bit patterns."""

    def __init__(self, bits):
        self.bits = np.ascontiguousarray(bits, dtype=np.uint16)

    @classmethod
    def round(cls, values):
        """Nearest bfloat16 of finite values, ties to even."""
        wide = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        return cls(((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16))

    def widen(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64,
           "I32": np.int32}


def bits(tensor):
    """The stored integers of a tensor, to compare two tensors exactly."""
    if isinstance(tensor, Bf16):
        return tensor.bits
    return tensor.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[tensor.dtype.itemsize])


def _describe(tensor):
    if isinstance(tensor, Bf16):
        return "BF16", tensor.bits
    array = np.ascontiguousarray(tensor)
    for name, dtype in _DTYPES.items():
        if name != "BF16" and array.dtype == dtype:
            return name, array
    raise ValueError("dtype %s cannot be stored" % array.dtype)


def encode(tensors, metadata):
    """Bytes of a file holding `tensors` (name -> array or Bf16) and string `metadata`."""
    entries = sorted(((name, *_describe(tensor)) for name, tensor in tensors.items()),
                     key=lambda entry: (-entry[2].dtype.itemsize, entry[0]))
    header, offset = {"__metadata__": dict(sorted(metadata.items()))}, 0
    for name, dtype, array in entries:
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 64)  # tensors start on a cache line when the file is mapped
    text += b" " * 56  # 8 (length) + 56 = 64
    return (struct.pack("<Q", len(text)) + text
            + b"".join(array.tobytes() for _, _, array in entries))


def decode(data):
    """(tensors, metadata) of a file's bytes; bfloat16 comes back as Bf16."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata, tensors = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data, dtype=_DTYPES[entry["dtype"]], offset=8 + length + begin,
                              count=(end - begin) // np.dtype(_DTYPES[entry["dtype"]]).itemsize)
        array = array.reshape(entry["shape"])
        tensors[name] = Bf16(array) if entry["dtype"] == "BF16" else array
    return tensors, metadata
