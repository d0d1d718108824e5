"""A process of a campaign that dies at one model and hangs at another. It imports little: it starts three times."""

import os
import time

from analysis.fuzz.outcome import Outcome


def dies(seeds, devices, reports):
    for seed in seeds:
        reports.send(seed)
        if seed == 1:
            os._exit(7)
        if seed == 3:
            time.sleep(60)
        reports.send(Outcome(seed, "none"))
