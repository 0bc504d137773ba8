"""Checking user functions: gradients, neighbours, padding, states, on batches that break things.

`check_function` runs a function on ragged batches with empty sequences in every place and on root
gradients in awkward layouts, and returns a report that says what is wrong and where. NumPy is all
that it needs.

Examples
--------
A gradient that forgot to divide by the length:

>>> import numpy as np, udfkit
>>> from udfkit.testing import check_function
>>> class Mean(udfkit.UserFunction):
...     def infer_outputs(self):
...         x = self.inputs[0]
...         return [udfkit.output_variable(x.shape, x.dtype, [udfkit.Axis.default_batch_axis()])]
...     def forward(self, sequences, device, outputs_to_retain):
...         return [len(s) for s in sequences], [s.sum(axis=0) / max(len(s), 1) for s in sequences]
...     def backward(self, lengths, grad):
...         return [np.repeat(g[None], n, axis=0) for n, g in zip(lengths, grad)]
>>> mean = Mean([udfkit.sequence.input_variable(2, np.float64, needs_gradient=True, name="x")])
>>> report = check_function(mean)
>>> bool(report)
False
>>> print(report["gradient"])
  FAILED   gradient   gradient of 'x', batch 'ragged' (lengths 3, 1, 4), sequence 0, step 0, ...
                      likely: wrong scale: each sequence's gradient is its length times the numeric
                      one: summed over the steps instead of averaged

In a test, ``check_function(fn).raise_if_failed()`` says all of it.
"""

from __future__ import annotations

from udfkit.testing.check import check_function
from udfkit.testing.report import Check, Report
from udfkit.testing.strategies import ragged_batches

__all__ = ["Check", "Report", "check_function", "ragged_batches"]
