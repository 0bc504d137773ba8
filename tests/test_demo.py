"""The demo: its data, its gradients, and the command from end to end."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest

import udfkit
from udfkit import cli
from udfkit.demo import (
    attention,
    checking,
    clock,
    compiled,
    data,
    model,
    progress,
    report,
    training,
)


@pytest.fixture(scope="module")
def utterances():
    return data.load()


def test_data_is_complete(utterances):
    train, test = utterances
    assert (len(train), len(test)) == (270, 370)
    assert np.bincount(train.speakers).tolist() == [30] * 9
    assert np.bincount(test.speakers).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    for part in utterances:
        assert {x.shape[1:] for x in part.frames} == {(12,)}
        assert {x.dtype for x in part.frames} == {np.dtype(np.float32)}
        assert all(np.isfinite(x).all() for x in part.frames)
    assert (train.lengths.min(), train.lengths.max(), train.lengths.sum()) == (7, 26, 4274)
    assert (test.lengths.min(), test.lengths.max(), test.lengths.sum()) == (7, 29, 5687)


def test_data_is_attributed():
    text = data.attribution()
    for words in ("Kudo", "Toyama", "Shimbo", "UCI Machine Learning", "CC BY 4.0", "Changed"):
        assert words in text


def test_attention_agrees_with_a_direct_computation():
    rng = np.random.default_rng(3)
    lengths, size, heads = (3, 0, 1, 6), 5, 2
    x = udfkit.sequence.input_variable(size, np.float64, needs_gradient=True)
    query = udfkit.Parameter(init=rng.normal(size=(size, heads)))
    batch = [rng.normal(size=(n, size)) for n in lengths]
    pooled = attention.AttentionPooling(x, query).eval({x: batch, query: query.value})
    assert pooled.shape == (len(lengths), heads, size)
    for k, frames in enumerate(batch):
        for head in range(heads):
            scores = [np.exp(frame @ query.value[:, head]) for frame in frames]
            terms = [s / sum(scores) * frame for s, frame in zip(scores, frames, strict=True)]
            np.testing.assert_allclose(pooled[k, head], sum(terms, np.zeros(size)), atol=1e-12)


def test_gradients_agree_with_finite_differences(utterances):
    checks = checking.check_all(utterances[0], seed=5)
    assert set(checks) == {"user function", "whole model"}
    for check in checks.values():
        assert check.passed
        assert check.entries > 50


class ForgetsTheSoftmax(attention.AttentionPooling):
    """Leaves out that the weights of a head depend on each other."""

    def backward(self, state, root_gradients, variables):
        super().backward(state, root_gradients, variables)
        x, _ = self.inputs
        if x in variables:
            variables[x] = [a @ dy for (a, dy) in zip(state[1], root_gradients, strict=True)]


def test_gradient_check_finds_a_wrong_gradient():
    check = checking.check_function(np.random.default_rng(0), ForgetsTheSoftmax)
    assert not check.passed
    assert "WRONG" in report.gradients({"user function": check})


def test_the_compiled_function_agrees_with_the_plain_one():
    rng = np.random.default_rng(6)
    x = udfkit.sequence.input_variable(5, np.float64, needs_gradient=True, name="x")
    query = udfkit.Parameter(init=rng.normal(size=(5, 3)), name="query")
    batch = {x: [rng.normal(size=(n, 5)) for n in (3, 0, 1, 6)], query: query.value}
    root = rng.normal(size=(4, 3, 5))
    plain = attention.AttentionPooling(x, query)
    other = compiled.CompiledPooling([x, query])
    np.testing.assert_allclose(other.eval(batch), plain.eval(batch), atol=1e-13)
    want, found = (fn.grad(batch, root_gradients=root) for fn in (plain, other))
    for got, expected in zip([*found[x], found[query]], [*want[x], want[query]], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_gradients_are_given_only_to_those_who_asked():
    x = udfkit.sequence.input_variable(2, needs_gradient=True, name="x")
    query = udfkit.Parameter(init=np.ones((2, 1), np.float32), name="query")
    pooling = attention.AttentionPooling(x, query)
    batch = {x: [np.eye(2, dtype=np.float32)], query: query.value}
    both = pooling.grad(batch)
    np.testing.assert_array_equal(pooling.grad(batch, wrt=[x])[0], both[x][0])
    np.testing.assert_array_equal(pooling.grad(batch, wrt=[query]), both[query])


def test_windows_do_not_cross_utterances():
    frames = udfkit.Ragged(np.arange(1.0, 8.0)[:, None], [0, 1, 1, 5, 7])
    rows = []
    for utterance in frames:
        padded = np.pad(utterance[:, 0], 2, mode="edge") if len(utterance) else []
        rows += [padded[k : k + 5] for k in range(len(utterance))]
    np.testing.assert_array_equal(model.context_windows(frames, 2), rows)


def test_cross_entropy_gradient_agrees_with_finite_differences():
    rng = np.random.default_rng(0)
    logits, speakers = rng.normal(size=(4, 9)), np.array([0, 8, 3, 3])
    _, gradient = training.cross_entropy(logits, speakers)
    for at in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[at] = 1e-6
        above, _ = training.cross_entropy(logits + step, speakers)
        below, _ = training.cross_entropy(logits - step, speakers)
        assert gradient[at] == pytest.approx((above - below) / 2e-6, abs=1e-8)


def test_training_repeats(utterances):
    settings = training.Settings(epochs=2)
    first, history = training.train(*utterances, settings, seed=4)
    again, repeated = training.train(*utterances, settings, seed=4)
    other, _ = training.train(*utterances, settings, seed=5)
    assert history.losses == repeated.losses
    for name, parameter in first.model.parameters.items():
        np.testing.assert_array_equal(parameter.value, again.model.parameters[name].value)
        assert not np.array_equal(parameter.value, other.model.parameters[name].value)


def test_clock_charges_each_moment_once(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    watch = clock.Clock()
    with watch.charge(clock.CONVERSION):
        with watch.charge(clock.USER_CODE):
            pass
        with pytest.raises(KeyError), watch.charge(clock.USER_CODE):
            raise KeyError
    # 0 rest 1 conversion 3 user 7 conversion 15 user 31 conversion 63
    assert watch._seconds == {
        clock.REST: 1.0,
        clock.CONVERSION: 2.0 + 8.0 + 32.0,
        clock.USER_CODE: 20.0,
    }


def test_progress_draws_a_bar_on_a_terminal():
    pytest.importorskip("tqdm")
    stream = io.StringIO()
    stream.isatty = lambda: True
    with progress.Progress(2, stream) as show:
        show(0, 0.5, 0.25)
        show(1, 0.25, 0.75)
    assert "2/2 epochs" in stream.getvalue()


def test_progress_without_tqdm_writes_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    stream = io.StringIO()
    stream.isatty = lambda: True
    with progress.Progress(40, stream) as show:
        for epoch in range(40):
            show(epoch, 1.0, 0.5)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1] == "epoch 40 of 40: loss 1.000, test accuracy 50.0 %"


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def test_two_epochs_from_end_to_end(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "two.png"
    assert cli.main(["demo", "--epochs", "2", "--seed", "7", "--output", str(picture)]) == 0
    assert png_size(picture) == (1600, 1000)
    text = capsys.readouterr().out
    assert text.count(" ok\n") == 2
    assert str(picture) in text
    shares = [int(n) for n in re.findall(r" ms +(\d+) %", text)]
    assert len(shares) == 3
    assert 98 <= sum(shares) <= 102


def test_the_compiled_part_trains_the_same_model(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = str(tmp_path / "compiled.png")
    assert cli.main(["demo", "--epochs", "3", "--output", picture, "--compiled"]) == 0
    text = capsys.readouterr().out
    plain, other = (int(n) for n in re.findall(r"accuracy +[\d.]+ %, (\d+) of 370", text))
    # The same numbers up to rounding: float32 sums in another order.
    assert abs(plain - other) <= 15
    first, second = (float(n) for n in re.findall(r"([\d.]+) ms (?:of user|compiled)", text))
    factor = float(re.search(r"([\d.]+) times faster", text)[1])
    assert factor == pytest.approx(first / second, rel=0.05, abs=0.051)


def test_the_picture_shows_the_whole_batch(utterances):
    settings = training.Settings(epochs=1)
    classifier, _ = training.train(*utterances, settings, seed=1)
    batch = training.sample_batch(classifier, utterances[0], settings, seed=1)
    assert batch.rows == settings.batch
    assert batch.mask.shape[1] == batch.lengths.max()
    assert (batch.mask == 2).sum() == settings.batch
    assert (batch.mask > 0).sum() == batch.lengths.sum()


def test_the_picture_shows_utterances_of_different_lengths(utterances):
    figure = pytest.importorskip("matplotlib") and pytest.importorskip("udfkit.demo.figure")
    chosen = figure.varied_lengths(utterances[1], 5)
    assert chosen.lengths.tolist() == sorted(set(chosen.lengths.tolist()))
    assert (chosen.lengths[0], chosen.lengths[-1]) == (7, 29)


def test_default_run_reaches_the_promised_accuracy(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo"]) == 0
    assert png_size(tmp_path / "udfkit-demo.png") == (1600, 1000)
    found = re.search(r"accuracy +([\d.]+) %, (\d+) of 370", capsys.readouterr().out)
    assert int(found[2]) >= 0.96 * 370
    assert float(found[1]) == pytest.approx(100 * int(found[2]) / 370, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--epochs", "0"], "give at least 1"),
        (["--seed", "-1"], "'-1' is not a whole number of 0 or more"),
        (["--seed", "one"], "'one' is not a whole number of 0 or more"),
        (["--output", "picture.jpg"], "let it end in .png"),
        (["--output", "nowhere/picture.png"], "create it first"),
    ],
)
def test_arguments_that_make_no_sense(arguments, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["demo", *arguments])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def test_without_matplotlib_nothing_is_trained(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "udfkit.demo.figure", raising=False)
    monkeypatch.delattr(udfkit.demo, "figure", raising=False)
    monkeypatch.setattr(training, "train", None)
    assert cli.main(["demo"]) == 1
    out, err = capsys.readouterr()
    assert 'pip install "udfkit-kernels[demo]"' in err
    assert out == ""
