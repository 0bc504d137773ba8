"""User functions inside PyTorch; importing this needs torch."""

from udfkit.adapters.torch import Module, apply

__all__ = ["Module", "apply"]
