# SPDX-License-Identifier: Apache-2.0
"""oneDNN's matmul, softmax and matmul primitives (driver_onednn.c): the system's library, or the one
installed below --onednn."""
from peer_c import DriverPeer, library_flags


class Peer(DriverPeer):
    driver = label = "onednn"

    def flags(self, config):
        return library_flags(config.get("onednn"), "dnnl")
