import pytest
from torch import Tensor, nn

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.torch_message import torch_message
from sharded_infer.towers.tower import export_tower

COLOURED = (
    "\x1b[31m\x1b[1mCould not guard\x1b[0m on \x1b]8;;http://x\x07Eq(u0, 1)\x1b]8;;\x07\n"
    'For more information, run with TORCH_LOGS="dynamic"\n'
    "Could not guard on Eq(u0, 1)\n"
    "Traceback (most recent call last):\n" + '  File "torch/fx.py", line 1, in run\n' * 500
)


def test_a_message_is_cut_and_an_empty_one_has_its_types_name() -> None:
    assert len(torch_message(RuntimeError("x" * 100_000))) < 600
    assert torch_message(RecursionError("\x1b[0m\n")) == "RecursionError"


class Branching(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings if embeddings.sum() > 0 else -embeddings


class Fixed(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings * (2 if embeddings.shape[0] == 7 else 1)


class Failing(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        raise RuntimeError(COLOURED)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Branching(), "data-dependent.*torch.where"),
        (Fixed(), r"specialized it to be a constant \(7\)"),
        (Failing(), "Could not guard on"),
    ],
)
def test_a_refused_tower_is_told_in_one_printable_line(module: nn.Module, words: str) -> None:
    with pytest.raises(TowerError, match=words) as caught:
        export_tower(
            module, dense={}, embedding_width=4, outputs=("score",), precision=Precision.FP32
        )
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
