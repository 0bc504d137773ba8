"""Batches that change while they are read, or whose parts do not fit: no crash, no stray memory."""

from __future__ import annotations

import pytest

import udfkit
from checks import raises
from processes import run_python

CHANGING = """
import random, sys, threading, time
import numpy as np
import hot_paths, reference, udfkit
sys.setswitchinterval(1e-6)
stop, errors = threading.Event(), []
def busily(change):
    def work():
        while not stop.is_set():
            change()
    return threading.Thread(target=work)
def race(change, read, seconds=4, copies=2):
    others = [busily(change) for _ in range(copies)]
    for other in others:
        other.start()
    end, done = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            done += read()
    finally:
        stop.set()
        for other in others:
            other.join()
    assert done, "every call was refused"
"""


def test_a_list_changed_by_other_threads_while_it_is_read() -> None:
    run_python(
        CHANGING
        + """
x = udfkit.sequence.input_variable((4,))
identity = hot_paths.Identity([x])
def fresh(n):
    return np.full((n % 9, 4), n, np.float32)
batch = [fresh(n) for n in range(300)]
chance = random.Random(0)
def change():
    n = chance.randrange(9)
    match chance.randrange(5):
        case 0:
            batch.clear()
        case 1:
            batch[:] = [fresh(n) for n in range(300)]
        case 2:
            batch.append(fresh(n))
        case 3:
            batch[len(batch) // 2 :] = [[[n] * 4] * n, np.full((n, 4), float(n)).T.copy().T]
        case _:
            del batch[n * 20 :]
def whole(sequences):
    for sequence in sequences:
        # Samples of one sequence are all the same, and say how long it is.
        assert sequence.shape[1:] == (4,)
        assert (sequence == (sequence.flat[0] if sequence.size else 0)).all()
        assert not sequence.size or len(sequence) == sequence[0, 0] % 9
    return len(sequences)
def read():
    value = udfkit.sanitize_batch(x, batch)
    assert value.data.shape[:2] == value.mask.shape == (len(value), value.lengths.max(initial=0))
    done = whole(udfkit.variable_value_to_seq(value, x))
    done += whole([*udfkit.Ragged.from_list(batch, np.float32, 4)])
    done += whole(udfkit.unpad(udfkit.pad(batch, dtype=np.float32, sample_shape=4)))
    return done + whole(identity.eval(batch))
import warnings
warnings.simplefilter("ignore", udfkit.CastWarning)
race(change, read)
"""
    )


@pytest.mark.parametrize(
    "what", ["mask", "value_mask", "lengths", "value_lengths", "one_hot", "starts", "samples"]
)
def test_an_array_changed_by_another_thread_while_it_is_read(what: str) -> None:
    shape = (4000, 200) if "mask" in what else (20_000, 8)
    # What comes out then is anything or an error, but no memory outside the arrays is touched.
    run_python(
        CHANGING
        + f"""
what = {what!r}
x = udfkit.sequence.input_variable(())
shape = {shape}
data = np.zeros(shape, np.float32)
good, bad, read = dict(
    mask=(np.eye(1, shape[1], 3, np.int8).repeat(shape[0], 0), np.full(shape, 2, np.int8),
          lambda: udfkit.unpad(data, array)),
    value_mask=(np.eye(1, shape[1], 3, np.int8).repeat(shape[0], 0), np.full(shape, 2, np.int8),
                lambda: udfkit.Value(data, array).data),
    lengths=(np.full(shape[0], 5), np.full(shape[0], 1 << 40),
             lambda: udfkit.unpad(data, lengths=array)),
    value_lengths=(np.full(shape[0], 5), np.full(shape[0], 1 << 40),
                   lambda: udfkit.Value(data, lengths=array).mask),
    one_hot=(np.zeros(shape[0], int), np.full(shape[0], 1 << 40),
             lambda: udfkit.Value.one_hot([array] * 4, 3).data),
    starts=(np.ones(shape[0], bool), np.zeros(shape[0], bool),
            lambda: udfkit.sanitize_batch(x, data, array).mask),
    samples=(np.zeros(shape), np.full(shape, 1e300),
             lambda: udfkit.sanitize_batch(x, [*array]).data),
)[what]
array = good.copy()
def change():
    array[...] = bad
    time.sleep(0.0005 * random.random())
    array[...] = good
    time.sleep(0.001 * random.random())
def tolerant():
    try:
        read()
    except ValueError:
        return what != "starts"
    return 1
import warnings
warnings.simplefilter("ignore", udfkit.CastWarning)
race(change, tolerant, seconds=6, copies=1)
"""
    )


@pytest.mark.parametrize("read", ["unpad", "pad"])
@pytest.mark.parametrize(
    "misuse",
    [
        "padded.data = padded.data[:, :2]",
        "padded.data = padded.data[:1]",
        "padded.lengths = np.array([1 << 26, 1 << 27])",
        "padded.lengths = np.array([-5, 1])",
        "padded.lengths = np.array([6, 2, 6])",
        "padded.lengths = np.array([6])",
        "padded = udfkit.Padded(padded.data, padded.mask, np.array([9, 9]), 'left', None)",
    ],
)
def test_a_padded_whose_parts_do_not_fit_each_other(misuse: str, read: str) -> None:
    run_python(
        f"""
        import numpy as np
        import udfkit
        padded = udfkit.pad([np.arange(6.0), np.arange(2.0)])
        try:
            {misuse}
            made = udfkit.{read}(padded)
        except ValueError as error:
            assert "length" in str(error), error
        else:
            raise AssertionError(f"memory outside the data was read: {{made!r}}")
        """
    )


@pytest.mark.parametrize("change", ["back.append(back[0])", "del back[0]", "back.clear()"])
def test_unpadded_sequences_that_became_more_or_fewer_than_their_starts(change: str) -> None:
    back = udfkit.unpad(udfkit.pad(udfkit.Ragged([1.0, 2.0, 3.0], [0, 1, 3], [False, True])))
    assert back.starts.tolist() == [False, True]
    exec(change)
    with raises(ValueError, "starts"):
        udfkit.pad(back)


def test_lengths_changed_by_another_thread_while_samples_are_taken() -> None:
    run_python(
        CHANGING
        + """
rows, steps = 100_000, 64
data = np.zeros((rows, steps), np.int8)
few, many = np.ones(rows, np.int64), np.full(rows, steps)
lengths = few.copy()
def change():
    lengths[:] = many
    lengths[:] = few
def read():
    for layout in "list", "ragged":
        made = udfkit.unpad(data, lengths=lengths, layout=layout)
        block = made.values if layout == "ragged" else made[0].base
        assert sum(map(len, made)) == len(block)
    return True
race(change, read, copies=1)
"""
    )
