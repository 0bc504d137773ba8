"""The state that travels from a forward to its backward."""

from __future__ import annotations

from typing import Any

from udfkit.device import DeviceDescriptor, use_default_device

__all__ = ["BackPropState", "UserBackPropState"]


class BackPropState:
    """What a forward leaves for its backward; subclass it to pass a state unwrapped.

    Parameters
    ----------
    device : DeviceDescriptor
        Where the function ran.
    """

    _device: DeviceDescriptor | None = None
    _record: Any = None
    _shared = False
    _wraps = False

    def __init__(self, device: DeviceDescriptor):
        self._device = device

    def device(self) -> DeviceDescriptor:
        """Return the device on which the function ran."""
        return self._device or use_default_device()

    def _attach(self, device: DeviceDescriptor, record: Any) -> None:
        """Remember the call that returned this state, unless more than one did."""
        if self._device is None:
            self._device = device
        self._shared = self._record is not None or self._shared
        self._record = None if self._shared else record


class UserBackPropState(BackPropState):
    """The state of a user function: any object, kept by identity.

    Parameters
    ----------
    function : UserFunction
    device : DeviceDescriptor
    data : object
        What ``forward`` returned as its state.

    Examples
    --------
    >>> import udfkit
    >>> state = udfkit.UserBackPropState(None, udfkit.cpu(), {"scale": 2.0})
    >>> udfkit.UserBackPropState.data(state)
    {'scale': 2.0}
    """

    def __init__(self, function: Any, device: DeviceDescriptor, data: Any):
        super().__init__(device)
        self.function = function
        self._data = data

    @staticmethod
    def data(state: BackPropState) -> Any:
        """Return what the user's forward returned as its state.

        A state that the user made as a `BackPropState` of its own is returned itself.
        """
        return state._data if isinstance(state, UserBackPropState) else state
