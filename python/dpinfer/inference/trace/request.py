"""What can be asked of a gradient trace."""

from dpinfer._validate import check_integer
from dpinfer.inference.request import PLUG_INS, ReleaseFacts, TraceRequest, parse_burn_in
from dpinfer.inference.trace.priors import TracePrior
from dpinfer.models import OwnModel


def check_trace_request(request: TraceRequest, facts: ReleaseFacts) -> None:
    """Refuse what the trace does not answer.

    Raises TypeError or ValueError if the settings do not fit each other or the trace; the message names the argument.
    """
    if not isinstance(facts, ReleaseFacts):
        raise TypeError("release must be a GradientTrace or its ReleaseFacts: what it answers depends on its noise")
    asked = request.resolve(facts)
    if request.approximation == "simulated":
        _check_simulated(asked, facts)
    else:
        _check_combination(asked, facts)
        if not request.left_to_trace(facts):
            _check_sampling(asked)
    if request.approximation != "naive":
        parse_burn_in(request.burn_in, facts.n_steps)
    if request.approximation in PLUG_INS:
        return
    if isinstance(request.prior, TracePrior):
        request.prior.broadcast(facts.width(asked.hessian))
    if asked.hessian == "diagonal" and asked.prior == "model" and (facts.model is None or facts.n_records is None):
        raise ValueError("prior 'model' needs a release with a model and a public n_records")


def _check_combination(request: TraceRequest, facts: ReleaseFacts) -> None:
    hessian, prior = request.hessian, request.prior
    if hessian != "diagonal" and request.approximation != "exact":
        raise ValueError(f"approximation must be 'exact' with hessian={hessian!r}, got {request.approximation!r}")
    if hessian == "full" and prior == "model" and not facts.has_model_hessian:
        raise ValueError(
            "prior must be 'weak' with hessian='full' unless the release names a generalised linear model and "
            "n_records, and has reparameterised gradients with constant noise (linear regression: the same for all "
            "weights up to a factor of the step)"
        )
    if hessian == "full" and prior not in ("weak", "model"):
        raise ValueError("prior must be 'model' or 'weak' with hessian='full'")
    if hessian != "tied":
        return
    if facts.family != "mean_field" or not (facts.gradient == "reparameterised" or facts.fisher_scaled):
        raise ValueError(
            "hessian='tied' needs a release with family 'mean_field' and, without Fisher scaling, gradient "
            f"'reparameterised', got {facts.family!r} and {facts.gradient!r}"
        )
    if facts.fisher_scaled and prior not in ("weak", "model"):
        raise ValueError("prior must be 'weak' or 'model' for the tied posterior of a Fisher-scaled run")


def _check_simulated(request: TraceRequest, facts: ReleaseFacts) -> None:
    if not isinstance(facts.model, OwnModel) or facts.gradient != "aligned" or facts.noise != "constant":
        raise ValueError(
            "approximation='simulated' needs aligned gradients with a constant preconditioner, and a model of your own"
        )
    if not facts.model.has_sampler:
        raise ValueError("approximation='simulated' needs model=, the model of the run with its sampler")
    if request.hessian != "diagonal" or request.prior not in ("auto", "weak"):
        raise ValueError("hessian and prior must be left at their defaults with approximation='simulated'")
    if request.n_samples is not None:
        check_integer("n_samples", request.n_samples, 100)


def _check_sampling(request: TraceRequest) -> None:
    if request.n_samples is not None and request.hessian != "full":
        raise ValueError(
            f"n_samples must not be given with approximation={request.approximation!r} and "
            f"hessian={request.hessian!r}: it does not sample"
        )
    if request.n_warmup is not None and not (request.hessian == "full" and request.prior == "model"):
        raise ValueError(f"n_warmup must not be given with approximation={request.approximation!r}: it has no warm-up")
