"""Planted faults, and who notices them: `python -m analysis mutants [--area A] [--only ID …] [--resume]`."""

from analysis.mutants.campaign import main

if __name__ == "__main__":
    main()
