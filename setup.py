"""Builds the C parts where there is a C compiler; without one hangscope installs all the same, and `doctor` says so."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HARDENED = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
BOUND = ["-Wl,-z,relro", "-Wl,-z,now"]
"""What these parts read was written by others, and one of them lives in the user's process."""

BLACK_BOX = Extension(
    "hangscope.recorder.setup.libhangscope_blackbox",
    sources=["native/blackbox.c"],
    depends=["native/blackbox_layout.h", "native/nccl_profiler_abi.h", "native/next_profiler.h"],
    extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread", *HARDENED],
    # nodelete: NCCL unloads a plugin with the last communicator, while our heartbeat may still run
    extra_link_args=["-pthread", "-Wl,-z,nodelete", "-ldl", *BOUND],
    optional=True,
)
"""NCCL loads it, not Python: it has no PyInit, and no Python in its name."""

DECODER = Extension(
    "hangscope.reader.dumps._decoder",
    sources=["native/dump_decoder.c", "native/decoder_module.c"],
    depends=["native/dump_decoder.h"],
    extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden", *HARDENED],
    extra_link_args=BOUND,
    py_limited_api=True,
    optional=True,
)
"""Reads pickled dumps; what it does not read, and every file where it was not built, the Python reader reads."""

SCAN = Extension(
    "hangscope.bundle.redact._scan",
    sources=["native/scan.c", "native/scan_module.c"],
    depends=["native/scan.h"],
    extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden", *HARDENED],
    extra_link_args=BOUND,
    py_limited_api=True,
    optional=True,
)
"""Finds where in a log redaction has to look; where it was not built, Python looks."""


WITHOUT = {
    BLACK_BOX.name: "the black box: no link or transfer will be named from inside NCCL",
    DECODER.name: "the decoder: large dumps will be read by Python, 20 times slower",
    SCAN.name: "the scanner: bundles of large logs will take several times as long",
}
"""What each part is, and what is lost without it."""


class Build(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        if fullname.endswith("libhangscope_blackbox"):  # with or without its package in front
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            self.warn(f"no C compiler could build {WITHOUT[ext.name]}")
            raise  # setuptools goes on: the extension is optional


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """Any Python from 3.10 on, on this platform: the decoder is built against the limited API of 3.10. What has no
        C part at all is for every platform."""
        if self.root_is_pure or not any(Path(self.bdist_dir).rglob("*.so")):
            self.root_is_pure = True
            return ("py3", "none", "any")
        return ("cp310", "abi3", super().get_tag()[2])


# HANGSCOPE_PURE: the wheel for every platform, built where there is a compiler
parts = [] if os.environ.get("HANGSCOPE_PURE") else [BLACK_BOX, DECODER, SCAN]
setup(ext_modules=parts, cmdclass={"build_ext": Build, "bdist_wheel": Wheel})
