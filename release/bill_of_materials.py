"""What a release is made of, as CycloneDX 1.6: `python release/bill_of_materials.py dist --out hangscope.cdx.json`.

Nothing is bundled, so it lists what pip is asked for, and the files of the release with their checksums.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def published_files(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.whl")), *sorted(folder.glob("*.tar.gz"))]


def bill_of_materials(root: Path, version: str, files: list[Path]) -> dict[str, Any]:
    """The bill, with the time of the commit that is released (SOURCE_DATE_EPOCH)."""
    identity = f"pkg:pypi/hangscope@{version}"
    text = (root / "pyproject.toml").read_text(encoding="utf-8") if (root / "pyproject.toml").exists() else ""
    listed = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    needed = re.findall(r'^\s*"([A-Za-z0-9_.-]+)([^";]*)', listed, re.MULTILINE)
    when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "timestamp": when.isoformat(),
            "component": {
                "type": "application",
                "name": "hangscope",
                "version": version,
                "bom-ref": identity,
                "purl": identity,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "components": [file_of(path) for path in files],
            },
        },
        "components": [
            {
                "type": "library",
                "name": name,
                "bom-ref": f"pkg:pypi/{name.lower()}",
                "purl": f"pkg:pypi/{name.lower()}",
                "properties": [{"name": "version range", "value": asked.strip() or "any"}],
            }
            for name, asked in needed
        ],
        "dependencies": [{"ref": identity, "dependsOn": [f"pkg:pypi/{name.lower()}" for name, _ in needed]}],
    }


def file_of(path: Path) -> dict[str, Any]:
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "file", "name": path.name, "hashes": [{"alg": "SHA-256", "content": checksum}]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheels and the source lie")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    files = published_files(options.folder)
    if not files:
        raise SystemExit(f"error: there is nothing to list in {options.folder}\nhint: make wheel")
    command = ["git", "log", "-1", "--format=%ct"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit.stdout.strip())
    (version,) = {re.split("-", path.name)[1].removesuffix(".tar.gz") for path in files}
    options.out.write_text(json.dumps(bill_of_materials(ROOT, version, files), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
