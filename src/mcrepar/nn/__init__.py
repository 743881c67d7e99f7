"""From an nn.Module to a Bayesian one: `module` has the wrapper, `layers` (imported on first use) layers by hand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

LAYERS = (
    "Linear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "LSTM",
    "GRU",
    "MultiheadAttention",
)

_HOMES = {
    **dict.fromkeys(LAYERS, "layers"),
    "calibrate": "prediction_passes",
    "ensemble": "ensembles",
    "horseshoe": "scale_mixtures",
    "horseshoe_scales": "scale_mixtures",
    "moment_module": "moments.export",
}

if TYPE_CHECKING:
    from mcrepar.nn.ensembles import ensemble as ensemble
    from mcrepar.nn.moments.export import moment_module as moment_module
    from mcrepar.nn.prediction_passes import calibrate as calibrate
    from mcrepar.nn.scale_mixtures import horseshoe as horseshoe
    from mcrepar.nn.scale_mixtures import horseshoe_scales as horseshoe_scales

    Linear: Any
    Conv1d: Any
    Conv2d: Any
    Conv3d: Any
    ConvTranspose1d: Any
    ConvTranspose2d: Any
    ConvTranspose3d: Any
    Embedding: Any
    LSTM: Any
    GRU: Any
    MultiheadAttention: Any
else:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
