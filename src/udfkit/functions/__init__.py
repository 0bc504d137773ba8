"""Functions over ragged batches with forward and backward, each written for one sequence."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udfkit.functions.attention import attention_pooling as attention_pooling
    from udfkit.functions.crf import crf_decode as crf_decode
    from udfkit.functions.crf import linear_chain_crf as linear_chain_crf
    from udfkit.functions.ctc import ctc_loss as ctc_loss
    from udfkit.functions.dtw import soft_dtw as soft_dtw
    from udfkit.functions.edits import edit_distance as edit_distance
    from udfkit.functions.reductions import log_softmax as log_softmax
    from udfkit.functions.reductions import logsumexp as logsumexp
    from udfkit.functions.reductions import maximum_over as maximum_over
    from udfkit.functions.reductions import mean as mean
    from udfkit.functions.reductions import softmax as softmax

_HOME_OF = {
    "attention_pooling": "attention",
    "crf_decode": "crf",
    "ctc_loss": "ctc",
    "edit_distance": "edits",
    "linear_chain_crf": "crf",
    "log_softmax": "reductions",
    "logsumexp": "reductions",
    "maximum_over": "reductions",
    "mean": "reductions",
    "soft_dtw": "dtw",
    "softmax": "reductions",
}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - it is a list


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'udfkit.functions' has no attribute {name!r}")
    return getattr(import_module(f"udfkit.functions.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
