"""The demo's model: a layer a frame, attention pooling, and a layer an utterance.

Only the pooling sees that batches are ragged, and it is the user function; the layers around it
are plain NumPy over all frames, or over all utterances, at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import udfkit
from udfkit.demo.attention import AttentionPooling
from udfkit.demo.clock import CONVERSION, USER_CODE, Clock

__all__ = ["Model", "Sizes", "Trace", "context_windows"]


@dataclass(frozen=True)
class Sizes:
    """How big the model is; ``reach`` frames on either side belong to a frame's window."""

    coefficients: int = 12
    reach: int = 3
    hidden: int = 64
    heads: int = 4
    speakers: int = 9

    @property
    def window(self) -> int:
        """Numbers in one window."""
        return self.coefficients * (2 * self.reach + 1)


@dataclass(frozen=True)
class Trace:
    """What a forward leaves for its backward."""

    windows: np.ndarray
    hidden: udfkit.Ragged
    pooling: Any
    pooled: np.ndarray
    dropout: np.ndarray | None


class _TimedPooling(AttentionPooling):
    """Attention pooling that charges its own time to the user code."""

    def __init__(self, features: udfkit.Variable, query: udfkit.Variable, clock: Clock) -> None:
        super().__init__(features, query)
        self._clock = clock

    def forward(self, arguments: Any, device: Any, outputs_to_retain: Any) -> tuple[Any, Any]:
        with self._clock.charge(USER_CODE):
            return super().forward(arguments, device, outputs_to_retain)

    def backward(self, state: Any, root_gradients: Any, variables: dict[Any, Any]) -> None:
        with self._clock.charge(USER_CODE):
            super().backward(state, root_gradients, variables)


class Model:
    """Names the speaker of each utterance of a batch.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws the first parameters.
    sizes : Sizes
    dtype : dtype, default float32
        float64 for comparing gradients with finite differences.
    pooling : type, optional
        Class of the user function, made of a list of features and query; by default
        `udfkit.demo.attention.AttentionPooling`.

    Attributes
    ----------
    parameters : dict of str to udfkit.Parameter
        What is learned; assign to ``.value`` of one to change it.
    clock : Clock
        Has the time of the conversions and of the user code.

    Examples
    --------
    >>> import numpy as np, udfkit
    >>> model = Model(np.random.default_rng(0))
    >>> frames = np.ones((16, 12), np.float32)
    >>> batch = udfkit.Ragged.from_list([frames[:7], frames[7:]])
    >>> logits, trace = model.forward(batch)
    >>> logits.shape, sorted(model.backward(trace, np.ones_like(logits)))
    ((2, 9), ['bias', 'offset', 'query', 'readout', 'weights'])
    """

    def __init__(
        self,
        rng: np.random.Generator,
        sizes: Sizes | None = None,
        dtype: Any = np.float32,
        pooling: type[udfkit.UserFunction] | None = None,
    ) -> None:
        self.sizes = sizes = sizes or Sizes()
        pooled = sizes.heads * sizes.hidden
        first = {
            "weights": rng.normal(0, sizes.window**-0.5, (sizes.window, sizes.hidden)),
            "bias": np.zeros(sizes.hidden),
            "query": rng.normal(0, 0.1, (sizes.hidden, sizes.heads)),
            "readout": rng.normal(0, pooled**-0.5, (pooled, sizes.speakers)),
            "offset": np.zeros(sizes.speakers),
        }
        self.parameters = {
            name: udfkit.Parameter(init=value.astype(dtype), name=name)
            for name, value in first.items()
        }
        self.clock = Clock()
        self.features = udfkit.sequence.input_variable(
            sizes.hidden, dtype, needs_gradient=True, name="features"
        )
        self.query = self.parameters["query"]
        self.pooling: udfkit.UserFunction = (
            _TimedPooling(self.features, self.query, self.clock)
            if pooling is None
            else pooling([self.features, self.query])
        )
        (self.output,) = self.pooling.outputs

    def forward(
        self, frames: udfkit.Ragged, dropout: np.ndarray | None = None
    ) -> tuple[np.ndarray, Trace]:
        """Return logits, and what `backward` needs.

        Parameters
        ----------
        frames : Ragged, samples of shape (coefficients,)
        dropout : ndarray, shape (utterances, heads * hidden), optional
            Factors of the pooled features, while training.

        Returns
        -------
        ndarray, shape (utterances, speakers)
        Trace
        """
        windows = context_windows(frames, self.sizes.reach)
        hidden = frames.with_values(
            np.tanh(windows @ self.parameters["weights"].value + self.parameters["bias"].value)
        )
        with self.clock.charge(CONVERSION):
            # The query is a Parameter: the function reads its value there.
            arguments = {self.features: udfkit.sanitize_batch(self.features, hidden)}
            state, outputs = self.pooling._forward(arguments, None)
            pooled = udfkit.variable_value_to_seq(outputs[self.output], self.output)
        pooled = pooled.reshape(len(frames), -1)
        if dropout is not None:
            pooled = pooled * dropout
        logits = pooled @ self.parameters["readout"].value + self.parameters["offset"].value
        return logits, Trace(windows, hidden, state, pooled, dropout)

    def backward(self, trace: Trace, d_logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return the gradient of each parameter.

        Parameters
        ----------
        trace : Trace
            From `forward`.
        d_logits : ndarray, shape (utterances, speakers)
            Gradient of the loss at the logits.
        """
        d_pooled = d_logits @ self.parameters["readout"].value.T
        if trace.dropout is not None:
            d_pooled = d_pooled * trace.dropout
        d_pooled = d_pooled.reshape(len(d_pooled), *self.output.shape)
        with self.clock.charge(CONVERSION):
            roots = {self.output: udfkit.sanitize_batch(self.output, d_pooled)}
            wanted: dict[Any, Any] = {self.features: None, self.query: None}
            self.pooling._backward(trace.pooling, roots, wanted)
            d_hidden = wanted[self.features].ragged().values
            d_query = wanted[self.query].asarray()
        d_tanh = d_hidden * (1 - trace.hidden.values**2)
        return {
            "weights": trace.windows.T @ d_tanh,
            "bias": d_tanh.sum(axis=0),
            "query": d_query,
            "readout": trace.pooled.T @ d_logits,
            "offset": d_logits.sum(axis=0),
        }

    def hidden(self, frames: udfkit.Ragged) -> udfkit.Ragged:
        """Return what the pooling is given for these frames, samples of shape (hidden,)."""
        return self.forward(frames)[1].hidden


def context_windows(frames: udfkit.Ragged, reach: int) -> np.ndarray:
    """Put each frame beside its neighbours within the utterance.

    Behind either end of an utterance its outermost frame is repeated.

    Parameters
    ----------
    frames : Ragged, samples of shape (n,)
    reach : int
        Neighbours on either side.

    Returns
    -------
    ndarray, shape (total, n * (2 * reach + 1))

    Examples
    --------
    >>> import udfkit
    >>> frames = udfkit.Ragged([[1.0], [2.0], [3.0], [9.0]], [0, 3, 4])
    >>> context_windows(frames, 1).tolist()
    [[1.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 3.0], [9.0, 9.0, 9.0]]
    """
    total = len(frames.values)
    first = np.repeat(frames.offsets[:-1], frames.lengths)[:, None]
    last = np.repeat(frames.offsets[1:] - 1, frames.lengths)[:, None]
    neighbours = np.arange(total)[:, None] + np.arange(-reach, reach + 1)
    windows: np.ndarray = frames.values[np.clip(neighbours, first, last)]
    return windows.reshape(total, frames.values.shape[1] * (2 * reach + 1))
