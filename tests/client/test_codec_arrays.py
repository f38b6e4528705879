"""numpy and torch arrays: exact round trips, no copy on the way in but the one, none on the way out."""

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mooncake_client.codec import Codec, Kind
from mooncake_client.errors import InvalidArgumentError
from tests.client.codec_memory import CODEC, stored, write


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def exact(a: np.ndarray, b: np.ndarray) -> bool:
    """Same dtype, shape and bytes, padding between fields included."""
    if a.dtype.names and a.dtype.itemsize:
        a, b = (part.view(f"V{part.dtype.itemsize}") if part.dtype == a.dtype else part for part in (a, b))
    return a.dtype == b.dtype and a.dtype.type is b.dtype.type and a.shape == b.shape and a.tobytes() == b.tobytes()


@st.composite
def any_arrays(draw):
    """Arrays of any dtype, shape and strides."""
    simple = hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes() | hnp.complex_number_dtypes()
    nested = hnp.array_dtypes(simple, max_size=3, allow_subarrays=True)
    dtype = draw(simple | nested)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    count = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=count, max_size=count)) or b"", np.uint8)
    array = array.view(dtype).reshape(shape) if count else np.zeros(shape, dtype)
    if array.dtype.kind == "U":
        # Arbitrary bytes are no text; comparing bytes does not care, but printing a failure would.
        array = np.zeros(shape, dtype)
    how = draw(st.sampled_from(["as is", "transposed", "reversed", "every second"]))
    if how == "transposed":
        return array.T
    if array.ndim and how != "as is":
        return array[::-1] if how == "reversed" else array[..., ::2]
    return array


@given(any_arrays())
def test_any_ndarray_comes_back_exactly(array):
    out = stored(array)
    assert exact(out, array)
    assert not out.flags.writeable
    private = stored(array, copy=True)
    assert exact(private, array)
    assert private.flags.writeable
    assert private.flags.owndata or private.base.flags.owndata


DTYPES = [
    "?", "i1", "u8", ">i4", "f2", "<f4", ">f8", "g", "F", "D", "G", "M8[ns]", ">M8[D]", "M8[25s]", "m8[us]", "M8",
    "S5", "U3", ">U3",
    "V7", [("a", "i4"), ("b", "S3")], [("a", ">f4", (2, 3)), ("t", "M8[s]")], [("in", [("x", "f8"), ("y", "V3")])],
    {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]},
    {"names": ["b", "a"], "formats": ["u1", "f8"], "offsets": [20, 4], "itemsize": 32},
    {"names": ["a"], "formats": ["i4"], "titles": ["Title"]},
    np.dtype([("a", "u1"), ("b", "f8")], align=True), np.dtype((np.record, [("a", "i4")])), [],
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (4, 6), (2, 3, 4)], ids=str)
def test_every_dtype_in_every_layout(dtype, shape):
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    whole = (np.arange(size, dtype="u1") % 7).view(dtype).reshape(shape) if size else np.zeros(shape, dtype)
    for array in (whole, np.asfortranarray(whole) if size else whole.T, whole[..., ::-1] if shape else whole):
        out = stored({"x": [array]})["x"][0]
        assert exact(out, array)
        assert out.dtype.isalignedstruct == dtype.isalignedstruct
        assert out.dtype.fields == dtype.fields
    if dtype.itemsize:
        assert exact(stored(whole[..., :0] if shape else whole), whole[..., :0] if shape else whole)


@pytest.mark.parametrize("dtype", ["f4", "M8[s]", [("a", "i4"), ("d", "M8[D]")]], ids=str)
def test_encode_copies_nothing_of_a_contiguous_array(dtype):
    array = np.zeros((50, 40), dtype)
    for given_ in (array, array.T, array.reshape(-1)[0:1].reshape(())):
        part = CODEC.encode([given_]).parts[-1]
        assert part.fill is None
        assert part.nbytes == part.source.nbytes == given_.nbytes
        assert (part.source.format, part.source.ndim) == ("B", 1)
        assert address(part.source) == array.ctypes.data


def test_a_strided_array_is_read_only_when_it_is_written():
    array = np.zeros((8, 8), "i4")
    encoded = CODEC.encode(array[::2, 1:])
    assert encoded.parts[-1].source is None
    array[:] = np.arange(64).reshape(8, 8)
    np.testing.assert_array_equal(CODEC.decode(encoded.kind, write(encoded)), array[::2, 1:])


def test_the_padding_of_a_strided_structured_array_comes_from_the_array():
    array = np.zeros(6, np.dtype([("a", "u1"), ("b", "f8")], align=True))
    encoded = CODEC.encode(array[::2])
    assert set(bytes(write(encoded))[encoded.parts[-1].offset :]) == {0}


def test_order_is_kept():
    array = np.arange(24.0).reshape(2, 3, 4)
    for order in "CF":
        for kwargs in ({}, {"copy": True}):
            out = stored(np.array(array, order=order), **kwargs)
            assert out.flags[f"{order}_CONTIGUOUS"]
            assert exact(out, array)


