"""What the methods of the recorded user functions do, where it is more than a linear function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import udfkit as C
from udfkit import Value

MARK = object()  # a state that can only be recognised by identity


class MyErr(Exception):
    """An exception class of the user's own."""


def each(x: Any, make: Callable[[np.ndarray], Any]) -> Any:
    """`make` of every sequence of a list, or of one array."""
    return [make(s) for s in x] if isinstance(x, list) else make(x)


def gives(make: Callable[[Any], Any]) -> Callable[..., Any]:
    """A forward that returns `make(arg)` as its result."""
    return lambda fn, arg: (None, make(arg))


def raiser(name: str) -> Callable[..., Any]:
    """A method that raises the exception of this name, the first time."""
    error = {
        "ValueError": ValueError("boom"), "MyErr": MyErr("mine"), "KeyError": KeyError("k"),
        "RuntimeError": RuntimeError("rt"), "StopIteration": StopIteration("s"),
        "AssertionError": AssertionError(),
    }[name]  # fmt: skip

    def body(fn, *args):
        if fn.broken:
            fn.broken = False
            raise error
        bodies = {"forward": fn.spec.forward, "backward": fn.spec.backward, "infer": fn.spec.infer}
        phase = next(key for key, value in bodies.items() if value is body)
        if phase == "infer":
            first = fn.inputs[0]
            return [C.output_variable(first.shape, first.dtype, first.dynamic_axes)]
        if phase == "backward":
            return fn.gradients(args[0])[0]
        return fn.spec.state, fn.linear(args[0])[0]

    body.error = error
    return body


def fills(which: Callable[[Any], list[Any]], make: Callable[[Any], Any]) -> Callable[..., Any]:
    """A method that fills the last argument's `which(fn)` keys with `make(first argument)`."""

    def body(fn, arg, target):
        for key in which(fn):
            target[key] = make(arg)

    return body


def drops(key: Callable[[Any], Any]) -> Callable[..., Any]:
    """A method that fills every key of its last argument and deletes one."""

    def body(fn, arg, target):
        target.update(dict.fromkeys(target, arg))
        del target[key(fn)]

    return body


def also(key: Callable[[Any], Any]) -> Callable[..., Any]:
    """A backward that fills what it was asked for, and one key more."""

    def body(fn, root, variables):
        variables.update(zip(fn.inputs, fn.gradients(root), strict=True))
        variables[key(fn)] = root

    return body


def value_of(shape: tuple[int, ...], lengths: Any = None, dtype: Any = np.float32) -> Any:
    return lambda arg: Value(np.ones(shape, dtype), lengths=lengths)


def ones(*shape: int) -> Callable[[Any], np.ndarray]:
    return lambda arg: np.ones(shape, np.float32)


def double_in_place(fn, arg):
    for s in arg:
        s *= 2
    return None, arg


def last_steps(fn, arg):
    return [len(s) for s in arg], np.stack([s[-1] for s in arg])


def spread_last(fn, root):
    out = [np.zeros((n, 2), np.float32) for n in (3, 1, 2)]
    for s, g in zip(out, root, strict=True):
        s[-1] = g
    return out


def sum_for_parameter(fn, root, variables):
    variables[fn.inputs[0]] = each(root, lambda g: 2 * g)
    variables[fn.inputs[1]] = sum(g.sum(0) for g in root)


def sanitized_double(fn, arg):
    # as_sequences is there without map_if_possible: there is one class of Value.
    return None, C.sanitize_batch(fn.outputs[0], [2 * s for s in arg.as_sequences(fn.inputs[0])])


def out0(fn):
    return fn.outputs[:1]


def longer(s):
    return np.concatenate([s, s[:1]])


def wrong(s):
    return np.zeros((len(s), 4), np.float32)


def as_is(x):
    return x


def nothing(*args):
    return None


