"""A pod's check that its shard host holds versions: the kubelet speaks no TLS to gRPC.

python -m serving.cluster.host_check /etc/sharded-infer/hosts/hosts.toml
"""

import os
import sys
from pathlib import Path

from serving.cluster.probes import shard_host_probe
from serving.remote_lookups.hosts_file import read_settings
from sharded_infer.errors import ShardedInferError


def main() -> None:
    """Exit with 0 if the host is healthy; otherwise print why not, and exit with 1."""
    file, pod = Path(sys.argv[1]), os.environ["HOSTNAME"]
    try:
        addresses = [one for listed in read_settings(file).addresses.values() for one in listed]
    except ShardedInferError as error:
        sys.exit(str(error))
    # Fronts call it by this name, so its certificate has it.
    own = [address for address in addresses if address.startswith(f"{pod}.")]
    if not own:
        sys.exit(f"{file}: expected an address that begins with {pod}., got none")
    health = shard_host_probe(file)({"grpc_url": own[0]})
    if not health.is_healthy:
        sys.exit(health.problem)


if __name__ == "__main__":
    main()
