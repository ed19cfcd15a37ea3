"""Host programs that drive an agent, each built on the public API of grue."""
