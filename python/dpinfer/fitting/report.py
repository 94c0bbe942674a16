"""The report of every fit, from one place: a self-contained HTML page, with nothing from anywhere else."""

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, TypeAlias

import numpy as np

from dpinfer._sinks import html_text as _text
from dpinfer._version import __version__
from dpinfer.accounting import Guarantee
from dpinfer.accounting.guarantee import NEIGHBOURS, rounded_up
from dpinfer.diagnostics import CalibrationCurve
from dpinfer.fitting.estimates import EstimateRow, estimate_rows, estimates_table
from dpinfer.fitting.plan import FitPlan
from dpinfer.inference import Posterior
from dpinfer.inference.posterior.causes import DOMINATED, causes
from dpinfer.inference.posterior.diagnostics import in_words
from dpinfer.methods import find_method
from dpinfer.models import Model, OwnModel
from dpinfer.release import GradientTrace, Release
from dpinfer.release.newton.population import PopulationSums

Picture: TypeAlias = tuple[str, bytes, str]  # media type, content and caption
NARROW = "-narrow"  # ending of the names of pictures that repeat another one for a narrow screen

_PROPER = {"Bernoulli", "Dirichlet", "Gaussian", "Poisson"}
_OTHER_TERMS = (
    "Mu and rho state the same promise on the scales of Gaussian and zero-concentrated differential privacy, on which "
    "several releases add up. A membership attack tries to find out whether a person is in the data."
)


def page(title: str, parts: Iterable[str]) -> str:
    """Return sections of HTML as a page with the style of reports: for wide and narrow screens, dark ones, and paper.

    The title is escaped here; empty sections are left out.
    """
    style = resources.files("dpinfer.fitting").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"<footer>Written by dpinfer {_text(__version__)}.</footer>\n</main>\n</body>\n</html>\n"
    )


def promise(guarantee: Guarantee, what: str = "this page") -> str:
    """Return the guarantee in a sentence for readers of a page; HTML."""
    factor = rounded_up(math.exp(min(guarantee.epsilon, 50.0)), 3)
    slack = f", up to a probability of {guarantee.delta:g}" if guarantee.delta > 0.0 else ""
    return (
        "<p>In words: whether or not one person's record is in the data, the probability of anything that can be "
        f"concluded from {what}, or from the release behind it, changes by a factor of at most {factor}{slack}. This "
        "holds whatever else the reader knows.</p>"
    )


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values; HTML."""
    body = "".join(f"<tr>{_cells(name, value)}</tr>" for name, value in rows)
    return f'<table class="plain"><tbody>{body}</tbody></table>'


def cards(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of numbers, each row a card on a narrow screen; HTML."""
    names = [_text(head) for head in heads]
    lines = []
    for name, *texts in rows:
        cells = (f'<td data-head="{head}">{_text(text)}</td>' for head, text in zip(names[1:], texts, strict=True))
        lines.append(f"<tr><td>{_text(name)}</td>{''.join(cells)}</tr>")
    top = "".join(f"<th>{name}</th>" for name in names)
    kind = f"cards of{len(heads) - 1}"
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """The content of a report."""

    release: Release
    posterior: Posterior | None
    title: str = ""  # by default the model's name
    failure: str = ""  # why there is no posterior
    plan: FitPlan | None = None  # None if the mechanism was chosen by name, or is not known
    rows: Sequence[EstimateRow] | None = None  # by default those of the posterior, in the model's own space
    told: str = "Parameters are in the model's own units."  # a sentence about the rows
    scale: str = "the parameters"  # name of the quantities of the picture
    level: float = 0.9  # credibility of the intervals
    about: str = ""  # a line of introduction
    notes: Sequence[str] = ()  # further warnings
    calibration: CalibrationCurve | None = None  # of test records, which is shown without noise
    pictures: Mapping[str, Picture] = field(default_factory=dict)  # of the calibration, and of a gradient trace
    columns: str = ""  # HTML of a section on the columns of the table
    release_name: str = "fit.release"  # the file of the release
    in_folder: bool = False  # whether rows are in units that the release does not have, but the saved regression
    in_units: Callable[[str], str] = str  # from a text in the model's units to one in the reader's


