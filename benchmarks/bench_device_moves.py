"""Moving samples between flat values and padded data, with the device as a parameter."""

from typing import Any

import numpy as np

from benchmarks import laws
from udfkit import moves


class DeviceMoves:
    """Flat values to padded data and back; a device that is not there is skipped."""

    param_names = ("device", "law", "batch_size", "sample_size")
    params = (("cpu", "gpu"), laws.LAWS, laws.BATCH_SIZES, laws.SAMPLE_SIZES)

    def setup(self, device: str, law: str, batch_size: int, sample_size: int) -> None:
        lengths = laws.lengths(law, batch_size)
        self.offsets: Any = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.values: Any = np.ones((int(self.offsets[-1]), sample_size), np.float32)
        self.steps, self.total = int(lengths.max()), int(self.offsets[-1])
        if device == "gpu":
            self._to_device()
        self.time_ragged_to_padded()
        self.data = self._pad()
        self.time_padded_to_ragged()

    def _to_device(self) -> None:
        from udfkit.kernels import cuda_target

        found = cuda_target.status()
        if not found.available or cuda_target.is_simulated():
            raise NotImplementedError(found.reason or "the simulator has no speed to measure")
        from udfkit.kernels import cuda_arrays, cuda_moves

        self.values = cuda_arrays.upload(self.values)
        self.offsets = cuda_arrays.upload(self.offsets)
        self.cuda: Any = cuda_target.module()
        self.cuda_moves: Any = cuda_moves

    def _pad(self) -> Any:
        if hasattr(self, "cuda"):
            return self.cuda_moves.ragged_to_padded(self.values, self.offsets, self.steps)[0]
        return moves.ragged_to_padded(self.values, self.offsets, self.steps)

    def _unpad(self) -> Any:
        if hasattr(self, "cuda"):
            return self.cuda_moves.padded_to_ragged(self.data, self.offsets, self.total)
        return moves.padded_to_ragged(self.data, self.offsets)

    def _finish(self) -> None:
        if hasattr(self, "cuda"):
            self.cuda.synchronize()

    def time_ragged_to_padded(self, *_: object) -> None:
        self._pad()
        self._finish()

    def time_padded_to_ragged(self, *_: object) -> None:
        self._unpad()
        self._finish()
