"""Training of the demo's model: Adam, with utterances varied a little each time they are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import udfkit
from udfkit.demo.clock import CONVERSION
from udfkit.demo.data import Utterances
from udfkit.demo.model import Model

__all__ = ["Classifier", "History", "Scaling", "Settings", "cross_entropy", "sample_batch", "train"]


@dataclass(frozen=True)
class Settings:
    """How to train.

    Chosen by cross-validation on the training utterances: contiguous fifths, because the
    utterances of a speaker change in the course of a recording.

    Attributes
    ----------
    noise, shift : float
        Standard deviations of what is added to each standardized coefficient while training, anew
        for each frame, and anew for each utterance. The shift stands for another day, another
        microphone: without it the model mistakes a recording's level for the speaker.
    dropout : float
        Share of the pooled features that is left out.
    smoothing : float
        Share of the target that is spread over all speakers.
    """

    epochs: int = 40
    batch: int = 30
    rate: float = 3e-3
    noise: float = 0.2
    shift: float = 0.5
    dropout: float = 0.3
    smoothing: float = 0.1


@dataclass
class History:
    """What happened, epoch by epoch.

    Attributes
    ----------
    losses : list of float
        Mean cross-entropy over the training utterances as they were seen, in nats.
    accuracies : list of float
        Share of the test utterances that were named right behind each epoch; it is watched, and
        nothing is chosen by it.
    seconds : list of dict of str to float
        Time of each epoch by the labels of `udfkit.demo.clock`, without the test.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Scaling:
    """Mean and spread of each coefficient over the training frames, shapes (12,)."""

    mean: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, utterances: Utterances) -> Scaling:
        """Measure them."""
        frames = np.concatenate(utterances.frames)
        return cls(frames.mean(axis=0), frames.std(axis=0))

    def standardize(self, frames: list[np.ndarray]) -> list[np.ndarray]:
        """Return the utterances with mean 0 and spread 1 of each coefficient."""
        return [(utterance - self.mean) / self.spread for utterance in frames]


@dataclass(frozen=True)
class Classifier:
    """A trained model and the scaling of what it is given."""

    model: Model
    scaling: Scaling

    def batch(self, frames: list[np.ndarray]) -> udfkit.Ragged:
        """Return utterances as the model takes them."""
        return udfkit.Ragged.from_list(self.scaling.standardize(frames))

    def name_speakers(self, frames: list[np.ndarray]) -> np.ndarray:
        """Return the most likely speaker of each utterance, int64."""
        logits, _ = self.model.forward(self.batch(frames))
        speakers: np.ndarray = logits.argmax(axis=1)
        return speakers


def cross_entropy(
    logits: np.ndarray, speakers: np.ndarray, smoothing: float = 0.0
) -> tuple[float, np.ndarray]:
    """Return the mean cross-entropy, and the gradient of its smoothed form at the logits.

    Parameters
    ----------
    logits : ndarray, shape (utterances, speakers)
    speakers : ndarray of int64, shape (utterances,)
    smoothing : float
        Share of the target that is spread over all speakers.

    Examples
    --------
    >>> import numpy as np
    >>> loss, gradient = cross_entropy(np.zeros((1, 4)), np.array([2]))
    >>> round(loss, 3), gradient.tolist()
    (1.386, [[0.25, 0.25, -0.75, 0.25]])
    """
    count, classes = logits.shape
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = np.full_like(logits, smoothing / classes)
    target[np.arange(count), speakers] += 1 - smoothing
    loss = -float(logs[np.arange(count), speakers].mean())
    return loss, (np.exp(logs) - target) / count


