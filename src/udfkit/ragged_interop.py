"""`Ragged` to and from other libraries: the methods, without the libraries.

What does the work is in `udfkit.adapters`, one module a library, and is imported when it is asked
for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from udfkit.errors import DeviceError

if TYPE_CHECKING:
    from udfkit.ragged import Ragged

__all__ = ["Interop", "same_device"]

Nulls = Literal["error", "empty"]


def _adapter(name: str) -> Any:
    try:
        return import_module(f"udfkit.adapters.{name}")
    except ModuleNotFoundError as error:
        package = {"torch_ragged": "torch", "arrow": "pyarrow"}.get(name, name)
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"this conversion needs {package}, which is not installed: pip install {package}",
            name=error.name,
        ) from error


def _told(ragged: Any, method: str) -> Any:
    """Return a batch of which another library can tell all."""
    ragged._needs_host(method)
    continued = ~ragged.starts
    if continued.any():
        raise ValueError(
            f"{method}: sequence {int(continued.argmax())} continues one of the batch before, and "
            f"no other library can say so: convert udfkit.Ragged(x.values, x.offsets), and keep "
            f"x.starts"
        )
    return ragged


def same_device(made: Any, ragged: Any) -> Any:
    """Return a Ragged with the samples of another; DeviceError where it is on another device."""
    if made.device != ragged.device:
        raise DeviceError(
            f"values are on {made.device}, expected an array on {ragged.device}, where the Ragged "
            f"is: copy them there, or take ragged.to(device) first"
        )
    return made


class Interop:
    """The conversions of `Ragged`.

    No other library has ``starts``: a batch in which a sequence continues is refused.
    """

    __slots__ = ()

    @staticmethod
    def from_torch(nested: Any) -> Ragged:
        """Return a Ragged over the memory of a nested jagged tensor of PyTorch.

        Parameters
        ----------
        nested : Tensor
            ``torch.jagged`` layout, on the CPU, ragged in dimension 1; bfloat16 needs ml_dtypes.

        Raises
        ------
        TypeError, ValueError
            For another tensor, or one that requires a gradient, which would be lost.
        DeviceError
            For one that is not on the CPU.
        """
        made: Ragged = _adapter("torch_ragged").from_torch(nested)
        return made

    def to_torch(self) -> Any:
        """Return a nested jagged tensor of PyTorch over the memory of this batch.

        Values that must not be written, such as those of a file, are copied.
        """
        return _adapter("torch_ragged").to_torch(_told(self, "to_torch"))

    @staticmethod
    def from_awkward(array: Any, nulls: Nulls = "error") -> Ragged:
        """Return a Ragged over the memory of an awkward Array.

        Parameters
        ----------
        array : awkward.Array
            Of type ``B * var * number``, or with fixed sizes in front of the number, which become
            the sample shape.
        nulls : {'error', 'empty'}
            What a None instead of a list is.

        Raises
        ------
        TypeError, ValueError
            For an array of another type, or for None, with the index.
        """
        made: Ragged = _adapter("awkward").from_awkward(array, nulls)
        return made

    def to_awkward(self) -> Any:
        """Return an awkward Array over the memory of this batch."""
        return _adapter("awkward").to_awkward(_told(self, "to_awkward"))

    @staticmethod
    def from_arrow(array: Any, nulls: Nulls = "error") -> Ragged:
        """Return a Ragged over the memory of an Arrow list array.

        Parameters
        ----------
        array : pyarrow.Array or pyarrow.ChunkedArray
            List, large list or fixed-size list of numbers or bool; fixed-size lists inside become
            the sample shape. Offsets may begin anywhere. Several chunks are copied together.
        nulls : {'error', 'empty'}
            What a null instead of a list is. A null inside a list is an error.

        Raises
        ------
        TypeError, ValueError
            For an array of another type, or for a null, with the index.
        """
        made: Ragged = _adapter("arrow").from_arrow(array, nulls)
        return made

    def to_arrow(self, large: bool = True) -> Any:
        """Return an Arrow LargeListArray over the memory of this batch.

        Parameters
        ----------
        large : bool, default True
            False makes a ListArray, whose offsets have 32 bits.

        Raises
        ------
        ValueError
            When samples have a size of 0, or offsets do not fit.
        """
        return _adapter("arrow").to_arrow(_told(self, "to_arrow"), large)

    @staticmethod
    def from_tensorflow(ragged: Any) -> Ragged:
        """Return a Ragged over the memory of a RaggedTensor of TensorFlow, of ragged rank 1.

        Raises
        ------
        TypeError
            For anything else, for strings, and inside of ``tf.function``.
        """
        made: Ragged = _adapter("tensorflow").from_tensorflow(ragged)
        return made

    def to_tensorflow(self) -> Any:
        """Return a RaggedTensor of TensorFlow with copies of the values."""
        return _adapter("tensorflow").to_tensorflow(_told(self, "to_tensorflow"))

    @staticmethod
    def from_pandas(column: Any, nulls: Nulls = "error", dtype: Any = None) -> Ragged:
        """Return a Ragged of a pandas column with one array or list a row.

        Parameters
        ----------
        column : pandas.Series
            Of dtype object, which is copied, or an Arrow list column, which is not.
        nulls : {'error', 'empty'}
            What a missing row is.
        dtype : dtype, optional
            As `Ragged.from_list`.

        Raises
        ------
        TypeError, ValueError
            For a column of something else, or for a missing row, with its position.
        """
        made: Ragged = _adapter("pandas").from_pandas(column, nulls, dtype)
        return made

    def to_pandas(self, index: Any = None) -> Any:
        """Return a pandas Series with one read-only array a row, over the memory of this batch."""
        return _adapter("pandas").to_pandas(_told(self, "to_pandas"), index)

    @staticmethod
    def from_csr(matrices: Any, dtype: Any = None) -> Ragged:
        """Return a Ragged with dense copies of CSR matrices of SciPy, one a sequence.

        Parameters
        ----------
        matrices : list of csr_array or csr_matrix
            Shape ``(length, columns)`` each; one matrix alone is one sequence.
        dtype : dtype, optional
            By default the one that holds the values of all.

        Raises
        ------
        TypeError, ValueError
            For another format or number of columns, with the index.
        """
        made: Ragged = _adapter("scipy").from_csr(matrices, dtype)
        return made

    def to_csr(self) -> list[Any]:
        """Return one CSR matrix of SciPy a sequence; samples must have rank 1.

        Raises
        ------
        ValueError
            For samples of another rank.
        """
        made: list[Any] = _adapter("scipy").to_csr(_told(self, "to_csr"))
        return made
