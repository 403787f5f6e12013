"""Detection of a checkpoint's layer matrices by their keys and neighbours."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from quant.sources.weight_source import WeightSource

# Parameters of torch's recurrent layers and of attention, and of weight_norm.
_LAYER = re.compile(
    r"(.*\.)?(weight_(ih|hh)_l\d+(_reverse)?|in_proj_weight|weight_[gv]|parametrizations\..*)"
)
# Words in the names of layers that may lack a bias.
_WORDS = re.compile(
    r"linear|fc|mlp|dense|proj|projection|head|hidden|layers?|tower|top|bottom|cross(es)?|out"
    r"|output|logits?|deep|gate|attn|attention|over|inter"
)


@dataclass(frozen=True, slots=True)
class LayerWeight:
    """A weight that is probably no table, and if `sure` certainly none.

    `kind` is the reason as many weights have it, `detail` what it says of this one.
    """

    key: str
    shape: tuple[int, ...]
    kind: str
    sure: bool
    detail: str = ""

    @property
    def reason(self) -> str:
        """Why it is left out."""
        return self.kind + self.detail


def layer_weight(source: WeightSource, key: str, keys: Collection[str]) -> LayerWeight | None:
    """The reason a matrix belongs to a layer, given all keys; None if it could be a table."""
    shape = source.shape(key)
    if _LAYER.fullmatch(key):
        return LayerWeight(key, shape, "a recurrent, attention or normed layer's", sure=True)
    bias = f"{key.removesuffix('weight')}bias"
    if key.endswith("weight") and bias in keys and source.shape(bias) == shape[:1]:
        return LayerWeight(
            key, shape, "a linear layer's", sure=True, detail=f", with {bias!a} of its length"
        )
    words = re.split(r"[._\d]+", key.lower())
    if key.endswith(".weight") and not any("emb" in word for word in words):
        named = next((word for word in words if _WORDS.fullmatch(word)), None)
        if named is not None:
            return LayerWeight(key, shape, f"{named!a} in its key is a layer's", sure=False)
    return None
