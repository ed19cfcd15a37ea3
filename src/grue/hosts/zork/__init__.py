"""The host that plays text adventures."""
