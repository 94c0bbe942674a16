"""Stationary covariances: against SciPy, against long simulations, stability, threads, and the shape of the errors."""

import numpy as np
import pytest
from scipy import linalg, stats

import dpinfer as dpi
from dpinfer.lab import _native
from dpinfer.lab.stationary.recursion import _OK

KAPPA = 0.3
WIDTHS = (1, 2, 3, 7, 8, 24, 31, 32, 33, 63, 64, 65)


def hessians(rng, count, n, form):
    W = rng.normal(size=(count, n, 2 * n))
    A = W @ W.swapaxes(1, 2) / (2 * n) + 0.3 * np.eye(n)
    if form == "general":
        turn = rng.normal(size=(count, n, n)) / np.sqrt(n)
        return A + 0.3 * (turn - turn.swapaxes(1, 2))
    return 0.5 * (A + A.swapaxes(1, 2))


def by_scipy(A, rate, noise, time):
    M = KAPPA * rate[:, None] * A
    D = np.diag((rate * noise) ** 2)
    if time == "continuous":
        return linalg.solve_continuous_lyapunov(M, D)
    return linalg.solve_discrete_lyapunov(np.eye(len(A)) - M, D)


@pytest.mark.parametrize("time", ["discrete", "continuous"])
@pytest.mark.parametrize("form", ["symmetric", "general"])
@pytest.mark.parametrize("equal", [True, False])
def test_matches_scipy(rng, time, form, equal):
    for n in WIDTHS:
        A = hessians(rng, 1, n, form)[0]
        rate = np.full(n, 0.4) if equal else rng.uniform(0.1, 0.6, n)
        noise = np.full(n, 2.0) if equal else rng.uniform(0.5, 3.0, n)
        got = dpi.lab.stationary.covariance(A, rate, KAPPA, noise, time, form=form)
        want = by_scipy(A, rate, noise, time)
        assert np.max(np.abs(got - want)) <= 1e-10 * np.max(np.abs(want)), n
        assert np.array_equal(got, got.T)


def test_equal_noise_energy_with_unequal_rates(rng):
    # lambda tau**2 the same everywhere: the shortcut by two inverses, at a width of either kind.
    for n in (5, 40):
        A = hessians(rng, 1, n, "symmetric")[0]
        rate = rng.uniform(0.1, 0.6, n)
        noise = 1.7 / np.sqrt(rate)
        for time in ("discrete", "continuous"):
            got = dpi.lab.stationary.covariance(A, rate, KAPPA, noise, time)
            np.testing.assert_allclose(got, by_scipy(A, rate, noise, time), rtol=0, atol=1e-12 * np.abs(got).max())


def test_diagonal_equals_the_matrix_and_the_closed_form(rng):
    a, rate, noise = rng.uniform(0.5, 3.0, 6), rng.uniform(0.1, 0.6, 6), rng.uniform(0.5, 3.0, 6)
    for time, gap in (("discrete", 2.0 - rate * KAPPA * a), ("continuous", 2.0)):
        got = dpi.lab.stationary.covariance(a, rate, KAPPA, noise, time)
        np.testing.assert_allclose(got, rate * noise**2 / (KAPPA * a * gap), rtol=1e-14)
        matrix = dpi.lab.stationary.covariance(np.diag(a), rate, KAPPA, noise, time)
        np.testing.assert_allclose(matrix, np.diag(got), rtol=1e-12, atol=1e-15)
        general = dpi.lab.stationary.covariance(np.diag(a), rate, KAPPA, noise, time, form="general")
        np.testing.assert_allclose(general, np.diag(got), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("form", "n"), [("diagonal", 24), ("symmetric", 5), ("symmetric", 24), ("general", 6)])
def test_a_batch_is_its_items_whatever_the_threads(rng, form, n):
    count = 19
    A = rng.uniform(0.5, 2.0, (count, n)) if form == "diagonal" else hessians(rng, count, n, form)
    rate, noise = rng.uniform(0.1, 0.6, (count, n)), rng.uniform(0.5, 2.0, (count, n))
    for rates, noises in ((rate, noise), (0.4, 2.0)):
        whole = dpi.lab.stationary.covariance(A, rates, KAPPA, noises, form=form, n_threads=1)
        for threads in (2, 3, 7):
            again = dpi.lab.stationary.covariance(A, rates, KAPPA, noises, form=form, n_threads=threads)
            assert whole.tobytes() == again.tobytes()
        for s in (0, 7, 8, count - 1):
            own = (rates if np.ndim(rates) == 0 else rates[s], noises if np.ndim(noises) == 0 else noises[s])
            one = dpi.lab.stationary.covariance(A[s], own[0], KAPPA, own[1], form=form)
            assert one.tobytes() == whole[s].tobytes()