def test_arrays_lie_in_the_store_at_multiples_of_64():
    encoded = CODEC.encode({"a": np.arange(3, dtype="u1"), "t": torch.arange(5), "b": np.arange(3.0)})
    view = write(encoded)
    out = CODEC.decode(encoded.kind, view)
    start = address(view)
    for where in (out["a"].ctypes.data, out["t"].data_ptr(), out["b"].ctypes.data):
        assert start < where < start + view.nbytes
        assert (where - start) % 64 == 0


def test_read_only_arrays_cannot_be_made_writable():
    out = stored(np.zeros(3))
    with pytest.raises(ValueError, match="WRITEABLE"):
        out.flags.writeable = True


@pytest.mark.parametrize(
    "scalar",
    [
        np.bool_(1), np.int8(-3), np.uint64(1 << 63), np.float16(1.5), np.float32(0.1), np.float64(0.1),
        np.longdouble("0.1"), np.complex64(1 + 2j), np.clongdouble(1j), np.datetime64("2024-02-29", "ns"),
        np.datetime64("NaT"),
        np.timedelta64(5, "D"), np.str_("aé"), np.str_(""), np.str_("a\0"), np.bytes_(b"a\0"), np.bytes_(b""),
        np.void(b"abc"), np.void(b""), np.zeros((), [("a", "i4"), ("b", "U2")])[()],
        np.zeros((), np.dtype((np.record, [("a", "i4")])))[()],
    ],
    ids=repr,
)  # fmt: skip
def test_numpy_scalars_keep_their_type(scalar):
    for out in (stored(scalar), stored([scalar])[0], stored((1, {"a": scalar}), copy=True)[1]["a"]):
        assert type(out) is type(scalar)
        assert out.dtype == scalar.dtype
        assert out.tobytes() == scalar.tobytes()
        assert str(out) == str(scalar)


def test_numpy_scalars_work_as_keys():
    obj = {np.int32(1): "a", (np.float32(2), "x"): {np.str_("k")}}
    out = stored(obj)
    assert out == obj
    assert [type(key) for key in out] == [np.int32, tuple]


def test_what_is_no_plain_array_is_refused():
    record = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    for bad in (
        np.ma.array([1], mask=[True]),
        np.zeros((1, 1)).view(np.matrix),
        record,
        np.array(["x"], np.dtypes.StringDType()),
    ):
        with pytest.raises(InvalidArgumentError, match=r"cannot store obj\['a'\]"):
            CODEC.encode({"a": bad})
    with pytest.raises(InvalidArgumentError, match=r"obj\[0\]: an array of dtype .*holds Python objects"):
        CODEC.encode([np.zeros(2, [("a", "i4"), ("b", "O")])])


def test_a_memmap_is_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "m", "f4", "w+", shape=(3, 4))
    mapped[:] = 3
    out = stored(mapped)
    assert type(out) is np.ndarray
    assert exact(out, np.asarray(mapped))


TORCH_DTYPES = sorted(
    {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and "qint" not in str(dtype)}
    - {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and "quint" in str(dtype)},
    key=str,
)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8)
    if tensor.numel():
        tensor = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        flat.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return bytes(flat.tolist())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("copy", [False, True])
def test_every_torch_dtype_in_every_layout(dtype, copy):
    data = torch.arange(24 * dtype.itemsize, dtype=torch.uint8) % (2 if dtype is torch.bool else 251)
    whole = data.view(dtype).view(4, 6)
    empty = torch.empty((3, 0), dtype=dtype)
    for tensor in (
        whole,
        whole.t(),
        whole[:, ::2],
        whole[1:2, :1].reshape(()),
        whole[2:],
        whole[:1].expand(3, 6),
        empty,
    ):
        out = stored({"x": (tensor,)}, copy=copy)["x"][0]
        assert type(out) is torch.Tensor
        assert out.dtype == tensor.dtype
        assert out.shape == tensor.shape
        assert tensor_bytes(out) == tensor_bytes(tensor)


def test_encode_copies_nothing_of_a_contiguous_tensor():
    tensor = torch.zeros(100, 33, dtype=torch.bfloat16)
    for given_ in (tensor, tensor[7:], tensor.requires_grad_(), torch.nn.Parameter(tensor)):
        part = CODEC.encode([given_]).parts[-1]
        assert part.fill is None
        assert part.nbytes == part.source.nbytes == given_.numel() * 2
        assert (part.source.format, part.source.ndim) == ("B", 1)
        assert address(part.source) == given_.data_ptr()


def test_the_bytes_of_a_tensor_outlive_the_tensor():
    encoded = CODEC.encode(torch.arange(100_000))
    gc.collect()
    assert CODEC.decode(encoded.kind, write(encoded)).sum() == 99_999 * 50_000


def test_grad_is_left_behind():
    weights = torch.nn.Parameter(torch.ones(3, 4))
    for tensor in (weights, weights.t(), weights * 2):
        out = stored(tensor)
        assert type(out) is torch.Tensor
        assert not out.requires_grad
        assert torch.equal(out, tensor.detach())


