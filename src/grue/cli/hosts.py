"""Load the facts of the installed hosts, so that the trace commands present them as their hosts do."""

from importlib import import_module
from importlib.metadata import entry_points

from grue.cli.saying import say
from grue.hosts import BUNDLED

GROUP = "grue.hosts"
"""The entry point group. Its entries name the modules that call `grue.tracing.facts.register_facts`."""

_OURS = ("grue.cli.chat.facts", *(host.facts for host in BUNDLED.values() if host.facts))


def load_hosts() -> None:
    """Load the fact modules of all hosts. If one cannot be loaded, its facts are shown as data."""
    for name in (*_OURS, *(entry.module for entry in entry_points(group=GROUP))):
        try:
            import_module(name)
        except (ImportError, ValueError) as error:
            if name not in _OURS:
                say(
                    f"grue: the facts of {name} are shown as data, because it cannot be loaded: {error}.",
                    err=True,
                )
