"""Settings of every test: float64, strict promotion, hypothesis profiles, quick compilation."""

import atexit
import gc
import os
import signal
import tempfile
from importlib import metadata

# Without its fusion emitters XLA compiles in half the time, and in less if it divides no program among threads. Flags
# that are set already stay. Later versions of XLA end the process at a flag that they do not know.
# `tests/nn/test_accuracy.py` repeats itself with XLA's default.
if metadata.version("jaxlib").startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# Workers share the cores: a decomposition takes one thread. Libraries that are loaded later read this;
# `threadpool_limits` tells those that are loaded already.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts pytest in the background lets it ignore SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# XLA compiles a program once a run: workers, and programs that tests start, share a folder. It goes at the end.
# A folder that is named in JAX_COMPILATION_CACHE_DIR stays, and the next run finds its programs there.
# JAX writes there without a lock: who reads a program that is half written gets a warning, which `pyproject.toml` lets
# pass, and compiles it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="compiled", ignore_cleanup_errors=True)
    atexit.register(_compiled.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Programs name no lines of the source: no test reads them, and they take 1 to 3 % of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import pytest
from hypothesis import HealthCheck, Phase, settings
from threadpoolctl import threadpool_limits

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_traceback_filtering", "off")  # or each error on its way through JAX is looked at, file by file

threadpool_limits(1, user_api="blas")


PROGRAMS = 1_200
"""Programs after which all are dropped, at the next test.

JAX keeps a megabyte of each of the last 2,048, and the more it keeps, the longer it takes to make the next one: a third
longer at 1,000. Claims on several data sets share up to 1,100. Each needs some mappings of memory, too, of which a
process may have 65,530.
"""

_made = 0


def _count(event: str, _: float, **__) -> None:
    global _made
    _made += event.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_count)


def _drop_programs() -> None:
    global _made
    jax.clear_caches()
    _made = 0


def pytest_runtest_setup(item):
    if _made > PROGRAMS:
        _drop_programs()


def pytest_collection_finish():
    """Modules stay to the end, so the garbage collector need not look at them again.

    It looks at all other objects seldom: what is kept is compiled programs, which `_drop_programs` drops.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 1_000)


def compiles_quickly(node) -> bool:
    """Most of a test's time is compilation; tests marked `optimized` look at what the optimizer makes of the code."""
    return node.get_closest_marker("optimized") is None


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly(request):
    """Modules share what they compiled the same way: a program is found again by its function and shapes.

    Most are found again in their own module, so that one begins with few of those before. Processes that tests start
    compile as the tests do.
    """
    quickly = compiles_quickly(request.node)
    if _made > PROGRAMS // 4 or jax.config.read("jax_disable_most_optimizations") != quickly:
        _drop_programs()
    jax.config.update("jax_disable_most_optimizations", quickly)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(quickly)


def pytest_collection_modifyitems(items):
    """Modules with slow tests begin early, so that no worker waits for another at the end.

    A module stays together, with its slow tests first: its tests share programs. All programs are dropped between tests
    that compile quickly and others, so the few others are first of all.
    """
    slow = {item.path for item in items if "slow" in item.keywords}
    place = {path: index for index, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(
        key=lambda item: (compiles_quickly(item), item.path not in slow, place[item.path], "slow" not in item.keywords)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """`pytest -n` lets an idle worker take tests from a busy one, unless `--dist` says otherwise."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


# To explain a failure, Hypothesis traces each line of what it runs, also for `find`: tests do without.
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "phases": _PHASES}
settings.register_profile("dev", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=200, derandomize=True, **_COMMON)
settings.register_profile("thorough", derandomize=True, **_COMMON)  # relations say how many draws
settings.register_profile("explore", max_examples=2000, **_COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