@pytest.mark.parametrize("n", [24, 31])
def test_every_instruction_set_gives_the_same_bits(rng, monkeypatch, n):
    A = hessians(rng, 13, n, "symmetric")
    turned = hessians(rng, 13, n, "general")
    rate = rng.uniform(0.1, 0.6, n)
    results = []
    for variant in ("portable", "avx2", "avx512"):
        monkeypatch.setenv("DPINFER_SIMD", variant)
        try:
            found = [
                dpi.lab.stationary.covariance(matrix, rates, KAPPA, 2.0, time)
                for matrix, rates in ((A, 0.4), (A, rate), (turned, rate))
                for time in ("discrete", "continuous")
            ]
        except RuntimeError:
            continue
        results.append(np.array(found).tobytes())
    assert results
    assert len(set(results)) == 1


@pytest.mark.parametrize("time", ["discrete", "continuous"])
@pytest.mark.parametrize("form", ["symmetric", "general"])
def test_hard_matrices_leave_their_neighbours_alone(rng, time, form):
    # Next to each other: well conditioned ones, condition numbers of 1e5 and 1e9, a strong rotation, and a mixing time
    # of 1e8 steps.  The hard ones are beyond what doubling certifies, and go to LAPACK.
    n = 6
    A = hessians(rng, 11, n, form)
    turn = np.linalg.qr(rng.normal(size=(n, n)))[0]
    for s, decades in ((1, 5), (4, 9)):
        hard = (turn * np.logspace(-decades, 0, n)) @ turn.T
        A[s] = 0.5 * (hard + hard.T)
    A[6] *= 1e-7
    if form == "general":
        A[9] = 0.1 * (A[9] + 3.0 * (turn - turn.T))
    rate, noise = rng.uniform(0.1, 0.6, n), rng.uniform(0.5, 3.0, n)
    got = dpi.lab.stationary.covariance(A, rate, KAPPA, noise, time, form=form)
    for s in range(11):
        want = by_scipy(A[s], rate, noise, time)
        # SciPy's own error grows with the condition number, and with the mixing time, for it begins from I - M.
        tolerance = {1: 1e-9, 4: 1e-5, 6: 1e-7}.get(s, 1e-10)  # 1e-14 times the condition number, or the time
        assert np.max(np.abs(got[s] - want)) <= tolerance * np.max(np.abs(want)), s
        assert got[s].tobytes() == dpi.lab.stationary.covariance(A[s], rate, KAPPA, noise, time, form=form).tobytes()
    # Without noise in a coordinate nothing is certified, and LAPACK solves them all.
    noise[2] = 0.0
    got = dpi.lab.stationary.covariance(A[:1], rate, KAPPA, noise, time, form=form)[0]
    want = by_scipy(A[0], rate, noise, time)
    assert np.max(np.abs(got - want)) <= 1e-10 * np.max(np.abs(want))


@pytest.mark.parametrize("form", ["symmetric", "general"])
def test_an_unstable_matrix_is_named_whatever_the_solver(rng, form):
    rate = rng.uniform(0.1, 0.6, 5)
    for scale in (-1.0, 100.0):
        A = hessians(rng, 12, 5, form)
        A[9] *= scale
        with pytest.raises(ValueError, match="for matrix 9 of the batch"):
            dpi.lab.stationary.covariance(A, rate, KAPPA, 1.0, form=form)


