"""Result of a coverage study."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.errors import StudyFormatError
from dpinfer.lab.coverage.ranks import SbcResult, sbc_from_cdf
from dpinfer.lab.coverage.tarp_result import TarpResult, tarp_from_shares
from dpinfer.lab.studies.archive import pack, unpack
from dpinfer.lab.studies.run_statistics import RunStatistics
from dpinfer.release.files import write_atomically

__all__ = ["CoverageResult"]

_FORMAT = "dpinfer-coverage"
_TAIL = 0.05  # of a central 90% interval
_PLAIN = ("study", "method", "epsilon", "recipe", "seed", "references", "n_repeats", "version", "seconds")


@dataclass(frozen=True, eq=False, kw_only=True)
class CoverageResult:
    """Calibration of a method over the runs of a study.

    **Privacy.** Simulated records only: safe to publish.

    Parameters
    ----------
    study : str
        Its name.
    parameters : tuple of n str
        Names of the parameters; all numbers are on the unconstrained space.
    method : str
    epsilon : float
    recipe : str or None
    seed : int
    references : str
        Where reference points came from.
    n_repeats : int
        Sets of reference points.
    settings : mapping
        Further settings of the runs, as plain values.
    version : str
        Of the library that made the runs.
    runs : RunStatistics
        All runs, failed ones included.
    seconds : float
        Duration of the call; runs read from a checkpoint cost next to nothing.
    """

    study: str
    parameters: tuple[str, ...]
    method: str
    epsilon: float
    recipe: str | None
    seed: int
    references: str
    n_repeats: int
    settings: Mapping[str, Any]
    version: str
    runs: RunStatistics
    seconds: float

    def __post_init__(self) -> None:
        if self.runs.truth.shape[1] != len(self.parameters):
            raise ValueError(
                f"parameters must name all {self.runs.truth.shape[1]} dimensions, got {len(self.parameters)} names"
            )
        if self.n_runs - self.n_failed < 2:
            raise ValueError(f"at least 2 runs must have a posterior, got {self.n_runs - self.n_failed}")

    @property
    def n_runs(self) -> int:
        """Number of runs, failed ones included."""
        return self.runs.n_runs

    @property
    def n_failed(self) -> int:
        """Number of runs without a posterior; they are left out of everything else."""
        return int(np.count_nonzero(self.runs.failed))

    @cached_property
    def tarp(self) -> TarpResult | None:
        """Coverage with random reference points, joint and marginal; None for a method without draws."""
        if not self.runs.n_draws:
            return None
        ok, counts = ~self.runs.failed, 2.0 * self.runs.n_draws
        return tarp_from_shares(
            self.runs.joint_counts[ok].T / counts,
            self.runs.marginal_counts[ok].swapaxes(0, 1) / counts,
            n_draws=self.runs.n_draws,
            references=self.references,
            seed=self.seed,
        )

    @cached_property
    def sbc(self) -> SbcResult:
        """Ranks and z-scores of the truth."""
        ok = ~self.runs.failed
        return sbc_from_cdf(self.runs.pit[ok], z=self.runs.z[ok])

    @cached_property
    def coverage90(self) -> FloatArray:
        """Share of runs whose central 90% interval holds the truth, (n,)."""
        pit = self.sbc.pit
        return np.asarray(np.mean((pit >= _TAIL) & (pit <= 1.0 - _TAIL), axis=0))

    @cached_property
    def coverage90_stderr(self) -> FloatArray:
        """Monte Carlo standard error of :attr:`coverage90`, (n,), positive also where it is 0 or 1 (Agresti-Coull)."""
        share = (self.coverage90 * self.sbc.n_sims + 2.0) / (self.sbc.n_sims + 4.0)
        return np.asarray(np.sqrt(share * (1.0 - share) / (self.sbc.n_sims + 4.0)))

    @cached_property
    def median_width(self) -> FloatArray:
        """Median over the runs of the width of the 90% interval, (n,)."""
        return np.asarray(np.median(self.runs.width90[~self.runs.failed], axis=0))

    @cached_property
    def relative_width(self) -> FloatArray:
        """Widths of the runs divided by that of the posterior without privacy, (K, n); nan without one."""
        ok = ~self.runs.failed
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.runs.width90[ok] / self.runs.reference_width90[ok]

    @cached_property
    def relative_width_stderr(self) -> FloatArray:
        """Monte Carlo standard error of the median of :attr:`relative_width`, (n,), from its order statistics.

        The number of runs below the median is binomial, with standard deviation sqrt(K) / 2: half the distance between
        the order statistics that far from the middle, for any distribution of the widths.
        """
        ordered = np.sort(self.relative_width, axis=0)
        step, middle = 0.5 * math.sqrt(len(ordered)), 0.5 * (len(ordered) - 1)
        low, high = max(round(middle - step), 0), min(round(middle + step), len(ordered) - 1)
        return np.asarray((ordered[high] - ordered[low]) * step / (high - low))

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain values, None for missing numbers.

        **Privacy.** Simulated records only.

        Returns
        -------
        dict
            Settings, the joint findings, and one dict for each parameter under ``parameters``.
        """
        plain = {name: getattr(self, name) for name in _PLAIN} | {"settings": dict(self.settings)}
        plain |= {"n_runs": self.n_runs, "n_failed": self.n_failed, "n_draws": self.runs.n_draws}
        tarp, sbc = self.tarp, self.sbc
        if tarp is not None:
            plain["joint"] = {
                "rmse": tarp.rmse,
                "rmse_stddev": tarp.rmse_stddev,
                "rmse_floor": tarp.rmse_floor,
                "excess_rmse": tarp.excess_rmse,
                "ks_pvalue": tarp.ks_pvalue,
            }
        rows = []
        for j, name in enumerate(self.parameters):
            row: dict[str, Any] = {
                "name": name,
                "mean_z": sbc.mean_z[j],
                "mean_z_stderr": sbc.mean_z_stderr[j],
                "sd_z": sbc.sd_z[j],
                "sd_z_stderr": sbc.sd_z_stderr[j],
                "chi2_pvalue": sbc.chi2_pvalue[j],
                "rank_ks_pvalue": sbc.ks_pvalue[j],
                "coverage90": self.coverage90[j],
                "coverage90_stderr": self.coverage90_stderr[j],
                "median_width90": self.median_width[j],
                "median_relative_width": np.median(self.relative_width[:, j]),
                "median_relative_width_stderr": self.relative_width_stderr[j],
                "mean_relative_width": np.mean(self.relative_width[:, j]),
            }
            if tarp is not None:
                row |= {"rmse": tarp.marginal_rmse[j], "ks_pvalue": tarp.marginal_ks_pvalue[j]}
            rows.append(row)
        return _plain(plain | {"parameters": rows})  # type: ignore[no-any-return]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the result to one file, whole or not at all.

        **Privacy.** Simulated records only.

        Parameters
        ----------
        path : path-like
            A zip of arrays and JSON, which ``numpy.load`` reads as ``.npz``.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        write_atomically(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content of :meth:`save`.

        **Privacy.** Simulated records only.
        """
        document = {name: getattr(self, name) for name in _PLAIN}
        document |= {"format": _FORMAT, "settings": dict(self.settings), "parameters": list(self.parameters)}
        return pack(document | {"n_draws": self.runs.n_draws}, self.runs.arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CoverageResult":
        """Load a result that :meth:`save` wrote.

        **Privacy.** Simulated records only.

        Parameters
        ----------
        path : path-like

        Returns
        -------
        CoverageResult

        Raises
        ------
        OSError
            If the file cannot be read.
        StudyFormatError
            If it is damaged or of another kind.
        """
        document, arrays = unpack(Path(path).read_bytes(), _FORMAT)
        try:
            return cls(
                runs=RunStatistics(**arrays, n_draws=document["n_draws"]),
                parameters=tuple(document["parameters"]),
                settings=document["settings"],
                **{name: document[name] for name in _PLAIN},
            )
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise StudyFormatError(f"the file is damaged or of another version ({type(error).__name__})") from error

    def __repr__(self) -> str:
        recipe = "" if self.recipe is None else f", recipe {self.recipe}"
        lines = [
            f"CoverageResult: {self.study}, method {self.method}{recipe}, epsilon {self.epsilon:g}, "
            f"{self.n_runs} runs, {self.seconds:.1f} s"
        ]
        if self.n_failed:
            lines.append(f"  WITHOUT A POSTERIOR: {self.n_failed} runs, which are left out of all that follows")
        tarp, sbc = self.tarp, self.sbc
        if tarp is not None:
            spread = "" if tarp.n_repeats == 1 else f" +/- {tarp.rmse_stddev:.4f}"
            lines.append(
                f"  joint RMSE {tarp.rmse:.4f}{spread} over {tarp.n_repeats} repeats, floor {tarp.rmse_floor:.4f}, "
                f"excess {tarp.excess_rmse:+.4f}, KS p = {tarp.ks_pvalue:.3g}"
            )
        width = max(len("parameter"), *(len(name) for name in self.parameters))
        lines.append(
            f"  {'parameter':<{width}} {'RMSE':>6} {'KS p':>8} {'chi2 p':>8} {'mean z':>16} {'sd z':>15}"
            f" {'90% coverage':>15} {'width':>8} {'relative width':>15}"
        )
        for j, name in enumerate(self.parameters):
            rmse, pvalue = (
                ("-", "-") if tarp is None else (f"{tarp.marginal_rmse[j]:.4f}", f"{tarp.marginal_ks_pvalue[j]:.3g}")
            )
            relative = self.relative_width[:, j]
            error = self.relative_width_stderr[j]
            ratio = f"{np.median(relative):.2f} +/- {error:.3f}" if np.isfinite(relative).all() else "-"
            lines.append(
                f"  {name:<{width}} {rmse:>6} {pvalue:>8} {sbc.chi2_pvalue[j]:>8.3g}"
                f" {sbc.mean_z[j]:>+8.3f} +/- {sbc.mean_z_stderr[j]:.3f} {sbc.sd_z[j]:>7.3f} +/- "
                f"{sbc.sd_z_stderr[j]:.3f} {self.coverage90[j]:>7.3f} +/- {self.coverage90_stderr[j]:.3f}"
                f" {self.median_width[j]:>8.3g} {ratio:>15}"
            )
        lines.append("  (widths: median of 90% intervals, and of their ratio to the posterior without privacy)")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Return the value with Python numbers, and None for a number that is not finite."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
