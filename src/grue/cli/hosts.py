"""Import the modules in which installed hosts (programs that run turns) define their facts.

A fact is a kind of message that only a host puts into a trace.
"""

from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points

from grue.cli.saying import say
from grue.hosts import BUNDLED

GROUP = "grue.hosts"  # entry points of this group name modules that call `register_facts`
_OURS = ("grue.cli.chat.facts", *(host.facts for host in BUNDLED.values() if host.facts))


def load_hosts() -> None:
    """Import the modules that define facts. If an import fails, the module's facts are shown as raw data."""
    for name in _OURS:
        with suppress(ImportError):  # the host needs an extra that is not installed
            import_module(name)
    for entry in entry_points(group=GROUP):
        try:
            import_module(entry.module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's module can raise anything
            said = "it ends the program" if isinstance(error, SystemExit) else str(error)
            why = f"it cannot be loaded: {said or type(error).__name__}"
            say(f"grue: the facts of {entry.module} are shown as data, because {why}.", err=True)
