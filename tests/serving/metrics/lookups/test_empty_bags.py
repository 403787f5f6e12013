"""Empty bags counted by feature, in one process and in several."""

from hypothesis import given
from hypothesis import strategies as st

from serving.metrics.cells import MetricCells
from serving.metrics.families.model_families import NAMED_PLACES, OTHERS
from serving.metrics.lookups.empty_bags import EmptyBags
from serving.metrics.version_info import FactCells, VersionInfo
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from tests.support.requests_by_chance import SPEC, Arrays, inputs_by_chance

FEATURES = tuple(feature.name for feature in SPEC.features)


def counted(batches: list[ModelInput]) -> dict[str, int]:
    cells = MetricCells(1)
    first = cells.allocate(len(NAMED_PLACES))
    facts = FactCells(cells)
    facts.write(VersionInfo(0.06, (1,), ("score",), FEATURES))
    counter = EmptyBags(cells, first)
    counter.set_features(FEATURES)
    for batch in batches:
        counter.count(batch)
    *names, others = facts.features()
    assert others == OTHERS and tuple(names) == SPEC.sparse_inputs
    return {name: int(cells.own[first + place]) for place, name in enumerate(names)}


def empty_by_hand(request: ModelInput) -> dict[str, int]:
    """Samples of one request, bag by bag; of a feature of several tables, in its first."""
    found: dict[str, int] = {}
    for feature, name in enumerate(FEATURES):
        (group,) = [group for group in request.groups if feature in group.features]
        lengths = group.lengths[group.features.index(feature)].tolist()
        bags = lengths if len(lengths) == request.batch_size else lengths * request.batch_size
        found.setdefault(name, sum(length == 0 for length in bags))
    return found


@given(sent=st.lists(inputs_by_chance(), min_size=1, max_size=4))
def test_every_sample_without_ids_is_counted(sent: list[Arrays]) -> None:
    requests = [InputPolicy(SPEC).apply(make_input(SPEC, inputs)) for inputs in sent]
    by_hand = [empty_by_hand(request) for request in requests]
    wanted = {name: sum(one[name] for one in by_hand) for name in SPEC.sparse_inputs}
    assert counted(requests) == wanted
    assert counted([merge_inputs(requests)]) == wanted


def test_features_without_a_place_of_their_own_are_counted_together() -> None:
    cells = MetricCells(1)
    facts = FactCells(cells)
    many = tuple(f"f{n}" for n in range(400))
    facts.write(VersionInfo(0.06, (1,), ("score",), many))
    assert facts.features() == (*many[:127], OTHERS)
    assert len(facts.features()) == len(NAMED_PLACES)
    long = tuple(f"{n:03}" + "x" * 197 for n in range(60))
    facts.write(VersionInfo(0.06, (1,), ("score",), long))
    *named, others = facts.features()
    assert others == OTHERS
    assert 10 < len(named) < 60 and tuple(named) == long[: len(named)]
