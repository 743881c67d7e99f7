"""The command line of a training: options become flags; a recipe, or the run that is resumed, gives defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from mcrepar.errors import ParameterError
from mcrepar.user_files import read_yaml
from mcrepar.validation import closest
from mcrepar.workbench.training.config import (
    GROUPS,
    MAY_DIFFER,
    SPELLINGS,
    TrainConfig,
    flag,
    names,
    read_config,
    read_options,
)

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

RECIPES = Path(__file__).parent / "recipes"


def recipes() -> list[str]:
    """The names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def add_arguments(parser: ArgumentParser) -> None:
    """Give a parser all options of a training."""
    meaning = f"options in YAML; --recipe NAME takes a shipped file: {', '.join(recipes())}"
    parser.add_argument("--config", "--recipe", action="config", metavar="FILE", help=meaning)
    for group in GROUPS:
        add_options(parser, group)


def add_options(parser: ArgumentParser, options: type, positional: str = "") -> None:
    """Give a parser the fields of one dataclass as flags; several values of a tuple follow one flag.

    Args:
        parser: to extend.
        options: a dataclass whose fields have metadata["help"], and whose docstring is the title of the section.
        positional: the field that is given without a flag.
    """
    from jsonargparse import ActionYesNo

    title = (options.__doc__ or "").partition("\n")[0].removesuffix(".")
    section, kinds = parser.add_argument_group(title), get_type_hints(options)
    for f in fields(options):
        default: Any = f.default if f.default_factory is MISSING else f.default_factory()
        how: dict[str, Any] = {"type": kinds[f.name], "default": default}
        if kinds[f.name] is bool:
            how = {"action": ActionYesNo(yes_prefix="", no_prefix="no-"), "default": default}
        elif kinds[f.name] == tuple[str, ...]:
            how = {"type": str, "nargs": "+", "default": list(default)}
        if f.name == positional:
            how |= {"nargs": "?"}
        flags = [flag(f.name), *(flag(old) for old, name in SPELLINGS.items() if name == f.name)]
        section.add_argument(*([f.name] if f.name == positional else flags), help=f.metadata["help"], **how)


def expand(words: Sequence[str]) -> list[str]:
    """The same words after the options of the run that is resumed, and with recipes as files.

    What is typed beside them comes later and wins.

    >>> expand(["--epochs", "3", "--recipe", "digits"])[1:]
    ['...recipes...digits.yaml', '--epochs', '3']
    """
    first, rest, typed = [], [], list(words)
    while typed:
        name, equals, value = (word := typed.pop(0)).partition("=")
        if name == "--recipe" and (equals or typed):
            first += ["--config", str(_recipe(value if equals else typed.pop(0)))]
            continue
        if name == "--config" and (path := Path(value or "".join(typed[:1]))).is_file():
            del typed[: 0 if equals else 1]
            rest += ["--config", _present(path)]
            continue
        rest.append(word)
    return [*_resumed([*first, *rest]), *first, *rest]


def read_arguments(values: Mapping[str, Any]) -> TrainConfig:
    """The options that a parser found."""
    return TrainConfig(**{name: values[name] for name in names()})


def _present(path: Path) -> str:
    """A file of options, or its options as YAML where some of them have another name now."""
    import yaml  # type: ignore[import-untyped]

    values = read_options(path)
    return str(path) if values == read_yaml(path) else str(yaml.safe_dump(values))


def _recipe(name: str) -> Path:
    if name not in recipes():
        raise ParameterError(f"--recipe {name}", "there is no such recipe", ", ".join(closest(name, recipes())))
    return RECIPES / f"{name}.yaml"


def _resumed(words: Sequence[str]) -> list[str]:
    """The options of the run in --out, where --resume is asked for; without config.yaml those of its checkpoint."""
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    if "--resume" not in given:
        return []
    out = TrainConfig().out
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--out":
            out = value if equals else "".join(words[place + 1 : place + 2])
    kept = Path(out) / "config.yaml"
    if os.path.lexists(kept):
        read_config(kept)
        return ["--config", _present(kept)]
    if (kept.parent / "checkpoints").is_dir() and (text := _from_checkpoint(kept.parent / "checkpoints")):
        return ["--config", text]
    if all(name.replace("--no-", "--") in map(flag, MAY_DIFFER) for name in given):
        why = "there is no run to go on with, and nothing says what to train"
        raise ParameterError(f"--resume --out {out}", why, "the options of the run too, such as --recipe NAME")
    return []


def _from_checkpoint(folder: Path) -> str:
    """The options that a checkpoint holds, as YAML; "" where there is no checkpoint."""
    from mcrepar.workbench.training.checkpoint import newest
    from mcrepar.workbench.training.run_folder import kept_options

    found = newest(folder)
    return "" if found is None else kept_options(found).to_yaml()
