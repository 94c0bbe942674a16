"""The posterior of many weights most of whose directions are hidden, beside NUTS on the matrices themselves.

The library integrates second moments out, and draws them again so that they are positive definite.  Here a Cholesky
factor of them is sampled, with the spread and the centre: 822 unknowns for 40 weights.  Weights follow in closed form.
No code of the posterior is shared but the law's constants.
"""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference.newton.moments_law import MomentsLaw
from dpinfer.inference.newton.posterior import mixture_of, noise_prior
from dpinfer.inference.newton.scores import LinearScores
from dpinfer.inference.request import NewtonRequest
from dpinfer.testing import InsecureRNG

jax = pytest.importorskip("jax", reason="needs JAX")
infer = pytest.importorskip("numpyro.infer", reason="needs NumPyro")
pytestmark = [pytest.mark.slow, pytest.mark.statistical]

SIZE, RECORDS, LEVELS = 40, 3000, np.array([0.05, 0.95])
WARM_UP, KEPT, DEPTH = 800, 1600, 7


def scores_of(seed):
    """Return the scores of a release of AR(1) 0.5 features, with sigma at its mean, and the true weights."""
    rng = np.random.default_rng(seed)
    features = np.empty((RECORDS, SIZE))
    features[:, 0] = rng.normal(size=RECORDS)
    for k in range(1, SIZE):
        features[:, k] = 0.5 * features[:, k - 1] + np.sqrt(0.75) * rng.normal(size=RECORDS)
    weights = rng.normal(size=SIZE) / np.sqrt(SIZE)
    response = features @ weights + rng.normal(size=RECORDS)
    model = dpi.models.LinearRegression(SIZE)
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-6, n_records=RECORDS)
    release = dpi.run_newton(
        model, features, response, plan=plan, n_records=RECORDS, response_scale=1.0, random_source=InsecureRNG(seed)
    )
    scores = LinearScores(release, model, noise_prior(release, model, "weak")[0])
    scores._nodes, scores._shares = np.array([scores._shares @ scores._nodes]), np.ones(1)
    return scores, weights


def sampled_weights(scores, law, seed):
    """Return draws of the weights, (S, d), by NUTS."""
    jax.config.update("jax_enable_x64", True)
    jnp, d, node = jax.numpy, SIZE, int(np.argmax(law.weight))
    below, usual = np.tril_indices(d, -1), np.array([np.mean(law.eigenvalues)])
    noise = law.scores.noise + law.scores.sampling * law.expected(usual, law.kept[[node]])[1][0]
    twice, once = (law.basis.T @ part @ law.basis for part in law.scores.steps)
    prior, spreads = np.linalg.inv(law.prior_precision), (0.3 * law.spreads[0], law.spreads[-1])

    def factor(at):
        return jnp.zeros((d, d)).at[below].set(at["below"]) + jnp.diag(jnp.exp(at["diagonal"]))

    def between(at, name, ends):
        """A number between two ends, with the log of its derivative."""
        share = jax.nn.sigmoid(at[name])
        return ends[0] + (ends[1] - ends[0]) * share, jnp.log(share) + jnp.log(1.0 - share)

    def potential(at):
        root = factor(at)
        matrix = root @ root.T
        log_spread, first = between(at, "spread", np.log(spreads))
        centre, second = between(at, "centre", law.ends)
        energy = jnp.sum((matrix - centre * jnp.eye(d)) ** 2) * jnp.exp(-2.0 * log_spread)
        energy += jnp.sum((jnp.diag(law.eigenvalues) - matrix) ** 2) / law.noise
        value = first + second + log_spread - 0.5 * energy - 0.5 * d * (d + 1) * log_spread
        value += jnp.sum(matrix * (once - 0.5 * matrix @ twice))  # of the steps
        value += jnp.sum((d + 1 - jnp.arange(d)) * at["diagonal"])  # the derivative of the matrix in its factor
        spread = jnp.linalg.cholesky(jnp.diag(noise) + matrix @ prior @ matrix)
        left = jax.scipy.linalg.solve_triangular(spread, law.score + matrix @ law.position, lower=True)
        return -(value - 0.5 * jnp.sum(left**2) - jnp.sum(jnp.log(jnp.diag(spread))))

    rng, middle = np.random.default_rng(seed), float(np.mean(law.eigenvalues))
    likely = np.maximum(middle + law.kept[node] * (law.eigenvalues - middle), 0.05)
    start = {
        "below": 1e-3 * rng.normal(size=len(below[0])),
        "diagonal": 0.5 * np.log(likely),
        "spread": 0.0,
        "centre": 0.0,
    }
    kernel = infer.NUTS(potential_fn=potential, max_tree_depth=DEPTH)
    chain = infer.MCMC(kernel, num_warmup=WARM_UP, num_samples=KEPT, progress_bar=False)
    chain.run(jax.random.PRNGKey(seed), init_params=jax.tree_util.tree_map(jnp.asarray, start))
    drawn, found = chain.get_samples(), []
    for k in range(KEPT):
        root = np.asarray(factor({name: values[k] for name, values in drawn.items()}))
        matrix = root @ root.T
        precision = matrix / noise @ matrix + law.prior_precision
        mean = np.linalg.solve(precision, matrix @ ((law.score + matrix @ law.position) / noise))
        turned = np.linalg.inv(np.linalg.cholesky(precision))
        found.extend(mean + rng.normal(size=(4, d)) @ turned)
    return np.array(found) @ (scores.whitening.T @ law.basis).T


@pytest.mark.parametrize("seed", [6, 7])
def test_wide_intervals_of_many_hidden_weights_are_those_of_nuts(seed):
    """Mean widths agree within 8%: halves of the chain differ by up to 4%; the normal law is a quarter as wide."""
    scores, weights = scores_of(seed)
    law = MomentsLaw(scores.noisy, scores.stddev, scores.middle().mean_scores(scores.whitening))
    ours = mixture_of(scores, NewtonRequest(check_convergence=False, progress=False, seed=seed))
    ends = ours.distribution.marginals.quantile(LEVELS)[:, :SIZE]
    halves = [np.quantile(part, LEVELS, axis=0) for part in np.array_split(sampled_weights(scores, law, seed), 2)]
    width, *judged = (np.mean(np.diff(part, axis=0)) for part in (ends, *halves))
    assert abs(width / np.mean(judged) - 1.0) < 0.08
    given = scores.given(law.normal(512, 8, np.random.default_rng(seed)), np.random.default_rng(seed))
    assert np.mean(3.29 * np.sqrt(np.mean(given.variance, axis=0) + np.var(given.mean, axis=0))) < 0.4 * width
    assert np.mean((ends[0] < weights) & (weights < ends[1])) > 0.9
