"""``python -m udfkit check``: from a name to a report and an exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from udfkit import cli

BUGS = str(Path(__file__).parent / "planted_bugs.py")
POOLING = str(Path(__file__).parent / "planted_pooling.py")

MODULE = """
import numpy as np
import udfkit
import planted_bugs as bugs
import planted_pooling as pooling

def example(dtype=np.float32):
    return bugs.FactorTwo([bugs.sequence(dtype=dtype)])

def hidden(dtype=np.float32):
    return bugs.SlightlyWrong([bugs.sequence(dtype=dtype)])

def taken():
    table = udfkit.Parameter(init=np.ones((2, 2)), name="table")
    return pooling.Taken([table, bugs.sequence("index", (), np.int64, False)])

def make_batch(rng):
    return {"index": [rng.integers(0, 2, n) for n in (2, 0, 3)]}

def broken():
    raise RuntimeError("no")

class Group:
    function = bugs.PerStep([bugs.sequence()])

number = 3

class Doubled(udfkit.SequenceFunction):
    takes = {"x": udfkit.per_step("T", 2), "k": udfkit.per_sequence(index_of="n"),
             "w": udfkit.shared("n")}
    gives = {"y": udfkit.per_step("T", 2)}
    @staticmethod
    def forward(x, k, w, y):
        for t in range(x.shape[0]):
            for d in range(2):
                y[t, d] = w[k[0]] * x[t, d]
    @staticmethod
    def backward(x, k, w, grad_y, grad_x, grad_w):
        for t in range(x.shape[0]):
            for d in range(2):
                grad_x[t, d] = w[k[0]] * grad_y[t, d]
                grad_w[k[0]] += x[t, d] * grad_y[t, d]
"""


@pytest.fixture
def check(capsys, monkeypatch, tmp_path):
    (tmp_path / "checked_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*arguments):
        status = cli.main(["check", *arguments])
        captured = capsys.readouterr()
        return status, captured.err if status == 2 else captured.out

    yield run
    sys.modules.pop("checked_module", None)


def test_a_class_whose_inputs_are_guessed(check):
    status, text = check(f"{POOLING}:Pooled")
    assert status == 0
    assert "inputs guessed: Input('x0', [#, *], [2]) of float64" in text
    assert "all 11 checks passed" in text


def test_a_fault_gives_status_1(check):
    status, text = check(f"{BUGS}:FactorTwo", "--seed", "5", "--rounds", "0")
    assert status == 1
    assert "FAILED   gradient" in text
    assert "no sequences (seed 5)" in text
    status, _ = check(f"{BUGS}:FactorTwo", "--skip", "gradient")
    assert status == 0


def test_a_function_that_makes_one(check):
    status, text = check("checked_module:example")
    assert status == 1
    assert "of the float64 form" in text
    # Only the float64 form shows this one.
    status, text = check("checked_module.py:hidden")
    assert status == 1
    assert "FAILED   gradient" in text


def test_an_instance_behind_a_dotted_name(check):
    assert check("checked_module:Group.function")[0] == 0


def test_a_batch_maker(check):
    status, text = check("checked_module:taken", "--make-batch", "checked_module:make_batch")
    assert status == 0
    assert "batches: made 0" in text


def test_inputs_of_a_sequence_function_are_those_it_declares(check):
    status, text = check("checked_module:Doubled")
    assert status == 0, text
    assert "Input('k', [#], []) of int64" in text


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("planted_bugs", "'planted_bugs' has no name in it: say module:name"),
        ("no_such_module:x", "'no_such_module' cannot be imported: ModuleNotFoundError"),
        ("no_such_file.py:x", "there is no file 'no_such_file.py'"),
        ("planted_bugs:Nothing", "has no 'Nothing'; its user functions are ['PerStep',"),
        ("json:Nothing", "'json' has no 'Nothing'; nor any user function"),
        ("checked_module:number", "is a int, expected a user function"),
        ("checked_module:broken", "checked_module:broken() raised RuntimeError: no"),
        ("builtins:dict", "builtins:dict() returned a dict, expected a user function"),
        ("planted_pooling:Taken", "inputs for Taken cannot be guessed (the first try: "),
        ("planted_pooling:Scaled", "it runs with sequence, sequence and with sequence, batch"),
    ],
)
def test_nothing_to_check_gives_status_2(check, target, words):
    status, text = check(target)
    assert status == 2
    assert text.startswith("nothing was checked: ")
    assert words in text


def test_wrong_arguments_give_status_2(check, capsys):
    for arguments in ([], ["a:b", "--skip", "speed"]):
        with pytest.raises(SystemExit) as caught:
            check(*arguments)
        assert caught.value.code == 2
        assert "python -m udfkit check" in capsys.readouterr().err


def test_in_a_process_of_its_own(tmp_path):
    (tmp_path / "mine.py").write_text(Path(BUGS).read_text())
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "udfkit", "check", "mine:SecondRowWrong"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(cli.__file__))},
    )
    assert done.returncode == 1, done.stderr
    assert "sequence 0, step 1" in done.stdout
