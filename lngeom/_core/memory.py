"""Memory of the default device: how much is free, and a number of bytes as one reads it."""

import math
import os

import jax


def format_bytes(count: int) -> str:
    """A number of bytes as one reads it."""
    if count < 1024:
        return f"{count} B"
    power = min(int(math.log(count, 1024)), 5)
    return f"{count / 1024**power:.3g} {'KMGTP'[power - 1]}iB"


def available_memory() -> int:
    """Bytes free on the default device, or on the host where that is the device."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        return statistics["bytes_limit"] - statistics.get("bytes_in_use", 0)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
