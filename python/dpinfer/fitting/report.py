"""A fit as one self-contained HTML page: no script, no font, no picture from anywhere else."""

import math
from collections.abc import Iterable
from importlib import resources

import numpy as np

from dpinfer._sinks import html_text as _text
from dpinfer._version import __version__
from dpinfer.accounting import Guarantee
from dpinfer.fitting.plan import FitPlan
from dpinfer.inference import Posterior
from dpinfer.release import AnyRelease

__all__ = ["page", "render"]


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


def render(
    plan: FitPlan, release: AnyRelease, posterior: Posterior | None, failure: str, *, first: str = "", last: str = ""
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
    first, last : str
        HTML of a section before the estimates, and of one at the end.
    """
    title = f"Private fit of a {type(plan.model).__name__}"
    return page(
        title,
        [
            f"<h1>{_text(title)}</h1>",
            _guarantee(release),
            f'<section><div class="scroll">{first}</div></section>' if first else "",
            _no_estimates(failure) if posterior is None else _estimates(posterior),
            _choice(plan),
            f'<section><div class="scroll">{last}</div></section>' if last else "",
        ],
    )


def _guarantee(release: AnyRelease) -> str:
    guarantee = release.guarantee
    promised = math.isfinite(guarantee.epsilon)
    rows = "".join(f"<tr>{_cells(*term)}</tr>" for term in guarantee.terms()) if promised else ""
    terms = f'<p>The same in other terms:</p><table class="plain"><tbody>{rows}</tbody></table>' if rows else ""
    return (
        f'<section class="guarantee{"" if promised else " none"}"><h2>Privacy guarantee</h2>'
        f"<p><strong>{_text(guarantee)}</strong></p>{terms}{_reach(guarantee) if promised else ''}</section>"
    )


def _reach(guarantee: Guarantee) -> str:
    """Return a picture of what a membership attack can reach, in lines that follow the colours of the page."""
    rates = np.linspace(0.0, 1.0, 51)
    pairs = zip(rates, guarantee.true_positive_rate(rates), strict=True)
    curve = " ".join(f"{50 + 240 * wrong:.1f},{250 - 240 * right:.1f}" for wrong, right in pairs)
    ticks = "".join(
        f'<text x="{50 + 2.4 * share}" y="266" text-anchor="middle">{share}%</text>'
        f'<text x="44" y="{254 - 2.4 * share}" text-anchor="end">{share}%</text>'
        for share in (0, 50, 100)
    )
    return (
        '<figure><svg viewBox="0 0 310 290" role="img" class="reach"><rect x="50" y="10" width="240" height="240"/>'
        f'<line x1="50" y1="250" x2="290" y2="10"/><polyline points="{curve}"/>{ticks}'
        '<text x="170" y="284" text-anchor="middle">share of all others who are accused</text></svg>'
        "<figcaption>What an attacker can reach who knows everything but whether a person is in the data: the share of "
        "those in the data who are found, at most (line), and by guessing (dashes).</figcaption></figure>"
    )


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
        "<section><h2>Choice of the mechanism</h2><p>Width: predicted 90% interval of the median parameter over that "
        f"without privacy, from public numbers alone. Assumed: {_text(assumed)}.</p>"
        '<div class="scroll"><table class="words"><thead><tr><th>Mechanism</th><th>Width</th><th>Passes</th>'
        f"<th>Why</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _estimates(posterior: Posterior) -> str:
    summary = posterior.summary()
    low, high = posterior.quantile([0.05, 0.95])
    shares = posterior.decompose().shares
    rows = []
    for index, name in enumerate(posterior.names):
        numbers = (posterior.mean[index], posterior.stddev[index], low[index], high[index])
        privacy = f"{float(np.asarray(shares)[1, index]):.0%}"
        rows.append(f"<tr>{_cells(name, *(f'{value:.4g}' for value in numbers), privacy, summary.flags[index])}</tr>")
    warned = "".join(f"<li>{_text(message)}</li>" for message in summary.warnings)
    note = f'<section class="warning"><h2>Warnings</h2><ul>{warned}</ul></section>' if warned else ""
    return (
        f"{note}<section><h2>Estimates</h2><p>The intervals count what the records leave open and the noise that "
        "privacy added; the column Privacy says what share of the variance is that noise's.</p>"
        '<div class="scroll"><table class="words"><thead><tr><th>Parameter</th><th>Mean</th><th>Sd</th><th>5%</th>'
        f"<th>95%</th><th>Privacy</th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _no_estimates(failure: str) -> str:
    return (
        f'<section class="warning"><h2>Estimates</h2><p>There is no posterior: {_text(failure)}. The release is paid '
        "for and can be analysed again at no further cost to privacy.</p></section>"
    )


def _cells(*texts: str) -> str:
    return "".join(f"<td>{_text(text)}</td>" for text in texts)
