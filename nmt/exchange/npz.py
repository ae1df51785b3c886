"""NumPy's archives, `.npz`, as Marian reads and writes models: a zip of arrays that is not compressed.

Nothing is unpickled, and no array takes more memory than the file has bytes.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from nmt.system.errors import UserError
from nmt.system.files import reading, regular, remedy

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY\x01\x00"
HEADER = re.compile(
    rb"\{'descr': '[<|](\w\d)', 'fortran_order': False, 'shape': \(((?:\d{1,15}, ?)*\d{0,15})\),? *\} *\n"
)
DTYPES: dict[bytes, Any] = {b"f2": np.float16, b"f4": np.float32, b"i1": np.int8}


def read_npz(path: Path, only: str = "") -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive by name, or `only` one; numbers are of 16 or 32 bits, or bytes.

    Raise UserError if it is missing, damaged, compressed, or not all of its arrays are of this kind.
    """
    with reading(path, remedy(path)):
        size = regular(path).stat().st_size
        try:
            with zipfile.ZipFile(path) as archive:
                return _read(archive, path, size, only)
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
            problem = " ".join(str(error).split())
    raise UserError(f"{path}: damaged: is not an archive of NumPy: {problem}", remedy(path))


def _read(archive: zipfile.ZipFile, path: Path, size: int, only: str) -> dict[str, NDArray[Any]]:
    members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        hint = f"numpy.savez('{path}', **numpy.load('{path}')) saves it uncompressed"
        raise UserError(f"{path}: is compressed, which Marian's models are not", hint)
    if sum(member.file_size for member in members) > size:
        raise ValueError("its arrays are larger than the file")
    found = {}
    for member in members:
        name = member.filename.removesuffix(SUFFIX)
        if name in found:
            raise ValueError(f"two arrays are called {name}")
        if only in ("", name):
            found[name] = _array(archive.read(member), f"{path}: {name}")
    return found


def _array(content: bytes, name: str) -> NDArray[Any]:
    """Return the array in the content of an .npy file; raise ValueError if it is invalid."""
    start = len(MAGIC) + 2
    end = start + int.from_bytes(content[len(MAGIC) : start], "little")
    header = HEADER.fullmatch(content[start:end])
    if not content.startswith(MAGIC) or header is None:
        raise ValueError(f"{name} has no header of an array of numbers")
    kind = header[1].decode()
    if header[1] not in DTYPES:
        raise UserError(f"{name} holds numbers of type {kind}, and nmt reads f2 and f4", "use the model in float32")
    shape = [int(number) for number in header[2].split(b",") if number.strip()]
    dtype = np.dtype(DTYPES[header[1]])
    if math.prod(shape) * dtype.itemsize != len(content) - end:
        raise ValueError(f"{name} has {len(content) - end:,} bytes, which is not its shape {shape}")
    return np.frombuffer(content, dtype, offset=end).reshape(shape)


def write_npz(stream: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name as an archive that Marian reads; the same arrays give the same bytes."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), version=(1, 0))
            archive.writestr(zipfile.ZipInfo(name + SUFFIX), content.getvalue())