# The first part of a name tells the direction; `fwd_multi` has two outputs, `bwd_multi` two inputs.
BODIES: dict[str, dict[str, Any]] = {
    "2in1out/fb/same_var_twice": {"second": "same"},
    "2in1out/fb/param_second": {
        "backward": sum_for_parameter,
        "second": "parameter",
        "weights": ((2, 1),),
    },
    "1in1out/grad/output_no_gradient": {"out_needs": False},
    "1in1out/grad/input_no_gradient": {"needs": (False, True), "more": {"wrt": [0]}},
    "state/tuple": {"state": (1, "a")},
    "state/False": {"state": False},
    "state/multi_output_int": {"state": 7},
    "state/identity": {"state": MARK, "backward": lambda fn, root: root},
    "fwd/return_None": {"forward": nothing},
    "fwd/return_result_only": {"forward": lambda fn, arg: arg},
    "fwd/result_None": {"forward": gives(nothing)},
    "fwd/three_tuple": {"forward": lambda fn, arg: (None, arg, None)},
    "fwd/wrong_last_dim": {"forward": gives(lambda x: each(x, wrong))},
    "fwd/fewer_sequences": {"forward": gives(lambda x: x[:2])},
    "fwd/different_lengths": {"forward": gives(lambda x: each(x, longer))},
    "fwd/shorter_lengths": {"forward": gives(lambda x: [x[0][:2], *x[1:]])},
    "fwd/permuted_lengths": {"forward": gives(lambda x: x[::-1])},
    "fwd/float64": {"forward": gives(lambda x: each(x, lambda s: 2 * s.astype(np.float64)))},
    "fwd/int64": {"forward": gives(lambda x: each(x, lambda s: 2 * s.astype(np.int64)))},
    "fwd/uint8": {"forward": gives(lambda x: each(x, lambda s: 2 * s.astype(np.uint8)))},
    "fwd/tuple_of_arrays": {"forward": gives(lambda x: tuple(2 * s for s in x))},
    "fwd/empty_list": {"forward": gives(lambda x: [])},
    "fwd/scalar": {"forward": gives(lambda x: 1.0)},
    "fwd/padded_ndarray": {"forward": gives(ones(3, 3, 2))},
    "fwd/nested_lists": {"forward": gives(lambda x: each(x, list))},
    "fwd/noncontiguous": {"forward": gives(lambda x: each(x, lambda s: np.asfortranarray(2 * s)))},
    "fwd/inplace_argument": {"forward": double_in_place},
    "fwd/equal_batch_ndarray": {"forward": gives(lambda x: 2 * np.stack(x))},
    "fwd/equal_wrong_T_ndarray": {"forward": gives(ones(2, 3, 2))},
    "fwd/equal_flat_ndarray": {"forward": gives(ones(4, 2))},
    "fwd/batch_list": {"forward": gives(lambda x: [2 * s for s in x])},
    "fwd/batch_wrong_rows": {"forward": gives(lambda x: x[:2])},
    "fwd/batch_same_size_wrong_shape": {"forward": gives(ones(2, 3))},
    "infer/return_empty": {"infer": lambda fn: []},
    "infer/return_single_var": {
        "infer": lambda fn: C.output_variable((2,), np.float32, fn.inputs[0].dynamic_axes)
    },
    "infer/return_str": {"infer": lambda fn: "abc"},
    "fwd_multi/missing_output*": {"forward": fills(out0, as_is)},
    "fwd_multi/wrong_shape": {"forward": fills(lambda fn: fn.outputs, lambda x: each(x, wrong))},
    "fwd_multi/single_style_signature": {"base": "ForwardOfOneOutput"},
    "fwd_multi/returns_tuple*": {"forward": lambda fn, arg, outputs: (None, [arg, arg])},
    "fwd_multi/deletes_key": {"forward": drops(lambda fn: fn.outputs[1])},
    "bwd/fewer_sequences": {"backward": lambda fn, root: root[:2]},
    "bwd/more_sequences": {"backward": lambda fn, root: [*root, root[0]]},
    "bwd/different_lengths": {"backward": lambda fn, root: each(root, longer)},
    "bwd/permuted_lengths": {"backward": lambda fn, root: root[::-1]},
    "bwd/padded_ndarray": {"backward": lambda fn, root: np.ones((3, 3, 2), np.float32)},
    "bwd/batch_wrong_dim": {"backward": lambda fn, root: wrong(root)},
    "bwd/batch_wrong_rows": {"backward": lambda fn, root: root[:2]},
    "bwd/batch_list": {"backward": lambda fn, root: [2 * g for g in root]},
    "bwd/equal_ndarray": {"backward": lambda fn, root: 2 * np.stack(root)},
    "*bwd_multi/only_first*": {"backward": fills(lambda fn: fn.inputs[:1], as_is)},
    "bwd_multi/only_second_set": {"backward": fills(lambda fn: fn.inputs[1:], as_is)},
    "bwd_multi/returns_instead": {"backward": lambda fn, root, variables: root},
    "bwd_multi/extra_str_key": {"backward": also(lambda fn: "x0")},
    "bwd_multi/extra_output_key": {"backward": also(lambda fn: fn.outputs[0])},
    "bwd_multi/single_style_signature": {"base": "BackwardOfOneInput"},
    "bwd_multi/deletes_key": {"backward": drops(lambda fn: fn.inputs[1])},
    "bwd_multi/wrong_shape": {
        "backward": fills(lambda fn: fn.inputs, lambda g: each(g, wrong)),
    },
    "bwd_multi/sets_unrequested_input": {
        "backward": fills(lambda fn: fn.inputs, as_is),
        "needs": (True, False),
    },
    "value/2in1out/const_second": {"second": "constant", "needs": (True, False)},
    "value/fwd/returns_new_value": {"forward": sanitized_double},
    "value/fwd/argument_used_unmapped": {"forward": sanitized_double, "weights": ((2,),)},
    "value/fwd/returns_ndarray": {"forward": gives(ones(3, 3, 2))},
    "value/fwd/returns_wrong_shape": {"forward": gives(value_of((3, 3, 4), (3, 1, 2)))},
    "value/fwd/returns_wrong_batch": {"forward": gives(value_of((2, 2, 2), (2, 1)))},
    "value/fwd/returns_no_mask": {"forward": gives(value_of((3, 3, 2)))},
    "value/fwd/returns_float64": {"forward": gives(value_of((3, 3, 2), (3, 1, 2), np.float64))},
    "value/bwd/None": {"backward": nothing},
    "value/bwd/list": {"backward": lambda fn, root: root.as_sequences()},
    "value/raise": {"forward": raiser("ValueError")},
    "misc/seq_starts_mixed_value": {"more": {"seq_starts": [True, False, True]}},
    "misc/seq_to_batch_last": {
        "out_kind": "batch",
        "forward": last_steps,
        "backward": spread_last,
    },
    "misc/zero_length_seq_udf": {"kind": "zero"},
    "misc/scalar_shape_variable": {"kind": "steps", "shape": ()},
    "misc/free_dimension": {"shape": (C.FreeDimension,)},
}
