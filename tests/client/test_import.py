from __future__ import annotations

import subprocess
import sys

SLOW = ("pyspark", "delta", "deltalake", "pyarrow", "pandas", "numpy")


def test_the_client_is_imported_without_spark_and_tables() -> None:
    code = f"import sys, ackstream.client; print(*[name for name in {SLOW} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
