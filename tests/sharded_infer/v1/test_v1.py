import subprocess
import sys
from pathlib import Path

import pytest

import sharded_infer

ROOT = Path(sharded_infer.__file__).parent.parent
PROTOS = ROOT / "protos"


def test_the_committed_stubs_are_what_is_generated(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the stubs' generator is not installed")
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"),
        *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}"),
        *map(str, PROTOS.rglob("*.proto")),
    ]
    subprocess.run(command, check=True, timeout=240)
    generated = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    folder = ROOT / "sharded_infer/v1"
    committed = {path.name: path.read_bytes() for path in folder.glob("*_pb2*")}
    assert generated == committed, "run `make protos`"


def test_a_client_does_not_load_torch() -> None:
    code = "import sys, sharded_infer.client; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, cwd=ROOT)
