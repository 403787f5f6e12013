"""Models in the manner of public packages: architectures with the inputs that they take.

Each is written as its users do, without a thought of serving. `ARCHITECTURES` maps a name to a
function that returns the module and its example, in one of the forms of packages: ids `[B, F]` of
one joint table with offsets, a float matrix of named columns, a dict of columns, or arguments.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

SAMPLES, LENGTH, DIM, ITEMS = 6, 7, 8, 50
FIELDS = (11, 5, 23, 7)
COLUMNS = ("user", "item", "city", "hour", "age", "price")


class Case(NamedTuple):
    """A model, its example and arguments of `from_module`."""

    module: nn.Module
    inputs: Any
    options: Mapping[str, Any] = {}


ARCHITECTURES: dict[str, Callable[[], Case]] = {}


def architecture(function: Callable[[], Case]) -> Callable[[], Case]:
    """Register a case under its function's name."""

    def seeded() -> Case:
        torch.manual_seed(7)
        case = function()
        for parameter in case.module.parameters():
            # Trained weights are no initial ones.
            parameter.data += 0.05 * torch.randn_like(parameter)
        for module in case.module.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                # It gets no gradient.
                module.weight.data[module.padding_idx] = 0
        return case

    ARCHITECTURES[function.__name__] = seeded
    return seeded


