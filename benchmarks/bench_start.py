"""What a process pays before its first batch."""

import subprocess
import sys
import tempfile

CALL = (
    "import numpy as np, udfkit;"
    "x = udfkit.sequence.input_variable(());"
    "v = udfkit.sanitize_batch(x, [np.zeros(3, np.float32)]);"
    "udfkit.variable_value_to_seq(v, x)"
)


def run(code: str, cache: str | None = None) -> None:
    """Run code in a process of its own, with a cache folder of its own if one is given."""
    import os

    environment = {**os.environ} if cache is None else {**os.environ, "NUMBA_CACHE_DIR": cache}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


class Start:
    """Whole processes; compare with `time_numpy_alone`."""

    number = 1
    repeat = (3, 5, 30.0)

    def setup(self):
        run(CALL)

    def time_numpy_alone(self):
        run("import numpy")

    def time_import_udfkit(self):
        run("import numpy, udfkit")

    def time_first_call_warm(self):
        """The kernels are in the cache on disk."""
        run(CALL)

    def time_first_call_cold(self):
        """The kernels are compiled."""
        with tempfile.TemporaryDirectory() as cache:
            run(CALL, cache)
