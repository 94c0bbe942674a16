"""Second moments, weighted scores and curvatures on the lattice: their values, one record's share, parts of sums.

Threads and instruction sets: cpp/tests/test_regression_rows.cpp too.
"""

import numpy as np
import pytest
from scipy import special, stats

from dpinfer.mechanism import _native

KEY = bytes(range(32))
NO_TABLE = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
LINKS = ("logistic", "probit", "probit_score", "gaussian", "poisson")


def make_records(n, d, link="gaussian", seed=1):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, d))
    if link == "gaussian":
        return X, generator.normal(size=n)
    return X, (generator.poisson(1.0, n) if link == "poisson" else generator.integers(0, 2, n)).astype(float)


def svec(matrices):
    """Return upper triangles, row by row, off-diagonal entries times sqrt(2)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    return matrices[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


def mean_and_slope(link, eta):
    if link == "logistic":
        return special.expit(eta), special.expit(eta) * special.expit(-eta)
    if link == "probit":
        return stats.norm.cdf(eta), stats.norm.pdf(eta)
    return (eta, np.ones_like(eta)) if link == "gaussian" else (np.exp(eta), np.exp(eta))


def residual_and_slope(link, eta, y):
    if link == "probit_score":
        sign = 2.0 * y - 1.0
        ratio = np.exp(stats.norm.logpdf(eta) - stats.norm.logcdf(sign * eta))
        return sign * ratio, ratio * (sign * eta + ratio)
    mean, slope = mean_and_slope(link, eta)
    return y - mean, slope


class Pass:
    """One pass over records (n, d): the sums of the compiled kernels and those of NumPy."""

    def __init__(self, X, y, *, link="gaussian", m=None, bound=1.4, residual_bound=0.8, intercept=True, table=None):
        self.X, self.y, self.link, self.bound, self.cut = X, y, link, bound, residual_bound
        self.rows = np.column_stack([X, np.ones(len(X))]) if intercept else X
        d = self.rows.shape[1]
        generator = np.random.default_rng(2)
        self.transform = generator.normal(size=(m or d, d)) / np.sqrt(d)
        self.loc, self.intercept, self.table = generator.normal(size=d) / np.sqrt(d), intercept, table

    @property
    def residuals(self):
        arguments = {"link": self.link, "loc": self.loc, "bound": self.cut, **(self.table or NO_TABLE)}
        return _native.Residuals(**arguments)

    def native(self, kind, max_norm=100.0, *, features=None, n_threads=1, first_row=0, sample=None, **options):
        features = self.X if features is None else features
        rows = _native.RegressionRows(
            features=features, response=self.y, intercept=self.intercept, first_row=first_row, n_threads=n_threads
        )
        if sample is not None:
            rows.sample(*sample)
        m = len(self.transform)
        scores = m + (1 if options.get("scale_weight", 0.0) else 0)
        total = _native.PartialSum(length=scores if kind == "scores" else m * (m + 1) // 2, max_norm=max_norm)
        add = getattr(rows, f"add_{kind}")
        where = {"transform": self.transform, "bound": self.bound} | options
        add(total, **where) if kind == "second_moments" else add(total, self.residuals, **where)
        return total

    def expected(self, kind, scale_weight=0.0, scale_unit=1.0, scale_centre=0.0):
        """Return each record's contribution in float64."""
        z = self.rows @ self.transform.T
        weight = np.minimum(1.0, self.bound**2 / np.maximum((z**2).sum(axis=1), 1e-300))
        residual, slope = residual_and_slope(self.link, self.rows @ self.loc, self.y)
        psi = np.clip(residual, -self.cut, self.cut)
        slope = np.where(np.abs(residual) <= self.cut, slope, 0.0)
        if self.table is not None:
            nodes = self.table["first_node"] + self.table["spacing"] * np.arange(self.table["centre"].size)
            psi = psi - np.interp(self.rows @ self.loc, nodes, self.table["centre"])
            slope = np.interp(self.rows @ self.loc, nodes, self.table["slope"])
        if kind == "scores":
            score = (weight * psi)[:, None] * z
            share = scale_weight * weight * (np.minimum(np.abs(residual) / scale_unit, 1.0) - scale_centre)
            return np.column_stack([score, share]) if scale_weight else score
        factor = {"second_moments": weight, "curvature": weight * slope, "score_products": (weight * psi) ** 2}[kind]
        return svec(factor[:, None, None] * z[:, :, None] * z[:, None, :])


