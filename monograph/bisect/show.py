"""What a bisection found, in words."""

from collections.abc import Iterator, Sequence

from monograph.bisect.run import Outcome
from monograph.bisect.search import Finding
from monograph.plurals import counted

_SHOWN_OUTPUTS = 3


def describe_outcomes(outcomes: Sequence[Outcome], how: str) -> str:
    """The verdict over all ranks, the first rank that differs in detail."""
    first = outcomes[0]
    if not first.step:
        updates = counted(first.steps, "update")
        rates = f", and the learning rates of {counted(first.rates, 'step')}" if first.rates else ""
        return (
            f"equal {how}: loss, gradients, weights and optimizer state of {updates} on {_count(len(outcomes))}{rates}"
        )
    ranks = [rank for rank, each in enumerate(outcomes) if each.differences]
    shown = min(ranks, key=lambda rank: (_find_place(outcomes[rank]), rank), default=0)
    lines = [f"different: update {first.step:,}, {_name_ranks(ranks, len(outcomes))}"]
    outcome = outcomes[shown]
    listed = list(outcome.differences.items())
    lines += [f"  {name}: {value}" for name, value in listed[:_SHOWN_OUTPUTS]]
    if len(listed) > _SHOWN_OUTPUTS:
        lines.append(f"  and {len(listed) - _SHOWN_OUTPUTS} more")
    if len(outcomes) > 1:
        lines.append(f"on rank {shown}:")
    for side, finding in outcome.findings.items():
        lines += ["", *_describe(side, finding)]
    return "\n".join(lines)


def _find_place(outcome: Outcome) -> int:
    places = [finding.node.place for finding in outcome.findings.values() if finding.node]
    return min(places, default=1 << 60)


def _describe(side: str, finding: Finding) -> Iterator[str]:
    what = f"pass {finding.name}" if finding.kind == "pass" else finding.name
    if finding.stage is not None:
        what += f" on stage {finding.stage}"
    yield f"{side}: {what}" + (f" ({finding.note})" if finding.note else "")
    if finding.tried:
        yield f"  replayed after: {', '.join(finding.tried)}"
    if finding.outputs and finding.node is None:
        name, value = next(iter(finding.outputs.items()))
        yield f"  {name}: {value}"
    node = finding.node
    if node is None:
        return
    made = f", made by {node.made_by}" if node.made_by not in ("", "capture") else ""
    yield f"  node {node.node} of {node.path or 'the step, outside of the model'}, {node.direction}{made}"
    if node.source:
        yield f"  source {node.source}"
    yield f"  value {node.value}"
    yield "  before:"
    yield from (f"    {line}" for line in node.before)
    yield "  after:"
    yield from (f"    {line}" for line in node.after)


def _name_ranks(ranks: Sequence[int], count: int) -> str:
    if count == 1:
        return "on one rank"
    if len(ranks) == count:
        return f"on all {count} ranks"
    return f"on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {count}"


def _count(ranks: int) -> str:
    return "one rank" if ranks == 1 else f"{ranks} ranks"
