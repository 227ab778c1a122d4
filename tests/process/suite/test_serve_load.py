"""A service under load: the light form of what ``tools/serve_load.py`` does with a thousand submissions."""

from __future__ import annotations

import subprocess
import sys

from clocks import PATIENCE
from places import ROOT


def test_nothing_is_lost_and_nothing_judged_twice() -> None:
    """200 submissions, each twice, while five judging processes and once the service itself are killed."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "serve_load.py", "--count", "200", "--kills", "5", "--service-kills", "1",
         "--disk", "0"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 submissions, each twice" in done.stdout and "1 x service killed" in done.stdout
    assert " 0 lost or wrong" in done.stdout and "did not come to pass" not in done.stdout, done.stdout
