"""`python -m analysis.bench_tracker` is `python -m analysis bench_tracker`."""

from analysis.benchmarks.bench_tracker import main

if __name__ == "__main__":
    main()
