"""Count the lines of Python in every building of the repository: python benchmarks/lines.py."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PLAIN = ("models", "data", "metrics", "plots")
BUILDINGS = ("library", "plain packages", "workbench", "experiments", "benchmarks", "tests")


def building(path: Path) -> str:
    """The building of a file, from its place in the repository."""
    top, *rest = path.parts
    if top != "src":
        return top
    return "plain packages" if rest[1] in PLAIN else "workbench" if rest[1] == "workbench" else "library"


def counts() -> dict[str, list[tuple[int, str]]]:
    """The lines of every file, by building, the longest first."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in BUILDINGS}
    for folder in ("src", "experiments", "benchmarks", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT)
            found[building(place)].append((path.read_text(encoding="utf-8").count("\n"), str(place)))
    return {name: sorted(files, reverse=True) for name, files in found.items()}


def main() -> None:
    print(f"{'building':16}{'files':>6}{'lines':>8}  longest file")
    for name, files in counts().items():
        longest, where = files[0]
        print(f"{name:16}{len(files):6}{sum(n for n, _ in files):8,}  {longest} {where}")


if __name__ == "__main__":
    main()
