"""The optional C kernels of `nmt/native/`; everything else about the package is in pyproject.toml.

If a library cannot be compiled, setuptools prints a warning and leaves it out. nmt then uses PyTorch's operations.
"""

import platform
import sys

from setuptools import Extension, setup

OPTIONS = {"_base": []}  # name of the library: options that choose its instruction set
if platform.machine() in ("x86_64", "AMD64") and sys.maxsize > 2**32:
    OPTIONS["_avx2"] = ["-mavx2", "-mfma"]
    OPTIONS["_avx512"] = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]

setup(
    ext_modules=[
        Extension(
            f"nmt.native.{name}",
            [f"nmt/native/{name}.c"],
            depends=["nmt/native/kernels.c"],
            extra_compile_args=["-O3", "-fvisibility=hidden", "-ffp-contract=fast", *options],
            optional=True,
        )
        for name, options in OPTIONS.items()
    ]
)
