"""udfkit: user functions over batches of variable-length sequences.

Write ``forward`` and ``backward`` over plain sequences; udfkit moves ragged batches in and out.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from udfkit import device as device
    from udfkit import functions as functions
    from udfkit import ops as ops
    from udfkit import plot as plot
    from udfkit import portable as portable
    from udfkit import sequence as sequence
    from udfkit import testing as testing
    from udfkit.batching import map_if_possible as map_if_possible
    from udfkit.batching import sanitize_batch as sanitize_batch
    from udfkit.batching import variable_value_to_seq as variable_value_to_seq
    from udfkit.buckets import bucket_batches as bucket_batches
    from udfkit.collate import Collate as Collate
    from udfkit.device import DeviceDescriptor as DeviceDescriptor
    from udfkit.device import cpu as cpu
    from udfkit.device import gpu as gpu
    from udfkit.device import set_default_device as set_default_device
    from udfkit.device import use_default_device as use_default_device
    from udfkit.errors import CastWarning as CastWarning
    from udfkit.errors import DeviceError as DeviceError
    from udfkit.errors import PaddedSizeError as PaddedSizeError
    from udfkit.filling import FilledRows as FilledRows
    from udfkit.filling import fill_rows as fill_rows
    from udfkit.function import UserFunction as UserFunction
    from udfkit.function import user_function as user_function
    from udfkit.padding import pad as pad
    from udfkit.ragged import Ragged as Ragged
    from udfkit.sequence_functions import SequenceFunction as SequenceFunction
    from udfkit.sequence_functions import per_sequence as per_sequence
    from udfkit.sequence_functions import per_step as per_step
    from udfkit.sequence_functions import scratch as scratch
    from udfkit.sequence_functions import sequence_function as sequence_function
    from udfkit.sequence_functions import shared as shared
    from udfkit.serialization import load_function as load_function
    from udfkit.serialization import (
        register_udf_deserialize_callback as register_udf_deserialize_callback,
    )
    from udfkit.serialization import save_function as save_function
    from udfkit.state import BackPropState as BackPropState
    from udfkit.state import UserBackPropState as UserBackPropState
    from udfkit.unpadding import Padded as Padded
    from udfkit.unpadding import unpad as unpad
    from udfkit.value import Value as Value
    from udfkit.variable import Axis as Axis
    from udfkit.variable import Constant as Constant
    from udfkit.variable import FreeDimension as FreeDimension
    from udfkit.variable import Parameter as Parameter
    from udfkit.variable import Variable as Variable
    from udfkit.variable import input_variable as input_variable
    from udfkit.variable import output_variable as output_variable

_MODULES = ("device", "functions", "ops", "plot", "portable", "sequence", "testing")
# Those that need another library are no part of ``from udfkit import *``.
_NEED_A_LIBRARY = ("jax", "torch")
_HOMES = {
    "batching": ("map_if_possible", "sanitize_batch", "variable_value_to_seq"),
    "buckets": ("bucket_batches",),
    "collate": ("Collate",),
    "device": ("DeviceDescriptor", "cpu", "gpu", "set_default_device", "use_default_device"),
    "errors": ("CastWarning", "DeviceError", "PaddedSizeError"),
    "filling": ("FilledRows", "fill_rows"),
    "function": ("UserFunction", "user_function"),
    "padding": ("pad",),
    "ragged": ("Ragged",),
    "sequence_functions": (
        "SequenceFunction",
        "per_sequence",
        "per_step",
        "scratch",
        "sequence_function",
        "shared",
    ),
    "serialization": ("load_function", "register_udf_deserialize_callback", "save_function"),
    "state": ("BackPropState", "UserBackPropState"),
    "unpadding": ("Padded", "unpad"),
    "value": ("Value",),
    "variable": (
        "Axis",
        "Constant",
        "FreeDimension",
        "Parameter",
        "Variable",
        "input_variable",
        "output_variable",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _NEED_A_LIBRARY:
        return import_module(f"udfkit.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'udfkit' has no attribute {name!r}")
    value = getattr(import_module(f"udfkit.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
