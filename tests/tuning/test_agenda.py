"""The stages of a search in turn, without a search."""

import dataclasses
import math

from landscape import DEFAULT, SPACE

from halo_tvm.tuning.search import outcome as ends
from halo_tvm.tuning.search.agenda import AT_ROOFLINE, UNTESTED, Agenda
from halo_tvm.tuning.search.board import Board
from halo_tvm.tuning.search.descent import Descent
from halo_tvm.tuning.search.efforts import EFFORTS
from halo_tvm.tuning.search.ranked import Ranked
from halo_tvm.tuning.search.ranking import Ranking

FASTER = dataclasses.replace(DEFAULT, mr=8)


def agenda(*names, headroom=math.inf, **changes):
    board = Board(DEFAULT, SPACE)
    ranking = Ranking(board, "", None, None)
    made = {"ranked": Ranked(ranking, 0.1, 0), "descent": Descent(board, ranking)}
    effort = dataclasses.replace(EFFORTS["full"], **changes)
    return Agenda([made[n] for n in names], board, ranking, effort, headroom), board


def best(board, decision, speedup):
    board.measured(decision, speedup, full=True)
    board.settle()


def test_nothing_to_do():
    made, _ = agenda()
    assert made.stage is None and made.ended == ends.NO_STAGE
    made.end(ends.BUDGET)
    assert made.ended == ends.NO_STAGE, "the first reason stays"


def test_patience_ends_a_stage_that_finds_nothing():
    made, _ = agenda("ranked", patience=3)
    for won in (False, False, True, False, False):
        made.ran(won)
    assert made.ended == ""
    made.ran(False)
    assert made.ended == ends.PATIENCE and made.stage is None


def test_a_stage_that_proposes_nothing_gives_way_to_the_next():
    made, _ = agenda("ranked", "descent", cycles=1)
    made.proposes_nothing()
    assert made.stage.name == "descent" and made.ended == ""


def test_the_round_begins_again_while_it_changes_the_best():
    made, board = agenda("ranked", "descent", cycles=1)
    names = []
    while made.stage is not None:
        names.append(made.stage.name)
        if len(names) == 3:
            best(board, FASTER, 1.1)
        made.proposes_nothing()
    # The first round is compared with nothing, the second has changed the best, the third has not.
    assert names == ["ranked", "descent"] * 3 and made.ended == ends.NO_STEP


def test_what_is_to_be_gained():
    made, board = agenda("ranked", headroom=math.log(1.2))
    assert made.gain == UNTESTED and not made.is_at_roofline
    made.ran(False)
    assert made.gain == UNTESTED / 2, "a batch that brought nothing halves it"
    best(board, FASTER, 1.19)
    assert 0 < made.gain <= math.log(1.2 / 1.19) + 1e-9, "no more than the roofline leaves"
    assert made.is_at_roofline and 1.19 * AT_ROOFLINE > 1.2
