"""The name under which code written for CNTK looks for user functions."""

from udfkit.ops import functions

__all__ = ["functions"]
