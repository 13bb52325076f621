"""The record: what was sent, to whom, how far each message came, and who listens.

`wakehub.inbox("alice")` is a function of the Python API and bears the name of this package, which Python puts there as
soon as anything of the package is imported. So the package can be called, and passes the call on.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CalledAsFunction(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return import_module("wakehub.api").inbox(*arguments, **named)


sys.modules[__name__].__class__ = _CalledAsFunction
