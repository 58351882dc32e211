# SPDX-License-Identifier: Apache-2.0
"""ggml's flash attention on the CPU (driver_ggml.c), from a build that the user installed below --ggml:
cmake -S ggml -B build -DGGML_NATIVE=ON && cmake --build build && cmake --install build --prefix PREFIX"""
import os

from peer_api import Absent
from peer_c import DriverPeer, library_flags


class Peer(DriverPeer):
    driver = label = "ggml"

    def flags(self, config):
        prefix = config.get("ggml")
        if not prefix:
            raise Absent("no installed build named with --ggml")
        header = os.path.join(prefix, "include", "ggml-cpu.h")
        if not os.path.exists(header):
            raise Absent(f"--ggml: no {header}")
        return library_flags(prefix, "ggml-cpu", "ggml-base")
