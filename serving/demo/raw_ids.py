"""Raw ids of the demo: the log's strings, their id maps, and the unknown ids among them."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from serving.demo.criteo import FEATURES, Examples, Vocabulary
from serving.remote.scraped_metrics import scraped_samples
from sharded_infer.errors import ShardedInferError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.specs.id_map_spec import SharedRows

_HASH = StringHash.XXH3_64
_UNKNOWN_IDS = "sharded_infer_ids_unknown_total"


@dataclass(frozen=True, slots=True)
class RawIdsResult:
    """The hash function of raw ids, and the server's right counts of sent and unknown ids."""

    hash: str
    ids: int
    unknown: int
    unknown_by_table: dict[str, int]


def id_maps_of(vocabulary: Vocabulary) -> dict[str, IdMapSource]:
    """Id map of each table; row 0 is for unknown ids."""
    return {
        name: IdMapSource(
            f"the vocabulary of {name}",
            kept.size,
            partial(iter, [(hashed_texts(kept), np.arange(1, kept.size + 1))]),
            table_rows=kept.size + 1,
            unknown=SharedRows((0,)),
            strings=_HASH.value,
        )
        for name, kept in zip(FEATURES, vocabulary.kept, strict=True)
    }


def hashed_texts(texts: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """Raw ids of texts, int64 `[N]`."""
    return hash_strings(_HASH, *joined_strings(texts.tolist()))


def unknown_ids(metrics_url: str, model: str) -> Counter[str]:
    """Unknown ids that a server has counted, by table; InputError if the page cannot be read."""
    return Counter(
        {
            sample.labels["table"]: int(sample.value)
            for sample in scraped_samples(metrics_url)
            if sample.name == _UNKNOWN_IDS and sample.labels["model"] == model
        }
    )


def check_unknown(counted: Counter[str], sent: Examples, passes: int) -> RawIdsResult:
    """Compare the server's counts with the vocabulary; ShardedInferError names a wrong table."""
    lacking_ids = (sent.present & (sent.ids == 0)).sum(axis=0).tolist()
    for name, once in zip(FEATURES, lacking_ids, strict=True):
        lacking = passes * once
        if counted[name] != lacking:
            raise ShardedInferError(
                f"table {name!r}: {lacking} of the ids sent are not in its vocabulary, the server "
                f"counted {counted[name]} unknown ids"
            )
    by_table = {name: count for name, count in counted.items() if count}
    return RawIdsResult(_HASH.value, passes * int(sent.present.sum()), counted.total(), by_table)
