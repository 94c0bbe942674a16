"""The result of a fit: release, posterior and plan, with methods to save and show them, and the folder of them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from dpinfer.accounting import Guarantee
from dpinfer.errors import NumericalError, ReleaseFormatError
from dpinfer.fitting.choice import Choice
from dpinfer.fitting.plan import FitPlan
from dpinfer.fitting.report import ReportContent, found_width, render
from dpinfer.inference import Posterior, load_posterior
from dpinfer.models import Model
from dpinfer.release import Release, load_release
from dpinfer.release.archive import parse_json
from dpinfer.release.files import write_atomically

PLAN_FILE, RELEASE_FILE, POSTERIOR_FILE = "plan.json", "fit.release", "fit.posterior"
_FORMAT, _VERSION = "dpinfer-fit", 1  # format
_LARGEST = 1 << 24  # bytes: a plan has some kB; a hostile file must not allocate more


def make_folder(folder: Path) -> None:
    """Make the folder of a fit before the run; raise FileExistsError if it holds a fit."""
    if (folder / RELEASE_FILE).exists():
        raise FileExistsError(f"path must be a folder without a fit, and {str(folder)!r} holds {RELEASE_FILE}")
    folder.mkdir(parents=True, exist_ok=True)


def write_plan(plan: FitPlan, folder: Path, failure: str = "") -> None:
    """Write the plan, and why there is no posterior."""
    data = {"format": _FORMAT, "version": _VERSION, "plan": plan.to_dict(), "failure": failure}
    write_atomically(folder / PLAN_FILE, json.dumps(data, indent=1, allow_nan=False).encode())


def load_plan(folder: Path, model: Model | None) -> tuple[FitPlan, str]:
    """Return a saved plan, and why there is no posterior; raise ReleaseFormatError if the file is not that of a fit."""
    path = folder / PLAN_FILE
    with path.open("rb") as stream:
        content = stream.read(_LARGEST + 1)
    try:
        if len(content) > _LARGEST:
            raise ValueError("it is too large")
        data = parse_json(content)
        if data.get("format") != _FORMAT or data.get("version") != _VERSION:
            raise ValueError("it has another format or version")
        return FitPlan.from_dict(data["plan"], model=model), str(data.get("failure", ""))
    except (ValueError, KeyError) as error:
        raise ReleaseFormatError(f"{str(path)!r} is not the plan of a fit: {error}") from error


@dataclass(frozen=True)
class FitSummary:
    """A fit in words and numbers; printing it shows its text.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    guarantee : Guarantee
    choice : Choice
    posterior : str
        The posterior's summary, or why there is none.
    """

    guarantee: Guarantee
    choice: Choice
    posterior: str

    def __str__(self) -> str:
        return f"{self.guarantee}\n\n{self.choice}\n\n{self.posterior}"

    __repr__ = __str__


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit:
    """A private fit: made by :func:`dpinfer.fit`, or read by :func:`load_fit`.

    **Privacy.** Holds no records: a release, its post-processing, and public numbers.

    Parameters
    ----------
    plan : FitPlan
    release : any release
    maybe_posterior : Posterior or None
        None after a failure.
    failure : str
        Reason of a missing posterior; empty if there is one.
    """

    plan: FitPlan
    release: Release
    maybe_posterior: Posterior | None
    failure: str = ""

    @property
    def posterior(self) -> Posterior:
        """The posterior that counts the privacy noise.

        Raises NumericalError if it could not be computed; the release can be analysed again at no cost.
        """
        if self.maybe_posterior is None:
            raise NumericalError(
                f"this fit has no posterior ({self.failure}); its release is fit.release: go on with "
                "dpinfer.noise_aware_posterior(fit.release, ...), at no further cost to privacy"
            )
        return self.maybe_posterior

    @property
    def choice(self) -> Choice:
        """The table of candidate mechanisms."""
        return self.plan.choice

    @property
    def nobs(self) -> float:
        """Number of records used: the released, noisy one where a sum tells it, else the declared one."""
        used = None if self.maybe_posterior is None else self.maybe_posterior.diagnostics.records_used
        return float(self.plan.n_records if used is None else used)

    def summary(self) -> FitSummary:
        """Return guarantee, choice and posterior in words and numbers."""
        posterior = self.maybe_posterior
        words = f"no posterior: {self.failure}"
        if posterior is not None:
            words = "\n".join(filter(None, [str(posterior.summary()), found_width(self.plan, posterior)]))
        return FitSummary(self.release.guarantee, self.choice, words)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the fit as one self-contained HTML page, in place of a file of that name."""
        content = ReportContent(
            release=self.release, posterior=self.maybe_posterior, failure=self.failure, plan=self.plan
        )
        write_atomically(Path(path), render(content).encode())

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save plan, release and posterior to a folder, in place of an earlier fit's; :func:`load_fit` reads it."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.release.save(place / RELEASE_FILE)
        write_plan(self.plan, place, self.failure)
        if self.maybe_posterior is not None:
            self.maybe_posterior.save(place / POSTERIOR_FILE)
        else:
            (place / POSTERIOR_FILE).unlink(missing_ok=True)

    def __repr__(self) -> str:
        return str(self.summary())


def load_fit(folder: str | os.PathLike[str], *, model: Model | None = None) -> Fit:
    """Read a saved fit.

    **Privacy.** Reads no records.

    Raises ReleaseFormatError or PosteriorFormatError if a file is malformed.

    Parameters
    ----------
    folder : path-like
    model : Model, optional
        Needed for a model of your own that is not registered.
    """
    place = Path(folder)
    plan, failure = load_plan(place, model)
    release = load_release(place / RELEASE_FILE)
    path = place / POSTERIOR_FILE
    if path.exists():
        return Fit(plan=plan, release=release, maybe_posterior=load_posterior(path, model=model))
    return Fit(plan=plan, release=release, maybe_posterior=None, failure=failure or "it was not saved")
