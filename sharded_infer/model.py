"""A version ready to be asked: artifact in, scores out."""

import copy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.arrays import tensor_of
from sharded_infer.artifact import Artifact, open_artifact, verify_files
from sharded_infer.batch import ModelInput
from sharded_infer.batch_sizes import padded_size
from sharded_infer.errors import ArtifactError, GateError, PlanError, RequestError, TowerError
from sharded_infer.golden import generate_samples, largest_difference, load_golden
from sharded_infer.lookup import ShardedLookup
from sharded_infer.plan import Plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.request import make_input
from sharded_infer.spec import ModelSpec
from sharded_infer.table_memory import TableMemory, huge_page_bytes, map_pages
from sharded_infer.table_pieces import place
from sharded_infer.tower import Tower

_TOGETHER = 17  # samples of the batch that `check_independence` runs: a size that is padded
_ALONE = 8  # of those, how many are scored by themselves too
_LOUDNESS = 1000.0  # the others' inputs are so many times as large: then a mean shows them
_ROUNDING = 0.01  # scores of a tower in bf16 differ by less at another batch size


class Model:
    """One version of a model: its tables mapped, its tower built.

    Attributes:
        artifact: where it came from.
        spec: what it is.
        plan: where its shards are.
        memory: where its tables lie.
        rank_bytes: bytes of tables on each rank of the plan.
        lookup: pooled embeddings of a batch.
    """

    def __init__(
        self,
        artifact: Artifact,
        plan: Plan,
        *,
        backend: str | None = None,
        memory: TableMemory | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Maps or copies the tables and builds the tower; see `open_model`, the checked way in.

        Raises:
            ArtifactError: a file does not hold what the manifest says, or there is no memory.
            InputError: the forced backend cannot look the tables up.
        """
        self.artifact = artifact
        self.plan = plan
        if strange := sorted({d.kind for d in plan.topology.devices} - {"cpu"}):
            raise PlanError(
                f"plan for {plan.topology.name!r}: {strange[0]} ranks cannot be served by this "
                "build, only cpu"
            )
        self.spec: ModelSpec = artifact.manifest.model_spec()
        tables = artifact.manifest.stored_tables()
        self.memory = TableMemory(self.spec.serving.memory) if memory is None else memory
        pieces = artifact.table_pieces(self.memory, progress)
        self._memories = {
            piece.memory.data_ptr(): piece.memory for parts in pieces.values() for piece in parts
        }
        self.rank_bytes = plan.bytes_by_rank(tables)
        placed = place(plan, tables, pieces)
        self.lookup = ShardedLookup(self.spec, tables, placed, backend=backend)
        record = artifact.manifest.tower
        try:
            self._tower = Tower.load(
                artifact.path / record.file,
                dense=self.spec.dense.inputs,
                embedding_width=self.spec.embedding_width,
                outputs=self.spec.tower.outputs,
            )
        except (TowerError, OSError) as error:
            raise ArtifactError(f"{artifact.path / record.file}: {error}") from error
        widths = tuple(output.width for output in record.outputs)
        if widths != self._tower.output_widths:
            raise ArtifactError(
                f"{record.file}: its outputs are of widths {self._tower.output_widths}, the "
                f"manifest says {widths}"
            )

    @property
    def name(self) -> str:
        """The model's name."""
        return self.artifact.manifest.model

    @property
    def version(self) -> int:
        """The version's number."""
        return self.artifact.manifest.version

    def map_pages(self, progress: Progress = no_progress) -> bool:
        """Has the pages of mapped tables there before requests need them; see `table_memory`.

        Args:
            progress: told the bytes.

        Returns:
            Whether they are: not where the kernel cannot be asked.
        """
        if self.memory is not TableMemory.MAP:
            return True
        done, total = 0, sum(memory.numel() for memory in self._memories.values())

        def mapped(count: int) -> None:
            nonlocal done
            done += count
            progress("mapping tables", done, total)

        return map_pages(list(self._memories.values()), mapped)

    def tower_signature(self) -> str:
        """Equal for models whose towers run the same operators on the same shapes."""
        return self._tower.signature()

    def with_tower(self, tower: Tower) -> "Model":
        """The same tables under another tower of the same inputs and outputs."""
        changed = copy.copy(self)
        changed._tower = tower
        return changed

    def huge_page_bytes(self) -> int:
        """Bytes of its tables that lie in huge pages now; of mapped ones none do."""
        if self.memory is TableMemory.MAP:
            return 0
        return huge_page_bytes(list(self._memories.values()))

    def score(self, model_input: ModelInput, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Runs the tower.

        Args:
            model_input: the batch; its dense inputs are used.
            embeddings: fp32 `[rows, width]`, from `lookup`; rows above B are padding.

        Returns:
            fp32 `[B]` or `[B, K]` of each output, in the spec's order.
        """
        batch, rows = model_input.batch_size, len(embeddings)
        dense = [_padded(tensor_of(array), batch, rows) for array in model_input.dense]
        return tuple(score[:batch] for score in self._tower(dense, embeddings))

    def run(self, model_input: ModelInput) -> dict[str, NDArray[np.float32]]:
        """Scores one batch.

        Args:
            model_input: the batch.

        Returns:
            fp32 `[B]` or `[B, K]` by output name.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
        """
        embeddings, _ = self.lookup(model_input, rows=padded_size(model_input.batch_size))
        scores = self.score(model_input, embeddings)
        return {n: s.numpy() for n, s in zip(self.spec.tower.outputs, scores, strict=True)}

    def predict(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.float32]]:
        """Scores one request, given as a client would send it.

        Args:
            inputs: arrays by input name, in any of the forms of the wire: ids `[B]` or `[B, L]`;
                `[N]` with `<feature>.lengths` `[B]`; `sparse.values` `[N]` with `sparse.lengths`
                `[F, B]`; dense `[B, width]`; a leading dimension of 1 is shared by all samples.

        Returns:
            fp32 `[B]` or `[B, K]` by output name.

        Raises:
            RequestError: an input is missing, unknown, of the wrong dtype or shape, or an id is
                outside its table.
        """
        return self.run(make_input(self.spec, inputs))


def _padded(array: Tensor, batch: int, rows: int) -> Tensor:
    if batch == rows:
        return array.expand(batch, -1).contiguous()
    padded = torch.zeros(rows, array.shape[1])
    padded[:batch] = array
    return padded


def open_model(
    path: Path | str,
    *,
    topology: str | None = None,
    backend: str | None = None,
    memory: TableMemory | None = None,
    verify: bool = True,
    progress: Progress = no_progress,
) -> Model:
    """Opens a published version.

    Args:
        path: the version's folder.
        topology: which of its plans to use; None takes the first.
        backend: a kernel backend's name to force it.
        memory: where the tables are to lie; None: as the spec says.
        verify: compare every file's size and SHA-256 with the manifest first.
        progress: told how far verifying and copying are.

    Raises:
        NotFoundError: no such version, or no plan for the topology.
        InputError: the forced backend cannot look the tables up.
        ArtifactError: the version is incomplete, altered or of an unknown format.
    """
    artifact = open_artifact(Path(path))
    if verify:
        verify_files(artifact, progress)
    return Model(
        artifact, artifact.plan(topology), backend=backend, memory=memory, progress=progress
    )


def check_golden(model: Model) -> float:
    """Scores the golden requests and compares them with the fp32 model's scores.

    Returns:
        The largest difference.

    Raises:
        GateError: it is larger than the spec allows, or scores depend on the batch.
        ArtifactError: the file does not hold golden requests of this model.
    """
    path = model.artifact.path / model.artifact.manifest.golden.file
    golden = load_golden(path, model.spec)
    try:
        scores = model.run(golden.model_input)
    except RequestError as error:
        raise ArtifactError(f"{path}: {error}") from error
    for name, expected in golden.scores.items():
        if expected.shape != scores[name].shape:
            raise ArtifactError(
                f"{path}: not golden requests of {model.name!r}: score.{name} is "
                f"{list(expected.shape)}, the tower gives {list(scores[name].shape)}"
            )
    check_independence(model)
    difference = largest_difference(golden.scores, scores)
    allowed = model.spec.gate.max_score_diff
    if not difference <= allowed:
        raise GateError(
            f"model {model.name!r}: a golden request's score differs from the fp32 model's by "
            f"{difference:.6g}, the spec allows {allowed:g} (gate.max_score_diff)"
        )
    return difference


def check_independence(model: Model) -> float:
    """Scores generated samples by themselves, and in a batch with others and with padding.

    Servers merge requests and pad batches: a tower that computes over the samples of a batch, such
    as `x - x.mean(0)`, would give everybody wrong scores without a word.

    Returns:
        The largest difference; 0 where a score is NaN both times.

    Raises:
        GateError: it is larger than 0.01 and than the spec's `gate.max_score_diff`.
    """
    samples = generate_samples(model.spec, _TOGETHER)
    alone = [model.run(samples.samples(at, at + 1)) for at in range(_ALONE)]
    embeddings, _ = model.lookup(samples, rows=padded_size(_TOGETHER))
    embeddings[_ALONE:] *= _LOUDNESS
    for array in samples.dense:
        array[_ALONE:] *= _LOUDNESS
    allowed = max(_ROUNDING, model.spec.gate.max_score_diff)
    largest = 0.0
    together = model.score(samples, embeddings)
    for name, scores in zip(model.spec.tower.outputs, together, strict=True):
        by_itself = np.concatenate([one[name] for one in alone])
        difference = _difference(scores[:_ALONE].numpy(), by_itself)
        if not difference <= allowed:
            raise GateError(
                f"model {model.name!r}: a sample's score {name!r} in a batch of {_TOGETHER} "
                f"differs from its score alone by {difference:.6g}, at most {allowed:g} is "
                "rounding: the tower mixes the samples of a batch (such as a mean or softmax over "
                "dimension 0), but requests are merged and padded"
            )
        largest = max(largest, difference)
    return largest


def _difference(some: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """The largest absolute difference; of two NaN or the same infinity none, else of them inf."""
    same = (some == others) | (np.isnan(some) & np.isnan(others))
    difference = np.abs(some[~same].astype(np.float64) - others[~same])
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
