"""Where udfkit and the recorded CNTK 2.7 part, case by case, with the reason for each.

A reason quotes CONTRACT.md; the number in front of it is the section. A case of values.json is
found by its label "kind:shape/name" (shape "scalar", "3", "2x3"), a user function by its name.
A case without a row must do what was recorded. A row must fit some case and must be needed.

Outcomes: `Works` (the result is compared with plain NumPy), `Raises` (class, and what the text
names), `UserError`, `Skipped`. In texts, {batch} and {sample} stand for the shapes of the data and
of the variable, {item0} for the shape of the first item. A ? stands for a space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Works:
    """The call succeeds; `form` makes of the recorded input what NumPy has to compute it from."""

    form: Callable[[Any], Any] = lambda batch: batch


@dataclass(frozen=True)
class Raises:
    """The call raises one of `kinds`, with every one of `parts` in the text."""

    kinds: type | tuple[type, ...]
    parts: tuple[str, ...] = ()
    phase: str = "forward"
    fix: bool = True


@dataclass(frozen=True)
class Skipped:
    """Not run."""


@dataclass(frozen=True)
class Row:
    patterns: str
    outcome: Works | Raises | Skipped
    why: str

    def fits(self, label: str) -> bool:
        return any(fnmatchcase(label, pattern) for pattern in self.patterns.split())


def find(table: list[Row], label: str) -> Row | None:
    """The one row that fits, or None; two rows for one case are a mistake in the table."""
    rows = [row for row in table if row.fits(label)]
    assert len(rows) <= 1, f"{label} is in {len(rows)} rows"
    return rows[0] if rows else None


EITHER = (TypeError, ValueError)
WORKS = Works()

# ---- sanitize_batch: recorded one way, done another way on purpose ------------------------------

CHECKED = "7: A single rectangle and a Value are checked against the variable"
ONE_SAMPLE = "7: Refused: a batch-only item whose length is not 1"
ZERO = "7: Zero lengths, empty batches, all-zero CSR ... work (CNTK raised or died)"
BATCH_ONLY = "7: Batch-only data is always (B, *s) (CNTK added an axis to lists)"
NO_AXES = "5: a list of arrays for a variable without axes is a ValueError"

VALUES = [
    Row("seq:*/ndarray_B_only", Raises(ValueError, ("{batch}", "{sample}")), CHECKED),
    Row("seq:*/ndarray_sample_only", Raises(ValueError, ("{batch}", "{sample}")), CHECKED),
    Row("seq:*/ndarray_extra_axis", Raises(ValueError, ("{batch}", "{sample}")), CHECKED),
    Row("batch:*/batch_ndarray_sample_only", Raises(ValueError, ("{batch}", "{sample}")), CHECKED),
    Row("batch:*/batch_ndarray_B_T", Raises(ValueError, ("{batch}", "{sample}")), CHECKED),
    Row("none:3/csr_sparsevar_single_matrix", Raises(EITHER, ("{sample}",)), CHECKED),
    Row("batch:*/batch_list_of_2_samples", Raises(ValueError, ("0", "{item0}")), ONE_SAMPLE),
    Row("batch:*/batch_list_ragged", Raises(ValueError, ("0", "{item0}")), ONE_SAMPLE),
    Row("batch:3/csr_densevar_dense_data", Raises(ValueError, ("0", "{item0}")), ONE_SAMPLE),
    Row(
        "batch:3/csr_*var_ragged batch:3/csr_*var_equal batch:3/csr_*var_one batch:3/csr_*var_f64 "
        "batch:3/csr_*var_int64",
        Raises(ValueError, ("0", "2")),
        ONE_SAMPLE,
    ),
    Row("batch:*/batch_list_of_samples batch:*/batch_list_one_sample", WORKS, BATCH_ONLY),
    Row("batch:*/batch_list_of_1_samples batch:3/csr_*var_len1", WORKS, BATCH_ONLY),
    Row("seq:scalar/list_of_npscalars*", WORKS, "7: NumPy scalars keep their values"),
    Row("seq:*/zero_len_last seq:*/zero_len_mid", WORKS, ZERO),
    Row("seq:scalar/zero_len_all2 seq:scalar/ndarray_empty_T0", WORKS, ZERO),
    Row("seq:*/empty_list batch:*/batch_empty_list", WORKS, ZERO),
    Row("seq:3/csr_*var_zeros seq:3/csr_*var_0rows", WORKS, ZERO),
    Row("seq:*/list_with_empty_list", WORKS, "3: an empty Python list is a zero-length sequence"),
    Row("seq:*/list_dtype_uint8", WORKS, "7: All integer dtypes ... are accepted"),
    Row("seq:*/tuple_of_arrays", WORKS, "7: tuples ... are accepted"),
    Row(
        "seq:3/f64_overflow_to_f32",
        Raises(ValueError, ("0", "1e+300", "float32")),
        "3: a finite float becoming infinite ... is a ValueError with its index",
    ),
    Row(
        "seq:3/csr_sparsevar_single_matrix",
        Works(lambda batch: [batch]),
        "3: one matrix alone is one sequence for a sequence variable",
    ),
    Row("seq:3/csr_f64var", WORKS, "7: Sparse float64 reads back"),
    Row("none:*/none_empty_list", Raises(EITHER, ("{sample}",)), NO_AXES),
]

# ---- sanitize_batch: raises in both; what udfkit's text must name -------------------------------

ITEM_KIND = "5: an item is None, ... complex or datetime array: with the sequence's index"
SAMPLE_SHAPE = "5: wrong sample shape: with the index, the shape and the sample shape"
NOT_A_BATCH = "5: batch is None, a number, str, ... dict: TypeError that says what a batch can be"
STARTS = "5: seq_starts of the wrong count / on a variable without a sequence axis / ... integers"
SPARSE = "5: dense and sparse mixed; CSC or COO; nested CSR: TypeError that says to convert"

VALUE_REFUSALS = [
    Row("seq:*/list_dtype_complex128", Raises(EITHER, ("0", "complex128")), ITEM_KIND),
    Row("seq:*/list_dtype_object", Raises(EITHER, ("0", "object")), ITEM_KIND),
    Row("seq:*/list_with_None", Raises(EITHER, ("1", "None")), ITEM_KIND),
    Row("seq:*/wrong_sample_*", Raises(ValueError, ("0", "{item0}", "{sample}")), SAMPLE_SHAPE),
    Row("*:3/bad_batch_*", Raises(TypeError, ("batch", "list", "array"), fix=False), NOT_A_BATCH),
    Row("seq:*/seq_starts_too_short", Raises(ValueError, ("1", "2")), STARTS),
    Row("seq:*/seq_starts_too_long", Raises(ValueError, ("3", "2")), STARTS),
    Row("seq:*/seq_starts_ints", Raises(ValueError, ("seq_starts",)), STARTS),
    Row("batch:*/seq_starts_on_batch_var", Raises(ValueError, ("sequence axis",)), STARTS),
    Row("seq:3/csr_*_single_seq_starts", Raises(ValueError, ("seq_starts",)), STARTS),
    Row(
        "seq:3/csr_*_wrong_cols batch:3/csr_*_wrong_cols",
        Raises(ValueError, ("0", "{item0}", "{sample}")),
        SAMPLE_SHAPE,
    ),
    Row(
        "seq:3/csr_*_wrong_cols_second batch:3/csr_*_wrong_cols_second",
        Raises(ValueError, ("1", "(1, 4)", "{sample}")),
        SAMPLE_SHAPE,
    ),
    Row("batch:3/csr_*_zeros", Raises(ValueError, ("0", "2")), ONE_SAMPLE),
    Row("batch:3/csr_*_0rows", Raises(ValueError, ("0",)), ONE_SAMPLE),
    Row("seq:2x3/csr_sh23_*", Raises(EITHER, ("{sample}",)), "3: CSR: sample rank 1 only"),
    Row("seq:3/csr_*_nested batch:3/csr_*_nested", Raises(TypeError, ("0",)), SPARSE),
    Row("seq:3/csr_*_mixed* batch:3/csr_*_mixed*", Raises(TypeError, ("sparse",)), SPARSE),
    Row("seq:3/csr_*_cs[co] batch:3/csr_*_cs[co]", Raises(TypeError, ("csc", "tocsr")), SPARSE),
    Row("seq:3/csr_*_coo batch:3/csr_*_coo", Raises(TypeError, ("coo", "tocsr")), SPARSE),
    Row("none:3/csr_*var_[!s]*", Raises(EITHER, ()), NO_AXES),
]

# ---- one_hot ------------------------------------------------------------------------------------

RANGE = (
    "5: one-hot index out of range, negative, not an integer: ValueError with position and range"
)

ONE_HOT = [
    Row("f64", WORKS, "7: Sparse float64 reads back"),
    Row("float16 npints", WORKS, "7: one-hot in float16 and from NumPy integers: work"),
    Row("empty empty_seq_last", WORKS, ZERO),
    Row(
        "sample_shape_23",
        WORKS,
        "2: num_classes may be a sample shape (CNTK could not read it back)",
    ),
    Row(
        "sample_shape_23_bad_multiple",
        Raises(ValueError, ("0", "3", "2")),
        "7: Refused: one-hot lengths that do not divide",
    ),
]

ONE_HOT_REFUSALS = [
    Row("out_of_range", Raises(ValueError, ("0", "1", "4")), RANGE),
    Row("negative", Raises(ValueError, ("0", "1", "-1", "3")), RANGE),
    Row("flat_floats strings", Raises(EITHER, ("0", "integer"), fix=False), RANGE),
    Row("float_ndarray", Raises(EITHER, ("float64", "integers"), fix=False), RANGE),
]

# ---- fields that differ for whole groups of cases -----------------------------------------------

FIELDS = {
    "mask": "7: a mask [is] always an array: a null mask reads as all valid, is_masked False",
    "variable_value_to_seq": "7: A sequence argument is always a list: compared with as_sequences",
    "sparse data": "2: user code and `data` get dense arrays: CSR is compared as dense",
    "sparse asarray": "2: asarray() a fresh host copy: where CNTK raised, `data` is expected",
    "no axes": "2: Without axes ...; len, lengths, starts raise (CNTK counted the sample)",
}

# ---- user functions: recorded one way, done another way on purpose ------------------------------


@dataclass(frozen=True)
class UserError:
    """The user's exception arrives unchanged, with a note; then the function works."""

    phase: str


