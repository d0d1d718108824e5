"""Weight decay as a growing learning rate: another rate, memory or state is refused by the proofs."""

import pytest
from lngeom.papers.training.equivalence import BETA1, BETA2
from lngeom.papers.training.exponential import (
    ALPHA,
    SCALE,
    adamw_steps,
    gradient_descent_steps,
    last_step,
    lion_step,
    momentum_steps,
)
from lngeom.symbolic.scale_free import DECAY, RATE


def stand(steps) -> list[bool]:
    return [step.verify() for step in steps]


def test_the_steps_stand():
    assert all(stand((*gradient_descent_steps(), *momentum_steps(), *adamw_steps(), last_step(), lion_step())))


FALSE = {
    "a rate twice as large": lambda: gradient_descent_steps(slower=2)[:2],
    "weights that shrink by the square": lambda: gradient_descent_steps(after=SCALE * (1 - RATE * DECAY) ** 2)[:2],
    "momentum with the rate of normalized descent": lambda: momentum_steps(-1)[:2],
    "Adam with its memories unchanged": lambda: adamw_steps((BETA1, BETA2))[:2],
    "Adam with β₂α for β₂α²": lambda: adamw_steps((BETA1 * ALPHA, BETA2 * ALPHA))[1:2],
    "a rate that is one step late": lambda: (last_step(RATE / SCALE),),
    "Lion with β₁α": lambda: (lion_step(BETA1 * ALPHA / (1 - BETA1 * ALPHA)),),
}


@pytest.mark.parametrize("fault", FALSE)
def test_what_is_false_is_refused(fault):
    assert not any(stand(FALSE[fault]()))
