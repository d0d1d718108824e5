"""How many programs XLA makes."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def programs_made() -> Iterator[list[str]]:
    """A list that has one entry for each program that is made inside."""
    made: list[str] = []

    def listener(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            made.append(str(kwargs.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield made
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
