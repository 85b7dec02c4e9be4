"""Compile everything once per installation: `python -m moesaic.planner.warm`. Later processes load it in milliseconds."""

from __future__ import annotations

import numpy as np

from moesaic.planner.cost import Cost
from moesaic.planner.policy import Problem
from moesaic.planner.policy.eplb import eplb
from moesaic.planner.policy.omni import omni
from moesaic.planner.predict import drawn, outlook, shared_out


def warm() -> None:
    """Plan a small skewed problem with every compiled policy, and predict the outcome."""
    layers, experts, ranks = 2, 16, 4
    live = np.zeros((layers, experts, ranks), dtype=np.bool_)
    live[:, np.arange(experts), np.arange(experts) * ranks // experts] = True
    load = np.tile(2.0 ** -np.arange(experts), (layers, 1)) * 100
    problem = Problem(load, live, np.full(ranks, layers * 5), Cost.tokens(ranks))
    eplb(problem)
    hold = omni(problem)
    outlook(drawn(load), hold, problem.cost, shared_out(load, hold, problem.cost))
    omni(problem.of(hold))


if __name__ == "__main__":
    warm()
