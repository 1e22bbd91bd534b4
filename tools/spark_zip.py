"""Writes the library as a zip for `spark-submit --py-files`: python tools/spark_zip.py FILE."""

import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    with ZipFile(sys.argv[1], "w", ZIP_DEFLATED) as archive:
        files = [path for kind in ("py", "txt", "typed", "properties") for path in ROOT.glob(f"distlog/**/*.{kind}")]
        for path in sorted([*files, ROOT / "pyspark_distlog.py"]):
            # no times and rights of the clone, so that one commit makes one zip
            entry = ZipInfo(str(path.relative_to(ROOT)))
            entry.compress_type, entry.external_attr = ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, path.read_bytes())
