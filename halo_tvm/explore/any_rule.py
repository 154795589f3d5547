"""A rule that stands for all rules, so that decisions of different rules can race each other in one worker."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tvm import tirx

from ..errors import Declined
from ..records.decision import decision_from_plain, decision_to_plain
from ..targets import Target
from ..tir_schedules import RULES, Rule


@dataclass(frozen=True)
class AnyDecision:
    rule: str
    fields: str  # JSON

    @classmethod
    def of(cls, rule: Rule, decision: object) -> AnyDecision:
        return cls(rule.name, json.dumps(decision_to_plain(decision)))


class AnyRule(Rule[AnyDecision]):
    """`apply` asks the rule that the decision names; no target lists it."""

    name = "any"
    Decision = AnyDecision

    def default(self, func: tirx.PrimFunc, target: Target) -> AnyDecision:
        raise Declined("it has no decisions of its own")

    def apply(self, func: tirx.PrimFunc, target: Target, decision: AnyDecision) -> tirx.PrimFunc:
        rule = RULES[decision.rule]
        return rule.apply(func, target, decision_from_plain(rule.Decision, json.loads(decision.fields)))
