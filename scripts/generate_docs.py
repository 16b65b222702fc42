# SPDX-License-Identifier: Apache-2.0
"""Writes the pages and files that are made from code: run it after changing options, the support matrix or a record.

python scripts/generate_docs.py            write what has changed
python scripts/generate_docs.py --check    change nothing; exit with 1 and name the files that are out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from afd import support  # noqa: E402
from afd.config import reference  # noqa: E402
from afd.testing import records  # noqa: E402


def pages(root: Path = ROOT) -> Mapping[str, str]:
    """Path below the root to content, for every generated file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **records.json_schema()}
    return {
        "docs/configuration.md": reference.render(),
        "docs/support-matrix.md": support.render(records.load(root / "tests/records")),
        "docs/record.schema.json": json.dumps(schema, indent=2, sort_keys=True) + "\n",
    }


def main() -> int:
    """Write or check all files; the exit code is 1 when ``--check`` finds one out of date."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, content in pages().items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date; run: python scripts/generate_docs.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