def render(content: ReportContent) -> str:
    """Return the page.

    **Privacy.** Post-processing of a Release, and the calibration that the caller chose to show.  All text is escaped.
    """
    plan, posterior = content.plan, content.posterior
    model = _model_of(content)
    title = content.title or f"Private fit: {model}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="lead">{_text(f"Bayesian {model}, {content.release.n_params} parameters")}</p>',
        f'<p class="card">{_text(content.about)}</p>' if content.about else "",
        _guarantee(content),
    ]
    if posterior is None:
        parts += [_warnings(content), _no_estimates(content.failure)]
    else:
        rows = estimate_rows(posterior, level=content.level) if content.rows is None else content.rows
        parts += [
            _warnings(content),
            _section(_estimates(content, rows)),
            _section(_diagnostics(content, posterior)),
            _calibration(content),
        ]
    parts += [
        _section(_run(content)),
        "" if plan is None else _section(_choice(plan)),
        _section(f'<div class="scroll">{content.columns}</div>') if content.columns else "",
        _section(_reuse(content)),
    ]
    return page(title, parts)


def found_width(plan: FitPlan, posterior: Posterior) -> str:
    """Return the predicted and the estimated width; empty without a prediction."""
    if not math.isfinite(plan.predicted_width):
        return ""
    parts, prior = posterior.distribution.variance_parts(), causes(posterior)[2]
    total = parts.data + parts.privacy + parts.approximation
    weights = np.array([name != "noise_variance" for name in posterior.names])
    resolved = weights & (prior <= DOMINATED) & (parts.data > 0.0)
    came = "unknown: the prior dominates every row"
    if resolved.any():
        came = f"{np.median(np.sqrt(total[resolved] / parts.data[resolved])):.2f}"
        if posterior.diagnostics.n_unresolved:
            came = f"at least {came}: unknown along directions that the noise hides"
    predicted = plan.choice.chosen.width_text
    return f"Width over that without privacy, median parameter: predicted {predicted}, estimated {came}."


def _section(content: str) -> str:
    return f"<section>{content}</section>"


def _model_of(content: ReportContent) -> str:
    """Return the model's name as words: "linear regression"."""
    model = content.plan.model if content.plan is not None else getattr(content.posterior, "model", None)
    if isinstance(model, OwnModel):
        return model.name
    name = type(model).__name__ if isinstance(model, Model) else str(content.release.model_spec.get("kind", "model"))
    words = re.findall(r"[A-Z][a-z]*|[a-z]+", name)
    return " ".join(word if word in _PROPER else word.lower() for word in words)


def _guarantee(content: ReportContent) -> str:
    release, guarantee = content.release, content.release.guarantee
    promised = math.isfinite(guarantee.epsilon)
    sentence = f"<p><strong>{_text(guarantee)}</strong></p>"
    if len(release.parts) > 1:
        sentence += f"<p>It covers, together: {_text(', '.join(part.name for part in release.parts))}.</p>"
    if content.calibration is not None:
        sentence += (
            '<p>It does <span class="flag">not cover</span> the calibration below, which was computed from the labels '
            "of the test file without noise.</p>"
        )
    ledger = release.settings.get("ledger")
    if isinstance(ledger, Mapping):
        together = ledger.get("composed_epsilon")
        bound = (
            "" if together is None else f"epsilon {_value(together)} at delta {_value(ledger.get('composed_delta'))}"
        )
        sentence += (
            f"<p>The run was charged to the data set {_text(repr(ledger.get('dataset')))} in a privacy ledger, as "
            f"entry {_text(ledger.get('entry'))}, before the mechanism touched its records. All runs that the ledger "
            f"then counted on that data set, this one included, come to {_text(bound or 'no finite epsilon')}.</p>"
        )
    if promised:
        what = "this page" if content.calibration is None else "this page, its calibration apart"
        others = f"<p>The same in other terms:</p>{table(guarantee.terms())}<p>{_OTHER_TERMS}</p>"
        sentence += promise(guarantee, what) + others + _reach(guarantee)
    return f'<section class="guarantee{"" if promised else " none"}"><h2>Privacy guarantee</h2>{sentence}</section>'


