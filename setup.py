"""The optional C kernels of `nmt/native/`; everything else about the package is in pyproject.toml.

Without a working compiler the package is complete all the same: nmt then computes with PyTorch's operations.
"""

import platform
import sys
import textwrap

from setuptools import Extension, errors, setup
from setuptools.command.build_ext import build_ext

# -fno-math-errno: a square root is an instruction, not a call of the C library. Results are the same.
COMMON = ["-O3", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast"]
OPTIONS = {"_base": []}  # name of the library: options that choose its instruction set
if platform.machine() in ("x86_64", "AMD64") and sys.maxsize > 2**32:
    OPTIONS["_avx2"] = ["-mavx2", "-mfma"]
    OPTIONS["_avx512"] = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]


class BuildKernels(build_ext):
    """Prints one warning, however many libraries could not be compiled."""

    def run(self):
        self.failed = {}  # name of the library: reason
        super().run()
        if self.failed:
            reason = textwrap.shorten(str([*self.failed.values()][-1]), 100)
            self.warn(f"nmt works without the C kernels {', '.join(self.failed)}, but may be slower: {reason}")

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except (errors.CCompilerError, errors.BaseError) as error:
            self.failed[ext.name] = error


setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        Extension(
            f"nmt.native.{name}",
            [f"nmt/native/{name}.c"],
            depends=["nmt/native/kernels.c", "setup.py"],
            extra_compile_args=[*COMMON, *options],
            optional=True,
        )
        for name, options in OPTIONS.items()
    ],
)