def _mlp(width: int, *sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(0.2)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _fields() -> Tensor:
    return torch.stack([torch.randint(0, rows, (SAMPLES,)) for rows in FIELDS], 1)


def _history(rows: int = ITEMS) -> Tensor:
    """Ids padded with zeros at the end."""
    history = torch.randint(1, rows, (SAMPLES, LENGTH))
    lengths = torch.tensor([1, LENGTH, 3, 2, 5, 4])
    return history.masked_fill(torch.arange(LENGTH) >= lengths[:, None], 0)


class JointEmbedding(nn.Module):
    """All fields in one table, as in torchfm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sum(FIELDS), dim)
        self.offsets = [0, 11, 16, 39]

    def forward(self, x: Tensor) -> Tensor:
        """Rows `[B, F, dim]`."""
        return self.embedding(x + x.new_tensor(self.offsets).unsqueeze(0))


class JointLinear(nn.Module):
    """The linear terms of all fields."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = JointEmbedding(1)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Their sum `[B, 1]`."""
        return self.fc(x).sum(dim=1) + self.bias


def _pairs(rows: Tensor) -> Tensor:
    return 0.5 * (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1, keepdim=True)


class FM(nn.Module):
    """Factorization machine."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.embedding = JointLinear(), JointEmbedding(DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B]`."""
        return torch.sigmoid((self.linear(x) + _pairs(self.embedding(x))).squeeze(1))


@architecture
def fm() -> Case:
    return Case(FM(), _fields())


class FFM(FM):
    """Field-aware: a table for each pair of fields."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([JointEmbedding(DIM) for _ in FIELDS])
        del self.embedding

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B]`."""
        rows = [embedding(x) for embedding in self.embeddings]
        count = len(FIELDS)
        pairs = [
            rows[j][:, i] * rows[i][:, j] for i in range(count - 1) for j in range(i + 1, count)
        ]
        return torch.sigmoid(
            (self.linear(x) + torch.stack(pairs, 1).sum(1).sum(1, keepdim=True)).squeeze(1)
        )


@architecture
def ffm() -> Case:
    return Case(FFM(), _fields())


class DeepFM(FM):
    """FM beside an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = _mlp(len(FIELDS) * DIM, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B]`."""
        rows = self.embedding(x)
        return torch.sigmoid(
            (self.linear(x) + _pairs(rows) + self.mlp(rows.view(-1, len(FIELDS) * DIM))).squeeze(1)
        )


@architecture
def deepfm() -> Case:
    return Case(DeepFM(), _fields())


@architecture
def deepfm_named_columns() -> Case:
    return Case(DeepFM(), _fields(), {"columns": ("user", "city", "item", "hour")})


class CIN(nn.Module):
    """Compressed interactions of xDeepFM."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.embedding = JointLinear(), JointEmbedding(DIM)
        self.conv = nn.ModuleList([nn.Conv1d(16, 6, 1), nn.Conv1d(24, 6, 1)])
        self.fc = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, 1]`."""
        first = self.embedding(x)
        outer, hidden = first.unsqueeze(2), first
        sums = []
        for conv in self.conv:
            products = outer * hidden.unsqueeze(1)
            batch, _, _, dim = products.shape
            hidden = functional.relu(conv(products.view(batch, -1, dim)))
            sums.append(hidden.sum(2))
        return self.linear(x) + self.fc(torch.cat(sums, 1))


@architecture
def xdeepfm() -> Case:
    return Case(CIN(), _fields())


class Columns(nn.Module):
    """A float matrix of named columns, as in deepctr-torch: ids are cast, numbers are not."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_index = {name: (at, at + 1) for at, name in enumerate(COLUMNS)}
        rows = {"user": 30, "item": ITEMS, "city": 9, "hour": 24}
        self.embedding_dict = nn.ModuleDict({n: nn.Embedding(r, DIM) for n, r in rows.items()})
        self.linear_dict = nn.ModuleDict({n: nn.Embedding(r, 1) for n, r in rows.items()})
        self.weight = nn.Parameter(torch.randn(2, 1))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows `[B, F, dim]`, linear terms and dense columns."""
        ids = {
            n: x[:, self.feature_index[n][0] : self.feature_index[n][1]].long()
            for n in self.embedding_dict
        }
        rows = torch.cat([self.embedding_dict[n](ids[n]) for n in ids], dim=1)
        linear = torch.cat([self.linear_dict[n](ids[n]) for n in ids], dim=-1).sum(-1)
        dense = torch.cat(
            [x[:, self.feature_index[n][0] : self.feature_index[n][1]] for n in ("age", "price")],
            -1,
        )
        return rows, linear + dense.matmul(self.weight), dense


def _matrix() -> Tensor:
    ids = [torch.randint(0, rows, (SAMPLES,)).float() for rows in (30, ITEMS, 9, 24)]
    return torch.stack([*ids, torch.rand(SAMPLES), torch.randn(SAMPLES)], 1)


class DCN(Columns):
    """Cross network."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.ParameterList([torch.randn(4 * DIM + 2, 1) * 0.1 for _ in range(2)])
        self.deep, self.out = nn.Linear(4 * DIM + 2, 8), nn.Linear(4 * DIM + 10, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B, 1]`."""
        rows, linear, dense = self.parts(x)
        first = torch.cat([rows.flatten(1), dense], -1)
        crossed = first.unsqueeze(2)
        for kernel in self.kernels:
            crossed = (
                first.unsqueeze(2) * torch.tensordot(crossed, kernel, dims=([1], [0])) + crossed
            )
        deep = functional.relu(self.deep(first))
        return torch.sigmoid(linear + self.out(torch.cat([deep, crossed.squeeze(2)], -1)))


@architecture
def dcn() -> Case:
    return Case(DCN(), _matrix(), {"columns": COLUMNS})


@architecture
def dcn_unnamed_columns() -> Case:
    return Case(DCN(), _matrix())


class WideDeep(Columns):
    """Wide and deep."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = _mlp(4 * DIM + 2, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B, 1]`."""
        rows, linear, dense = self.parts(x)
        return torch.sigmoid(linear + self.deep(torch.cat([rows.flatten(1), dense], -1)))


@architecture
def wide_deep() -> Case:
    return Case(WideDeep(), _matrix(), {"columns": COLUMNS})


class NFM(Columns):
    """Pooled pairs under an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = _mlp(DIM + 2, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B, 1]`."""
        rows, linear, dense = self.parts(x)
        pooled = 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1))
        return torch.sigmoid(linear + self.deep(torch.cat([pooled, dense], 1)))


