# SPDX-License-Identifier: Apache-2.0
"""OpenBLAS: GEMM + softmax + GEMM with the scores in memory (driver_openblas.c). Releases older than a
processor may take it for one without AVX-512 and run several times slower; then the worker starts again
with OPENBLAS_CORETYPE=SkylakeX, unless the user has set that variable."""
import os

from peer_api import Restart, processor_flags
from peer_c import DriverPeer, library_flags

AVX512_CORES = ("skylakex", "cooperlake", "sapphirerapids", "zen4", "zen5")


class Peer(DriverPeer):
    driver = label = "openblas"

    def __init__(self, config):
        super().__init__(config)
        core = self.versions[self.label].rpartition(" ")[2].lower()
        if ("avx512f" in processor_flags() and core not in AVX512_CORES and
                "OPENBLAS_CORETYPE" not in os.environ):
            raise Restart({"OPENBLAS_CORETYPE": "SkylakeX"})

    def flags(self, config):
        return library_flags(config.get("openblas"), "openblas")