def simulate(A, rate, noise, steps, rng):
    """Return sum of x x' over the steps of 64 chains that start at the stationary law's scale."""
    n, chains = len(A), 64
    x = rng.normal(size=(chains, n)) * 0.0
    step = (np.eye(n) - KAPPA * rate[:, None] * A).T
    total = np.zeros((chains, n, n))
    burn = 400
    for t in range(burn + steps // chains):
        x = x @ step - rate * noise * rng.normal(size=(chains, n))
        if t >= burn:
            total += x[:, :, None] * x[:, None, :]
    return total / (steps // chains)


def deviations(per_chain, covariance):
    """Return the t-scores of the chains' mean products against a claimed covariance, lower triangle."""
    rows = np.tril_indices(covariance.shape[0])
    values = per_chain[:, *rows]
    return (values.mean(axis=0) - covariance[rows]) / (values.std(axis=0, ddof=1) / np.sqrt(len(values)))


@pytest.mark.statistical
def test_simulated_recursions_have_this_covariance(rng):
    # 10**6 steps in 64 chains; chain means are independent.  Two-sided t-tests, Bonferroni to 1e-6 in all.
    A = np.array([[1.5, 0.4, -0.2], [0.1, 0.9, 0.3], [0.5, -0.1, 2.0]])
    rate, noise = np.array([1.2, 0.6, 2.0]), np.array([1.0, 2.5, 0.7])
    per_chain = simulate(A, rate, noise, 10**6, rng)
    critical = stats.t.isf(0.5e-6 / 6, 63)
    truth = dpi.lab.stationary.covariance(A, rate, KAPPA, noise)
    assert np.max(np.abs(deviations(per_chain, truth))) < critical
    # The same test rejects the continuous limit, A30 with A for A', and learning rates that are averaged.
    M, D = KAPPA * rate[:, None] * A, np.diag((rate * noise) ** 2)
    wrong = {
        "continuous time": dpi.lab.stationary.covariance(A, rate, KAPPA, noise, "continuous"),
        "A for its transpose": dpi.lab.stationary.covariance(A.T, rate, KAPPA, noise),
        "one mean rate": dpi.lab.stationary.covariance(A, np.full(3, rate.mean()), KAPPA, noise),
        "noise not squared": linalg.solve_discrete_lyapunov(np.eye(3) - M, np.sqrt(D)),
    }
    for name, claimed in wrong.items():
        assert np.max(np.abs(deviations(per_chain, claimed))) > critical, name


def test_unstable_recursions_are_refused_with_the_limit():
    a = np.array([10.0, 2.0])
    limit = float(dpi.lab.stationary.max_learning_rate(a, KAPPA))
    assert limit == pytest.approx(2.0 / (KAPPA * 10.0))
    for A in (a, np.diag(a), np.diag(a) + np.array([[0.0, 1e-3], [0.0, 0.0]])):
        dpi.lab.stationary.covariance(A, 0.999 * limit, KAPPA, 1.0)
        with pytest.raises(ValueError, match=r"learning_rate must be below 0\.99.* times its value to be stable"):
            dpi.lab.stationary.covariance(A, 1.001 * limit, KAPPA, 1.0)
    for A in (np.array([1.0, -0.5]), np.diag([1.0, -0.5]), np.diag([1.0, 0.0])):
        with pytest.raises(ValueError, match="A must have eigenvalues with positive real parts"):
            dpi.lab.stationary.covariance(A, 0.1, KAPPA, 1.0)
        assert dpi.lab.stationary.max_learning_rate(A, KAPPA) == 0.0
        assert dpi.lab.stationary.mixing_time(A, 0.1, KAPPA) == np.inf
    with pytest.raises(ValueError, match="for matrix 3 of the batch"):
        dpi.lab.stationary.covariance(np.stack([np.eye(2)] * 3 + [-np.eye(2)]), 0.1, KAPPA, 1.0)


def test_the_limit_of_a_rotation_depends_on_its_speed():
    A = np.array([[0.2, -1.0], [1.0, 0.2]])
    limit = float(dpi.lab.stationary.max_learning_rate(A, KAPPA))
    assert limit == pytest.approx(2.0 * 0.2 / (KAPPA * 1.04))
    assert dpi.lab.stationary.spectral_radius(A, limit, KAPPA) == pytest.approx(1.0)
    dpi.lab.stationary.covariance(A, 0.99 * limit, KAPPA, 1.0)
    with pytest.raises(ValueError, match="must be below"):
        dpi.lab.stationary.covariance(A, 1.01 * limit, KAPPA, 1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"A": [1.0, np.nan]}, ValueError, "A must be finite"),
        ({"A": [[1.0, np.inf], [np.inf, 1.0]]}, ValueError, "A must be finite"),
        ({"A": [[1.0, np.nan], [0.0, 1.0]]}, ValueError, "A must be finite"),
        ({"A": 1.0}, ValueError, "A must have at least one coordinate"),
        ({"A": np.ones((2, 3))}, ValueError, "A must hold square matrices"),
        ({"A": [[1.0, 2.0], [0.0, 1.0]], "form": "symmetric"}, ValueError, "A must equal its transpose"),
        ({"A": ["a"]}, TypeError, "A must be an array of real numbers"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be positive"),
        ({"learning_rate": [0.1, 0.1, 0.1]}, ValueError, "learning_rate must be a number or have length 2"),
        ({"noise_stddev": -1.0}, ValueError, "noise_stddev must be at least 0"),
        ({"noise_stddev": np.ones((3, 2))}, ValueError, "noise_stddev must have shape"),
        ({"sample_rate": 0.0}, ValueError, "sample_rate must lie in"),
        ({"time": "day"}, ValueError, "time must be one of"),
        ({"form": "round"}, ValueError, "form must be one of"),
        ({"n_threads": 0}, ValueError, "n_threads must be at least 1"),
    ],
)
def test_bad_arguments(arguments, error, message):
    good = {"A": [1.0, 2.0], "learning_rate": 0.1, "sample_rate": 0.5, "noise_stddev": 1.0}
    with pytest.raises(error, match=message):
        dpi.lab.stationary.covariance(**(good | arguments))


