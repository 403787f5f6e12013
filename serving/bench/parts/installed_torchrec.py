"""Detection of TorchRec, a peer of benchmarks."""

import importlib.util

INSTALL = (
    'pip install --no-deps "torchrec==1.8.*" "torchmetrics==1.0.3" cloudpickle lightning-utilities '
    "mypy-extensions pyre-extensions pyvers tensordict tqdm typing-inspect"
)


def torchrec_is_installed() -> bool:
    """True if TorchRec is installed, without importing it, which takes seconds."""
    return importlib.util.find_spec("torchrec") is not None
