"""The compiled echo server as a separate process, to be killed or stopped.

Prints its address; ends with its input.

usage: echo_process.py PORT (0: a free one)
"""

import sys

from tests.support.echo_servers import compiled_echo

if __name__ == "__main__":
    with compiled_echo(port=int(sys.argv[1])) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        sys.stdin.read()
