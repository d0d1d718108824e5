"""`python -m analysis.bench_layers` is `python -m analysis bench_layers`."""

from analysis.benchmarks.bench_layers import main

if __name__ == "__main__":
    main()
