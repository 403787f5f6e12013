import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import pack_program, write_program
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.towers.stored import Signature

FEATURES, DIM = 4, 8
DENSE = {"dense": 5}
EMBEDDING_WIDTH = FEATURES * DIM
USUAL = Signature(EMBEDDING_WIDTH, DENSE)

# bf16 keeps 8 significant bits: a rounding error of at most 2**-9 in every factor of a few layers.
BF16_BOUND = 2e-2


class Interaction(nn.Module):
    """A small DLRM: bottom MLP, pairwise products selected by a buffer of indices, top MLP."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, DIM))
        pairs = FEATURES * (FEATURES + 1) // 2
        self.top = nn.Sequential(nn.Linear(DIM + pairs, width), nn.ReLU(), nn.Linear(width, 1))
        indices = torch.tril_indices(FEATURES + 1, FEATURES + 1, offset=-1)
        self.register_buffer("indices", indices, persistent=False)
        self.indices: torch.Tensor

    def forward(self, dense: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), embeddings.view(-1, FEATURES, DIM)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.indices[0], self.indices[1]]
        logit: torch.Tensor = self.top(torch.cat([bottom, pairs], dim=1))
        return logit.squeeze(1).sigmoid()


class Attention(nn.Module):
    """Self-attention over the features, with the operators that must stay in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.query = nn.Linear(DIM, DIM)
        self.batch_norm = nn.BatchNorm1d(DIM)
        self.top = nn.Sequential(nn.Dropout(0.5), nn.Linear(DIM + 5, 3))

    def forward(self, embeddings: torch.Tensor, *, dense: torch.Tensor) -> torch.Tensor:
        vectors = embeddings.reshape(embeddings.shape[0], FEATURES, DIM)
        attended, _ = self.attention(vectors, vectors, vectors, need_weights=False)
        normed = self.norm(vectors + attended)
        weights = (self.query(normed) * normed).sum(-1).softmax(-1)
        pooled = self.batch_norm((weights.unsqueeze(-1) * normed).sum(1))
        scores: torch.Tensor = self.top(torch.cat([pooled, dense], dim=1))
        return scores


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(EMBEDDING_WIDTH, 16), nn.ReLU(inplace=True))
        self.click = nn.Linear(16, 1)
        self.rating = nn.Linear(16, 3)

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        shared = self.shared(inputs["embeddings"] * torch.tensor(0.5))
        batch = shared.shape[0]
        mask = torch.zeros(batch, 3).masked_fill(shared[:, :3] <= 0, float("-inf"))
        return {"rating": self.rating(shared) + mask.exp(), "click": self.click(shared).view(batch)}


def seeded(module_type: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    module = module_type()
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d):
            assert child.running_mean is not None and child.running_var is not None
            child.running_mean.normal_()
            child.running_var.uniform_(0.5, 2)
    return module


def batch_of(size: int, dense: Mapping[str, int] = DENSE) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    inputs = {name: torch.randn(size, width, generator=generator) for name, width in dense.items()}
    return inputs | {"embeddings": torch.randn(size, EMBEDDING_WIDTH, generator=generator)}


def stored(
    module: nn.Module,
    path: Path,
    precision: Precision = Precision.FP32,
    signature: Signature = USUAL,
) -> Tower:
    write_program(signature.export(module, precision), path)
    return signature.load(path)


def test_a_dict_of_outputs_comes_in_the_declared_order(tmp_path: Path) -> None:
    module = seeded(Heads)
    signature = Signature(EMBEDDING_WIDTH, outputs=("click", "rating"))
    tower = stored(module, tmp_path / "tower.pt2", signature=signature)
    assert tower.output_widths == (None, 3)
    for batch in (1, 9):
        inputs = batch_of(batch, {})
        click, rating = tower([], inputs["embeddings"])
        expected = module(**inputs)
        torch.testing.assert_close(click, expected["click"])
        torch.testing.assert_close(rating, expected["rating"])


def test_export_leaves_the_module_as_it_was() -> None:
    module = seeded(Attention).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    USUAL.export(module, Precision.BF16)
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
@pytest.mark.parametrize("module_type", [Interaction, Attention])
def test_scores_are_the_modules_but_for_rounding_in_the_precision(
    module_type: type[nn.Module], precision: Precision, tmp_path: Path
) -> None:
    module = seeded(module_type)
    tower = stored(module, tmp_path / "tower.pt2", precision)
    # fp16 has three bits more.
    bound = BF16_BOUND if precision is Precision.BF16 else BF16_BOUND / 8
    for batch in (1, 2, 7, 300):
        inputs = batch_of(batch)
        (score,) = tower([inputs["dense"]], inputs["embeddings"])
        assert score.dtype is torch.float32 and score.is_inference()
        expected = module.eval()(**inputs)
        if precision is Precision.FP32:
            torch.testing.assert_close(score, expected)
        else:
            # Equal scores would say that nothing ran in the precision.
            assert 0 < (score - expected).abs().max().item() < bound


