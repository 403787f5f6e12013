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
from sharded_infer.towers.tower import Tower, export_tower

FEATURES, DIM = 4, 8
DENSE = {"dense": 5}
EMBEDDING_WIDTH = FEATURES * DIM

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
    """Two outputs of different shapes, in-place activations, a constant and symbolic sizes."""

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
            assert child.running_mean is not None
            assert child.running_var is not None
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
    outputs: tuple[str, ...] = ("score",),
    precision: Precision = Precision.FP32,
    dense: Mapping[str, int] = DENSE,
) -> Tower:
    program = export_tower(
        module, dense=dense, embedding_width=EMBEDDING_WIDTH, outputs=outputs, precision=precision
    )
    write_program(program, path)
    return Tower.load(path, dense=dense, embedding_width=EMBEDDING_WIDTH, outputs=outputs)


@pytest.mark.parametrize("module_type", [Interaction, Attention])
def test_a_stored_tower_scores_as_its_module_does(
    module_type: type[nn.Module], tmp_path: Path
) -> None:
    module = seeded(module_type)
    tower = stored(module, tmp_path / "tower.pt2")
    for batch in (1, 2, 7, 300):
        inputs = batch_of(batch)
        (score,) = tower([inputs["dense"]], inputs["embeddings"])
        torch.testing.assert_close(score, module.eval()(**inputs))


def test_a_dict_of_outputs_comes_in_the_declared_order(tmp_path: Path) -> None:
    module = seeded(Heads)
    tower = stored(module, tmp_path / "tower.pt2", ("click", "rating"), dense={})
    assert tower.output_widths == (None, 3)
    for batch in (1, 9):
        inputs = batch_of(batch, {})
        click, rating = tower([], inputs["embeddings"])
        expected = module(**inputs)
        torch.testing.assert_close(click, expected["click"])
        torch.testing.assert_close(rating, expected["rating"])


def test_export_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    module = seeded(Attention).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    stored(module, tmp_path / "tower.pt2", precision=Precision.BF16)
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
@pytest.mark.parametrize("module_type", [Interaction, Attention])
def test_scores_in_a_low_precision_are_close_to_fp32_ones(
    module_type: type[nn.Module], precision: Precision, tmp_path: Path
) -> None:
    module = seeded(module_type)
    tower = stored(module, tmp_path / "tower.pt2", precision=precision)
    # fp16 has three bits more.
    bound = BF16_BOUND if precision is Precision.BF16 else BF16_BOUND / 8
    for batch in (1, 2, 300):
        inputs = batch_of(batch)
        (score,) = tower([inputs["dense"]], inputs["embeddings"])
        assert score.dtype is torch.float32 and score.is_inference()
        error = (score - module.eval()(**inputs)).abs().max().item()
        # Equal scores would say that nothing ran in the precision.
        assert 0 < error < bound


def test_a_weight_beyond_fp16_is_refused_by_name(tmp_path: Path) -> None:
    module = seeded(Interaction)
    with torch.no_grad():
        module.bottom[0].weight[2, 3] = -70000.0  # type: ignore[index, union-attr, operator]
    words = r"weight '.*bottom.0.weight': 70000 is beyond torch.float16, which ends at 65504"
    with pytest.raises(TowerError, match=words):
        stored(module, tmp_path / "tower.pt2", precision=Precision.FP16)
    stored(module, tmp_path / "tower.pt2", precision=Precision.BF16)


def test_a_tower_computes_in_tf32_when_told(tmp_path: Path) -> None:
    module = seeded(Interaction)
    stored(module, tmp_path / "tower.pt2")
    plain, rounded = (
        Tower.load(
            tmp_path / "tower.pt2",
            dense=DENSE,
            embedding_width=EMBEDDING_WIDTH,
            outputs=["score"],
            tf32=tf32,
        )
        for tf32 in (False, True)
    )
    inputs = batch_of(300)
    scores = [tower([inputs["dense"]], inputs["embeddings"])[0] for tower in (plain, rounded)]
    assert 1e-6 < (scores[0] - scores[1]).abs().max() < BF16_BOUND / 8


