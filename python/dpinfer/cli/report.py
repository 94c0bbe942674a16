"""A fit as one self-contained HTML page: no script, no font, no picture from anywhere else."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dpinfer._sinks import html_text as _text
from dpinfer.cli.pictures import NARROW, Picture
from dpinfer.cli.summary import SummaryRow
from dpinfer.diagnostics import CalibrationCurve
from dpinfer.fitting.report import guarantee_in_other_terms, page, promise, table
from dpinfer.inference import Posterior
from dpinfer.inference.posterior.diagnostics import in_words
from dpinfer.release import Release, SumsOfPasses

__all__ = ["AnalysedRelease", "ReportContent", "render"]

AnalysedRelease: TypeAlias = Release | SumsOfPasses


_DIAGNOSTICS = {
    "noise_ratio": "Noise found in the gradients, relative to the known privacy noise",
    "slope_score": "Slope of the fitted line, in standard errors",
    "linearity_pvalue": "p-value of the linear model",
    "n_steps_used": "Steps used, after the burn-in",
    "effective_weight": "Steps used, weighted by their precision",
    "burn_in_holds": "Linear from the burn-in on",
    "verdict": "Verdict on the trace",
    "share_dropped": "Share of curvature draws dropped",
}


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """Everything the page shows.

    Parameters
    ----------
    title, release_name : str
    release : Release or SumsOfPasses
    posterior : Posterior
    rows : list of SummaryRow
    level : float
        Credibility of the intervals in `rows`.
    warnings : sequence of str
    calibration : CalibrationCurve or None
    pictures : mapping from name to (media type, content, caption)
    about : str
        A line of introduction; empty for none.
    """

    title: str
    release_name: str
    release: AnalysedRelease
    posterior: Posterior
    rows: list[SummaryRow]
    level: float
    warnings: Sequence[str]
    calibration: CalibrationCurve | None
    pictures: Mapping[str, Picture]
    about: str = ""


def render(content: ReportContent) -> str:
    """Return the page.

    **Privacy.** Post-processing of a Release, and the calibration that the caller chose to show.  All text is escaped.

    Parameters
    ----------
    content : ReportContent

    Returns
    -------
    str
    """
    return page(
        content.title,
        [
            f"<h1>{_text(content.title)}</h1>",
            f'<p class="lead">{_text(_headline(content))}</p>',
            f'<p class="card">{_text(content.about)}</p>' if content.about else "",
            _guarantee(content),
            _warnings(content),
            _released(content.release),
            _estimates(content),
            _diagnostics(content),
            _calibration(content),
            _settings(content),
            _reuse(content.release_name),
        ],
    )


def _headline(content: ReportContent) -> str:
    release = content.release
    model = str(release.model_spec.get("kind", "model"))
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in model).strip()
    made = (
        f"{release.n_steps:,} private steps" if isinstance(release, Release) else f"{release.n_passes} private passes"
    )
    return f"Bayesian {words}, {release.n_params} parameters, {made}"


def _guarantee(content: ReportContent) -> str:
    release, guarantee = content.release, content.release.guarantee
    promised = math.isfinite(guarantee.epsilon)
    lines = [f"<strong>{_text(guarantee)}</strong>"]
    if len(release.parts) > 1:
        lines.append(f"It covers, together: {_text(', '.join(part.name for part in release.parts))}.")
    if content.calibration is not None:
        lines.append(
            'It does <span class="flag">not cover</span> the calibration below, which was computed from the labels of '
            "the test file without noise."
        )
    ledger = release.settings.get("ledger")
    if isinstance(ledger, Mapping):
        together = ledger.get("composed_epsilon")
        bound = (
            "" if together is None else f"epsilon {_value(together)} at delta {_value(ledger.get('composed_delta'))}"
        )
        lines.append(
            f"The run was charged to the data set {_text(repr(ledger.get('dataset')))} in a privacy ledger, as entry "
            f"{_text(ledger.get('entry'))}, before the mechanism touched its records. All runs that the ledger "
            f"then counted on that data set, this one included, come to {_text(bound or 'no finite epsilon')}."
        )
    paragraphs = "".join(f"<p>{line}</p>" for line in lines)
    if promised:
        what = "this page" if content.calibration is None else "this page, its calibration apart"
        paragraphs += promise(guarantee, what) + guarantee_in_other_terms(guarantee)
    return (
        f'<section class="guarantee{"" if promised else " none"}"><h2>Privacy guarantee</h2>{paragraphs}'
        f"{_figure(content, 'trade-off')}</section>"
    )


def _warnings(content: ReportContent) -> str:
    if not content.warnings:
        return ""
    items = "".join(f"<li>{_text(message)}</li>" for message in content.warnings)
    return f'<section class="warning"><h2>Warnings</h2><ul>{items}</ul></section>'


def _released(release: AnalysedRelease) -> str:
    if not isinstance(release, Release):
        text = (
            f"The noisy sums of all {release.n_passes} passes over the records, and the public settings below. Each "
            "pass bounded what one record adds, summed over all records and added Gaussian noise before anything was "
            "looked at. No record, exact sum, loss or random seed left the mechanism. The estimates and pictures were "
            "computed from that release alone."
        )
        return f"<section><h2>What was released</h2><p>{text}</p></section>"
    size = release.noisy_gradients.shape[1]
    text = (
        f"The noisy gradients of all {release.n_steps:,} steps, {size} numbers in each, and the public settings below."
    )
    if release.settings.get("mechanism") == "dpvi":
        text += (
            " Each step summed the clipped gradients of a random sample of the records and added Gaussian noise before "
            "anything was looked at. No record, exact gradient, loss, share of clipped gradients or random seed left "
            "the mechanism."
        )
    text += " The estimates and pictures were computed from that release alone."
    return f"<section><h2>What was released</h2><p>{text}</p></section>"


def _estimates(content: ReportContent) -> str:
    with_reference = any(row.reference is not None for row in content.rows)
    head = [
        "Parameter",
        "Mean",
        "Sd",
        f"{content.level:.0%} interval",
        "Privacy",
        "Approx.",
    ]
    head += ["Reference"] if with_reference else []
    body = []
    for row in content.rows:
        remark = f' <span class="flag">{_text(row.flag)}</span>' if row.flag else ""
        cells = [
            _text(row.name).replace("=", "=<wbr>") + remark,
            f"{row.mean:.3f}",
            f"{row.stddev:.3f}",
            f"[{row.low:.3f}, {row.high:.3f}]",
            f'<span class="bar"><span style="width:{100.0 * row.privacy:.0f}%"></span></span>{row.privacy:.0%}',
            f"{row.approximation:.0%}",
        ]
        if row.reference is not None:
            mark = "" if row.covers else ' <span class="flag">outside</span>'
            cells.append(f"{row.reference:.3f}{mark}")
        elif with_reference:
            cells.append("")
        body.append("".join(f"<td>{cell}</td>" for cell in cells))
    rows = "".join(f"<tr>{cells}</tr>" for cells in body)
    heads = "".join(f"<th>{_text(name)}</th>" for name in head)
    return (
        "<section><h2>Estimates</h2><p>The intervals count both what the records leave open and the noise that privacy "
        "added. The columns Privacy and Approx. say what share of the variance that noise is responsible for, "
        "directly and because it leaves the curvature of the loss uncertain.</p>"
        f"{_figure(content, 'posterior')}"
        f'<div class="scroll"><table class="numbers"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        "</section>"
    )


def _diagnostics(content: ReportContent) -> str:
    posterior, release = content.posterior, content.release
    rows: list[tuple[str, str]] = [("Method", posterior.method)]
    if posterior.method not in ("naive", "averaged"):
        rows += [("Curvature", posterior.hessian), ("Prior of the trace model", posterior.prior)]
    rows += [
        (_DIAGNOSTICS.get(name, name.replace("_", " ").capitalize()), _value(value))
        for name, value in posterior.diagnostics.to_dict().items()
    ]
    trace = isinstance(release, Release)
    if isinstance(release, Release):
        rows.append(("Steps released", str(release.n_steps)))
    else:
        rows.append(("Passes released", str(release.n_passes)))
    pictures = "".join(_figure(content, name) for name in ("gradients-clear", "gradients-noisy"))
    return (
        "<section><h2>Diagnostics</h2><p>The posterior rests on one assumption: near the optimum the gradient is "
        "linear in the parameters, with the known privacy noise around the line."
        f"{' The averages in the pictures should follow the line.' if trace else ''}</p>"
        f"{table(rows)}{_figure(content, 'trace')}"
        + (f'<div class="pair">{pictures}</div>' if pictures else "")
        + "</section>"
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


def _settings(content: ReportContent) -> str:
    release = content.release
    rows: list[tuple[str, object]] = [
        ("Records (public number)", release.n_records),
        *_settings_of_trace(release),
        ("Adjacency", release.adjacency.value.replace("_", " ")),
        ("Delta", release.delta),
        ("Accountant", release.accountant),
        ("Prior standard deviation", release.model_spec.get("prior_scale")),
        *((str(name).replace("_", " ").capitalize(), value) for name, value in release.settings.items()),
    ]
    shown = [(name, _value(value)) for name, value in rows if value is not None]
    return f"<section><h2>Settings</h2>{table(shown)}</section>"


def _settings_of_trace(release: AnalysedRelease) -> list[tuple[str, object]]:
    if not isinstance(release, Release):
        return [("Passes", release.n_passes)]
    return [
        ("Steps", release.n_steps),
        ("Sample rate", release.sample_rate),
        ("Noise multiplier", release.noise_multiplier),
        ("Clipping norm", release.max_grad_norm),
        ("Gradients", release.gradient),
    ]


def _reuse(release_name: str) -> str:
    code = (
        "import dpinfer as dpi\n\n"
        f"release = dpi.load_release({json.dumps(release_name)})\n"
        'posterior = dpi.noise_aware_posterior(release, method="exact")\n'
        "posterior.summary()"
    )
    return (
        "<section><h2>Use it again</h2><p>The release can be analysed again by anyone, in any way, at no further cost "
        f"to privacy:</p><pre>{_text(code)}</pre></section>"
    )


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
