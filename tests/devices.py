"""The environment of a process that has several devices of a CPU, and compiles as the tests do."""

import os


def environment_with(devices: int) -> dict[str, str]:
    """This process's environment, with so many devices and the repository on the path."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH")]))
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
