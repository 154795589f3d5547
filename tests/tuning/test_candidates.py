"""The order in which decisions are tried."""

from dataclasses import dataclass

from halo_tvm.tuning.search.candidates import Candidates


@dataclass(frozen=True)
class D:
    a: int
    b: int


SPACE = tuple(D(a, b) for a in range(3) for b in range(3))


def drain(candidates, best, size=4):
    seen = []
    while batch := candidates.next_batch(size, best):
        seen += batch
    return seen


def test_everything_once_hints_first_then_near():
    made = Candidates(D(0, 0), SPACE, [D(2, 2)], [D(1, 1)], descend=False, seed=0)
    order = drain(made, D(0, 0))
    assert order[0] == D(2, 2)
    assert set(order[1:5]) == {D(0, 1), D(0, 2), D(1, 0), D(2, 0)}
    assert sorted(map(str, order)) == sorted(str(d) for d in SPACE if d not in (D(0, 0), D(1, 1)))
    assert made.avoided == 1


def test_descent_leaves_the_listed_space():
    listed = (D(0, 0), D(1, 0), D(0, 1))
    assert drain(Candidates(D(0, 0), listed, (), (), descend=False, seed=0), D(1, 0)) == [D(1, 0), D(0, 1)]
    assert D(1, 1) in drain(Candidates(D(0, 0), listed, (), (), descend=True, seed=0), D(1, 0))


def test_the_seed_decides_the_order():
    space = tuple(D(a, b) for a in range(10) for b in range(10))
    orders = [drain(Candidates(D(0, 0), space, (), (), descend=False, seed=s), D(0, 0)) for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