def _reach(guarantee: Guarantee) -> str:
    """Return a picture of the power of membership attacks, in lines with the colours of the page."""
    rates = np.linspace(0.0, 1.0, 201)
    pairs = zip(rates, guarantee.true_positive_rate(rates), strict=True)
    curve = " ".join(f"{65 + 240 * wrong:.1f},{250 - 240 * right:.1f}" for wrong, right in pairs)
    ticks = "".join(
        f'<text x="{65 + 2.4 * share}" y="266" text-anchor="middle">{share}%</text>'
        f'<text x="59" y="{254 - 2.4 * share}" text-anchor="end">{share}%</text>'
        for share in (0, 50, 100)
    )
    return (
        '<figure><svg viewBox="0 0 330 290" role="img" class="reach"><rect x="65" y="10" width="240" height="240"/>'
        f'<line x1="65" y1="250" x2="305" y2="10"/><polyline points="{curve}"/>{ticks}'
        '<text x="185" y="284" text-anchor="middle">share of all others who are accused</text>'
        '<text x="14" y="130" text-anchor="middle" transform="rotate(-90 14 130)">share of those in the data who are '
        "found</text></svg>"
        "<figcaption>Attacks by somebody who knows everything except whether a person is in the data: the largest "
        "share of people in the data who are found (line), and the share by guessing (dashes).</figcaption></figure>"
    )


def _run(content: ReportContent) -> str:
    """Return the section about the run, from public numbers and the release."""
    release, plan = content.release, content.plan
    earlier = [part.name for part in release.other_parts]
    counted = "released with noise" if "number of records" in earlier else "public"
    used = None if content.posterior is None else content.posterior.diagnostics.records_used
    rows = [("Records declared" if used is not None else "Records", f"{release.n_records} ({counted})")]
    if content.posterior is not None and used is not None:
        noise = content.posterior.diagnostics.records_noise
        rows.append(("Records used", f"about {max(round(used), 0)} (privacy noise {_value(noise)})"))
    if earlier:
        rows.append(("Released before the fit", ", ".join(earlier)))
    if plan is not None:
        rows += [
            ("Mechanism", f"{plan.method}: {find_method(plan.method)[0].told}"),
            ("Passes over the records", f"{getattr(release, 'n_passes', plan.n_passes):g}"),
        ]
    rows += [("Neighbouring data sets", NEIGHBOURS[release.adjacency]), ("Accountant", release.accountant)]
    if isinstance(release, GradientTrace):
        rows += [
            ("Steps", _value(release.n_steps)),
            ("Sample rate", _value(release.sample_rate)),
            ("Noise multiplier", _value(release.noise_multiplier)),
            ("Clipping norm", _value(release.max_grad_norm)),
        ]
    scale = release.model_spec.get("prior_scale")
    rows += [] if scale is None else [("Prior standard deviation", _value(scale))]
    came = "" if plan is None or content.posterior is None else found_width(plan, content.posterior)
    width = f"<p>{_text(came)}</p>" if came else ""
    settings = [(_words(name), _value(value)) for name, value in release.settings.items() if value is not None]
    return (
        "<h2>The run</h2><p>Released: noisy sums over the records, and these public settings. No record, "
        "exact sum, loss or random seed left the mechanism. Everything else on this page was computed "
        "from the release.</p>"
        f"{width}{table(rows)}<details><summary>All settings</summary>{table(settings)}</details>"
    )


