"""schemathesis over the server's API, by hand: every operation with made-up and broken requests, against a real server.

    python3 -m venv /tmp/st && /tmp/st/bin/pip install schemathesis
    cd tests && python -m kits.api_by_schema /tmp/st/bin/schemathesis [--examples 100]

No answer may be a 500, have a status that is not described, or not fit its schema. Left out are the checks that wrong
data is refused and right data taken, because texts are cleaned rather than refused (a NUL in a name is a blank), and
things that are named must exist; and that a method which is not described is 405, because a number fits other routes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from kits.fleet import bundle, running_server

LEFT_OUT = "negative_data_rejection,positive_data_acceptance,unsupported_method"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemathesis")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hangscope-schema-") as folder, running_server(Path(folder)) as server:
        token = server.token("push", "read", "admin")
        server.digested(token, server.push(token, bundle("sleep")))
        schema = Path(folder) / "openapi.json"
        schema.write_bytes(server.ask("GET", "/openapi.json", token).body)
        words = ["--checks", "all", "--exclude-checks", LEFT_OUT, "--max-examples", str(given.examples)]
        words += ["--seed", str(given.seed), "--url", server.url, "--header", f"Authorization: Bearer {token}"]
        words += ["--exclude-path-regex", "/tokens/"]  # one of them is its own
        return subprocess.run([given.schemathesis, "run", str(schema), *words], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