KINDS = ("second_moments", "scores", "curvature", "score_products")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("link", LINKS)
def test_sums(kind, link):
    for d, m in ((1, None), (7, 3), (8, 8), (13, None), (25, 26)):
        one = Pass(*make_records(37, d, link), link=link, m=m)
        found = one.native(kind)
        np.testing.assert_allclose(found.integers * found.lattice_step, one.expected(kind).sum(axis=0), atol=1e-6)
        single = one.native(kind, features=one.X.astype(np.float32))
        np.testing.assert_allclose(
            single.integers * single.lattice_step, found.integers * found.lattice_step, atol=1e-3
        )


@pytest.mark.parametrize("link", LINKS)
def test_tables_centre_scores_and_replace_slopes(link):
    eta = -6.0 + 0.05 * np.arange(241)
    table = {"centre": 0.3 * np.sin(eta), "slope": np.exp(-(eta**2)), "first_node": -6.0, "spacing": 0.05}
    X, y = make_records(50, 4, link)
    X[0], X[1] = 30.0, -30.0  # beyond the nodes
    one = Pass(X, y, link=link, table=table)
    for kind in ("scores", "curvature", "score_products"):
        found = one.native(kind)
        np.testing.assert_allclose(found.integers * found.lattice_step, one.expected(kind).sum(axis=0), atol=1e-6)