def test_only_inner_matrix_products_run_in_bf16(tmp_path: Path) -> None:
    program = export_tower(
        seeded(Attention),
        dense=DENSE,
        embedding_width=EMBEDDING_WIDTH,
        outputs=["score"],
        precision=Precision.BF16,
    )
    seen: dict[str, list[torch.dtype]] = {}
    for node in program.graph.nodes:
        tensors = [a.meta["val"] for a in node.all_input_nodes if torch.is_tensor(a.meta["val"])]
        seen.setdefault(str(node.target), []).extend(tensor.dtype for tensor in tensors)
    linear = seen["aten.linear.default"]
    assert linear == [torch.bfloat16] * (len(linear) - 3) + [torch.float32] * 3
    for target in ("aten.layer_norm.default", "aten.softmax.int", "aten.batch_norm.default"):
        assert set(seen[target]) == {torch.float32}
    assert set(seen["aten.scaled_dot_product_attention.default"]) == {torch.float32}


def test_the_same_program_gives_the_same_bytes() -> None:
    def pack() -> bytes:
        program = export_tower(
            seeded(Interaction),
            dense=DENSE,
            embedding_width=EMBEDDING_WIDTH,
            outputs=["score"],
            precision=Precision.BF16,
        )
        return pack_program(program)

    assert pack() == pack()


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
    tower = stored(seeded(Interaction), path, precision=Precision.BF16)
    inputs = batch_of(4)
    theirs = torch.export.load(io.BytesIO(path.read_bytes())).module()
    (score,) = theirs(inputs["dense"], inputs["embeddings"])
    (ours,) = tower([inputs["dense"]], inputs["embeddings"])
    # Products of bf16 numbers are exact in fp32; their sums depend on the order.
    torch.testing.assert_close(score, ours, rtol=0, atol=1e-6)


def refused(module: nn.Module, match: str, outputs: tuple[str, ...] = ("score",)) -> None:
    with pytest.raises(TowerError, match=match):
        export_tower(
            module,
            dense=DENSE,
            embedding_width=EMBEDDING_WIDTH,
            outputs=outputs,
            precision=Precision.FP32,
        )


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


@pytest.mark.parametrize(
    ("module", "outputs", "match"),
    [
        (
            Other(),
            ("score",),
            r"does not accept \['dense'\]; it accepts \['embeddings', 'numbers'\]",
        ),
        (Greedy(), ("score",), r"requires \['context'\]"),
        (Interaction(), ("a", "b"), "expected the outputs"),
        (Heads(), ("a", "a"), "distinct output names"),
    ],
)
def test_inputs_and_outputs_that_are_not_the_modules_are_named(
    module: nn.Module, outputs: tuple[str, ...], match: str
) -> None:
    refused(module, match, outputs)


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

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return dense


class Nested(nn.Module):
    """A submodule's work in the middle of a tower."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 5), part)

    def forward(self, dense: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        return self.inner(dense)[:, 0] + embeddings.sum(1)


@pytest.mark.parametrize(
    ("part", "match"),
    [
        (
            lambda: torch.jit.script(nn.ReLU()),
            "submodule 'inner.1' is a scripted module .ReLU.; us",
        ),
        (Uncopyable, r"cannot be copied \(submodule 'inner.1', a Uncopyable\)"),
        (
            lambda: nn.Linear(3, 5),
            r"fails on inputs of shapes .* \(submodule 'inner.1', a Linear\)",
        ),
        (Counting, "changes its buffer 'inner.1.seen' when it is called"),
    ],
    ids=["scripted", "uncopyable", "misshapen", "counting"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_submodule_that_no_tower_can_have_is_named(
    part: Callable[[], nn.Module], match: str
) -> None:
    refused(Nested(part()), match)


def test_an_input_that_is_changed_in_place_is_named() -> None:
    refused(Returning(lambda d, e: d.mul_(2)[:, 0]), "changes its input 'dense' in place")


def test_a_tower_of_other_inputs_or_outputs_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tower.pt2"
    stored(seeded(Interaction), path)
    more = {"dense": 5, "context": 2}
    with pytest.raises(TowerError, match=r"expected 3 inputs \(dense, context, embeddings\).*2"):
        Tower.load(path, dense=more, embedding_width=EMBEDDING_WIDTH, outputs=["score"])
    with pytest.raises(TowerError, match=r"expected 2 outputs \(click, rating\), got 1"):
        Tower.load(path, dense=DENSE, embedding_width=EMBEDDING_WIDTH, outputs=["click", "rating"])
    with pytest.raises(TowerError, match=r"tower.pt2 fails on inputs of shapes \[\[4, 6\]"):
        Tower.load(path, dense={"dense": 6}, embedding_width=EMBEDDING_WIDTH, outputs=["score"])
