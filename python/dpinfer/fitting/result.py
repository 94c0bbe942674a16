"""The result of a fit: release, posterior and plan, with methods to save and show them."""

import os
from dataclasses import dataclass
from pathlib import Path

from dpinfer.accounting import Guarantee
from dpinfer.errors import NumericalError
from dpinfer.fitting.choice import Choice
from dpinfer.fitting.files import POSTERIOR_FILE, RELEASE_FILE, load_plan, write_plan
from dpinfer.fitting.plan import FitPlan
from dpinfer.fitting.report import ReportContent, found_width, render
from dpinfer.inference import Posterior, load_posterior
from dpinfer.models import Model
from dpinfer.release import Release, load_release
from dpinfer.release.files import write_atomically


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

        Raises
        ------
        NumericalError
            If it could not be computed; the release can be analysed again at no cost.
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

    def summary(self) -> FitSummary:
        """Return guarantee, choice and posterior in words and numbers."""
        posterior = self.maybe_posterior
        words = f"no posterior: {self.failure}"
        if posterior is not None:
            words = "\n".join(filter(None, [str(posterior.summary()), found_width(self.plan, posterior)]))
        return FitSummary(self.release.guarantee, self.choice, words)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the fit as one self-contained HTML page.

        Parameters
        ----------
        path : path-like
            Replaced if it exists.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        content = ReportContent(
            release=self.release, posterior=self.maybe_posterior, failure=self.failure, plan=self.plan
        )
        write_atomically(Path(path), render(content).encode())

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save plan, release and posterior to a folder; :func:`load_fit` reads it.

        Parameters
        ----------
        folder : path-like
            Made if it is not there; files of an earlier fit are replaced.

        Raises
        ------
        OSError
            If it cannot be written.
        """
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

    Parameters
    ----------
    folder : path-like
    model : Model, optional
        Needed for a model of your own that is not registered.

    Raises
    ------
    OSError
        If a file cannot be read.
    ReleaseFormatError, PosteriorFormatError
        If a file is malformed.
    """
    place = Path(folder)
    plan, failure = load_plan(place, model)
    release = load_release(place / RELEASE_FILE)
    path = place / POSTERIOR_FILE
    if path.exists():
        return Fit(plan=plan, release=release, maybe_posterior=load_posterior(path, model=model))
    return Fit(plan=plan, release=release, maybe_posterior=None, failure=failure or "it was not saved")
