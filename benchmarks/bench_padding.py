"""`pad`, `unpad` and `fill_rows`: from lists and ragged batches, and back."""

import numpy as np

import udfkit
from benchmarks import laws

ROW_LENGTH = 2048


class Padding:
    """Between sequences, flat values and padded data."""

    param_names = ("law", "batch_size", "sample_size")
    params = (laws.LAWS, laws.BATCH_SIZES, laws.SAMPLE_SIZES)

    def setup(self, law, batch_size, sample_size):
        laws.skip_large(law, batch_size, sample_size)
        self.batch = laws.sequences(law, batch_size, sample_size)
        self.ragged = udfkit.Ragged.from_list(self.batch)
        self.padded = udfkit.pad(self.batch)
        self.out = np.empty_like(self.padded.data)
        self.mask_out = np.empty_like(self.padded.mask)
        # Compilation and the first touch of memory are no part of what is timed.
        for name in dir(self):
            if name.startswith("time_"):
                getattr(self, name)()

    def time_pad_list(self, *_):
        return udfkit.pad(self.batch)

    def time_pad_ragged_into_out(self, *_):
        return udfkit.pad(self.ragged, out=self.out, mask_out=self.mask_out)

    def time_unpad_to_list(self, *_):
        return udfkit.unpad(self.padded)

    def time_unpad_to_ragged(self, *_):
        return udfkit.unpad(self.padded, layout="ragged")

    def peakmem_batch_alone(self, *_):
        """The empty reference for the others: what setup costs."""

    def peakmem_pad_list(self, *_):
        return udfkit.pad(self.batch)

    def peakmem_unpad_to_list(self, *_):
        return udfkit.unpad(self.padded)


class Options:
    """What the options of `pad` and `unpad` cost, on one batch."""

    def setup(self):
        self.batch = laws.sequences("uniform_1_100", 1024, 16)
        self.ragged = udfkit.Ragged.from_list(self.batch)
        self.padded = udfkit.pad(self.batch)
        self.left = udfkit.pad(self.batch, side="left")
        for name in dir(self):
            if name.startswith("time_"):
                getattr(self, name)()

    def time_pad_left(self):
        return udfkit.pad(self.batch, side="left")

    def time_pad_with_a_value(self):
        return udfkit.pad(self.batch, padding_value=0.5)

    def time_pad_ragged(self):
        return udfkit.pad(self.ragged)

    def time_pad_truncated(self):
        return udfkit.pad(self.batch, max_length=50, overflow="truncate_left")

    def time_pad_again(self):
        return udfkit.pad(self.padded, multiple_of=8)

    def time_unpad_left(self):
        return udfkit.unpad(self.left)

    def time_unpad_by_mask(self):
        return udfkit.unpad(self.padded.data, self.padded.mask)

    def time_unpad_by_left_mask(self):
        return udfkit.unpad(self.left.data, self.left.mask)


class Filling:
    """Several sequences a row, and back."""

    param_names = ("law", "batch_size", "sample_size")
    params = (laws.LAWS, laws.BATCH_SIZES, laws.SAMPLE_SIZES)

    def setup(self, law, batch_size, sample_size):
        self.batch = laws.sequences(law, batch_size, sample_size)
        self.filled = udfkit.fill_rows(self.batch, ROW_LENGTH)
        self.filled.sequences()

    def time_fill_rows(self, *_):
        return udfkit.fill_rows(self.batch, ROW_LENGTH)

    def time_sequences(self, *_):
        return self.filled.sequences()


class Waste:
    """Percent of all cells that hold no sample."""

    param_names = ("law", "batch_size")
    params = (laws.LAWS, laws.BATCH_SIZES)
    unit = "percent"

    def setup(self, law, batch_size):
        self.lengths = laws.lengths(law, batch_size)

    def percent(self, cells):
        return 100 * (1 - float(self.lengths.sum()) / float(cells))

    def track_padded(self, *_):
        return self.percent(len(self.lengths) * self.lengths.max())

    def track_filled(self, *_):
        batch = [np.empty(length, np.int8) for length in self.lengths]
        return 100 * (1 - udfkit.fill_rows(batch, ROW_LENGTH).filled)

    def track_bucketed(self, *_):
        budget = max(4096, int(self.lengths.max()))
        batches = udfkit.bucket_batches(self.lengths, budget)
        return self.percent(sum(len(b) * self.lengths[b].max() for b in batches))


class Buckets:
    """Grouping lengths alone."""

    param_names = ("law", "batch_size")
    params = (laws.LAWS, laws.BATCH_SIZES)

    def setup(self, law, batch_size):
        self.lengths = laws.lengths(law, batch_size)

    def time_bucket_batches(self, *_):
        return udfkit.bucket_batches(self.lengths, 4096, seed=1)
