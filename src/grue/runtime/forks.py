"""Mend objects in a forked child, where the other threads of the parent do not exist.

If another thread held a lock at the fork, nobody releases the lock in the child, and whoever waits for it
there waits for ever. So an object whose lock a child may need gets a new lock there.
"""

import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

# Not a set of `weakref.WeakMethod`, whose callbacks fail and are reported when the interpreter ends.
_objects: "weakref.WeakKeyDictionary[object, Callable[[Any], None]]" = weakref.WeakKeyDictionary()


def here_and_in_children(method: Callable[[], None]) -> None:
    """Call a bound method now, and in every forked child in which its object still exists.

    An object can have one such method.

    Usually the method makes a new lock, because the old one may be held by a thread that the child does not
    have. The method must not release the old lock: if the forking thread holds the old lock, that thread will
    release it itself.
    """
    assert isinstance(method, MethodType), "it is bound to its object"
    method()
    _objects[method.__self__] = method.__func__


def _call_all() -> None:
    for each, method in list(_objects.items()):
        method(each)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_call_all)
