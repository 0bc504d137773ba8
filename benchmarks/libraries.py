"""How other libraries pad and unpad: one function a library and job, with what it needs prepared.

Each job is given in the library's own types and returned in them, so that no conversion is timed;
``as_numpy`` turns results into arrays for the check. A library that is not installed is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

JOBS = ("list to padded", "padded to list", "ragged to padded", "padded to ragged")

DISTRIBUTIONS = {
    "torch": "torch",
    "nested": "torch",
    "fbgemm": "fbgemm-gpu-cpu",
    "keras": "keras",
    "awkward": "awkward",
    "jax": "jax",
    "tensorflow": "tensorflow-cpu",
    "foldedtensor": "foldedtensor",
    "ragged-buffer": "ragged-buffer",
}


@dataclass
class Data:
    """One batch in every form that a job may start from."""

    sequences: list[np.ndarray]
    lengths: np.ndarray
    offsets: np.ndarray
    flat: np.ndarray
    padded: np.ndarray
    mask: np.ndarray
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """T."""
        return self.padded.shape[1]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Make a prepared form at its first use."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]


def make_data(sequences: list[np.ndarray]) -> Data:
    """Make all forms with plain loops."""
    lengths = np.array([len(x) for x in sequences], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    steps = int(lengths.max())
    padded = np.zeros((len(sequences), steps, *sequences[0].shape[1:]), sequences[0].dtype)
    mask = np.zeros((len(sequences), steps), bool)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return Data(sequences, lengths, offsets, np.concatenate(sequences), padded, mask)


Job = Callable[[Data], Callable[[], Any]]


def numpy_jobs() -> dict[str, Job]:
    """Loops that people write by hand."""

    def pad(data: Data) -> Callable[[], Any]:
        sequences = data.sequences

        def run() -> Any:
            lengths = [len(x) for x in sequences]
            steps = max(lengths)
            out = np.zeros((len(sequences), steps, *sequences[0].shape[1:]), sequences[0].dtype)
            mask = np.zeros((len(sequences), steps), bool)
            for row, x in enumerate(sequences):
                out[row, : lengths[row]] = x
                mask[row, : lengths[row]] = True
            return out, mask

        return run

    def unpad(data: Data) -> Callable[[], Any]:
        lengths = data.lengths.tolist()
        return lambda: [data.padded[row, :length].copy() for row, length in enumerate(lengths)]

    def pad_ragged(data: Data) -> Callable[[], Any]:
        def run() -> Any:
            out = np.zeros(data.padded.shape, data.padded.dtype)
            mask = np.arange(data.steps) < data.lengths[:, None]
            out[mask] = data.flat
            return out, mask

        return run

    def to_ragged(data: Data) -> Callable[[], Any]:
        return lambda: data.padded[data.mask]

    return dict(zip(JOBS, (pad, unpad, pad_ragged, to_ragged), strict=True))


def torch_jobs() -> dict[str, Job]:
    """``pad_sequence`` and ``unpad_sequence``."""
    torch = import_module("torch")
    rnn = torch.nn.utils.rnn

    def pad(data: Data) -> Callable[[], Any]:
        tensors = data.once("tensors", lambda: [torch.from_numpy(x) for x in data.sequences])

        def run() -> Any:
            out = rnn.pad_sequence(tensors, batch_first=True)
            lengths = torch.tensor([len(x) for x in tensors])
            return out, torch.arange(out.shape[1]) < lengths[:, None]

        return run

    def unpad(data: Data) -> Callable[[], Any]:
        padded, lengths = torch.from_numpy(data.padded), torch.from_numpy(data.lengths)
        # Copies, since the views that come back would keep the whole batch.
        return lambda: [x.clone() for x in rnn.unpad_sequence(padded, lengths, batch_first=True)]

    return {JOBS[0]: pad, JOBS[1]: unpad}


def nested_jobs() -> dict[str, Job]:
    """Nested tensors in the jagged layout."""
    torch = import_module("torch")

    def pad(data: Data) -> Callable[[], Any]:
        tensors = data.once("tensors", lambda: [torch.from_numpy(x) for x in data.sequences])

        def run() -> Any:
            nested = torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
            out = nested.to_padded_tensor(0.0)
            return out, torch.arange(out.shape[1]) < nested.offsets().diff()[:, None]

        return run

    def pad_ragged(data: Data) -> Callable[[], Any]:
        values, offsets = torch.from_numpy(data.flat), torch.from_numpy(data.offsets)

        def run() -> Any:
            nested = torch.nested.nested_tensor_from_jagged(values, offsets)
            out = nested.to_padded_tensor(0.0)
            return out, torch.arange(out.shape[1]) < offsets.diff()[:, None]

        return run

    return {JOBS[0]: pad, JOBS[2]: pad_ragged}


def fbgemm_jobs() -> dict[str, Job]:
    """The jagged operators."""
    torch = import_module("torch")
    import_module("fbgemm_gpu")
    ops = torch.ops.fbgemm

    def pad(data: Data) -> Callable[[], Any]:
        tensors = data.once("tensors", lambda: [torch.from_numpy(x) for x in data.sequences])

        def run() -> Any:
            lengths = torch.tensor([len(x) for x in tensors])
            offsets = torch.zeros(len(tensors) + 1, dtype=torch.int64)
            torch.cumsum(lengths, 0, out=offsets[1:])
            steps = int(lengths.max())
            out = ops.jagged_to_padded_dense(torch.cat(tensors), [offsets], [steps], 0.0)
            return out, torch.arange(steps) < lengths[:, None]

        return run

    def unpad(data: Data) -> Callable[[], Any]:
        padded, offsets = torch.from_numpy(data.padded), torch.from_numpy(data.offsets)
        lengths = data.lengths.tolist()
        return lambda: torch.split(ops.dense_to_jagged(padded, [offsets])[0], lengths)

    def pad_ragged(data: Data) -> Callable[[], Any]:
        values, offsets = torch.from_numpy(data.flat), torch.from_numpy(data.offsets)

        def run() -> Any:
            out = ops.jagged_to_padded_dense(values, [offsets], [data.steps], 0.0)
            return out, torch.arange(data.steps) < offsets.diff()[:, None]

        return run

    def to_ragged(data: Data) -> Callable[[], Any]:
        padded, offsets = torch.from_numpy(data.padded), torch.from_numpy(data.offsets)
        return lambda: ops.dense_to_jagged(padded, [offsets], len(data.flat))[0]

    return dict(zip(JOBS, (pad, unpad, pad_ragged, to_ragged), strict=True))


def keras_jobs() -> dict[str, Job]:
    """``pad_sequences``."""
    pad_sequences = import_module("keras").utils.pad_sequences

    def pad(data: Data) -> Callable[[], Any]:
        def run() -> Any:
            out = pad_sequences(data.sequences, dtype=data.flat.dtype, padding="post")
            lengths = np.array([len(x) for x in data.sequences])
            return out, np.arange(out.shape[1]) < lengths[:, None]

        return run

    return {JOBS[0]: pad}


def awkward_jobs() -> dict[str, Job]:
    """``pad_none`` and ``fill_none``."""
    ak = import_module("awkward")

    def padded(values: np.ndarray, lengths: np.ndarray) -> Any:
        # The numbers of a sample side by side, since None would replace whole samples.
        size, steps = values.shape[1], int(lengths.max())
        array = ak.unflatten(values.reshape(-1), lengths * size)
        nothing = values.dtype.type(0)  # a plain 0 makes float64 of float32
        some = ak.pad_none(array, steps * size, axis=1, clip=True)
        filled = ak.fill_none(some, nothing, axis=1)
        out = ak.to_numpy(filled, allow_missing=False).reshape(len(lengths), steps, size)
        return out, np.arange(steps) < lengths[:, None]

    def pad(data: Data) -> Callable[[], Any]:
        def run() -> Any:
            lengths = np.array([len(x) for x in data.sequences])
            return padded(np.concatenate(data.sequences), lengths)

        return run

    def pad_ragged(data: Data) -> Callable[[], Any]:
        return lambda: padded(data.flat, data.lengths)

    return {JOBS[0]: pad, JOBS[2]: pad_ragged}


def jax_jobs() -> dict[str, Job]:
    """A scatter into zeros."""
    jnp = import_module("jax.numpy")

    def pad(data: Data) -> Callable[[], Any]:
        def run() -> Any:
            lengths = np.array([len(x) for x in data.sequences])
            mask = np.arange(int(lengths.max())) < lengths[:, None]
            rows, columns = np.nonzero(mask)
            flat = jnp.asarray(np.concatenate(data.sequences))
            out = jnp.zeros((*mask.shape, *flat.shape[1:]), flat.dtype).at[rows, columns].set(flat)
            return out.block_until_ready(), mask

        return run

    return {JOBS[0]: pad}


def tensorflow_jobs() -> dict[str, Job]:
    """Ragged tensors."""
    tf = import_module("tensorflow")

    def pad(data: Data) -> Callable[[], Any]:
        def run() -> Any:
            lengths = [len(x) for x in data.sequences]
            ragged = tf.RaggedTensor.from_row_lengths(
                np.concatenate(data.sequences), lengths, validate=False
            )
            return ragged.to_tensor(), tf.sequence_mask(lengths)

        return run

    def unpad(data: Data) -> Callable[[], Any]:
        padded, lengths = tf.constant(data.padded), tf.constant(data.lengths)
        sizes = data.lengths.tolist()
        return lambda: tf.split(tf.RaggedTensor.from_tensor(padded, lengths).values, sizes)

    def pad_ragged(data: Data) -> Callable[[], Any]:
        ragged = tf.RaggedTensor.from_row_splits(data.flat, data.offsets, validate=False)
        return lambda: (ragged.to_tensor(), tf.sequence_mask(ragged.row_lengths()))

    def to_ragged(data: Data) -> Callable[[], Any]:
        padded, lengths = tf.constant(data.padded), tf.constant(data.lengths)
        return lambda: tf.RaggedTensor.from_tensor(padded, lengths).values

    return dict(zip(JOBS, (pad, unpad, pad_ragged, to_ragged), strict=True))


def foldedtensor_jobs() -> dict[str, Job]:
    """Folded tensors, refolded."""
    torch = import_module("torch")
    folded = import_module("foldedtensor")
    names = ("samples", "words")

    def pad(data: Data) -> Callable[[], Any]:
        tensors = data.once("tensors", lambda: [torch.from_numpy(x) for x in data.sequences])

        def run() -> Any:
            lengths = [len(x) for x in tensors]
            flat = folded.as_folded_tensor(
                torch.cat(tensors), names[1:], names, lengths=[[len(tensors)], lengths]
            )
            out = flat.refold(*names)
            return out.as_tensor(), out.mask

        return run

    return {JOBS[0]: pad}


_MAKERS = {
    "numpy loop": numpy_jobs,
    "torch": torch_jobs,
    "nested": nested_jobs,
    "fbgemm": fbgemm_jobs,
    "keras": keras_jobs,
    "awkward": awkward_jobs,
    "jax": jax_jobs,
    "tensorflow": tensorflow_jobs,
    "foldedtensor": foldedtensor_jobs,
}

# These make several copies, or a Python object a sequence: no more than this many padded bytes.
HEAVY = {"nested", "keras", "awkward", "jax", "tensorflow", "foldedtensor"}
HEAVY_BYTES = 300_000_000


def use_one_thread() -> None:
    """Let every library that is imported later work with one thread, and say little."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "UDFKIT_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ["JAX_PLATFORMS"] = "cpu"


@cache
def load(names: tuple[str, ...] = ()) -> tuple[dict[str, dict[str, Job]], dict[str, str]]:
    """Import what is installed; return jobs by library, and a word on each library."""
    jobs: dict[str, dict[str, Job]] = {}
    said: dict[str, str] = {"numpy loop": f"numpy {np.__version__}"}
    for name, make in _MAKERS.items():
        if names and name not in names:
            continue
        try:
            jobs[name] = make()
            said[name] = f"{DISTRIBUTIONS.get(name, 'numpy')} {_version(name)}"
        except Exception as error:  # noqa: BLE001 - a library that does not load is no peer
            said[name] = f"missing ({type(error).__name__})"
    if not names or "ragged-buffer" in names:
        found = _version("ragged-buffer")
        said["ragged-buffer"] = f"ragged-buffer {found}, has no padded form" if found else "missing"
    return jobs, said


def _version(name: str) -> str:
    try:
        return version(DISTRIBUTIONS.get(name, "numpy"))
    except PackageNotFoundError:
        return ""


def as_numpy(result: Any) -> Any:
    """Turn what a job returned into arrays, for the check."""
    if isinstance(result, (list, tuple)):
        return [as_numpy(x) for x in result]
    return np.asarray(result)
