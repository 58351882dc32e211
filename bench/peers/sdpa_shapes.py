# SPDX-License-Identifier: Apache-2.0
"""Shapes of the GPU comparison: those that published tables of attention kernels have, in bench/suite.c
too. FLOPs by their convention: 4 B H Sq Sk D, half of that when causal, 2.5 times for a backward pass."""
import dataclasses

BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    heads_kv: int
    length: int
    length_k: int
    dim: int
    dtype: str
    causal: bool = False

    @property
    def group(self):
        return self.heads // self.heads_kv

    @property
    def decode(self):
        return self.length == 1 and self.length_k > 1

    @property
    def kv_bytes(self):
        return 2 * self.batch * self.heads_kv * self.length_k * self.dim * BYTES[self.dtype]

    def flops(self, direction):
        work = 4.0 * self.batch * self.heads * self.length * self.length_k * self.dim
        return work * (0.5 if self.causal else 1.0) * (2.5 if direction == "backward" else 1.0)

    def describe(self):
        heads = f"{self.heads}/{self.heads_kv}" if self.group > 1 else str(self.heads)
        length = f"{self.length}x{self.length_k}" if self.length != self.length_k else self.length
        return (f"{self.dtype} B{self.batch} H{heads} N{length} D{self.dim} "
                f"{'causal' if self.causal else 'full'}")


def prefill(dtype="bf16"):
    return [Shape(16384 // n, 2048 // d, 2048 // d, n, n, d, dtype, causal)
            for d in (64, 128, 256) for causal in (False, True) for n in (1024, 4096, 16384)]


SUITES = {
    "prefill": prefill,
    "short": lambda dtype="f16": [Shape(16384 // n, 16, 16, n, n, 64, dtype)
                                  for n in (128, 256, 512, 1024)],
    "float32": lambda dtype="f32": [Shape(4, 16, 16, 4096, 4096, dim, dtype, causal)
                                    for dim in (64, 128) for causal in (True, False)],
    "grouped": lambda dtype="bf16": [Shape(1, 64, 8, 8192, 8192, 128, dtype, True),
                                     Shape(1, 64, 8, 16384, 16384, 128, dtype, False),
                                     Shape(1, 64, 8, 32768, 32768, 128, dtype, True)],
    # Head dimensions between the tiers of kernels.
    "between": lambda dtype="bf16": [Shape(4, 16, 16, 4096, 4096, d, dtype, causal)
                                     for d in (80, 96) for causal in (False, True)],
    "decode": lambda dtype="bf16": [Shape(b, 32, 8, 1, n, 128, dtype)
                                    for b, n in ((1, 16384), (1, 131072), (16, 8192), (64, 4096),
                                                 (128, 8192))],
    "tiny": lambda dtype="f16": [Shape(2, 4, 4, 96, 96, 64, dtype, causal)
                                 for causal in (False, True)] + [Shape(2, 4, 2, 1, 300, 64, dtype)],
}
