"""`python -m analysis.bench_fisher` is `python -m analysis bench_fisher`."""

from analysis.benchmarks.bench_fisher import main

if __name__ == "__main__":
    main()
