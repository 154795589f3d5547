"""A synthetic task and a lab that measures it by formula: no code is built, no clock is read."""

import math
import random
from dataclasses import dataclass
from functools import cache
from itertools import product

import tvm
from tvm import te

from halo_tvm.errors import Declined
from halo_tvm.records import Size
from halo_tvm.tir_schedules import RULES, Rule
from halo_tvm.tuning.measure import protocol as p
from halo_tvm.tuning.measure.lab import Failure
from halo_tvm.tuning.task import Task


@dataclass(frozen=True)
class Point:
    """1,000 decisions: five heights, five unrolls, five prefetch distances, four splits, two orders."""

    mr: int
    unroll: int
    prefetch: int
    split: int
    order: str


SPACE = tuple(
    Point(*values)
    for values in product((2, 4, 6, 8, 12), (1, 2, 4, 8, 16), (0, 1, 2, 4, 8), (1, 2, 4, 8), ("rows", "panels"))
)
DEFAULT = Point(6, 4, 2, 1, "rows")


def cost(d, size=128, peak=(8, 4, 1, 2)):
    """Microseconds: valleys in the logarithm of each field that depend on each other, and on the size."""
    mr, unroll, prefetch, split = peak
    a = math.log2(d.mr / mr)
    b = math.log2(d.unroll * d.mr / (unroll * mr))
    c = math.log2((1 + d.prefetch) / (1 + prefetch))
    e = math.log2(d.split / split) - (0.3 if size > 100 else 0.0)
    bumps = 0.02 * ((d.mr * 7 + d.unroll * 5 + d.prefetch * 3 + d.split) % 5)
    order = 0.12 if (d.order == "rows") == (d.split > 2) else 0.0
    return 10.0 * size**0.8 * math.exp(0.10 * a * a + 0.05 * b * b + 0.03 * c * c + 0.05 * e * e + bumps + order)


class Synthetic(Rule[Point]):
    """Serves no function by itself; `estimates` says whether its analytic model is off, rough or missing."""

    name = "synthetic"
    Decision = Point
    estimates = True

    def default(self, func, target):
        raise Declined("only in tests")

    def estimate(self, func, target, decision, sizes):
        # Wrong about the height, and blind for prefetching and the order.
        d = decision
        order = "panels" if d.split > 2 else "rows"
        return cost(Point(d.mr, d.unroll, 1, d.split, order), peak=(6, 4, 1, 2)) if self.estimates else None


RULE = RULES.pop("synthetic")


def task(key="synthetic", count=1, scale=1, default=DEFAULT, space=SPACE, rule=RULE):
    x = te.placeholder((64, 64 * scale), name="x")
    func = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * 2.0)])
    sizes = (Size((32,), 0.5), Size((128,), 0.5))
    return Task(key, f"{key} f32", func, rule, default, space, count, sizes, (), (1,), ())


class FakeLab:
    """Times are `cost` with seeded noise; `fails` names decisions that die, and where."""

    restarts = 0

    def __init__(self, speed=cost, noise=0.02, seed=0, fails=None, now=None):
        self.speed, self.noise = speed, noise
        self.random = random.Random(seed)
        self.fails = fails or {}  # decision -> "take", "race" or "final"
        self.now = now
        self.opened = []
        self.ids = {}  # id -> (task key, decision)
        self.taken = []  # decisions in the order in which they were built
        self.finals = []
        self._next = p.DEFAULT_ID + 1
        self.task = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def drift(self):
        return 0.0

    def prepare(self, tasks):
        pass

    def open(self, task, *, compare=True):
        self.task = task
        self.opened.append(task.key)
        return self._us(task.default, task.sizes[-1].dims[0])

    def order(self, decisions):
        first, self._next = self._next, self._next + len(decisions)
        self.ids.update({i: (self.task.key, d) for i, d in enumerate(decisions, first)})
        return list(range(first, self._next))

    def _decision(self, candidate):
        if candidate == p.DEFAULT_ID:
            return self.task.default
        key, decision = self.ids[candidate]
        assert key == self.task.key, "a candidate of a task that is not open"
        return decision

    def take(self, candidate):
        decision = self._decision(candidate)
        self.taken.append(decision)
        self._spend(0.1)
        if self.fails.get(decision) == "take":
            del self.ids[candidate]
            raise Failure("declined", "asked to", candidate)
        return self._us(decision, self.task.sizes[-1].dims[0])

    def race(self, candidates, size, rounds, default_us):
        dims = self.task.sizes[size].dims[0]
        for candidate in candidates:
            if self.fails.get(self._decision(candidate)) == "race":
                raise Failure("crash", "signal 11", candidate)
        self._spend(rounds * len(candidates) * 0.01)
        return {c: [self._us(self._decision(c), dims) for _ in range(rounds)] for c in candidates}

    def final(self, candidate):
        decision = self._decision(candidate)
        self.finals.append(decision)
        if self.fails.get(decision) == "final":
            raise Failure("wrong_result", "differs at an odd size", candidate)

    def drop(self, candidates):
        for candidate in candidates:
            self.ids.pop(candidate, None)

    def _us(self, decision, dims):
        return self.speed(decision, dims) * math.exp(self.random.gauss(0.0, self.noise))

    def _spend(self, seconds):
        if self.now is not None:
            self.now[0] += seconds


def share_of_best(decision, speed=cost):
    """Speed of a decision over that of the exhaustive best, both without noise."""
    return math.exp(_least(speed) - _total(decision, speed))


def _total(decision, speed):
    return sum(math.log(speed(decision, size)) for size in (32, 128)) / 2


@cache
def _least(speed):
    return min(_total(decision, speed) for decision in SPACE)


assert len(SPACE) == 1000 and isinstance(tvm.IRModule(), tvm.IRModule)
