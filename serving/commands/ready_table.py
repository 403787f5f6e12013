"""What `serve` prints when it is ready."""

from rich.table import Table

from kernels.wording import counted
from serving.commands.console import OUT
from serving.ready import Ready
from sharded_infer.sizes import size_text


def print_ready(ready: Ready, protection: str) -> None:
    """Prints the models and addresses.

    Args:
        ready: what the server says.
        protection: who may call, in words.
    """
    models = Table(
        "model", "version", "topology", "tables", "memory", "kernels", "executor", box=None
    )
    for served in ready.models:
        models.add_row(
            served.name,
            str(served.version),
            served.topology,
            size_text(served.table_bytes),
            served.memory,
            ", ".join(f"{device} {kernel}" for device, kernel in served.kernels.items()),
            served.executor,
        )
    if not (ready.models or ready.missing):
        models.add_row("(none yet: clients load them)", *[""] * 6)
    addresses = Table("address", "", "", box=None)
    addresses.add_row(
        "gRPC", ready.grpc_url, f"{counted(ready.workers, 'worker')}, {ready.transport}"
    )
    if ready.admin_url is not None:
        addresses.add_row("admin", ready.admin_url, "RPCs that change the server")
    addresses.add_row("metrics", ready.metrics_url, "")
    addresses.add_row("access", protection, "")
    OUT.print(models, highlight=False, markup=False)
    for name, reason in ready.missing.items():
        OUT.print(f"NOT SERVED: {name}: {reason}", highlight=False, markup=False)
    OUT.print(addresses, highlight=False, markup=False)
