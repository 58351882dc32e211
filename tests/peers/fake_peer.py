# SPDX-License-Identifier: Apache-2.0
"""A peer that needs nothing and whose behaviour follows from the head dimension; see test_peers.py."""
import os

from peer_api import Refused, Restart


class Peer:
    def __init__(self, config):
        if "FAKE_READY" not in os.environ:
            raise Restart({"FAKE_READY": "1"})
        self.versions = {"fake": "1.0"}
        print("libraries print to standard output")

    def prepare(self, shape):
        if shape.dim == 24:
            raise Refused("no head dimension 24")
        return [lambda: Case(shape, "first"), lambda: Case(shape, "second")]


class Case:
    def __init__(self, shape, label):
        self.shape, self.label = shape, label
        self.memory = None

    def step(self):
        if self.shape.dim == 40:
            os._exit(7)
        sum(range(20000 if self.label == "first" else 10))
        if self.shape.dim == 48:
            self.memory = bytearray(b"x") * (32 << 20)

    def error(self):
        return 1.0 if self.shape.dim == 32 else 0.0

    def close(self):
        self.memory = None