@pytest.mark.parametrize("centre", [0.0, 0.47, 1.0])
def test_scale_coordinate(centre):
    one = Pass(*make_records(60, 5))
    options = {"scale_weight": 0.7, "scale_unit": 1.3, "scale_centre": centre}
    found = one.native("scores", **options)
    np.testing.assert_allclose(found.integers * found.lattice_step, one.expected("scores", **options).sum(0), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("link", LINKS)
def test_one_record_stays_inside_the_ball(kind, link):
    """In integers, whatever is in the record; and the bound is reached."""
    generator = np.random.default_rng(4)
    options = {"scale_weight": 2.0, "scale_unit": 1e-3} if kind == "scores" else {}
    for max_norm in (1e-30, 0.3, 1.7, 9.9e29):
        largest = 0.0
        for size in (1e-150, 1e-3, 1.0, 1e3, 1e70, 1e160, np.inf, np.nan):
            X, y = size * generator.normal(size=(1, 9)), size * np.abs(generator.normal(size=1))
            one = Pass(X, y, link=link, bound=np.inf, residual_bound=np.inf)
            found = one.native(kind, max_norm, **options)
            integers = [int(k) for k in found.integers]
            norm = sum(k * k for k in integers)
            limit = (max_norm / found.lattice_step) ** 2
            assert norm <= limit
            largest = max(largest, norm / limit)
            if not np.isfinite(size):
                assert norm == 0
        assert largest > 0.99 or max_norm > 1e20


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_not_finite_leaves_the_others_alone(kind):
    X, y = make_records(21, 9)
    whole = Pass(X, y).native(kind).integers
    for row in (0, 7, 8, 20):
        own = Pass(X[row : row + 1], y[row : row + 1]).native(kind).integers
        for bad in (np.nan, np.inf, -np.inf):
            changed = X.copy()
            changed[row, 3] = bad
            np.testing.assert_array_equal(Pass(changed, y).native(kind).integers, whole - own)
        if kind != "second_moments":
            missing = y.copy()
            missing[row] = np.nan
            np.testing.assert_array_equal(Pass(X, missing).native(kind).integers, whole - own)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_orders_and_parts_do_not_matter(kind):
    """Neither for all rows nor for a Poisson sample of them, which parts continue where their first row says."""
    X, y = make_records(5000, 6)
    everything = Pass(X, y).native(kind).integers
    sample = (KEY, 3, 0.3)
    sampled = Pass(X, y).native(kind, sample=sample).integers
    assert not np.array_equal(everything, sampled)
    for n_threads in (1, 2, 3, 7):
        np.testing.assert_array_equal(Pass(X, y).native(kind, n_threads=n_threads).integers, everything)
        np.testing.assert_array_equal(Pass(X, y).native(kind, n_threads=n_threads, sample=sample).integers, sampled)
    order = np.random.default_rng(3).permutation(5000)
    np.testing.assert_array_equal(Pass(X[order].copy(), y[order]).native(kind).integers, everything)
    parts = [(3072, 5000), (0, 1024), (1024, 3072)]
    total = Pass(X[:1], y[:1]).native(kind)
    total.merge(-total.integers)
    for first, last in parts:
        total.merge(Pass(X[first:last], y[first:last]).native(kind, first_row=first, sample=sample).integers)
    np.testing.assert_array_equal(total.integers, sampled)


def test_given_contributions():
    """Clipped to the norm, in blocks of any length, of either width of numbers."""
    generator = np.random.default_rng(5)
    values = generator.normal(size=(2500, 13)).astype(np.float32)
    values[7] *= np.float32(1e20)
    values[9, 4] = np.nan
    total = _native.PartialSum(length=13, max_norm=4.0)
    total.add_contributions(values.astype(np.float64), n_threads=3)
    exact = values.astype(np.float64)
    exact[9] = 0.0
    exact *= (4.0 / np.maximum(np.linalg.norm(exact, axis=1), 4.0))[:, None]
    np.testing.assert_allclose(total.integers * total.lattice_step, exact.sum(axis=0), atol=1e-4)
    parts = _native.PartialSum(length=13, max_norm=4.0)
    for first, last in ((2000, 2500), (0, 1), (1, 1), (1, 2000)):
        parts.add_contributions(values[first:last])
    np.testing.assert_array_equal(parts.integers, total.integers)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_scale_multiplies_each_contribution_before_it_is_clipped(kind):
    rng = np.random.default_rng(8)
    values, scale = rng.normal(size=(300, 9)).astype(kind), rng.uniform(-3.0, 3.0, 9)
    values[4, 2] = np.inf
    totals = [_native.PartialSum(length=9, max_norm=1.5) for _ in range(3)]
    totals[0].add_contributions(values, 2, scale)
    totals[1].add_contributions(values.astype(np.float64) * scale)
    totals[2].add_contributions(values)
    np.testing.assert_array_equal(totals[0].integers, totals[1].integers)
    assert not np.array_equal(totals[0].integers, totals[2].integers)


def test_noise_is_drawn_once_and_leaves_the_sum_alone():
    total = _native.PartialSum(length=40, max_norm=1.5)
    total.add_contributions(np.random.default_rng(6).normal(size=(100, 40)))
    exact = total.integers
    noise, _ = _native.rounded_gaussian(KEY, 5, 2.5 * 1.5 / total.lattice_step, 40)
    for _ in range(2):
        np.testing.assert_array_equal(total.noisy_sum(KEY, 5, 2.5), (exact + noise) * total.lattice_step)
    np.testing.assert_array_equal(total.integers, exact)
    assert not np.array_equal(total.noisy_sum(KEY, 6, 2.5), total.noisy_sum(KEY, 5, 2.5))


def test_wrong_arguments():
    X, y = make_records(5, 2)
    one = Pass(X, y)
    rows = _native.RegressionRows(features=X, response=y, intercept=False)
    total = _native.PartialSum(length=3, max_norm=1.0)
    with pytest.raises(ValueError, match="sum must have length 1, got 3"):
        rows.add_second_moments(total, transform=np.ones((1, 2)), bound=1.0)
    with pytest.raises(ValueError, match="transform must be"):
        rows.add_second_moments(total, transform=np.ones((2, 3)), bound=1.0)
    with pytest.raises(ValueError, match="transform must be finite"):
        rows.add_second_moments(total, transform=np.full((2, 2), np.nan), bound=1.0)
    with pytest.raises(ValueError, match="bound must be positive"):
        rows.add_second_moments(total, transform=np.eye(2), bound=0.0)
    with pytest.raises(ValueError, match="residuals must be at a point of 2"):
        rows.add_curvature(total, one.residuals, transform=np.eye(2), bound=1.0)
    with pytest.raises(ValueError, match="likelihood must be one of"):
        _native.Residuals(link="cauchit", loc=np.zeros(2), bound=1.0, **NO_TABLE)
    with pytest.raises(ValueError, match="centre and slope"):
        _native.Residuals(link="poisson", loc=np.zeros(2), bound=1.0, **(NO_TABLE | {"centre": np.zeros(3)}))
    with pytest.raises(ValueError, match="first_row"):
        _native.RegressionRows(features=X, response=y, intercept=False, first_row=5)
    with pytest.raises(ValueError, match="contributions must be"):
        total.add_contributions(np.zeros((2, 4)))
    with pytest.raises(TypeError, match="float64 or float32"):
        total.add_contributions(np.zeros((2, 3), dtype=np.int64))
    with pytest.raises(ValueError, match="scale must have 3"):
        total.add_contributions(np.zeros((2, 3)), 1, np.ones(2))
    with pytest.raises(ValueError, match="integers must have 3"):
        total.merge(np.zeros(2, dtype=np.int64))
    for length, max_norm in ((0, 1.0), (3, 0.0), (3, np.nan), (2**20 + 1, 1.0)):
        with pytest.raises(ValueError, match=r"length|max_norm"):
            _native.PartialSum(length=length, max_norm=max_norm)
    with pytest.raises(ValueError, match="noise_multiplier"):
        total.noisy_sum(KEY, 0, 0.0)
