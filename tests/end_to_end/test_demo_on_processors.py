"""The demo of each model on processors that lack what this machine has."""

import pytest

from serving.commands.demo import DemoModel
from tests.support.processor_classes import can_run, limiting_variables
from tests.support.servers import run


@pytest.mark.parametrize("limit", ["avx2", "avx512"])
@pytest.mark.parametrize("model", DemoModel)
def test_every_step_of_the_demo_holds_on_a_slower_processor(
    model: DemoModel, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_run(limit):
        pytest.skip(f"this machine has no {limit}, or nothing was compiled")
    for name, value in limiting_variables(limit).items():
        monkeypatch.setenv(name, value)
    # As few as still tell that served scores rank as well as the fp32 model's.
    rows = 500 if model is DemoModel.DLRM else 800
    done = run("demo", "--model", model, "--rows", rows, "--no-browser", seconds=240)
    assert done.returncode == 0, done.stderr
    assert "largest score difference" in done.stdout
