"""What every package needs: tolerances, pytrees, arguments, sums, files, programs.

It imports no other package.
"""