def _choice(plan: FitPlan) -> str:
    rows = []
    for item in plan.choice.candidates:
        passes = f"{item.n_passes:.3g}" if math.isfinite(item.n_passes) else ""
        mark = "* " if item.chosen else ""
        rows.append(f"<tr>{_cells(mark + item.method, item.width_text, passes, item.reason)}</tr>")
    assumed = "; ".join(plan.choice.assumes)
    return (
        "<h2>Choice of the mechanism</h2><p>Made before a record was read. Width: predicted 90% interval of the median "
        f"parameter over that without privacy, from public numbers alone. Assumed: {_text(assumed)}.</p>"
        '<div class="scroll"><table class="words"><thead><tr><th>Mechanism</th><th>Width</th><th>Passes</th>'
        f"<th>Why</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _warnings(content: ReportContent) -> str:
    notes = list(content.notes)
    if content.posterior is not None:
        diagnostics = content.posterior.diagnostics
        notes += [message for message in content.posterior.summary().warnings if message not in notes]
        if diagnostics.warnings or diagnostics.n_unresolved:
            notes += diagnostics.verdict.splitlines()[-1:]
    items = "".join(f"<li>{_text(content.in_units(message))}</li>" for message in notes)
    return f'<section class="warning"><h2>Warnings</h2><ul>{items}</ul></section>' if items else ""


def _diagnostics(content: ReportContent, posterior: Posterior) -> str:
    """Return how far the numbers can be relied on: in words, then in numbers."""
    error, known = posterior.summary().monte_carlo, posterior.diagnostics
    lines = known.verdict.splitlines()
    if error is None or not error.drawn:
        lines.insert(0, "The posterior was computed without random draws.")
    elif not any(line.startswith("Monte Carlo error") for line in lines):
        worst = float(np.max(np.asarray(error.quantile) / posterior.stddev))
        lines.insert(0, f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a standard deviation.")
    of_the_model = "Intervals hold if the model does. Checks see some wrong models, and not all"
    if isinstance(content.release, PopulationSums):
        of_the_model = "Checks see some runs with intervals that are too narrow, and not all"
    lines.append(f"{of_the_model}: compare the fit with public or simulated data of the same kind.")
    numbers = [("Method", posterior.method), ("Computed", posterior.computed)]
    if posterior.computed != "plug-in":
        curvature = [] if posterior.hessian == "none" else [("Curvature", posterior.hessian)]
        numbers += [*curvature, ("Prior", posterior.prior)]
    texts = ("verdict", "warnings", "fallback")
    numbers += [(_words(name), _value(value)) for name, value in known.to_dict().items() if name not in texts]
    pair = "".join(_figure(content, name) for name in ("gradients-clear", "gradients-noisy"))
    return (
        "<h2>Diagnostics</h2>"
        + "".join(f"<p>{_text(content.in_units(line))}</p>" for line in lines)
        + f"<details><summary>In numbers</summary>{table(numbers)}</details>{_figure(content, 'trace')}"
        + (f'<div class="pair">{pair}</div>' if pair else "")
    )


def _estimates(content: ReportContent, rows: Sequence[EstimateRow]) -> str:
    return (
        f"<h2>Estimates</h2><p>{_text(content.told)} Records, privacy and prior are shares of the variance, due to "
        "sampling error, to the privacy noise, and to the prior alone.</p>"
        + estimates_table(rows, level=content.level, scale=content.scale)
    )


def _calibration(content: ReportContent) -> str:
    curve = content.calibration
    if curve is None:
        return ""
    pictures = "".join(_figure(content, name) for name in ("calibration", "calibration-error"))
    return (
        '<section><h2>Calibration on the test records</h2><p class="flag">Computed from the labels of the test file '
        "without noise: the guarantee above does not cover it. Publish it only if those labels are public.</p>"
        f"<p>Root mean square error over {curve.n_bins} bins: {curve.rmse:.4f} "
        f"(perfect predictions would give about {curve.rmse_floor:.4f}).</p>"
        f'<div class="pair">{pictures}</div></section>'
    )


def _reuse(content: ReportContent) -> str:
    if content.in_folder:
        code = (
            "import dpinfer as dpi\n\n"
            'fit = dpi.load_regression("FOLDER")  # that fit.save or path= wrote: coefficients in the table\'s units\n'
            "fit.summary()"
        )
    else:
        code = (
            "import dpinfer as dpi\n\n"
            f"release = dpi.load_release({json.dumps(content.release_name)})\n"
            "posterior = dpi.noise_aware_posterior(release)\n"
            "posterior.summary()"
        )
    return (
        "<h2>Use it again</h2><p>The release can be analysed again by anyone, in any way, at no further cost "
        f"to privacy:</p><pre>{_text(code)}</pre>"
    )


def _words(name: object) -> str:
    return str(name).replace("_", " ").capitalize()


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(item)}" for key, item in value.items())
    return in_words(value)


def _figure(content: ReportContent, name: str) -> str:
    if name not in content.pictures:
        return ""
    media, data, caption = content.pictures[name]
    image = f'<img alt="{_text(caption)}" src="{_embedded(media, data)}">'
    if name + NARROW in content.pictures:
        media, data, _ = content.pictures[name + NARROW]
        image = f'<picture><source media="(max-width: 40rem)" srcset="{_embedded(media, data)}">{image}</picture>'
    return f"<figure>{image}<figcaption>{_text(caption)}.</figcaption></figure>"


def _embedded(media: str, data: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode('ascii')}"


def _no_estimates(failure: str) -> str:
    return (
        f'<section class="warning"><h2>Estimates</h2><p>There is no posterior: {_text(failure)}. The release is paid '
        "for and can be analysed again at no further cost to privacy.</p></section>"
    )


def _cells(*texts: str) -> str:
    return "".join(f"<td>{_text(text)}</td>" for text in texts)
