# SPDX-License-Identifier: Apache-2.0
"""oneDNN's matmul, softmax and matmul primitives (driver_onednn.c): the system's library, or the one
installed below --onednn."""
import os

from peer_c import DriverPeer


class Peer(DriverPeer):
    driver = label = "onednn"

    def flags(self, config):
        if not config.get("onednn"):
            return ["-ldnnl"]
        library = os.path.join(config["onednn"], "lib")
        return ["-I", os.path.join(config["onednn"], "include"), "-L", library,
                f"-Wl,-rpath,{library}", "-ldnnl"]
