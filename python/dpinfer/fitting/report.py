"""A fit as one self-contained HTML page: no script, no font, no picture from anywhere else."""

import math

import numpy as np

from dpinfer._sinks import html_text as _text
from dpinfer._version import __version__
from dpinfer.fitting.plan import FitPlan
from dpinfer.inference import Posterior
from dpinfer.release import AnyRelease

__all__ = ["render"]

_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2733; margin: 2rem auto; max-width: 58rem; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem;
border-bottom: 1px solid #dde3ea } .guarantee, .warning { padding: .6rem 1rem; border-left: 4px solid #2f6f4f;
background: #f0f6f2 } .warning { border-color: #b3541e; background: #fbf1ea } .chosen { font-weight: 600 }
"""


def render(plan: FitPlan, release: AnyRelease, posterior: Posterior | None, failure: str, *, first: str = "") -> str:
    """Return the page.

    **Privacy.** Post-processing of a Release.  All text is escaped.

    Parameters
    ----------
    plan : FitPlan
    release : any release
    posterior : Posterior or None
    failure : str
        Why there is no posterior.
    first : str
        HTML of a section that comes before the others.
    """
    title = f"Private fit of a {type(plan.model).__name__}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="guarantee">{_text(release.guarantee)}</p>',
        first,
        _choice(plan),
        _no_estimates(failure) if posterior is None else _estimates(posterior),
        f"<footer>Written by dpinfer {_text(__version__)}.</footer>",
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _choice(plan: FitPlan) -> str:
    rows = []
    for item in plan.choice.candidates:
        width, passes = (
            f"{value:.3g}" if math.isfinite(value) else "" for value in (item.predicted_width, item.n_passes)
        )
        kind = ' class="chosen"' if item.chosen else ""
        rows.append(f"<tr{kind}>{_cells(item.method, width, passes, item.reason)}</tr>")
    assumed = "; ".join(plan.choice.assumes)
    return (
        "<h2>Choice of the mechanism</h2><p>Width: predicted 90% interval of the median parameter over that without "
        f"privacy, from public numbers alone. Assumed: {_text(assumed)}.</p><table><tr><th>Mechanism</th><th>Width</th>"
        f"<th>Passes</th><th>Why</th></tr>{''.join(rows)}</table>"
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
    note = f'<div class="warning"><ul>{warned}</ul></div>' if warned else ""
    return (
        "<h2>Estimates</h2><p>The intervals count what the records leave open and the noise that privacy added; the "
        "column Privacy says what share of the variance is that noise's.</p>"
        f"{note}<table><tr><th>Parameter</th><th>Mean</th><th>Sd</th><th>5%</th><th>95%</th><th>Privacy</th><th></th>"
        f"</tr>{''.join(rows)}</table>"
    )


def _no_estimates(failure: str) -> str:
    return (
        f'<h2>Estimates</h2><p class="warning">There is no posterior: {_text(failure)}. The release is paid for and '
        "can be analysed again at no further cost to privacy.</p>"
    )


def _cells(*texts: str) -> str:
    return "".join(f"<td>{_text(text)}</td>" for text in texts)
