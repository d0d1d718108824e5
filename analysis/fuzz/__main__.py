"""Generated models against a literal Fisher matrix: `python -m analysis fuzz [--models 2000] [--first-seed 0]`."""

from analysis.fuzz.campaign import main

if __name__ == "__main__":
    main()
