"""Models of public packages, published by one call or refused with the line that prevents it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharded_infer.importing.modules.packages import LIBRARIES, REQUIREMENTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[4]
MODULE = "tests.sharded_infer.importing.modules.packages"
MODELS = {"torchfm": 16, "deepctr_torch": 22, "torch_rechub": 15, "recbole": 18}
# A fault of the library, and a branch on values.
REFUSED = {
    "torchfm": {"afm": "layer.py:197: attn_scores = F.dropout(attn_scores, p=self.dropouts[0])"},
    "deepctr_torch": {"DIEN": "dien.py:215: if masked_keys_length.shape[0] == 0:"},
}


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the packages, which are no requirements of development."""
    folder = ROOT / "build" / "packages"
    mark = folder / "installed"
    if not mark.is_file() or mark.read_text() != str(REQUIREMENTS):
        words = ("-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", folder)
        done = subprocess.run(
            [sys.executable, *map(str, words), *REQUIREMENTS],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode and not os.environ.get("CI"):
            pytest.skip(f"the packages cannot be installed here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
        mark.write_text(str(REQUIREMENTS))
    return folder


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_of_a_package_are_published_by_one_call(library: str, packages: Path) -> None:
    words = [sys.executable, "-m", MODULE, library, str(packages)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == MODELS[library]
    refused = REFUSED.get(library, {})
    assert {
        name: message for name, message in found.items() if message and name not in refused
    } == {}
    for name, words_of_message in refused.items():
        assert words_of_message in found[name]
