"""The Japanese Vowels utterances (see ATTRIBUTION.txt beside the data)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import numpy as np

__all__ = ["SPEAKERS", "Utterances", "attribution", "load"]

SPEAKERS = 9


@dataclass(frozen=True)
class Utterances:
    """Utterances and who spoke them.

    Attributes
    ----------
    frames : list of ndarray, each (length, 12), float32
        One array an utterance, of 7 to 29 frames with 12 cepstrum coefficients.
    speakers : ndarray of int64, shape (utterances,)
        0 to 8.
    """

    frames: list[np.ndarray]
    speakers: np.ndarray

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def lengths(self) -> np.ndarray:
        """Number of frames of each utterance, int64."""
        return np.array([len(utterance) for utterance in self.frames], np.int64)


def load() -> tuple[Utterances, Utterances]:
    """Return the training and the test utterances that come with the package.

    Examples
    --------
    >>> train, test = load()
    >>> len(train), len(test), train.frames[0].shape
    (270, 370, (20, 12))
    """
    with (
        resources.files(__package__).joinpath("japanese_vowels.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        arrays = dict(archive)

    def part(name: str) -> Utterances:
        bounds = np.cumsum(arrays[f"{name}_lengths"])[:-1]
        frames = np.split(arrays[f"{name}_values"], bounds)
        return Utterances(frames, arrays[f"{name}_labels"] - 1)

    return part("train"), part("test")


def attribution() -> str:
    """Return where the data comes from and under which licence it may be used."""
    return resources.files(__package__).joinpath("ATTRIBUTION.txt").read_text(encoding="utf-8")
