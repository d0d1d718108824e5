"""The experiments of Section 6 and beyond: each module states one; `running.py` and `loop.py` run them."""
