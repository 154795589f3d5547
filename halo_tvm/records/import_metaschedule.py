"""MetaSchedule's database as records of ours."""

FIELD = "halo.decision."  # + a field's name: the index of its value, on the root block
HEADER = "halo.space"  # JSON on the root block: rule, rule_version, values by field, target, versions, seed, run
