"""The two hot paths: sequences in, sequences out."""

import numpy as np

import udfkit
from benchmarks import laws


class Conversion:
    """Lists of arrays to a padded Value, and a padded Value to a list of arrays."""

    param_names = ("law", "batch_size", "sample_size")
    params = (laws.LAWS, laws.BATCH_SIZES, laws.SAMPLE_SIZES)

    def setup(self, law, batch_size, sample_size):
        laws.skip_large(law, batch_size, sample_size)
        self.variable = udfkit.sequence.input_variable((sample_size,))
        self.batch = laws.sequences(law, batch_size, sample_size)
        self.value = udfkit.sanitize_batch(self.variable, self.batch)
        # Compilation and the first touch of the input are no part of what is timed.
        self.sanitize()
        udfkit.variable_value_to_seq(self.value, self.variable)

    def sanitize(self):
        """Ask for padded data and mask too, so that nothing is left for a first use."""
        value = udfkit.sanitize_batch(self.variable, self.batch)
        return value.data, value.mask

    def time_sanitize_batch(self, *_):
        return self.sanitize()

    def time_variable_value_to_seq(self, *_):
        return udfkit.variable_value_to_seq(self.value, self.variable)

    def peakmem_batch_alone(self, *_):
        """The empty reference for the other two: what setup costs."""

    def peakmem_sanitize_batch(self, *_):
        return self.sanitize()

    def peakmem_variable_value_to_seq(self, *_):
        return udfkit.variable_value_to_seq(self.value, self.variable)


class Masks:
    """Masks from lengths, and lengths from masks."""

    param_names = ("law", "batch_size")
    params = (laws.LAWS, laws.BATCH_SIZES)

    def setup(self, law, batch_size):
        self.variable = udfkit.sequence.input_variable(())
        lengths = laws.lengths(law, batch_size)
        self.ragged = udfkit.Ragged(np.zeros(lengths.sum(), np.float32), np.r_[0, lengths.cumsum()])
        self.value = udfkit.sanitize_batch(self.variable, self.ragged)
        self.gaps = np.array(self.value.mask)
        self.gaps[:, 1:][:, ::7] = 0
        self.time_mask_from_lengths()
        self.time_value_from_mask()
        self.time_value_from_mask_with_gaps()

    def time_mask_from_lengths(self, *_):
        return udfkit.sanitize_batch(self.variable, self.ragged, copy=False).mask

    def time_value_from_mask(self, *_):
        return udfkit.Value(self.value.data, self.value.mask)

    def time_value_from_mask_with_gaps(self, *_):
        return udfkit.Value(self.value.data, self.gaps)