def test_a_weight_beyond_fp16_is_refused_by_name() -> None:
    module = seeded(Interaction)
    with torch.no_grad():
        module.bottom[0].weight[2, 3] = -70000.0  # type: ignore[index, union-attr, operator]
    words = r"weight '.*bottom.0.weight': 70000 is beyond torch.float16, which ends at 65504"
    with pytest.raises(TowerError, match=words):
        USUAL.export(module, Precision.FP16)
    USUAL.export(module, Precision.BF16)


def test_a_tower_computes_in_tf32_when_told(tmp_path: Path) -> None:
    path, inputs = tmp_path / "tower.pt2", batch_of(300)
    plain, rounded = (
        tower([inputs["dense"]], inputs["embeddings"])[0]
        for tower in (stored(seeded(Interaction), path), USUAL.load(path, tf32=True))
    )
    assert 1e-6 < (plain - rounded).abs().max() < BF16_BOUND / 8


def test_only_inner_matrix_products_run_in_bf16() -> None:
    seen: dict[str, list[torch.dtype]] = {}
    for node in USUAL.export(seeded(Attention), Precision.BF16).graph.nodes:
        tensors = [a.meta["val"] for a in node.all_input_nodes if torch.is_tensor(a.meta["val"])]
        seen.setdefault(str(node.target), []).extend(tensor.dtype for tensor in tensors)
    linear = seen["aten.linear.default"]
    assert linear == [torch.bfloat16] * (len(linear) - 3) + [torch.float32] * 3
    for target in ("aten.layer_norm.default", "aten.softmax.int", "aten.batch_norm.default"):
        assert set(seen[target]) == {torch.float32}
    assert set(seen["aten.scaled_dot_product_attention.default"]) == {torch.float32}


def test_the_same_program_gives_the_same_bytes() -> None:
    first, second = (
        pack_program(USUAL.export(seeded(Interaction), Precision.BF16)) for _ in range(2)
    )
    assert first == second


def test_the_archive_tells_nothing_of_the_publishers_files(tmp_path: Path) -> None:
    path = tmp_path / "tower.pt2"
    stored(seeded(Attention), path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    for data in contents.values():
        assert not any(trace in data for trace in (b".py", b"site-packages", b"in forward"))
    assert contents["archive/data/sample_inputs/model.pt"] == b""


def test_torch_export_can_load_a_stored_tower(tmp_path: Path) -> None:
    path = tmp_path / "tower.pt2"
    tower = stored(seeded(Interaction), path, Precision.BF16)
    inputs = batch_of(4)
    theirs = torch.export.load(io.BytesIO(path.read_bytes())).module()
    (score,) = theirs(inputs["dense"], inputs["embeddings"])
    (ours,) = tower([inputs["dense"]], inputs["embeddings"])
    # Products of bf16 numbers are exact in fp32; their sums depend on the order.
    torch.testing.assert_close(score, ours, rtol=0, atol=1e-6)


def refused(module: nn.Module, match: str, outputs: tuple[str, ...] = ("score",)) -> None:
    with pytest.raises(TowerError, match=match):
        USUAL._replace(outputs=outputs).export(module)


class Returning(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, dense: torch.Tensor, embeddings: torch.Tensor) -> object:
        return self.function(dense, embeddings)


class Other(nn.Module):
    def forward(self, numbers: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        return numbers


class Greedy(nn.Module):
    def forward(
        self, dense: torch.Tensor, embeddings: torch.Tensor, context: torch.Tensor
    ) -> torch.Tensor:
        return dense


def test_inputs_and_outputs_that_are_not_the_modules_are_named() -> None:
    refused(Other(), r"does not accept \['dense'\]; it accepts \['embeddings', 'numbers'\]")
    refused(Greedy(), r"requires \['context'\]")
    refused(Interaction(), "expected the outputs", ("a", "b"))
    refused(Heads(), "distinct output names", ("a", "a"))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda d, e: {"score": d[:, 0], "more": d}, r"expected the outputs \['score'\].*'more'"),
        (lambda d, e: {"other": d[:, 0]}, r"expected the outputs \['score'\].*\['other'\]"),
        (lambda d, e: [d[:, 0]], "returned a list"),
        (lambda d, e: d.unsqueeze(2), r"'score': expected \[1\] or \[1, K\].*\[1, 5, 1\]"),
        (lambda d, e: d.sum(0), r"'score': expected \[1\] or \[1, K\].*\[5\]"),
        (lambda d, e: d[:, 0].double(), "'score': expected an fp32 tensor"),
        (lambda d, e: d[:, :1].squeeze(), r"'score': expected \[1\].*\[\]"),
        (lambda d, e: d @ e, r"\(dense.inputs: dense 5; embeddings 32\) fails on inputs of shapes"),
        (lambda d, e: nn.functional.dropout(d, 0.5), "train"),
        (lambda d, e: d + torch.rand_like(d), r"operator 'torch.ops.aten.rand_like.default'"),
        (lambda d, e: d * (2 if d.shape[0] == 7 else 1), "cannot export"),
        (lambda d, e: torch.special.i0(d), r"operator 'torch.ops.aten.i0.default'"),
    ],
)
def test_a_module_that_is_no_tower_is_refused_with_the_reason(
    function: Callable[[torch.Tensor, torch.Tensor], object], match: str
) -> None:
    refused(Returning(function), match)