@architecture
def nfm() -> Case:
    return Case(NFM(), _matrix(), {"columns": COLUMNS})


class AFM(Columns):
    """Attention over pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.query, self.out = nn.Linear(DIM, 4), nn.Linear(4, 1), nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B, 1]`."""
        rows, linear, _ = self.parts(x)
        left = torch.cat([rows[:, i : i + 1] for i in range(4) for _ in range(i + 1, 4)], 1)
        right = torch.cat([rows[:, j : j + 1] for i in range(4) for j in range(i + 1, 4)], 1)
        pairs = left * right
        weights = torch.softmax(self.query(functional.relu(self.attention(pairs))), dim=1)
        return torch.sigmoid(linear + self.out((weights * pairs).sum(1)))


@architecture
def afm() -> Case:
    return Case(AFM(), _matrix(), {"columns": COLUMNS})


class AutoInt(JointLinear):
    """Self-attention over fields, which come first, as torch's attention once took them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.residual = JointEmbedding(DIM), nn.Linear(DIM, DIM)
        self.projection = nn.Linear(DIM, DIM)
        self.attentions = nn.ModuleList([nn.MultiheadAttention(DIM, 2) for _ in range(2)])
        self.out = nn.Linear(len(FIELDS) * DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B]`."""
        rows = self.embedding(x)
        mixed = self.projection(rows).transpose(0, 1)
        for attention in self.attentions:
            mixed, _ = attention(mixed, mixed, mixed)
        mixed = mixed.transpose(0, 1)
        mixed += self.residual(rows)
        mixed = functional.relu(mixed).contiguous().view(-1, len(FIELDS) * DIM)
        return torch.sigmoid((super().forward(x) + self.out(mixed)).squeeze(1))


@architecture
def autoint() -> Case:
    return Case(AutoInt(), _fields())


class FiBiNET(Columns):
    """Squeeze and excitation, and bilinear pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.excitation = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4), nn.ReLU())
        self.bilinear, self.out = nn.Linear(DIM, DIM, bias=False), nn.Linear(12 * DIM + 2, 1)

    def _pairs(self, rows: Tensor) -> Tensor:
        fields = torch.split(rows, 1, dim=1)
        return torch.cat(
            [self.bilinear(fields[i]) * fields[j] for i in range(4) for j in range(i + 1, 4)], 1
        )

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities `[B, 1]`."""
        rows, linear, dense = self.parts(x)
        scaled = rows * self.excitation(rows.mean(-1)).unsqueeze(2)
        both = torch.cat([self._pairs(rows).flatten(1), self._pairs(scaled).flatten(1), dense], 1)
        return torch.sigmoid(linear + self.out(both))


@architecture
def fibinet() -> Case:
    return Case(FiBiNET(), _matrix(), {"columns": COLUMNS})


class PNN(nn.Module):
    """Inner products of fields, a dict of columns as in torch-rechub."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_dict = nn.ModuleDict(
            {name: nn.Embedding(rows, DIM) for name, rows in zip("abcd", FIELDS, strict=True)}
        )
        self.mlp = _mlp(4 * DIM + 6, 16)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """Probabilities `[B]`."""
        rows = torch.stack([self.embed_dict[n](x[n].long()) for n in self.embed_dict], 1)
        left, right = [0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3]
        products = (rows[:, left] * rows[:, right]).sum(2)
        return torch.sigmoid(self.mlp(torch.cat([rows.flatten(1), products], 1)).squeeze(1))


@architecture
def pnn() -> Case:
    return Case(PNN(), dict(zip("abcd", _fields().T, strict=True)))


class DLRM(nn.Module):
    """EmbeddingBags of several ids, and dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList(
            [
                nn.EmbeddingBag(rows, DIM, mode=mode)
                for rows, mode in zip(FIELDS, ("sum", "mean", "sum", "max"), strict=True)
            ]
        )
        self.bottom, self.top = nn.Sequential(nn.Linear(5, DIM), nn.ReLU()), nn.Linear(DIM + 10, 1)

    def forward(self, dense: Tensor, sparse: list[Tensor]) -> Tensor:
        """Logits `[B, 1]`."""
        bottom = self.bottom(dense)
        rows = torch.stack(
            [bottom, *(e(ids) for e, ids in zip(self.emb_l, sparse, strict=True))], 1
        )
        products = torch.bmm(rows, rows.transpose(1, 2))
        i, j = torch.tril_indices(5, 5, offset=-1)
        return self.top(torch.cat([bottom, products[:, i, j]], 1))


