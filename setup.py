"""Builds the C parts where there is a C compiler; without one hangscope installs all the same, and `doctor` says so."""

from __future__ import annotations

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

BLACK_BOX = Extension(
    "hangscope.recorder.libhangscope_blackbox",
    sources=["native/blackbox.c"],
    depends=["native/blackbox_layout.h", "native/nccl_profiler_abi.h"],
    extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread"],
    # nodelete: NCCL unloads a plugin with the last communicator, while our heartbeat may still run
    extra_link_args=["-pthread", "-Wl,-z,nodelete", "-ldl"],
    optional=True,
)
"""NCCL loads it, not Python: it has no PyInit, and no Python in its name."""


class Build(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        if fullname.endswith("libhangscope_blackbox"):
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname)


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3, on this platform: nothing in the wheel is linked against Python."""
        return ("py3", "none", super().get_tag()[2])


setup(ext_modules=[BLACK_BOX], cmdclass={"build_ext": Build, "bdist_wheel": Wheel})