FILL = "4: A value returned by a method that must fill a dict is a TypeError"
KEYS = "4: Keys of inputs nobody asked for are ignored; any other key is a TypeError"
OTHER_LENGTHS = "7: Refused: gradients of other lengths"
RECTANGLE = "7: Refused: padded rectangles for ragged batches"
USER_ERROR = "7: User exceptions are not replaced"
NEEDS_CNTK = "7: Cases that need CNTK's own graph or trainer are skipped, by name"

FUNCTIONS = [
    Row("1in1out/*/none value/2in1out/grad/none", WORKS, "7: functions without axes ... work"),
    Row(
        "2in1out/fb/same_var_twice",
        Raises(ValueError, ("x0",), "construct"),
        "7: Refused: the same variable twice",
    ),
    Row("1in2out/grad/only_out0_used", WORKS, "7: unused outputs (zeros) ... work"),
    Row(
        "fwd/fewer_sequences fwd/batch_wrong_rows value/fwd/returns_wrong_batch",
        Raises(ValueError, ("recorded", "forward", "2", "3")),
        "7: Refused: outputs of another batch size",
    ),
    Row(
        "fwd/shorter_lengths fwd/permuted_lengths",
        Raises(ValueError, ("recorded", "backward", "x0", "0", "2", "3"), "backward"),
        OTHER_LENGTHS,
    ),
    Row(
        "fwd/padded_ndarray value/fwd/returns_no_mask",
        Raises(ValueError, ("recorded", "forward")),
        RECTANGLE,
    ),
    Row(
        "fwd/equal_flat_ndarray",
        Raises(ValueError, ("recorded", "forward", "(4, 2)")),
        "4: Checks on what user code returns: rank (CNTK computed with the wrong layout)",
    ),
    Row("fwd/uint8", WORKS, "7: All integer dtypes ... are accepted"),
    Row("fwd/tuple_of_arrays", WORKS, "3: any list, tuple or other Sequence, one item a sequence"),
    Row("fwd/raise_* value/raise", UserError("forward"), USER_ERROR),
    Row("bwd/raise_*", UserError("backward"), USER_ERROR),
    Row("infer/raise_*", UserError("infer_outputs"), USER_ERROR),
    Row(
        "infer/return_empty",
        Raises(EITHER, ("recorded", "infer_outputs"), "build"),
        "7: Refused: a function without outputs",
    ),
    Row(
        "infer/return_single_var",
        WORKS,
        "4: infer_outputs() declares the outputs (a list or one Variable)",
    ),
    Row(
        "bwd_multi/returns_instead",
        Raises(TypeError, ("recorded", "backward"), "backward"),
        FILL,
    ),
    Row("bwd_multi/extra_output_key", Raises(TypeError, ("backward",), "backward"), KEYS),
    Row(
        "bwd_multi/deletes_key",
        WORKS,
        "4: cntk-2.7: a gradient that stays None becomes zeros; a deleted key is one that stays so",
    ),
    Row(
        "value/fwd/argument_used_unmapped",
        WORKS,
        "2: map_if_possible(x) ... changes nothing: there is one class of Value",
    ),
    Row("misc/zero_length_seq_udf", WORKS, ZERO),
    Row("misc/seq_to_batch_last", WORKS, "7: sequence in and batch out with gradients: work"),
    Row("value/fwd/returns_ndarrayview", Skipped(), "a class of CNTK's; " + NEEDS_CNTK),
    Row("misc/trainer_test_minibatch misc/zero_length_seq_graph", Skipped(), NEEDS_CNTK),
]

