"""User functions inside JAX; importing this needs jax."""

from udfkit.adapters.jax import apply

__all__ = ["apply"]