def test_the_kernel_refuses_wrong_layouts():
    A = np.eye(4)[None]
    ones = np.ones(4)
    with pytest.raises(TypeError):
        _native.stationary_covariance(A.astype(np.float32), ones, ones, 0.1, 1, True, 1)
    with pytest.raises(TypeError):
        _native.stationary_covariance(np.ones((2, 4, 4)).transpose(0, 2, 1)[:, ::2], ones, ones, 0.1, 1, True, 1)
    with pytest.raises(ValueError, match="learning_rate must have 4 elements"):
        _native.stationary_covariance(A, np.ones(3), ones, 0.1, 1, True, 1)
    with pytest.raises(ValueError, match="hessian must be"):
        _native.stationary_covariance(np.eye(4), ones, ones, 0.1, 1, True, 1)
    readonly = A.copy()
    readonly.setflags(write=False)
    assert _native.stationary_covariance(readonly, ones, ones, 0.1, 1, True, 1)[1][0] == _OK
    assert dpi.lab.stationary.covariance(np.eye(3)[None], 0.1, 0.5, 1.0).shape == (1, 3, 3)


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_autocorrelation_is_the_powers_of_the_recursion(rng, time):
    A = hessians(rng, 1, 4, "general")[0]
    rate, noise = rng.uniform(0.1, 0.6, 4), rng.uniform(0.5, 2.0, 4)
    lags = np.array([0, 1, 5, 40])
    got = dpi.lab.stationary.autocorrelation(A, rate, KAPPA, noise, lags, time)
    S = dpi.lab.stationary.covariance(A, rate, KAPPA, noise, time)
    M = KAPPA * rate[:, None] * A
    for row, lag in zip(got, lags, strict=True):
        move = np.linalg.matrix_power(np.eye(4) - M, lag) if time == "discrete" else linalg.expm(-lag * M)
        np.testing.assert_allclose(row, np.diag(move @ S) / np.diag(S), rtol=1e-10, atol=1e-12)
    a = np.array([0.5, 2.0])
    diagonal = dpi.lab.stationary.autocorrelation(a, 0.2, KAPPA, 1.0, lags, time)
    np.testing.assert_allclose(
        dpi.lab.stationary.autocorrelation(np.diag(a), 0.2, KAPPA, 1.0, lags, time), diagonal, rtol=1e-10
    )


def test_mixing_time_is_when_the_slowest_direction_has_decayed():
    A = np.array([[2.0, 0.5], [0.5, 1.0]])
    steps = dpi.lab.stationary.mixing_time(A, 0.1, KAPPA)
    slowest = 1.0 - 0.1 * KAPPA * np.linalg.eigvalsh(A)[0]
    assert slowest**steps == pytest.approx(np.exp(-1.0))
    assert dpi.lab.stationary.mixing_time(A, 0.1, KAPPA, "continuous") == pytest.approx(
        1.0 / (0.1 * KAPPA * np.linalg.eigvalsh(A)[0])
    )
    assert dpi.lab.stationary.mixing_time(np.stack([A, 2.0 * A]), 0.1, KAPPA).shape == (2,)


@pytest.mark.statistical
def test_effective_sample_size_of_an_autoregression(rng):
    # The mean of an AR(1) is worth T (1 - r) / (1 + r) draws.  The estimate is within 20% at these lengths: its
    # relative sd is about sqrt(8 W / T) with W ~ 2 / (1 - r) (Sokal 1997), 3% here.
    steps, chains = 200_000, 4
    x = np.zeros((steps, chains))
    noise = rng.normal(size=(steps, chains))
    for t in range(1, steps):
        x[t] = 0.9 * x[t - 1] + noise[t]
    wanted = steps * 0.1 / 1.9
    sizes = dpi.lab.stationary.effective_sample_size(x)
    np.testing.assert_allclose(sizes, wanted, rtol=0.2)
    assert not np.allclose(sizes, steps, rtol=0.2)
    correlation = dpi.lab.stationary.trace_autocorrelation(x, 3)
    np.testing.assert_allclose(correlation, 0.9 ** np.arange(4)[:, None] * np.ones(chains), atol=0.02)
    constant = dpi.lab.stationary.effective_sample_size(np.ones((10, 1)))
    assert np.isnan(constant).all()
    with pytest.raises(ValueError, match="at least 4 steps"):
        dpi.lab.stationary.effective_sample_size(np.ones(3))
