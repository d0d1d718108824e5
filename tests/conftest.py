"""Settings of every test: float64, strict promotion, hypothesis profiles, quick compilation.

Four things here serve the time of tests alone, which is compilation for the most part: XLA compiles without most
optimizations (half the time), finds programs of other workers in a folder (a fifth less), garbage is collected less
often (a tenth less), and a decomposition takes one thread, since workers share the cores.
"""

import atexit
import os
import signal
import tempfile
from importlib import metadata

# Without its fusion emitters XLA compiles in half the time. Flags that are set already stay. Later versions of XLA end
# the process at a flag that they do not know. `tests/nn/test_accuracy.py` repeats itself with XLA's default.
if metadata.version("jaxlib").startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# Libraries that are loaded later read this; `threadpool_limits` tells those that are loaded already.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts pytest in the background lets it ignore SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A folder that is named in JAX_COMPILATION_CACHE_DIR stays, and the next run finds its programs there. JAX writes there
# without a lock: who reads a program that is half written gets a warning, which `pyproject.toml` lets pass.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="compiled", ignore_cleanup_errors=True)
    atexit.register(_compiled.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

threadpool_limits(1, user_api="blas")

collect_ignore = ["new_methods.py"]  # it adds methods to the tables: `test_new_methods.py` asks for them elsewhere


def compiles_quickly(node) -> bool:
    """Tests marked `optimized` look at what the optimizer makes of the code."""
    return node.get_closest_marker("optimized") is None


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly(request):
    """Processes that tests start compile as the tests do.

    Each module begins without programs: one needs some mappings of memory, of which a process may have 65,530.
    """
    quickly = compiles_quickly(request.node)
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", quickly)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(quickly)


def pytest_collection_finish(session):
    from lngeom.cli.workers import collect_seldom

    collect_seldom()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """`pytest -n` lets an idle worker take tests from a busy one, unless `--dist` says otherwise."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=200, derandomize=True, **_COMMON)
settings.register_profile("thorough", derandomize=True, **_COMMON)  # relations say how many draws
settings.register_profile("explore", max_examples=2000, **_COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
