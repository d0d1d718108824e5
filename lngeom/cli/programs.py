"""How a command compiles: sparingly, and into a folder where the next call finds the programs."""

import os
from pathlib import Path


def compile_sparingly() -> None:
    """Compiles with few optimizations, and keeps the programs."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    keep_programs()


def keep_programs() -> None:
    """Keeps compiled programs for the next call: in JAX's folder if one is set, else in the user's cache folder."""
    import jax

    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        try:
            base = os.environ.get("XDG_CACHE_HOME")
            folder = (Path(base) if base else Path.home() / ".cache") / "lngeom" / "jax"
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # the folder cannot be made, or there is no home
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in {
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