class Uncopyable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = (number for number in range(3))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.weight = nn.Parameter(torch.zeros(1))
        self.counted = "seen"

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        getattr(self, self.counted).add_(1)
        return dense


class Untrainable(nn.Module):
    def train(this, mode: bool = True) -> "Untrainable":  # noqa: N805
        raise RuntimeError("no mode")


class Nested(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 5), part)

    def forward(self, dense: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        return self.inner(dense)[:, 0] + embeddings.sum(1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_submodule_that_no_tower_can_have_is_named() -> None:
    scripted = torch.jit.script(nn.ReLU())
    refused(Nested(scripted), r"submodule 'inner.1' is scripted or quantized \(ReLU\); us")
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(5, 5)))
    words = r"submodule 'inner.1.0._packed_params' is scripted or quantized \(LinearPackedParams\)"
    refused(Nested(quantized), words)
    for part, name in (
        (Uncopyable(), "inner.1', a Uncopyable"),
        (nn.Sequential(nn.Linear(5, 5, device="meta"), nn.ReLU()), "inner.1.0', a Linear"),
        (nn.Sequential(Untrainable(), nn.ReLU()), "inner.1.0', a Untrainable"),
        (nn.Sequential(nn.LazyLinear(5), nn.ReLU()), "inner.1.0', a LazyLinear"),
    ):
        refused(Nested(part), rf"cannot be copied \(submodule '{name}\)")
    misfit = r"fails on inputs of shapes .* \(submodule 'inner.1', a Linear\)"
    refused(Nested(nn.Linear(3, 5)), misfit)
    counting = Counting()
    refused(Nested(counting), "changes its buffer 'inner.1.seen' when it is called")
    counting.counted = "weight"
    refused(Nested(counting), "changes its parameter 'inner.1.weight' when it is called")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_is_no_module_or_has_no_names_of_inputs_is_refused_by_its_kind() -> None:
    example = (torch.zeros(2, 5), torch.zeros(2, EMBEDDING_WIDTH))
    for tower, came in (
        (torch.jit.trace(Nested(nn.ReLU()), example), "a TopLevelTracedModule"),
        (torch.export.export(Nested(nn.ReLU()), example), "an ExportedProgram"),
        (lambda dense, embeddings: dense, "a function"),
        (None, "None"),
        (Nested, "<class .*Nested'>"),
    ):
        refused(tower, f"^tower: expected an nn.Module whose forward takes .*, got {came}$")


def test_an_input_that_is_changed_in_place_is_named() -> None:
    refused(Returning(lambda d, e: d.mul_(2)[:, 0]), "changes its input 'dense' in place")


def test_a_tower_of_other_inputs_or_outputs_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tower.pt2"
    stored(seeded(Interaction), path)
    for changes, words in (
        ({"dense": DENSE | {"context": 2}}, r"expected 3 inputs \(dense, context, embeddings\).*2"),
        ({"outputs": ("click", "rating")}, r"expected 2 outputs \(click, rating\), got 1"),
        ({"dense": {"dense": 6}}, r"tower.pt2 fails on inputs of shapes \[\[4, 6\]"),
    ):
        with pytest.raises(TowerError, match=words):
            USUAL._replace(**changes).load(path)
