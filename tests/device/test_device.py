"""The tests on the device that counts, in a process of their own: autograd takes no new device after its first use."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_in_a_process_of_its_own():
    files = [str(HERE / name) for name in ("counting.py", "steps.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
