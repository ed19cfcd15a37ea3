"""Mend objects in a forked child, where a lock that another thread of the parent held is never released."""

import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

# A set of `weakref.WeakMethod` would print errors of its callbacks when the interpreter ends.
_objects: "weakref.WeakKeyDictionary[object, Callable[[Any], None]]" = weakref.WeakKeyDictionary()


def here_and_in_children(method: Callable[[], None]) -> None:
    """Call a method now, and in every forked child in which its object still exists. One method per object.

    Usually the method makes a new lock. It must not release the old lock: code in the child may hold it.
    """
    assert isinstance(method, MethodType), "it is bound to its object"
    method()
    _objects[method.__self__] = method.__func__


def _call_all() -> None:
    for each, method in list(_objects.items()):
        method(each)


os.register_at_fork(after_in_child=_call_all)
