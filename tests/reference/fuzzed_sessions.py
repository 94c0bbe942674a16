"""The sessions of sites and of networks as fuzzing targets: DP-SEP's kernels, and those of networks."""

import math

import numpy as np

from dpinfer.lab import _native as lab
from dpinfer.mechanism import _native as mechanism
from tests.reference.fuzzed_bindings import Binding, check_sum, odd_array


def spd(rng, blocks, d):
    """Positive definite matrices, a little damaged now and then."""
    root = np.array([rng.gauss(0.0, 1.0) for _ in range(blocks * d * d)]).reshape(blocks, d, d)
    out = root @ np.swapaxes(root, 1, 2) + 0.1 * np.eye(d)
    if rng.random() < 0.15:
        out.flat[rng.randrange(out.size)] = rng.choice((0.0, -1.0, np.nan, np.inf, 1e308, 5e-324))
    return np.ascontiguousarray(out)


class _Session(Binding):
    """A session that sums rows, some of them listed."""

    def rows(self, rng, count):
        good = np.array([rng.randrange(count) for _ in range(rng.randrange(4))] if count else [], dtype=np.int64)
        if rng.random() >= self.strange:
            return good
        odd = [rng.choice((-1, 0, count, count + 1, 2**31, 2**62, -(2**63))) for _ in range(rng.randrange(3))]
        return rng.choice((np.array(odd, dtype=np.int64), good.astype(float), good.astype(np.int32), good[None], None))


class SiteSession(_Session):
    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.05, 0.2))
        count, d = rng.choice((0, 1, 1, 2, 9)), rng.choice((1, 2, 3, 9))
        norm = self.value(rng, rng.choice((1.0, 1e-30, 1e30, 3.7)))
        common = {"max_site_norm": norm, "key": self.key(rng), "n_threads": self.threads(rng)}
        features = self.array(rng, count, d)
        if rng.random() < 0.5:
            blocks, intercept = rng.choice((1, 2, 5)), False
            session = mechanism.mixture_sites(
                contribution=self.value(rng, rng.choice(("site", "moments"))), points=features,
                log_weights=self.array(rng, blocks), covariances=self.matrix(rng, blocks, d), **common,
            )  # fmt: skip
        else:
            blocks, intercept, nodes = 1, rng.random() < 0.5, rng.choice((1, 2, 10))
            session = mechanism.binary_sites(
                features=features, response=self.array(rng, count), intercept=self.value(rng, intercept),
                likelihood=self.value(rng, rng.choice(("probit", "logistic"))), nodes=self.array(rng, nodes),
                weights=self.array(rng, nodes), **common,
            )  # fmt: skip
        width = d + bool(intercept)
        if rng.random() > 0.1:
            session.set_state(
                cavity_loc=self.array(rng, blocks * width), cavity_cov=self.matrix(rng, blocks, width),
                centre=self.array(rng, blocks * width), neutral=self.array(rng, session.length),
                block_weight=self.value(rng, 0.1),
            )  # fmt: skip
        self.sums(rng, session, norm, len(features))

    def matrix(self, rng, blocks, d):
        value = spd(rng, blocks, d)
        return odd_array(rng, value) if rng.random() < self.strange else value

    def sums(self, rng, session, norm, count):
        rows = self.rows(rng, count)
        check_sum(session.clipped_sum(rows), norm, session.lattice_step, rows.size)
        step, rate, noise = self.value(rng, 3), self.value(rng, 0.7), self.value(rng, 2.0)
        check_sum(session.clipped_poisson_sum(step, rate), norm, session.lattice_step, count)
        for total in (
            session.poisson_sum(step, rate, noise),
            session.uniform_sum(step, noise),
            session.permuted_sum(step, noise),
        ):
            if total.shape != (session.length,) or not np.isfinite(total).all():
                raise AssertionError("a noisy sum that is not finite")
        session.plain_sum(self.value(rng, math.inf))
        assert session.contributions(rows).shape == (rows.size, session.length)
        assert sorted(session.order(step)) == list(range(count))
        assert 0 <= session.uniform_row(step) < count


class NetworkSession(_Session):
    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.05, 0.2))
        count, d, hidden = rng.choice((0, 1, 1, 2, 9)), rng.choice((1, 2, 9)), rng.choice((1, 2, 9))
        norm = self.value(rng, rng.choice((1.0, 1e-30, 1e30, 3.7)))
        features = self.array(rng, count, d)
        session = mechanism.NetworkSession(
            features=features, response=self.array(rng, count), n_hidden=self.value(rng, hidden),
            hidden_scale=self.value(rng, 0.7), output_scale=self.value(rng, 0.6), sample_rate=self.value(rng, 1.0),
            max_norm=norm, key=self.key(rng), n_threads=self.threads(rng),
        )  # fmt: skip
        n = (d + 2) * hidden + 1
        moments = (self.array(rng, n), np.abs(self.array(rng, n)) if rng.random() < 0.5 else self.array(rng, n))
        kind = rng.random()
        if kind < 0.5:
            session.set_sites(
                *moments, self.value(rng, 0.3), self.value(rng, 1.0), self.value(rng, 0.1), self.value(rng, 0.7),
                self.value(rng, rng.choice((1.0, math.inf))), self.value(rng, rng.choice((1.0, math.inf))),
            )  # fmt: skip
        elif kind < 0.9:
            scales = (self.array(rng, n), self.array(rng, n))
            session.set_gradients(*moments, self.value(rng, 0.3), *scales, self.value(rng, 0.7))
        check_sum(session.clipped_sum(self.value(rng, 3)), norm, session.lattice_step, len(features))
        noisy = session.noisy_sum(self.value(rng, 3), self.value(rng, 2.0))
        if noisy.shape != (session.length,) or not np.isfinite(noisy).all():
            raise AssertionError("a noisy sum that is not finite")
        session.plain_sum(self.rows(rng, count), self.value(rng, math.inf))


