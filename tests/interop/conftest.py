"""Tests of the conversions to awkward, Arrow, pandas, TensorFlow and SciPy.

``UDFKIT_TEST_INTEROP=1 python -m pytest tests/interop``; the tests of TensorFlow run with
``UDFKIT_TEST_TENSORFLOW=1`` instead, since it needs an environment of its own, and those of SciPy
always.
"""

from __future__ import annotations

import os

# Without a variable nothing here is read; with it a missing library is an error. This file, whose
# name others have too, is never a module to search for examples.
collect_ignore_glob = ["conftest.py"]
if os.environ.get("UDFKIT_TEST_INTEROP") != "1":
    collect_ignore_glob += ["test_awkward.py", "test_arrow.py", "test_pandas.py"]
if os.environ.get("UDFKIT_TEST_TENSORFLOW") != "1":
    collect_ignore_glob += ["test_tensorflow.py"]