def test_lazily_conjugated_and_negated_tensors_are_stored_by_value():
    z = torch.tensor([1 + 2j, 3 - 4j])
    for tensor in (z.conj(), z.conj().imag, torch._neg_view(torch.tensor([1, 2], dtype=torch.int8))):
        assert torch.equal(stored(tensor), tensor.resolve_conj().resolve_neg())


def test_tensors_without_plain_bytes_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        csr = torch.eye(2).to_sparse_csr()

    class Sub(torch.Tensor):
        pass

    for bad in (
        torch.eye(2).to_sparse(),
        csr,
        quantised,
        torch.empty(2, device="meta"),
        nested,
        torch.ones(1).as_subclass(Sub),
    ):
        with pytest.raises(InvalidArgumentError, match=r"cannot store obj\['a'\]"):
            CODEC.encode({"a": bad})


def test_pickle_takes_the_tensors_the_codec_refuses():
    sparse = torch.eye(3).to_sparse()
    encoded = Codec(pickle=True).encode({"a": sparse})
    assert encoded.kind is Kind.PICKLED
    assert torch.equal(stored({"a": sparse}, Codec(pickle=True))["a"].to_dense(), torch.eye(3))


def test_decoding_tensors_never_warns_in_any_thread():
    encoded = CODEC.encode([torch.ones(3)] * 3)
    view = write(encoded)
    errors = []

    def read():
        try:
            CODEC.decode(encoded.kind, view)
        except Exception as error:
            errors.append(error)

    torch.set_warn_always(True)
    try:
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_warn_always(False)
    assert errors == []


class Root(ctypes.Array):
    _type_ = ctypes.c_ubyte
    _length_ = 8192


@pytest.mark.parametrize(
    "obj",
    [
        np.arange(5.0),
        np.ones((2, 3), order="F"),
        torch.ones(4),
        torch.ones(2, 2).bfloat16(),
        [b"x" * 5000],
        (np.arange(3), {}),
    ],
)
def test_what_decode_returns_keeps_the_memory_alive_and_nothing_else_does(obj):
    encoded = CODEC.encode(obj)
    root = Root()
    alive = weakref.ref(root)
    memory = memoryview(root).cast("B")
    encoded.write_into(memory)
    view = memory[: encoded.nbytes].toreadonly()
    out = CODEC.decode(encoded.kind, view)
    view.release()
    memory.release()
    del root, view, memory
    gc.collect()
    assert alive() is not None
    last = out[0] if isinstance(out, list | tuple) else out
    last = last[1:]
    del out
    gc.collect()
    assert alive() is not None
    del last
    gc.collect()
    assert alive() is None


def test_a_private_copy_does_not_keep_the_memory_alive():
    encoded = CODEC.encode({"a": np.arange(5.0), "t": torch.ones(3), "b": b"x" * 5000})
    root = Root()
    alive = weakref.ref(root)
    encoded.write_into(memoryview(root).cast("B"))
    out = CODEC.decode(encoded.kind, memoryview(root).cast("B")[: encoded.nbytes], copy=True)
    del root
    gc.collect()
    assert alive() is None
    out["a"][0] = 7
    out["t"][0] = 7


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_library_is_imported_until_an_object_needs_it():
    encoded = bytes(write(CODEC.encode({"n": np.arange(3)})))
    out = run_python(f"""
        import sys
        from mooncake_client.codec import Codec
        codec = Codec()
        encoded = codec.encode({{"a": (1, [2.5])}})
        assert not {{"numpy", "torch"}} & set(sys.modules)
        print(codec.decode(1, memoryview({encoded!r})), "torch" in sys.modules)
    """)
    assert out == "{'n': array([0, 1, 2])} False\n"


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_missing_library_is_named(name):
    obj = np.arange(3) if name == "numpy" else torch.arange(3)
    encoded = bytes(write(CODEC.encode([obj])))
    out = run_python(f"""
        import sys
        sys.modules[{name!r}] = None
        from mooncake_client.codec import Codec
        from mooncake_client.errors import InvalidArgumentError
        try:
            Codec().decode(1, memoryview({encoded!r}))
        except InvalidArgumentError as error:
            print(error)
    """)
    assert f"the object holds {name} data but {name} cannot be imported" in out


def test_a_library_half_imported_by_another_thread_does_no_harm():
    run_python("""
        import sys, types
        sys.modules["numpy"] = types.ModuleType("numpy")
        sys.modules["torch"] = types.ModuleType("torch")
        from mooncake_client.codec import Codec
        from mooncake_client.errors import InvalidArgumentError
        try:
            Codec().encode([object()])
        except InvalidArgumentError:
            sys.exit(0)
        sys.exit(1)
    """)


def test_elements_without_bytes_are_limited_both_ways():
    few = np.zeros(1000, [])
    assert exact(stored(few), few)
    with pytest.raises(InvalidArgumentError, match="elements without bytes"):
        CODEC.encode(np.zeros((1 << 20) + 1, []))
