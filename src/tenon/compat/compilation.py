"""``tenon.compile`` with several models, each behind an entry point of its own of one bundle for Glow's programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tenon import pipeline
from tenon.errors import InputError, guarded

if TYPE_CHECKING:
    from tenon.compat.glow.bundle import GlowBundle
    from tenon.formats.wire.encryption import Key
    from tenon.formats.wire.stored_files import Transform
    from tenon.machine.plan.stages import Stages
    from tenon.network.graph.bind import GivenShapes, Shapes
    from tenon.network.graph.fixed import Values
    from tenon.network.graph.graph import Graph
    from tenon.options import OptionKeywords, Options
    from tenon.pipeline import Model, Progress
    from tenon.runtime.bundle import Bundle


@overload
def compile(
    model: Mapping[str, Model | Graph],
    *,
    bundle_api: Literal["static", "dynamic"],
    shapes: Shapes | None = None,
    **changes: Unpack[OptionKeywords],
) -> GlowBundle: ...


@overload
def compile(
    model: Model | Graph,
    options: Options | None = None,
    *,
    shapes: GivenShapes | Sequence[GivenShapes] | None = None,
    weights: Model | None = None,
    values: Values | Sequence[Values] | None = None,
    max: Mapping[str, int] | None = None,
    example_inputs: Sequence[Any] | None = None,
    key: Key | None = None,
    transform: Transform | None = None,
    progress: Progress = lambda stage: None,
    rewrite: Callable[[Graph], Graph] = lambda graph: graph,
    stages: Stages = ...,
    **changes: Unpack[OptionKeywords],
) -> Bundle: ...


@guarded
def compile(model: Any, options: Any = None, **changes: Any) -> Any:
    """Compile a model, or a graph returned by ``load``, for a target; returns the bundle.

        bundle = tenon.compile("model.onnx", target="cortex-m4", ram="64K")
        bundle.save("out")

    The keyword arguments are the fields of ``Options`` (``target``, ``name``, ``threads``, ``precision``, ...); those
    that are not given come from ``options``, else from environment variables.  In addition:

    ``shapes``, ``weights``, ``values``, ``max``, ``example_inputs``, ``key`` and ``transform`` are as for ``load``;
    with a list of shapes, and of values if these differ, the bundle supports each of them, with one copy of the
    weights.
    ``progress`` is called with the name of each stage.
    ``rewrite`` is applied to the graph before it is optimised (``plugins.offloaded``, for example).
    ``stages`` is shown the graphs and the plan (what ``--dump`` writes).

    Of several models, ``{entry: model}``, one bundle is made for Glow's programs, whose entry points have these names:
    ``name`` is that of the bundle, ``bundle_api`` "static" or "dynamic", ``shapes`` are those of inputs.

    Machine code is generated when the bundle is saved.  Raises ModelError for a model that cannot be compiled,
    InputError for bad options.
    """
    if isinstance(model, Mapping):
        return _several(model, options, **changes)
    if "bundle_api" in changes:
        raise InputError("bundle_api is for models behind entry points: {entry: model}")
    return pipeline.compile(model, options, **changes)


def _several(
    models: Mapping[str, Model | Graph],
    options: Options | None,
    *,
    name: str = "",
    bundle_api: Any = "static",
    **more: Any,
) -> GlowBundle:
    from tenon.compat.glow.bundle import bundle_of

    if options is not None or not models or not name:
        raise InputError("models behind entry points need at least one model and a name of the bundle, and no Options")
    if bundle_api not in ("static", "dynamic"):
        raise InputError(f"bundle_api: there is no API '{bundle_api}': static or dynamic")
    return bundle_of(models, name, api=bundle_api, **more)


compile.__dict__["__wrapped__"] = pipeline.compile  # whose signature help() shows
