"""An experiment at its smallest scale, for the tests of its file."""

import json
from pathlib import Path

from experiments.experiment import Request
from experiments.reproduce import reproduce

PNG = b"\x89PNG\r\n\x1a\n"


def tiny(name: str, folder: Path) -> dict:
    """result.json of an experiment, after a look at its other files."""
    said: list[str] = []
    (out,) = reproduce(Request(name, "tiny", folder), said.append)
    assert out == folder / name
    result = json.loads((out / "result.json").read_text())
    page = (out / "README.md").read_text()
    assert said[-1] == f"{name}: {result['verdict']} ({out / 'README.md'})"
    assert (out / "figure.png").read_bytes().startswith(PNG)
    assert (out / "figure.png").stat().st_size > 5000
    assert f"**Measured here: {result['verdict']}.** The scale tiny is a smoke test" in page
    assert "![" in page
    assert result["command"].startswith(f"mcrepar reproduce {name} --scale tiny")
    for finding in result["findings"]:
        assert finding["measured"].replace("|", "\\|") in page
    return result


def held(result: dict) -> list[bool | None]:
    return [finding["held"] for finding in result["findings"]]