@architecture
def dlrm() -> Case:
    bags = [torch.randint(0, rows, (SAMPLES, 3)) for rows in FIELDS]
    return Case(DLRM(), (torch.randn(SAMPLES, 5), bags))


class DIN(nn.Module):
    """Target attention with a mask by ids, items and their categories."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.category = (
            nn.Embedding(ITEMS, DIM, padding_idx=0),
            nn.Embedding(9, 4, padding_idx=0),
        )
        self.user = nn.Embedding(30, DIM)
        self.attention = nn.Sequential(nn.Linear(48, 16), nn.PReLU(), nn.Linear(16, 1))
        self.mlp = _mlp(DIM + 24, 16)

    def forward(
        self, user: Tensor, target: dict[str, Tensor], history: dict[str, Tensor]
    ) -> Tensor:
        """Probabilities `[B]`."""
        query = torch.cat([self.item(target["item"]), self.category(target["category"])], -1)
        keys = torch.cat([self.item(history["items"]), self.category(history["categories"])], -1)
        queries = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
        both = torch.cat([queries, keys, queries - keys, queries * keys], -1)
        mask = history["items"] != 0
        weights = self.attention(both).squeeze(-1).masked_fill(~mask, -1e9).softmax(-1)
        pooled = (weights.unsqueeze(-1) * keys).sum(1)
        return torch.sigmoid(self.mlp(torch.cat([self.user(user), query, pooled], -1)).squeeze(-1))


@architecture
def din() -> Case:
    history = _history()
    return Case(
        DIN(),
        {
            "user": torch.randint(0, 30, (SAMPLES,)),
            "target": {
                "item": torch.randint(1, ITEMS, (SAMPLES,)),
                "category": torch.randint(1, 9, (SAMPLES,)),
            },
            "history": {"items": history, "categories": history % 8 + (history > 0)},
        },
        {"user": ("items", "categories", "user")},
    )


class DIEN(nn.Module):
    """Interest evolution with a GRU over padded histories."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.gru, self.attention = (
            nn.GRU(DIM, DIM, batch_first=True),
            nn.Linear(DIM, DIM, bias=False),
        )
        self.cell, self.mlp = nn.GRUCell(DIM, DIM), _mlp(2 * DIM, 8)

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        """Logits `[B]`."""
        query = self.item(item)
        states, _ = self.gru(self.item(history))
        scores = (self.attention(states) * query.unsqueeze(1)).sum(-1)
        weights = scores.masked_fill(history == 0, float("-inf")).softmax(1)
        weights = torch.nan_to_num(weights)
        state = torch.zeros_like(query)
        for step in range(history.shape[1]):
            new = self.cell(states[:, step], state)
            state = state + weights[:, step : step + 1] * (new - state)
        return self.mlp(torch.cat([state, query], 1)).squeeze(1)


@architecture
def dien() -> Case:
    return Case(DIEN(), (_history(), torch.randint(1, ITEMS, (SAMPLES,))))


