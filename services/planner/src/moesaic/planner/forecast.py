"""What the experts will be asked for: the forecaster that did best of late, how far it errs, and when the domain has changed.

L layers, E experts. Simple forecasters compete, and the one with the least recent error is used. The trend is a straight line
through two exponential averages, each at the mean age of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moesaic.shared.arrays import Floats, Ints

NOISE = 4.0
"""Loads tell domains apart only where they vary over experts by more than this many times their counting noise."""
BETTER = 0.99
"""A forecaster takes over where its error is below this part of the error of the one in use."""
STEEPEST = 1.0
"""How many times the difference between fast and slow average the trend goes beyond the fast one, at most."""
PRIOR = 8.0
"""Windows for which an expert's relative error is thought to be its layer's."""
FOREVER = 1e9
"""Seconds; more are taken for that many."""


@dataclass(frozen=True)
class Memory:
    """How fast counts fade, in seconds under load, and what still is the same domain (a correlation)."""

    fast_s: float
    slow_s: float
    same_domain: float
    min_tokens: float
    """Tokens per expert and layer, on average, before the load says anything; smaller windows are added up first."""


@dataclass(frozen=True)
class _Window:
    """What was counted. Averages are the same, faded."""

    tokens: Floats
    """`[L, E]`."""
    active: Floats
    """`[L, E]`: steps in which an expert had tokens."""
    stepped: Floats
    """Tokens `[L]` of where the steps are known."""
    seconds: float = 0.0
    steps: float = 0.0
    watched: float = 0.0
    """Steps of where `active` is known."""

    @classmethod
    def empty(cls, layers: int, experts: int) -> _Window:
        return cls(np.zeros((layers, experts)), np.zeros((layers, experts)), np.zeros(layers))

    @classmethod
    def of(cls, tokens: npt.ArrayLike, seconds: float, steps: int, active: Ints | None, like: Floats) -> _Window:
        """Raises ValueError where a count is negative or of another shape than `like [L, E]`."""
        counts = _checked(tokens, like)
        known = active is not None and steps > 0
        if steps < 0:
            raise ValueError(f"a window of {steps} steps")
        return cls(
            tokens=counts,
            active=_checked(active, like) if active is not None and known else np.zeros_like(like),
            stepped=counts.sum(axis=1) * (steps > 0),
            seconds=min(max(0.0, seconds), FOREVER),
            steps=float(steps),
            watched=float(steps) if known else 0.0,
        )

    def plus(self, other: _Window, weight: float = 1.0) -> _Window:
        """With the other one added; `weight`: of this one."""
        return _Window(
            tokens=self.tokens * weight + other.tokens,
            active=self.active * weight + other.active,
            stepped=self.stepped * weight + other.stepped,
            seconds=self.seconds * weight + other.seconds,
            steps=self.steps * weight + other.steps,
            watched=self.watched * weight + other.watched,
        )


@dataclass(frozen=True)
class _Average:
    """Exponentially weighted counts; `age`: seconds since the mean token of them came."""

    half_life: float
    sum: _Window
    age: float = 0.0

    def after(self, window: _Window) -> _Average:
        """With a window that ends now; its tokens are as old as its middle."""
        weight = 0.5 ** (window.seconds / self.half_life)
        old, new = float(self.sum.tokens.sum()) * weight, float(window.tokens.sum())
        part = new / (old + new) if new > 0 else 0.0
        age = (1 - part) * (self.age + window.seconds) + part * window.seconds / 2
        return _Average(self.half_life, self.sum.plus(window, weight), age)


class _Scores:
    """Faded mean error of each forecaster, and which is in use."""

    def __init__(self) -> None:
        self.best = "fast"
        self.mean: dict[str, float] = {}
        self._weight = 0.0

    def add(self, errors: dict[str, float], fade: float) -> None:
        """How far each was off this time; earlier errors count `fade` times."""
        self._weight = self._weight * fade + 1.0
        for name, error in errors.items():
            before = self.mean.get(name, error)
            self.mean[name] = before + (error - before) / self._weight
        leader = min(self.mean, key=self.mean.__getitem__)
        if self.mean[leader] < BETTER * self.mean[self.best]:
            self.best = leader


class _Errors:
    """Faded sums of squares `[L, E]`: of what was forecast, and of how far it was off beyond counting noise."""

    def __init__(self, layers: int, experts: int) -> None:
        self._forecast, self._off = np.zeros((layers, experts)), np.zeros((layers, experts))
        self._weight = 0.0

    def add(self, forecast: Floats, tokens: Floats, fade: float) -> None:
        """Forecast and real tokens `[L, E]`; Poisson counts are off by their mean, squared."""
        self._forecast = self._forecast * fade + forecast**2
        self._off = self._off * fade + (tokens - forecast) ** 2 - forecast
        self._weight = self._weight * fade + 1.0

    def spread(self) -> Floats:
        """Standard deviation of log(real / forecast) `[L, E]`, at most 1: log-normal, so that variance = log(1 + off / forecast).

        An expert starts with its layer's mean, and so remains where it has few tokens.
        """
        layer = self._forecast.mean(axis=1, keepdims=True)
        usual = np.divide(self._off.mean(axis=1, keepdims=True), layer, out=np.zeros_like(layer), where=layer > 0)
        prior = PRIOR * layer / self._weight if self._weight > 0 else layer
        whole = self._forecast + prior
        squared = np.divide(self._off + usual * prior, whole, out=np.zeros_like(whole), where=whole > 0)
        sigma: Floats = np.sqrt(np.log1p(np.maximum(0.0, squared)))
        return np.minimum(sigma, 1.0, out=sigma)


class Forecast:
    """Of the tokens `[L, E]` of one model."""

    def __init__(self, memory: Memory, layers: int, experts: int) -> None:
        empty = _Window.empty(layers, experts)
        self._memory = memory
        self._empty = empty
        self._fast = _Average(memory.fast_s, empty)
        self._slow = _Average(memory.slow_s, empty)
        self._last = empty
        self._pending = empty
        """Windows too small to judge, added up."""
        self._aside: _Window | None = None
        """An outlier, until the next window tells what it was."""
        self._scores = _Scores()
        self._errors = _Errors(layers, experts)
        self.domain = 0
        """Counts changes of domain."""

    @classmethod
    def remembered(cls, memory: Memory, slow: Floats) -> Forecast:
        """After a restart: as if the slow counts `[L, E]` were all there is."""
        forecast = cls(memory, *slow.shape)
        known = replace(forecast._empty, tokens=slow.astype(np.float64))
        forecast._fast, forecast._slow = _Average(memory.fast_s, known), _Average(memory.slow_s, known)
        return forecast

    def add(self, tokens: Ints, seconds: float, steps: int = 0, active: Ints | None = None) -> None:
        """A window's tokens `[L, E]`, its engine steps (0: unknown) and in how many of them each expert had tokens `[L, E]`.

        Raises ValueError where a count is negative or has the wrong shape.
        """
        self._pending = self._pending.plus(_Window.of(tokens, seconds, steps, active, self._empty.tokens))
        mean = float(self._pending.tokens.mean())
        if mean > 0 and mean >= self._memory.min_tokens:
            window, self._pending = self._pending, self._empty
            self._judge(window)

    # --- domains ---------------------------------------------------------------------------------------------------------

    def _judge(self, window: _Window) -> None:
        """An outlier is set aside; the next window tells whether it was the first of a new domain, nothing, or the usual."""
        aside, self._aside = self._aside, None
        same, near = self._memory.same_domain, self._likeness(window, self._fast.sum)
        if aside is None:
            if near < same:
                self._aside = window
            else:
                self._learn(window)
        elif (again := self._likeness(window, aside)) >= same and again > near:
            both = aside.plus(window)
            self._begin(_Average(self._memory.fast_s, self._empty).after(both))
            self._last = both
        elif near >= same:
            self._learn(window)
        else:  # like nothing before, twice: so is this load
            self._learn(aside)
            self._learn(window)

    def _learn(self, window: _Window) -> None:
        """Score the forecasts, then count the window. Where the averages have drifted apart the slow one begins anew."""
        if self._fast.sum.tokens.any():
            self._score(window)
        self._fast, self._slow = self._fast.after(window), self._slow.after(window)
        self._last = window
        similar = self.similarity()
        if similar is not None and similar < self._memory.same_domain:
            self._begin(self._fast)

    def _begin(self, fast: _Average) -> None:
        """Another domain, of which this is known. How far forecasts err is the traffic's nature and not forgotten."""
        self._fast, self._slow = fast, replace(fast, half_life=self._memory.slow_s)
        self._scores = _Scores()
        self.domain += 1

    def _likeness(self, window: _Window, other: _Window) -> float:
        """Correlation; 1 where the loads do not differ by more than noise might, or are too few."""
        if float(other.tokens.mean()) < self._memory.min_tokens:
            return 1.0
        alike = _correlation(window.tokens, other.tokens)
        return 1.0 if alike is None else alike

    def similarity(self) -> float | None:
        """Correlation of the fast with the slow counts, mean over layers; None where the fast ones are too few to tell."""
        if float(self._fast.sum.tokens.mean()) < self._memory.min_tokens:
            return None
        return _correlation(self._fast.sum.tokens, self._slow.sum.tokens)

    # --- forecasts -------------------------------------------------------------------------------------------------------

    def _shares(self) -> dict[str, Floats]:
        """Each forecaster's shares `[L, E]`, one per layer in sum; what a layer lacks is the next slower one's, at last even."""
        even = np.full_like(self._empty.tokens, 1.0 / self._empty.tokens.shape[1])
        slow = _normalised(self._slow.sum.tokens, _normalised(self._pending.tokens, even))
        fast = _normalised(self._fast.sum.tokens, slow)
        ahead = np.maximum(0.0, fast + self._steepness() * (fast - slow))
        last = _normalised(self._last.tokens, fast)
        return {"last": last, "fast": fast, "slow": slow, "trend": _normalised(ahead, fast)}

    def _steepness(self) -> float:
        """From the ages of both averages to the middle of the next window, if it is as long as the last: a straight line."""
        apart = self._slow.age - self._fast.age
        ahead = self._fast.age + self._last.seconds / 2
        return min(STEEPEST, ahead / apart) if apart > 0 else 0.0

    def _score(self, window: _Window) -> None:
        """Total variation distance of each forecast from what came, mean over layers weighted by tokens."""
        fade = 0.5 ** (window.seconds / self._memory.slow_s)
        totals = window.tokens.sum(axis=1, keepdims=True)
        forecasts = {name: shares * totals for name, shares in self._shares().items()}
        whole = 2.0 * float(totals.sum())
        errors = {name: float(np.abs(tokens - window.tokens).sum()) / whole for name, tokens in forecasts.items()}
        self._errors.add(forecasts[self.best], window.tokens, fade)
        self._scores.add(errors, fade)

    def expected(self) -> Floats:
        """Tokens `[L, E]`: shares of the best forecaster, on the scale of the slow counts."""
        return self._scaled(self.slow.sum(axis=1))

    def per_step(self) -> Floats:
        """Tokens `[L, E]` per engine step, as many as of late; on the scale of the slow counts where steps are unknown."""
        recent = self._fast.after(self._pending).sum
        if recent.steps <= 0:
            return self.expected()
        return self._scaled(recent.stepped / recent.steps)

    def _scaled(self, tokens: Floats) -> Floats:
        """The best forecaster's shares of the layers' tokens `[L]`."""
        scaled: Floats = self._shares()[self.best] * tokens[:, None]
        return scaled

    def active(self) -> Floats | None:
        """Share of steps `[L, E]` in which an expert has tokens, faded like the fast counts; None where unknown."""
        recent = self._fast.after(self._pending).sum
        if recent.watched <= 0:
            return None
        share: Floats = recent.active / recent.watched
        return np.minimum(share, 1.0, out=share)

    def spread(self) -> Floats:
        """Relative error `[L, E]` of recent forecasts without counting noise: standard deviation of the log ratio, at most 1."""
        return self._errors.spread()

    @property
    def best(self) -> str:
        """Which forecaster is used: last (window), fast, slow (average) or trend."""
        return self._scores.best

    @property
    def scores(self) -> dict[str, float]:
        """Faded mean error of each, as shares of the tokens that came elsewhere than forecast; empty before there is one."""
        return dict(self._scores.mean)

    # --- counts ----------------------------------------------------------------------------------------------------------

    @property
    def fast(self) -> Floats:
        """Counts `[L, E]` of the last seconds."""
        return self._fast.after(self._pending).sum.tokens

    @property
    def slow(self) -> Floats:
        """Counts `[L, E]` of the last minutes, what is kept over a restart."""
        return self._slow.after(self._pending).sum.tokens

    @property
    def seen(self) -> float:
        """Tokens per expert and layer, on average, that still count."""
        return float(self.slow.mean())

    @property
    def enough(self) -> bool:
        """Whether the counts say anything."""
        return self.seen >= self._memory.min_tokens and self.seen > 0


