"""``python -m udfkit``: see `udfkit.cli`."""

import sys

from udfkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
