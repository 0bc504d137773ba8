"""The name under which code written for CNTK looks for user functions."""

from udfkit.function import UserFunction
from udfkit.state import BackPropState, UserBackPropState

__all__ = ["BackPropState", "UserBackPropState", "UserFunction"]