def _checked(counts: npt.ArrayLike, like: Floats) -> Floats:
    found = np.asarray(counts, dtype=np.float64)
    if found.shape != like.shape or not (found >= 0).all():
        raise ValueError(f"counts of shape {found.shape} instead of {like.shape}, or negative")
    return found


def _normalised(counts: Floats, otherwise: Floats) -> Floats:
    """Shares `[L, E]`, one per layer in sum; `otherwise` where a layer has no tokens."""
    totals = counts.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(counts, totals, out=otherwise.copy(), where=totals > 0)
    return shares


def _correlation(a: Floats, b: Floats) -> float | None:
    """Mean over the layers `[L, E]` that can tell; None where counting noise alone would explain how the counts vary."""
    # 1. no layer varies by more than E - 1, relative to its mean squared: fewer tokens than that asks for tell nothing
    least = np.minimum(a.mean(axis=1), b.mean(axis=1))
    some = least * a.shape[1] > NOISE
    a, b, least = a[some], b[some], least[some]
    # 2. counting noise
    means, variances = [x.mean(axis=1) for x in (a, b)], [x.var(axis=1) for x in (a, b)]
    variation = np.maximum(variances[0] / means[0] ** 2, variances[1] / means[1] ** 2)
    told = variation > NOISE / least
    if not told.any():
        return None
    # 3. what the counts vary beyond it; at least half, so that an even load correlates with nothing
    real = [np.maximum(v - m, v / 2) for v, m in zip(variances, means, strict=True)]
    scale = np.sqrt(real[0] * real[1])
    covariance = ((a - means[0][:, None]) * (b - means[1][:, None])).mean(axis=1)
    r = np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)
    return float(np.clip(r[told], -1.0, 1.0).mean())