class _Adam:
    """Adam with a step size that falls to zero along a cosine."""

    def __init__(self, parameters: dict[str, udfkit.Parameter], rate: float, steps: int) -> None:
        self._parameters = parameters
        self._rate = rate
        self._steps = steps
        self._taken = 0
        self._mean = {name: np.zeros_like(p.value) for name, p in parameters.items()}
        self._square = {name: np.zeros_like(p.value) for name, p in parameters.items()}

    def step(self, gradients: dict[str, np.ndarray]) -> None:
        self._taken += 1
        rate = self._rate * 0.5 * (1 + np.cos(np.pi * self._taken / self._steps))
        for name, parameter in self._parameters.items():
            mean, square = self._mean[name], self._square[name]
            mean += 0.1 * (gradients[name] - mean)
            square += 0.001 * (gradients[name] ** 2 - square)
            spread = np.sqrt(square / (1 - 0.999**self._taken)) + 1e-8
            parameter.value = parameter.value - rate * mean / (1 - 0.9**self._taken) / spread


def _varied(frames: udfkit.Ragged, settings: Settings, rng: np.random.Generator) -> udfkit.Ragged:
    noise = settings.noise * rng.standard_normal(frames.values.shape, np.float32)
    shift = settings.shift * rng.standard_normal((len(frames), *frames.sample_shape), np.float32)
    return frames.with_values(frames.values + noise + np.repeat(shift, frames.lengths, axis=0))


def train(
    training: Utterances,
    test: Utterances,
    settings: Settings,
    seed: int,
    report: Callable[[int, float, float], object] | None = None,
    pooling: type[udfkit.UserFunction] | None = None,
) -> tuple[Classifier, History]:
    """Train a model; the same arguments give the same model on the same machine.

    Parameters
    ----------
    training, test : Utterances
    settings : Settings
    seed : int
        Of the first parameters, the order of the utterances and all noise.
    report : callable, optional
        Called with the number, the loss and the test accuracy of each epoch when it is over.
    pooling : type, optional
        Class of the model's user function, see `udfkit.demo.model.Model`.

    Returns
    -------
    Classifier
    History

    Examples
    --------
    >>> from udfkit.demo.data import load
    >>> classifier, history = train(*load(), Settings(epochs=1), seed=1)
    >>> len(history.losses), history.accuracies[0] > 0.3
    (1, True)
    """
    rng = np.random.default_rng(seed)
    model = Model(rng, pooling=pooling)
    classifier = Classifier(model, Scaling.of(training))
    frames = classifier.scaling.standardize(training.frames)
    kept = np.float32(1 - settings.dropout)
    pooled = model.sizes.heads * model.sizes.hidden
    optimizer = _Adam(
        model.parameters,
        settings.rate,
        settings.epochs * -(-len(training) // settings.batch),
    )
    history = History()
    for epoch in range(settings.epochs):
        model.clock.read()
        total = 0.0
        order = rng.permutation(len(training))
        for first in range(0, len(order), settings.batch):
            chosen = order[first : first + settings.batch]
            with model.clock.charge(CONVERSION):
                batch = udfkit.Ragged.from_list([frames[k] for k in chosen])
            dropout = (rng.random((len(chosen), pooled), np.float32) < kept) / kept
            logits, trace = model.forward(_varied(batch, settings, rng), dropout)
            loss, d_logits = cross_entropy(logits, training.speakers[chosen], settings.smoothing)
            optimizer.step(model.backward(trace, d_logits))
            total += loss * len(chosen)
        history.seconds.append(model.clock.read())
        history.losses.append(total / len(training))
        right = classifier.name_speakers(test.frames) == test.speakers
        history.accuracies.append(float(right.mean()))
        if report is not None:
            report(epoch, history.losses[-1], history.accuracies[-1])
    return classifier, history


def sample_batch(
    classifier: Classifier, training: Utterances, settings: Settings, seed: int
) -> udfkit.Value:
    """Return a batch of random utterances as the user function is given it.

    Parameters
    ----------
    classifier : Classifier
    training : Utterances
    settings : Settings
        For the number of utterances.
    seed : int
        Of the choice.
    """
    chosen = np.random.default_rng(seed).permutation(len(training))[: settings.batch]
    model = classifier.model
    hidden = model.hidden(classifier.batch([training.frames[k] for k in chosen]))
    return udfkit.sanitize_batch(model.features, hidden)