# ---- user functions: raises in both -------------------------------------------------------------

RETURNS = "4: A one-output forward returns a tuple of exactly two"
OUTPUTS_MISSING = "4: outputs left None: 'not all outputs have been provided' plus their names"
SHAPE = "4: The error names function, phase, variable, sequence index, what was expected and came"
ROWS = "4: Count ... batch size; a gradient has its input's lengths"

FUNCTION_REFUSALS = [
    Row(
        "2in1out/fb/ragged/ng=(False,?False)",
        Raises(ValueError, ("recorded",), "backward"),
        "4: `variables` holds exactly the inputs whose gradient was asked for: none was",
    ),
    Row(
        "1in1out/grad/input_no_gradient",
        Raises(ValueError, ("x0", "needs_gradient"), "grad"),
        "4: a `wrt` that needs no gradient is a ValueError that says how to set it",
    ),
    Row(
        "fwd/return_None fwd/return_result_only fwd/three_tuple",
        Raises(EITHER, ("recorded", "forward")),
        RETURNS,
    ),
    Row("fwd/result_None", Raises(ValueError, ("not all outputs have been provided",)), RETURNS),
    Row(
        "fwd/wrong_last_dim",
        Raises(ValueError, ("recorded", "forward", "0", "(3, 4)", "(2,)")),
        SHAPE,
    ),
    Row(
        "fwd_multi/wrong_shape",
        Raises(ValueError, ("recorded", "forward", "0", "(3, 4)", "(2,)"), "grad"),
        SHAPE,
    ),
    Row("fwd/batch_same_size_wrong_shape", Raises(ValueError, ("forward", "(2, 3)")), SHAPE),
    Row("value/fwd/returns_wrong_shape", Raises(ValueError, ("forward", "(3, 3, 4)")), SHAPE),
    Row(
        "value/fwd/returns_float64",
        Raises(ValueError, ("forward", "float64", "float32")),
        "5: Value whose ... dtype ... does not fit the variable: ValueError",
    ),
    Row("fwd/empty_list", Raises(ValueError, ("recorded", "forward", "0", "3")), ROWS),
    Row("fwd/scalar", Raises(TypeError, ("recorded", "forward", "float"), fix=False), NOT_A_BATCH),
    Row(
        "fwd/different_lengths fwd/equal_wrong_T_ndarray",
        Raises(ValueError, ("recorded", "backward", "x0", "0"), "backward"),
        OTHER_LENGTHS,
    ),
    Row(
        "fwd_multi/missing_output* fwd_multi/returns_tuple* fwd_multi/deletes_key",
        Raises(ValueError, ("not all outputs have been provided",), "grad"),
        OUTPUTS_MISSING,
    ),
    Row(
        "fwd_multi/single_style_signature",
        Raises(TypeError, (), "grad", fix=False),
        "4: 1 / m: forward(arg, outputs, device, outputs_to_retain)",
    ),
    Row(
        "bwd/fewer_sequences bwd/batch_wrong_rows",
        Raises(ValueError, ("recorded", "backward", "x0", "2", "3"), "backward"),
        ROWS,
    ),
    Row("bwd/more_sequences", Raises(ValueError, ("backward", "x0", "4", "3"), "backward"), ROWS),
    Row(
        "bwd/different_lengths bwd/permuted_lengths",
        Raises(ValueError, ("recorded", "backward", "x0", "0", "3"), "backward"),
        OTHER_LENGTHS,
    ),
    Row("bwd/padded_ndarray", Raises(ValueError, ("backward", "x0"), "backward"), RECTANGLE),
    Row("bwd/batch_wrong_dim", Raises(ValueError, ("backward", "(3, 4)"), "backward"), SHAPE),
    Row("bwd_multi/extra_str_key", Raises(TypeError, ("backward",), "backward"), KEYS),
    Row(
        "bwd_multi/single_style_signature",
        Raises(TypeError, (), "backward", fix=False),
        "4: n / 1: backward(state, grad, variables)",
    ),
    Row(
        "bwd_multi/wrong_shape",
        Raises(ValueError, ("recorded", "backward", "0", "(3, 4)", "(2,)"), "backward"),
        SHAPE,
    ),
    Row(
        "infer/return_str",
        Raises(TypeError, ("recorded", "infer_outputs", "str"), "build"),
        "5: infer_outputs gives nothing, or something else than Variables: TypeError/ValueError",
    ),
    Row(
        "value/fwd/returns_ndarray",
        Raises(EITHER, ("recorded", "forward")),
        "4: as_numpy=False: Values pass through",
    ),
    Row(
        "value/bwd/list",
        Raises(TypeError, ("recorded", "backward", "list"), "backward"),
        "4: as_numpy=False: Values pass through",
    ),
]

# ---- user functions under contract "auto", where it differs from "cntk-2.7" ---------------------

NOT_PROVIDED = "4: auto: a gradient that stays None: ValueError 'gradients were not provided'"

FUNCTIONS_AUTO = [
    Row(
        "bwd_multi/only_first_set value/bwd_multi/only_first bwd_multi/deletes_key",
        Raises(ValueError, ("gradients were not provided", "x1"), "backward"),
        NOT_PROVIDED,
    ),
    Row(
        "bwd_multi/only_second_set value/bwd/None",
        Raises(ValueError, ("gradients were not provided", "x0"), "backward"),
        NOT_PROVIDED,
    ),
    Row("bwd_multi/single_style_signature", Skipped(), "the signature does not fit on purpose"),
]
