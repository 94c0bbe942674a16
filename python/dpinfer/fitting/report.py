"""A fit as one self-contained HTML page: no script, no font, no picture from anywhere else."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import numpy as np

from dpinfer._sinks import html_text as _text
from dpinfer._version import __version__
from dpinfer.accounting import Guarantee
from dpinfer.accounting.guarantee import NEIGHBOURS, rounded_up
from dpinfer.fitting.plan import FitPlan
from dpinfer.inference import Posterior
from dpinfer.models import Model, OwnModel
from dpinfer.release import AnyRelease

__all__ = ["cards", "guarantee_in_other_terms", "page", "promise", "render", "table"]

_METHODS = {
    "newton": "a few noisy sums over all records",
    "statistic": "one noisy statistic of all records",
    "dpvi": "noisy gradients of many steps",
    "sep": "noisy sites of many steps",
}
_PROPER = {"Bernoulli", "Dirichlet", "Gaussian", "Poisson"}
_OTHER_TERMS = (
    "Mu and rho state the same promise on the scales of Gaussian and zero-concentrated differential privacy, on which "
    "several releases add up. A membership attack wants to know whether a person is in the data."
)


def page(title: str, parts: Iterable[str]) -> str:
    """Return sections as a page with the style of reports: for wide and narrow screens, dark ones, and paper.

    **Privacy.** Reads no records.

    Parameters
    ----------
    title : str
        Escaped here.
    parts : iterable of str
        HTML; empty ones are left out.
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
    """Return what the guarantee promises, in a sentence for readers of a page; HTML."""
    factor = rounded_up(math.exp(min(guarantee.epsilon, 50.0)), 3)
    slack = f", up to a probability of {guarantee.delta:g}" if guarantee.delta > 0.0 else ""
    return (
        "<p>In words: whether or not one person's record is in the data, the probability of anything that can be "
        f"concluded from {what}, or from the release behind it, changes by a factor of at most {factor}{slack}. This "
        "holds whatever else the reader knows.</p>"
    )


def guarantee_in_other_terms(guarantee: Guarantee) -> str:
    """Return the guarantee in other terms, with what they mean; HTML."""
    return f"<p>The same in other terms:</p>{table(guarantee.terms())}<p>{_OTHER_TERMS}</p>"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and what they are; HTML."""
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


def render(
    plan: FitPlan,
    release: AnyRelease,
    posterior: Posterior | None,
    failure: str,
    *,
    title: str = "",
    estimates: str = "",
    last: str = "",
) -> str:
    """Return the page.

    **Privacy.** Post-processing of a Release.  All text is escaped.

    Parameters
    ----------
    plan : FitPlan
    release : any release
    posterior : Posterior or None
    failure : str
        Why there is no posterior.
    title : str
        By default the model's.
    estimates : str
        HTML of a section with the estimates in the user's units; those of `posterior` then come after it.
    last : str
        HTML of a section at the end.
    """
    title = title or f"Private fit: {_model_name(plan.model)}"
    own = '<div class="scroll">{}</div>'.format
    parts = [f"<h1>{_text(title)}</h1>", _guarantee(release)]
    if posterior is None:
        parts.append(_no_estimates(failure))
    else:
        parts += [
            _warnings(posterior),
            _section(own(estimates)) if estimates else _section(_estimates(posterior)),
            _section(_diagnostics(posterior)),
            _section(_scaled_estimates(posterior)) if estimates else "",
        ]
    parts += [_section(_run(plan, release)), _section(_choice(plan)), _section(own(last)) if last else ""]
    return page(title, parts)


def _section(content: str) -> str:
    return f"<section>{content}</section>"


def _model_name(model: Model) -> str:
    """Return the model's name as words: "linear regression"."""
    if isinstance(model, OwnModel):
        return model.name
    words = re.findall(r"[A-Z][a-z]*", type(model).__name__)
    return " ".join(word if word in _PROPER else word.lower() for word in words)


def _guarantee(release: AnyRelease) -> str:
    guarantee = release.guarantee
    promised = math.isfinite(guarantee.epsilon)
    said = promise(guarantee) + guarantee_in_other_terms(guarantee) + _reach(guarantee) if promised else ""
    return (
        f'<section class="guarantee{"" if promised else " none"}"><h2>Privacy guarantee</h2>'
        f"<p><strong>{_text(guarantee)}</strong></p>{said}</section>"
    )


def _reach(guarantee: Guarantee) -> str:
    """Return a picture of what a membership attack can reach, in lines that follow the colours of the page."""
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
        "<figcaption>What an attacker can reach who knows everything but whether a person is in the data: the share of "
        "those in the data who are found, at most (line), and by guessing (dashes).</figcaption></figure>"
    )