class NetworkPasses(_Session):
    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.05, 0.2))
        count, d, hidden = rng.choice((0, 1, 2, 9)), rng.choice((1, 2, 9)), rng.choice((1, 2, 9))
        n = (d + 2) * hidden + 1
        precision = 1.0 + np.abs(self.array(rng, n)) if rng.random() < 0.5 else self.array(rng, n)
        passes = lab.NetworkPasses(
            features=self.array(rng, count, d), response=self.array(rng, count), n_hidden=self.value(rng, hidden),
            own_sites=self.value(rng, rng.random() < 0.5), clip_norm=self.value(rng, rng.choice((1.0, math.inf))),
            site_weight=self.value(rng, 1.0), eta=self.array(rng, n), precision=precision,
            prior_precision=np.ones(n), gamma=np.array([3.0, 2.0]) if rng.random() < 0.7 else self.array(rng, 2),
            prior_gamma=np.array([2.0, 1.0]),
        )  # fmt: skip
        for _ in range(rng.choice((1, 2))):
            passes.run(self.rows(rng, count), self.value(rng, 0.1), self.value(rng, 1.0))
        passes.set_prior(self.array(rng, n))
        assert [part.size for part in passes.state()] == [n, n, 2]


class PartialSum(Binding):
    """Sums made in parts, of blocks of contributions and of a regression's records."""

    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.05, 0.2))
        if rng.random() < 0.5:
            self.given(rng)
        else:
            self.regression(rng)

    def total(self, rng, length):
        norm = self.value(rng, rng.choice((1.0, 1e-30, 1e30, 3.7)))
        return mechanism.PartialSum(length=self.value(rng, length), max_norm=norm)

    def check(self, rng, total, rows):
        check_sum(total.integers, total.max_norm, total.lattice_step, rows)
        noisy = total.noisy_sum(self.key(rng), self.value(rng, 3), self.value(rng, 2.0))
        if noisy.shape != (total.length,) or not np.isfinite(noisy).all():
            raise AssertionError("a noisy sum that is not finite")

    def given(self, rng):
        length, rows = rng.choice((1, 2, 7, 8, 65)), 0
        total = self.total(rng, length)
        for _ in range(rng.randrange(3)):
            block = self.array(rng, rng.choice((0, 1, 3, 9)), length)
            scale = self.array(rng, length) if rng.random() < 0.5 else None
            total.add_contributions(block, self.threads(rng), scale)
            rows += len(block)
        other = self.total(rng, length)
        other.merge(odd_array(rng, total.integers) if rng.random() < self.strange else total.integers)
        self.check(rng, total, rows)

    def sparse(self, rng, rows, width):
        """Return the arguments of rows with a few numbers in places that are mostly good."""
        sizes = [rng.randrange(width + 1) for _ in range(rows)]
        places = [
            rng.randrange(-1, width + 1) if rng.random() < 0.01 else rng.randrange(width) for _ in range(sum(sizes))
        ]
        columns, starts = np.array(places, dtype=np.int32), np.cumsum([0, *sizes], dtype=np.int64)
        if rng.random() < self.strange:
            starts[rng.randrange(rows + 1)] += rng.choice((-1, 1, 2**40, -(2**62)))
        return {
            "features": self.array(rng, sum(sizes)), "n_features": self.value(rng, width),
            "columns": odd_array(rng, columns) if rng.random() < self.strange else columns, "starts": starts,
        }  # fmt: skip

    def regression(self, rng):
        rows, width, m = rng.choice((0, 1, 1, 2, 9)), rng.choice((1, 1, 2, 3, 8, 17)), rng.choice((1, 2, 9))
        intercept, weight = rng.random() < 0.5, self.value(rng, rng.choice((0.0, 1.0)))
        features = self.array(rng, rows, width)
        sparse = self.sparse(rng, rows, width) if rng.random() < 0.5 else {"features": features}
        source = mechanism.RegressionRows(
            response=self.array(rng, rows), intercept=self.value(rng, intercept),
            first_row=self.value(rng, rng.choice((0, 1024))), n_threads=self.threads(rng), **sparse,
        )  # fmt: skip
        if rng.random() < 0.3:
            source.sample(self.key(rng), self.value(rng, 3), self.value(rng, 0.7))
        coef, nodes = width + bool(intercept), rng.choice((0, 0, 2, 9))
        table = self.array(rng, nodes)
        residuals = mechanism.Residuals(
            link=self.value(rng, rng.choice(("logistic", "probit", "gaussian", "poisson"))), loc=self.array(rng, coef),
            bound=self.value(rng, rng.choice((math.inf, 1.0))), centre=table, slope=self.array(rng, nodes),
            first_node=self.value(rng, -3.0), spacing=self.value(rng, 0.5),
        )  # fmt: skip
        where = {"transform": self.array(rng, m, coef), "bound": self.value(rng, rng.choice((1.5, math.inf, 1e200)))}
        kind = rng.choice(("second_moments", "scores", "curvature", "score_products"))
        if kind == "scores":
            total = self.total(rng, m + (1 if weight else 0))
            source.add_scores(total, residuals, scale_weight=weight, scale_unit=self.value(rng, 1.3), **where)
        else:
            total = self.total(rng, m * (m + 1) // 2)
            add = getattr(source, f"add_{kind}")
            add(total, **where) if kind == "second_moments" else add(total, residuals, **where)
        self.check(rng, total, len(sparse["starts"]) - 1 if "starts" in sparse else len(features))


SESSIONS = (SiteSession, NetworkSession, NetworkPasses, PartialSum)