class BST(nn.Module):
    """A transformer over the history with the target at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.position = nn.Embedding(ITEMS, DIM), nn.Embedding(LENGTH + 1, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True)
        self.encoder, self.mlp = nn.TransformerEncoder(layer, 1), _mlp((LENGTH + 1) * DIM, 8)

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        """Probabilities `[B]`."""
        ids = torch.cat([history, item.unsqueeze(1)], 1)
        rows = self.item(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        mixed = self.encoder(rows, src_key_padding_mask=ids == 0)
        mixed = mixed.masked_fill((ids == 0).unsqueeze(-1), 0.0)
        return torch.sigmoid(self.mlp(mixed.flatten(1)).squeeze(1))


@architecture
def bst() -> Case:
    return Case(BST(), (_history(), torch.randint(1, ITEMS, (SAMPLES,))))


class SASRec(nn.Module):
    """Causal self-attention; the last state scores a candidate of the same table."""

    def __init__(self) -> None:
        super().__init__()
        self.item_emb, self.pos_emb = (
            nn.Embedding(ITEMS, DIM, padding_idx=0),
            nn.Embedding(LENGTH + 1, DIM, padding_idx=0),
        )
        self.norm, self.attention = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, 2)
        self.feed, self.last = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)

    def forward(self, log_seqs: Tensor, candidates: Tensor) -> Tensor:
        """Logits `[B, candidates]`."""
        rows = self.item_emb(log_seqs) * DIM**0.5
        positions = torch.arange(1, LENGTH + 1).repeat(len(log_seqs), 1) * (log_seqs != 0)
        rows = (rows + self.pos_emb(positions)).transpose(0, 1)
        mask = ~torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool))
        mixed, _ = self.attention(self.norm(rows), rows, rows, attn_mask=mask)
        states = self.last((rows + mixed + functional.relu(self.feed(mixed))).transpose(0, 1))
        return self.item_emb(candidates).matmul(states[:, -1].unsqueeze(-1)).squeeze(-1)


@architecture
def sasrec() -> Case:
    history = _history().flip(1)
    candidates = torch.randint(1, ITEMS, (SAMPLES, 3))
    return Case(SASRec(), (history, candidates), {"user": ("log_seqs",)})


class GRU4Rec(nn.Module):
    """A GRU whose state at each length scores all items."""

    def __init__(self) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.gru, self.dense = nn.GRU(DIM, 12, num_layers=2, batch_first=True), nn.Linear(12, DIM)

    def forward(self, item_seq: Tensor, item_seq_len: Tensor) -> Tensor:
        """Logits `[B, items]`."""
        states, _ = self.gru(self.item_embedding(item_seq))
        at = (item_seq_len - 1).view(-1, 1, 1).expand(-1, -1, DIM)
        state = self.dense(states).gather(1, at).squeeze(1)
        return state @ self.item_embedding.weight.T


@architecture
def gru4rec() -> Case:
    history = _history()
    return Case(GRU4Rec(), {"item_seq": history, "item_seq_len": (history > 0).sum(1)})


class BERT4Rec(nn.Module):
    """Bidirectional attention, all items scored at the mask's place."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = (
            nn.Embedding(ITEMS, DIM, padding_idx=0),
            nn.Embedding(LENGTH, DIM),
        )
        layer = nn.TransformerEncoderLayer(
            DIM, 2, 16, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(ITEMS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[B, items]` of the last position."""
        rows = self.token(tokens) + self.position.weight.unsqueeze(0).repeat(tokens.size(0), 1, 1)
        mixed = self.encoder(rows, src_key_padding_mask=tokens.eq(0))
        return mixed[:, -1] @ self.token.weight.T + self.bias


@architecture
def bert4rec() -> Case:
    return Case(BERT4Rec(), _history().flip(1))


class HSTU(nn.Module):
    """Pointwise attention with biases of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.rating = nn.Embedding(ITEMS, DIM), nn.Embedding(6, DIM)
        self.uvqk, self.out, self.norm = (
            nn.Linear(DIM, 4 * DIM),
            nn.Linear(DIM, DIM),
            nn.LayerNorm(DIM),
        )
        self.relative = nn.Parameter(torch.randn(2 * LENGTH - 1))

    def forward(self, items: Tensor, ratings: Tensor, target: Tensor) -> Tensor:
        """Logits `[B]`."""
        mask = (items != 0).float()
        rows = (self.item(items) + self.rating(ratings)) * mask.unsqueeze(-1)
        u, v, q, k = functional.silu(self.uvqk(self.norm(rows))).chunk(4, dim=-1)
        places = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) + LENGTH - 1
        scores = functional.silu(q @ k.mT + self.relative[places]) / LENGTH
        scores = scores.masked_fill(torch.triu(torch.ones(LENGTH, LENGTH), 1).bool(), 0.0)
        mixed = rows + self.out(functional.layer_norm(scores @ v, (DIM,)) * u)
        last = (mask.sum(1).long() - 1).clamp(min=0)
        state = mixed[torch.arange(len(items)), last]
        return (state * self.item(target)).sum(-1)


@architecture
def hstu() -> Case:
    items = _history()
    ratings = torch.randint(1, 6, items.shape) * (items > 0)
    return Case(
        HSTU(),
        (items, ratings, torch.randint(1, ITEMS, (SAMPLES,))),
        {"user": ("items", "ratings")},
    )


class DSSM(nn.Module):
    """Two towers of pooled features, cosine of their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, DIM), nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.user_tower, self.item_tower = nn.Linear(2 * DIM, 4), nn.Linear(DIM, 4)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """Probabilities `[B]`."""
        history = self.items(x["history"])
        count = (x["history"] != 0).sum(1, keepdim=True)
        mean = history.sum(1) / (count.float() + 1e-16)
        user = functional.normalize(self.user_tower(torch.cat([self.users(x["user_id"]), mean], 1)))
        item = functional.normalize(self.item_tower(self.items(x["item_id"])))
        return torch.sigmoid((user * item).sum(1) / 0.2)


@architecture
def dssm() -> Case:
    return Case(
        DSSM(),
        {
            "user_id": torch.randint(0, 30, (SAMPLES,)),
            "history": _history(),
            "item_id": torch.randint(1, ITEMS, (SAMPLES,)),
        },
    )


class TwoTowers(nn.Module):
    """Max-pooled histories, and vectors beside the score."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.bias = nn.Embedding(ITEMS, DIM), nn.Parameter(torch.randn(ITEMS))
        self.query = nn.Linear(DIM, DIM)

    def forward(self, history: Tensor, item: Tensor) -> dict[str, Tensor]:
        """The score `[B]` and the user's vector `[B, dim]`."""
        user = self.query(self.items(history).max(dim=1).values)
        return {"score": (user * self.items(item)).sum(1) + self.bias[item], "user_vector": user}


@architecture
def two_towers() -> Case:
    return Case(TwoTowers(), (_history(), torch.randint(1, ITEMS, (SAMPLES,))))


class MultiTask(nn.Module):
    """Experts and gates over the embeddings of a dict of columns."""

    def __init__(self, tasks: int = 2, levels: int = 1) -> None:
        super().__init__()
        self.embed = nn.ModuleDict(
            {n: nn.Embedding(r, DIM) for n, r in zip("abcd", FIELDS, strict=True)}
        )
        width = 4 * DIM + 1
        self.levels = nn.ModuleList(
            [
                nn.ModuleDict(
                    {
                        "experts": nn.ModuleList(
                            [nn.Linear(width if level == 0 else 8, 8) for _ in range(3)]
                        ),
                        "gates": nn.ModuleList(
                            [nn.Linear(width if level == 0 else 8, 3) for _ in range(tasks)]
                        ),
                    }
                )
                for level in range(levels)
            ]
        )
        self.towers = nn.ModuleList([nn.Linear(8, 1) for _ in range(tasks)])

    def tasks(self, x: dict[str, Tensor]) -> list[Tensor]:
        """Logits `[B, 1]` of each task."""
        both = torch.cat([*(self.embed[n](x[n]) for n in "abcd"), x["price"].unsqueeze(1)], 1)
        inputs = [both] * len(self.towers)
        for level in self.levels:
            experts = torch.stack(
                [functional.relu(expert(inputs[0])) for expert in level["experts"]], 1
            )
            inputs = [
                (gate(one).softmax(-1).unsqueeze(-1) * experts).sum(1)
                for gate, one in zip(level["gates"], inputs, strict=True)
            ]
        return [tower(one) for tower, one in zip(self.towers, inputs, strict=True)]


class MMoE(MultiTask):
    """Outputs side by side."""

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """Probabilities `[B, tasks]`."""
        return torch.cat([torch.sigmoid(logit) for logit in self.tasks(x)], 1)


class PLE(MultiTask):
    """Outputs as a tuple."""

    def __init__(self) -> None:
        super().__init__(levels=2)

    def forward(self, x: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Probabilities `[B, 1]` of each task."""
        return tuple(torch.sigmoid(logit) for logit in self.tasks(x))


class ESMM(MultiTask):
    """Outputs by name."""

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rates of clicks and of conversions after them, `[B, 1]`."""
        click, conversion = (torch.sigmoid(logit) for logit in self.tasks(x))
        return {"ctr": click, "ctcvr": click * conversion}


def _columns() -> dict[str, Tensor]:
    return dict(zip("abcd", _fields().T, strict=True)) | {"price": torch.rand(SAMPLES)}


@architecture
def mmoe() -> Case:
    return Case(MMoE(), _columns())


@architecture
def ple() -> Case:
    return Case(PLE(), _columns())


@architecture
def esmm() -> Case:
    return Case(ESMM(), _columns())


class NeuMF(nn.Module):
    """Matrix factorization beside an MLP, with another name of its method."""

    def __init__(self) -> None:
        super().__init__()
        self.user_mf, self.item_mf = nn.Embedding(30, DIM), nn.Embedding(ITEMS, DIM)
        self.user_mlp, self.item_mlp = nn.Embedding(30, 4), nn.Embedding(ITEMS, 4)
        self.mlp, self.predict_layer = nn.Linear(8, 4), nn.Linear(DIM + 4, 1)

    def predict(self, interaction: dict[str, Tensor]) -> Tensor:
        """Probabilities `[B]`."""
        user, item = interaction["user_id"], interaction["item_id"]
        product = self.user_mf(user) * self.item_mf(item)
        deep = functional.relu(self.mlp(torch.cat([self.user_mlp(user), self.item_mlp(item)], -1)))
        return torch.sigmoid(self.predict_layer(torch.cat([product, deep], -1)).squeeze(-1))


@architecture
def neumf() -> Case:
    inputs = {
        "user_id": torch.randint(0, 30, (SAMPLES,)),
        "item_id": torch.randint(0, ITEMS, (SAMPLES,)),
    }
    return Case(NeuMF(), inputs, {"method": "predict"})


class QuotientRemainder(nn.Module):
    """Ids split in two, clamped and hashed."""

    def __init__(self) -> None:
        super().__init__()
        self.quotients, self.remainders = nn.Embedding(20, DIM), nn.Embedding(10, DIM)
        self.hashed, self.clamped = nn.Embedding(16, DIM), nn.Embedding(12, DIM)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits `[B]`."""
        rows = self.quotients(user // 10) * self.remainders(user % 10)
        first, second = (
            self.hashed((item * 31 + 7) % 16),
            self.hashed((item * 17 + 3).remainder(16)),
        )
        return (rows * (first + second) + self.clamped(item.clamp(0, 11))).sum(1)


@architecture
def quotient_remainder() -> Case:
    return Case(
        QuotientRemainder(), (torch.randint(0, 200, (SAMPLES,)), torch.randint(0, 1000, (SAMPLES,)))
    )
