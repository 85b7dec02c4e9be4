"""Pictures of `plan` and `replay`, as PNG files. matplotlib, an extra, is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moesaic.cli.errors import Stop

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moesaic.shared.arrays import Floats, Ints


def rank_load(folder: Path, loads: Mapping[str, Floats]) -> None:
    """Heat maps of rank load `[L, R]`, 1 where a layer is even, one for each placement, in one scale: rank_load.png."""
    figure = _figure(3.4 * len(loads) + 0.8, 5.0)
    panels = figure.subplots(1, len(loads), sharex=True, sharey=True, squeeze=False)[0]
    most = max(float(load.max()) for load in loads.values())
    for panel, (name, load) in zip(panels, loads.items(), strict=True):
        image = panel.imshow(load, aspect="auto", vmin=0.0, vmax=most, interpolation="nearest", cmap="inferno")
        panel.set(title=name, xlabel="rank")
    panels[0].set(ylabel="layer")
    figure.colorbar(image, ax=list(panels), label="load / mean of the layer")
    _save(figure, folder / "rank_load.png")


def replicas(folder: Path, copies: Mapping[str, Ints]) -> None:
    """Copies beyond the first of each expert, by layer `[L]`: replicas.png."""
    figure = _figure(7.0, 4.0)
    axes = figure.subplots()
    for name, by_layer in copies.items():
        axes.plot(by_layer, drawstyle="steps-mid", label=name)
    axes.set(xlabel="layer", ylabel="replicas")
    axes.set_ylim(bottom=0)
    axes.legend()
    _save(figure, folder / "replicas.png")


def over_time(folder: Path, series: Mapping[str, Mapping[str, tuple[Sequence[int], Sequence[float]]]]) -> None:
    """Lines over the windows: by label of the axis, by policy (windows, values): balance.png."""
    figure = _figure(7.0, 2.6 * len(series) + 0.6)
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (label, lines) in zip(panels, series.items(), strict=True):
        for name, (windows, values) in lines.items():
            panel.plot(windows, values, marker=".", label=name)
        panel.set(ylabel=label)
    panels[0].legend()
    panels[-1].set(xlabel="window")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    _save(figure, folder / "balance.png")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise Stop(f"{path}: cannot be written: {error.strerror}", 2) from error