def _run(plan: FitPlan, release: AnyRelease) -> str:
    """Return what the run was, from public numbers and the release."""
    released = [part.name for part in release.other_parts]
    counted = "released with noise" if "number of records" in released else "public"
    rows = [
        ("Records", f"{plan.n_records} ({counted})"),
        ("Mechanism", f"{plan.method}: {_METHODS[plan.method]}"),
        ("Passes over the records", f"{plan.n_passes:g}"),
        ("Neighbouring data sets", NEIGHBOURS[release.adjacency]),
        ("Accountant", release.accountant),
    ]
    if released:
        rows.insert(1, ("Released before the fit", ", ".join(released)))
    ledger = release.settings.get("ledger")
    if isinstance(ledger, Mapping):
        rows.append(("Ledger", f"entry {ledger.get('entry')} of the data set {ledger.get('dataset')!r}"))
    return f"<h2>The run</h2>{table(rows)}"


def _choice(plan: FitPlan) -> str:
    rows = []
    for item in plan.choice.candidates:
        width, passes = (
            f"{value:.3g}" if math.isfinite(value) else "" for value in (item.predicted_width, item.n_passes)
        )
        mark = "* " if item.chosen else ""
        rows.append(f"<tr>{_cells(mark + item.method, width, passes, item.reason)}</tr>")
    assumed = "; ".join(plan.choice.assumes)
    return (
        "<h2>Choice of the mechanism</h2><p>Made before a record was read. Width: predicted 90% interval of the median "
        f"parameter over that without privacy, from public numbers alone. Assumed: {_text(assumed)}.</p>"
        '<div class="scroll"><table class="words"><thead><tr><th>Mechanism</th><th>Width</th><th>Passes</th>'
        f"<th>Why</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _warnings(posterior: Posterior) -> str:
    told = list(posterior.summary().warnings)
    if posterior.diagnostics.warnings or posterior.diagnostics.n_unresolved:
        told += posterior.diagnostics.verdict.splitlines()[-1:]
    items = "".join(f"<li>{_text(message)}</li>" for message in told)
    return f'<section class="warning"><h2>Warnings</h2><ul>{items}</ul></section>' if items else ""


def _diagnostics(posterior: Posterior) -> str:
    """Return how far the numbers can be relied on, in words."""
    error = posterior.monte_carlo_error([0.05, 0.95])
    lines = posterior.diagnostics.verdict.splitlines()
    if not error.drawn:
        lines.insert(0, "The posterior was computed without random draws.")
    elif not any(line.startswith("Monte Carlo error") for line in lines):
        worst = float(np.max(np.asarray(error.quantile) / posterior.stddev))
        lines.insert(0, f"Monte Carlo error of the 5% and 95% quantiles: at most {worst:.1%} of a standard deviation.")
    lines.append(
        "Intervals hold if the model does. Checks see some wrong models, and not all: compare the fit with public or "
        "simulated data of the same kind."
    )
    return "<h2>Diagnostics</h2>" + "".join(f"<p>{_text(line)}</p>" for line in lines)


def _estimates(posterior: Posterior) -> str:
    return (
        "<h2>Estimates</h2><p>The intervals count what the records leave open and the noise that privacy added; the "
        f"column privacy says what share of the variance is that noise's.</p>{_parameters(posterior)}"
    )


def _scaled_estimates(posterior: Posterior) -> str:
    return (
        "<h2>The same in scaled units</h2><p>The units that prior and noise are stated in: columns are centred, and "
        f"divided by public scales.</p>{_parameters(posterior)}"
    )


def _parameters(posterior: Posterior) -> str:
    summary = posterior.summary()
    flagged = any(summary.flags)
    rows = []
    for index, name in enumerate(posterior.names):
        numbers = (posterior.mean[index], posterior.stddev[index], summary.lower[index], summary.upper[index])
        cells = [name, *(f"{value:.4g}" for value in numbers), f"{summary.privacy_share[index]:.0%}"]
        rows.append(cells + [summary.flags[index]] * flagged)
    return cards(["parameter", "mean", "sd", "5%", "95%", "privacy"] + ["remark"] * flagged, rows)


def _no_estimates(failure: str) -> str:
    return (
        f'<section class="warning"><h2>Estimates</h2><p>There is no posterior: {_text(failure)}. The release is paid '
        "for and can be analysed again at no further cost to privacy.</p></section>"
    )


def _cells(*texts: str) -> str:
    return "".join(f"<td>{_text(text)}</td>" for text in texts)
