"""Operators of common towers: exported, stored, read back and compared with the eager module."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional, utils
from torch.nn.utils import parametrizations, prune, spectral_norm

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from tests.sharded_infer.towers.stored import Signature, read_back

FEATURES, DIM, DENSE = 4, 8, 5
WIDTH = FEATURES * DIM
SIGNATURE = Signature(WIDTH, {"dense": DENSE})

Compute = Callable[[Any, Tensor, Tensor], Tensor]


class Snippet(nn.Module):
    def __init__(self, compute: Compute, **parts: nn.Module) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        return self.compute(self, dense, embeddings)


class Dice(nn.Module):
    """The activation of Deep Interest Networks (Zhou et al. 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False, eps=1e-8)
        self.alpha = nn.Parameter(torch.full((width,), 0.2))

    def forward(self, values: Tensor) -> Tensor:
        share = self.norm(values).sigmoid()
        return self.alpha * (1 - share) * values + share * values


def vectors(embeddings: Tensor) -> Tensor:
    return embeddings.reshape(embeddings.shape[0], FEATURES, DIM)


def first_of(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    return found[0] if isinstance(found, tuple) else found


def of_vectors(layer: nn.Module) -> Snippet:
    """The layer on `[B, 4, 8]`."""
    return Snippet(lambda s, d, e: first_of(s.layer(vectors(e))).flatten(1), layer=layer)


def of_images(layer: nn.Module) -> Snippet:
    """The layer on `[B, 1, 4, 8]`."""
    return Snippet(lambda s, d, e: s.layer(vectors(e).unsqueeze(1)).flatten(1), layer=layer)


def of_rows(layer: nn.Module) -> Snippet:
    """The layer on `[B, 32]`."""
    return Snippet(lambda s, d, e: first_of(s.layer(e)), layer=layer)


def of_function(function: Callable[[Tensor, Tensor], Tensor]) -> Snippet:
    return Snippet(lambda _, dense, embeddings: function(dense, embeddings))


def on_mask(mask: Callable[[Tensor], Tensor]) -> Snippet:
    return of_function(lambda d, e: torch.where(mask(e), e, 0.1 * e))


def interest(self: Any, dense: Tensor, embeddings: Tensor) -> Tensor:
    """DIN's attention of a candidate over a history, as DIEN's second GRU would weigh it."""
    found = vectors(embeddings)
    candidate, history = found[:, :1], found[:, 1:]
    both = torch.cat([candidate.expand_as(history), history, candidate - history], -1)
    weights = self.unit(both).masked_fill(history.abs().sum(-1, keepdim=True) < 1, -1e9)
    state = torch.zeros_like(found[:, 0])
    for step in range(history.shape[1]):
        share = weights.softmax(1)[:, step]
        state = share * self.cell(history[:, step], state) + (1 - share) * state
    return state


def weight_norm(layer: nn.Module) -> nn.Module:
    """torch.nn.utils.weight_norm of old models, which warns that it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return utils.weight_norm(layer)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


MASKS = {
    "and": on_mask(lambda e: (e > -1) & (e < 1)),
    "or": on_mask(lambda e: (e < -1) | (e > 1)),
    "xor": on_mask(lambda e: (e < 0) ^ (e < 1)),
    "not": on_mask(lambda e: ~(e > 0)),
    "and of integers": on_mask(lambda e: (e.int() & 1) == 0),
    "logical_and": on_mask(lambda e: torch.logical_and(e > -1, e < 1)),
    "in-place and": on_mask(lambda e: (e > -1).__iand__(e < 1)),
    "isin": on_mask(lambda e: torch.isin(e.long(), torch.tensor([0, 1]))),
    "greater": on_mask(lambda e: torch.greater(e, 0)),
    "isclose": on_mask(lambda e: torch.isclose(e, e + 1e-9)),
    "any and all": of_function(lambda d, e: (e > 2).any(1).float() + (e < 2).all(1).float()),
    "count_nonzero": of_function(lambda d, e: torch.count_nonzero(e > 0, 1).float()),
    "masked_fill": of_function(lambda d, e: e.masked_fill(e > 1, float("-inf")).softmax(1)),
    "where": of_function(lambda d, e: torch.where(e > 0, 1.0, 0.0) * e),
    "masked mean": of_function(
        lambda d, e: (
            (vectors(e) * (vectors(e).sum(-1, keepdim=True) > 0)).sum(1)
            / (vectors(e).sum(-1) > 0).sum(1, keepdim=True).clamp(min=1)
        )
    ),
}
ARITHMETIC = {
    "clip": of_function(lambda d, e: torch.clip(e, -1, 1)),
    "clip to tensors": of_function(lambda d, e: e.clip(torch.tensor(-1.0), torch.tensor(1.0))),
    "clamp": of_function(lambda d, e: e.clamp(min=0)),
    "true_divide": of_function(lambda d, e: torch.true_divide(e, 3) + torch.multiply(e, 2)),
    "subtract": of_function(lambda d, e: torch.subtract(e, 1) + torch.negative(e).absolute()),
    "float_power": of_function(lambda d, e: torch.float_power(e.abs(), 1.5).float()),
    "expit": of_function(lambda d, e: torch.special.expit(e) + torch.xlogy(e.abs(), e.abs() + 1)),
    "frac": of_function(lambda d, e: e.frac() + e.atan()),
    "diff": of_function(lambda d, e: e.diff(dim=1)),
    "linalg.norm": of_function(lambda d, e: torch.linalg.norm(e, dim=1)),
    "normalize": of_function(lambda d, e: functional.normalize(e, dim=1)),
    "cosine_similarity": of_function(
        lambda d, e: functional.cosine_similarity(vectors(e)[:, 0], vectors(e)[:, 1])
    ),
    "pairwise_distance": of_function(
        lambda d, e: functional.pairwise_distance(vectors(e)[:, 0], vectors(e)[:, 1])
    ),
    "einsum": of_function(lambda d, e: torch.einsum("bfd,bgd->bfg", *[vectors(e)] * 2).flatten(1)),
    "bmm": of_function(lambda d, e: torch.bmm(vectors(e), vectors(e).transpose(1, 2)).flatten(1)),
    "tensordot": of_function(lambda d, e: torch.tensordot(e, torch.ones(WIDTH, 2), dims=1)),
    "cross product": of_function(
        lambda d, e: torch.linalg.cross(vectors(e)[..., :3], vectors(e)[..., 3:6]).flatten(1)
    ),
    "block_diag": of_function(lambda d, e: e @ torch.block_diag(*[torch.ones(DIM, DIM)] * 4)),
}  # fmt: skip
SELECTIONS = {
    "topk": of_function(lambda d, e: e.topk(3, 1).values),
    "sort": of_function(lambda d, e: e.sort(1).values),
    "max": of_function(lambda d, e: e.max(1).values + e.amin(1)),
    "aminmax": of_function(lambda d, e: e.aminmax(dim=1)[1]),
    "cumsum": of_function(lambda d, e: e.cumsum(1)),
    "gather": of_function(lambda d, e: e.gather(1, d.long().clamp(0, 9))),
    "one_hot": of_function(lambda d, e: functional.one_hot(e.argmax(1), WIDTH).float()),
    "bucketize": of_function(lambda d, e: torch.bucketize(d, torch.tensor([0.0, 1.0])).float()),
    "searchsorted": of_function(
        lambda d, e: torch.searchsorted(torch.tensor([0.0, 1.0]), d, right=True).float()
    ),
    "index_add": of_function(
        lambda d, e: torch.zeros(e.shape[0], 4).index_add(1, torch.arange(WIDTH) % 4, e, alpha=2)
    ),
    "index_add_ over samples' rows": of_function(
        lambda d, e: torch.zeros_like(e).index_add_(1, torch.arange(WIDTH).flip(0), e)
    ),
    "index_copy": of_function(lambda d, e: e.index_copy(1, torch.arange(DENSE), d)),
    "index_fill": of_function(lambda d, e: e.index_fill(1, torch.arange(3), 0.5)),
    "scatter_add": of_function(
        lambda d, e: torch.zeros(e.shape[0], 4).scatter_add(
            1, (torch.arange(WIDTH) % 4).expand(e.shape[0], WIDTH), e
        )
    ),
    "scatter_reduce of sums": of_function(
        lambda d, e: torch.zeros(e.shape[0], 4).scatter_reduce(
            1, (torch.arange(WIDTH) % 4).expand(e.shape[0], WIDTH), e, "sum"
        )
    ),
    "assignment": of_function(
        lambda d, e: (copied := e.clone(), copied.__setitem__((slice(None), slice(5)), d))[0]
    ),
    "empty": of_function(
        lambda d, e: torch.empty_like(d).fill_(3) + torch.empty(5).fill_(1) + d.new_empty(5).zero_()
    ),
    "meshgrid": of_function(
        lambda d, e: d * torch.meshgrid(torch.arange(2.0), torch.arange(5.0), indexing="ij")[1][0]
    ),
    "pad": of_function(lambda d, e: functional.pad(vectors(e), (1, 2), mode="reflect").flatten(1)),
    "interpolate": of_function(lambda d, e: functional.interpolate(vectors(e), size=16).flatten(1)),
    "unfold": of_function(lambda d, e: functional.unfold(vectors(e)[:, None], (2, 2)).flatten(1)),
}  # fmt: skip
LAYERS = {
    "weight_norm": of_rows(parametrizations.weight_norm(nn.Linear(WIDTH, 3))),
    "old weight_norm": of_rows(weight_norm(nn.Linear(WIDTH, 3))),
    "spectral_norm": of_rows(parametrizations.spectral_norm(nn.Linear(WIDTH, 3))),
    "old spectral_norm": of_rows(spectral_norm(nn.Linear(WIDTH, 3))),
    "prune": of_rows(prune.l1_unstructured(nn.Linear(WIDTH, 3), "weight", 0.5)),
    "weight_norm of Conv1d": of_vectors(weight_norm(nn.Conv1d(FEATURES, 3, 3))),
    "MaxPool1d": of_vectors(nn.MaxPool1d(2)),
    "MaxPool1d with padding": of_vectors(nn.MaxPool1d(3, 2, padding=1, ceil_mode=True)),
    "MaxPool2d": of_images(nn.MaxPool2d(2)),
    "AvgPool1d": of_vectors(nn.AvgPool1d(2)),
    "AvgPool1d with padding": of_vectors(nn.AvgPool1d(3, 2, padding=1, ceil_mode=True)),
    "AvgPool2d": of_images(nn.AvgPool2d((2, 3), 2, padding=1, count_include_pad=False)),
    "AvgPool2d with a divisor": of_images(nn.AvgPool2d(2, ceil_mode=True, divisor_override=3)),
    "AdaptiveAvgPool1d(1)": of_vectors(nn.AdaptiveAvgPool1d(1)),
    "AdaptiveAvgPool1d(3)": of_vectors(nn.AdaptiveAvgPool1d(3)),
    "AdaptiveAvgPool1d(4)": of_vectors(nn.AdaptiveAvgPool1d(4)),
    "AdaptiveAvgPool2d": of_images(nn.AdaptiveAvgPool2d((2, 3))),
    "AdaptiveMaxPool1d(1)": of_vectors(nn.AdaptiveMaxPool1d(1)),
    "GRU": of_vectors(nn.GRU(DIM, 6, batch_first=True)),
    "GRU, two ways": of_vectors(nn.GRU(DIM, 6, 2, batch_first=True, bidirectional=True)),
    "LSTM": of_vectors(nn.LSTM(DIM, 6, batch_first=True)),
    "LSTM, two ways": of_vectors(nn.LSTM(DIM, 6, 2, batch_first=True, bidirectional=True)),
    "LSTM with a projection": of_vectors(nn.LSTM(DIM, 6, batch_first=True, proj_size=3)),
    "RNN": of_vectors(nn.RNN(DIM, 6, batch_first=True, nonlinearity="relu")),
    "GRUCell": of_rows(nn.GRUCell(WIDTH, 6)),
    "LSTMCell": of_rows(nn.LSTMCell(WIDTH, 6)),
    "RNNCell": of_rows(nn.RNNCell(WIDTH, 6)),
    "attentional GRU": Snippet(interest, unit=nn.Linear(24, 1), cell=nn.GRUCell(DIM, DIM)),
    "BatchNorm1d": of_rows(nn.BatchNorm1d(WIDTH)),
    "InstanceNorm1d": of_vectors(nn.InstanceNorm1d(FEATURES)),
    "LayerNorm": of_rows(nn.LayerNorm(WIDTH)),
    "GroupNorm": of_rows(nn.GroupNorm(4, WIDTH)),
    "RMSNorm": of_rows(nn.RMSNorm(WIDTH)),
    "LocalResponseNorm": of_vectors(nn.LocalResponseNorm(2)),
    "Conv1d": of_vectors(nn.Conv1d(FEATURES, 3, 3, padding="same")),
    "Conv2d": of_images(nn.Conv2d(1, 3, (3, 1))),
    "Bilinear": Snippet(
        lambda s, d, e: s.layer(vectors(e)[:, 0], vectors(e)[:, 1]), layer=nn.Bilinear(DIM, DIM, 3)
    ),
    "MultiheadAttention": Snippet(
        lambda s, d, e: s.layer(
            *[vectors(e)] * 3, key_padding_mask=vectors(e).sum(-1) > 9
        )[0].flatten(1),
        layer=nn.MultiheadAttention(DIM, 2, batch_first=True),
    ),
    "TransformerEncoder": of_vectors(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True), 2)
    ),
    "Embedding": Snippet(
        lambda s, d, e: s.layer(d.long().clamp(0, 9)).sum(1),
        layer=nn.Embedding(10, 3, padding_idx=0),
    ),
    "dropouts": of_rows(nn.Sequential(nn.Dropout(), nn.AlphaDropout(), nn.Identity())),
    "Dropout1d": of_vectors(nn.Dropout1d()),
    "mixture of experts": Snippet(
        lambda s, d, e: (s.experts(e).view(-1, 3, 2) * s.gate(d).softmax(1).unsqueeze(2)).sum(1),
        experts=nn.Linear(WIDTH, 6),
        gate=nn.Linear(DENSE, 3),
    ),
}  # fmt: skip
ACTIVATIONS = {
    name: of_rows(getattr(nn, name)())
    for name in (
        "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
        "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU",
        "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
    )
} | {"Dice": of_rows(Dice(WIDTH)), "Softmax": of_rows(nn.Softmax(1))}  # fmt: skip

MATRIX = MASKS | ARITHMETIC | SELECTIONS | LAYERS | ACTIVATIONS


def filled(module: nn.Module) -> nn.Module:
    numbers = generator()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d):
                assert part.running_mean is not None and part.running_var is not None
                part.running_mean.normal_(generator=numbers)
                part.running_var.uniform_(0.5, 2, generator=numbers)
    return module.eval()


def samples(batch: int) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(batch)
    return (
        2 * torch.randn(batch, DENSE, generator=numbers),
        2 * torch.randn(batch, WIDTH, generator=numbers),
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", MATRIX)
def test_a_snippet_scores_as_its_module_does_once_stored_and_read_back(name: str) -> None:
    module = filled(MATRIX[name])
    stored = read_back(SIGNATURE.export(module))
    for batch in (1, 5, 64):
        inputs = samples(batch)
        with torch.no_grad():
            expected = module(*inputs)
            (found,) = stored(*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


class Sequence(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(16, 64, batch_first=True)
        self.top = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        states, _ = self.layer(embeddings.view(-1, 10, 16))
        score: Tensor = self.top(states[:, -1])
        return score


@pytest.mark.parametrize(
    ("kind", "precision", "bound"),
    [
        (nn.LSTM, Precision.FP32, 1e-5),
        (nn.GRU, Precision.BF16, 2e-2),
        (nn.LSTM, Precision.INT8, 2e-2),
    ],
)
def test_a_recurrent_tower_keeps_its_scores_and_holds_each_weight_once(
    kind: type[nn.RNNBase], precision: Precision, bound: float, tmp_path: Path
) -> None:
    module = Sequence(kind).eval()
    embeddings = torch.randn(100, 160, generator=generator())
    signature, path = Signature(160), tmp_path / "tower.pt2"
    write_program(signature.export(module, precision, [embeddings]), path)
    weights = sum(4 * parameter.numel() for parameter in module.parameters())
    # Ten steps read one weight: neither the file nor the server has ten of it.
    assert path.stat().st_size < 2 * weights + 2**19
    tower = signature.load(path)
    held = {id(tensor): tensor.numel() for tensor in tower.program.buffers()}
    assert sum(held.values()) < 2 * weights / 4
    for batch in (1, 100):
        (found,) = tower([], embeddings[:batch])
        with torch.no_grad():
            expected = module(embeddings[:batch])
        torch.testing.assert_close(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (of_function(lambda d, e: e.median(1).values), r"aten.median.dim.*instead: sort\(dim\)"),
        (of_function(lambda d, e: e.cummax(1).values), r"aten.cummax.default.*instead: amax"),
        (of_function(lambda d, e: torch.cdist(vectors(e), vectors(e))[:, 0]), "instead: the norm"),
        (of_function(lambda d, e: e + torch.randn_like(e)), "instead: scores must not be random"),
        (of_function(lambda d, e: e.nonzero().sum() * e), "instead: a result's size"),
        (of_vectors(nn.AdaptiveMaxPool1d(3)), r"by layer \(AdaptiveMaxPool1d\).*instead: nn"),
        (
            Snippet(lambda s, d, e: s.bag(d.long().clamp(0, 9)), bag=nn.EmbeddingBag(10, 3)),
            r"called by bag \(EmbeddingBag\) is not allowed.*instead: nn.Embedding and sum",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_refused_with_a_substitute(
    module: nn.Module, words: str
) -> None:
    with pytest.raises(TowerError, match=words):
        SIGNATURE.export(module)
