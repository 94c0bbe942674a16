"""The compiled modules as fuzzing targets: any argument gives a result or a TypeError, ValueError or MemoryError.

A crash, a hang, or another exception is a finding; so is a private sum that a single record moves by more than C.
"""

import math

import numpy as np

from dpinfer.inference import _native as inference
from dpinfer.lab import _native as laboratory
from dpinfer.mechanism import _native as mechanism
from tests.reference.fuzzing import NUMBERS, VALUES, Target

KEY = bytes(range(32))
_INTS = [0, 1, 2, 3, 5, 8, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64, 2**64 - 1, -(2**63), 10**30]
_NOT_ARRAYS = [
    None,
    1.5,
    "x",
    b"x",
    [[1.0, 2.0]],
    (1.0,),
    {},
    object(),
    np.float64(1.0),
    np.array(3.0),
    memoryview(b"12345678"),
]


def odd_number(rng):
    return rng.choice((*NUMBERS, *_INTS, np.float32(0.5), np.int64(3), np.bool_(True)))


def numbers(rng, shape, *, extreme=0.3):
    """An array of the asked shape whose numbers are sometimes those that break arithmetic."""
    values = np.array([rng.gauss(0.0, 1.0) for _ in range(math.prod(shape))])
    if rng.random() < extreme:
        for _ in range(rng.randrange(1, 4)):
            if values.size:
                values[rng.randrange(values.size)] = rng.choice(
                    (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e154, 1.1e154, 5e-324, -0.0, 1e-308, 1e30, 2.0**52)
                )
    return values.reshape(shape)


def odd_array(rng, array):
    """The same numbers in a form that a binding must refuse, or must read with care."""
    with np.errstate(all="ignore"):
        return _odd_array(rng, array)


def _odd_array(rng, array):
    kind = rng.randrange(18)
    if kind == 0:
        return array.astype(np.float32)
    if kind == 1:
        return np.nan_to_num(array, posinf=1.0, neginf=1.0).astype(
            rng.choice((np.int64, np.int32, np.uint8, np.bool_)), casting="unsafe"
        )
    if kind == 2:
        return array.astype(rng.choice((np.complex128, np.longdouble, np.float16)))
    if kind == 3:
        return array.astype(object)
    if kind == 4:
        return array.astype(">f8")
    if kind == 5:
        return np.asfortranarray(array)
    if kind == 6:
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if kind == 7:
        return array[::-1] if array.ndim else array
    if kind == 8:
        copied = np.frombuffer(b"\x00" + array.tobytes(), np.uint8)[1:].view(np.float64)
        return copied.reshape(array.shape)
    if kind == 9:
        array = array.copy()
        array.flags.writeable = False
        return array
    if kind == 10:
        return array[None]
    if kind == 11:
        return array.reshape(-1)
    if kind == 12:
        return array[..., :0] if array.ndim else array
    if kind == 13:
        return np.concatenate((array, array), axis=0) if array.ndim else array
    if kind == 14:
        return np.broadcast_to(np.float64(1.0), array.shape)
    if kind == 15:
        return np.zeros(array.shape, dtype=[("a", "<f8")])
    if kind == 16:
        return array[:-1] if array.ndim else array
    return rng.choice(_NOT_ARRAYS)


class Binding(Target):
    documented = (TypeError, ValueError, MemoryError)

    def __init__(self, folder=None) -> None:
        self.strange = 0.15

    def array(self, rng, *shape):
        value = numbers(rng, shape)
        return odd_array(rng, value) if rng.random() < self.strange else value

    def value(self, rng, good):
        if rng.random() >= self.strange:
            return good
        return odd_number(rng) if rng.random() < 0.8 else rng.choice(VALUES)

    def threads(self, rng):
        return self.value(rng, rng.choice((1, 1, 2, 3)))

    def key(self, rng):
        return (
            KEY if rng.random() > 0.05 else rng.choice((b"", KEY[:31], KEY + b"x", bytearray(KEY), "k" * 32, None, 5))
        )


def check_sum(total, norm, step, rows):
    """No record moves the sum by more than C; `rows` records at most."""
    squared = sum(int(value) ** 2 for value in total)
    if squared > (rows * norm / step) ** 2:
        raise AssertionError("a sum exceeds what its records may contribute")


class StepSession(Binding):
    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.05, 0.2))
        rows, width = rng.choice((0, 1, 1, 1, 2, 9)), rng.choice((1, 1, 2, 3, 8, 9, 65))
        likelihood = rng.choice(("logistic", "probit", "gaussian", "poisson"))
        intercept, aligned = rng.random() < 0.5, rng.random() < 0.3
        features = self.array(rng, rows, width)
        if isinstance(features, np.ndarray) and features.dtype == np.float64 and rng.random() < 0.2:
            with np.errstate(over="ignore"):
                features = features.astype(np.float32)
        norm = self.value(rng, rng.choice((1.0, 1e-30, 1e30, 3.7)))
        session = mechanism.StepSession(
            features=features,
            response=self.array(rng, rows),
            likelihood=self.value(rng, likelihood),
            intercept=self.value(rng, intercept),
            aligned=self.value(rng, aligned),
            sample_rate=self.value(rng, 1.0),
            max_grad_norm=norm,
            key=self.key(rng),
            n_threads=self.threads(rng),
        )
        coef = width + bool(intercept)
        n = coef + (likelihood == "gaussian")
        length = n if aligned else 2 * n
        calls = [
            lambda: session.set_scales(self.array(rng, length), self.array(rng, length)),
            lambda: self.expect(rng, session, coef, likelihood == "gaussian", draws=aligned or rng.random() < 0.3),
        ]
        if rng.random() < 0.1:
            calls = calls[: rng.randrange(2)]
        for call in calls:
            call()
        total = session.clipped_sum(self.value(rng, 3))
        check_sum(total, norm, session.lattice_step, len(features))
        noisy = session.noisy_sum(self.value(rng, 3), self.value(rng, 2.0))
        if noisy.shape != (session.released_length,) or not np.isfinite(noisy).all():
            raise AssertionError("a noisy sum that is not finite")

    def expect(self, rng, session, coef, dispersion, *, draws):
        if draws:
            count = rng.choice((1, 2, 9))
            part = self.array(rng, 3, count) if dispersion else self.array(rng, 0, count)
            session.set_draws(self.array(rng, count, coef), self.array(rng, count, coef), part)
            return
        nodes = rng.choice((1, 2, 10))
        moments = self.array(rng, 5 if dispersion else 0)
        session.set_quadrature(
            self.array(rng, coef), self.array(rng, coef), self.array(rng, nodes), self.array(rng, nodes), moments
        )


class AffineSession(Binding):
    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.05, 0.2))
        rows, width, length = rng.choice((0, 1, 1, 2, 9)), rng.choice((1, 2, 3, 16)), rng.choice((1, 2, 7, 64))
        norm = self.value(rng, rng.choice((1.0, 1e-30, 1e30, 3.7)))
        statistics = self.array(rng, rows, width)
        session = mechanism.AffineSession(
            statistics=statistics,
            length=self.value(rng, length),
            sample_rate=self.value(rng, 1.0),
            max_grad_norm=norm,
            key=self.key(rng),
            n_threads=self.threads(rng),
        )
        if rng.random() > 0.1:
            session.set_map(self.array(rng, length, width), self.array(rng, length))
        check_sum(session.clipped_sum(self.value(rng, 1)), norm, session.lattice_step, len(statistics))
        noisy = session.noisy_sum(self.value(rng, 3), self.value(rng, 2.0))
        if not np.isfinite(noisy).all():
            raise AssertionError("a noisy sum that is not finite")


class RandomNumbers(Binding):
    def feed(self, rng):
        kind = rng.randrange(5)
        step = self.value(rng, 2)
        small = (0, 1, 2, 7, 64, 1000)
        if kind == 0:
            blocks = mechanism.keystream(
                self.key(rng), self.value(rng, 1), step, self.value(rng, 0), self.count(rng, small)
            )
            assert len(blocks) % 64 == 0
        elif kind == 1:
            assert np.isfinite(mechanism.monte_carlo_normals(self.key(rng), step, self.count(rng, small))).all()
        elif kind == 2:
            words = np.array([rng.getrandbits(64) for _ in range(rng.choice((0, 16, 32, 5)))], dtype=np.uint64)
            words[: words.size // 2] = rng.choice((0, 2**64 - 1, 2**11, 2**63))
            normals = mechanism.box_muller(odd_array(rng, words) if rng.random() < self.strange else words)
            assert np.isfinite(normals).all()
        elif kind == 3:
            stddev = self.value(rng, rng.choice((1e17, 1e12, 1.0, 5e-324)))
            arguments = (self.key(rng), step, stddev, self.count(rng, small[:-1]))
            draws, n_exact = mechanism.rounded_gaussian(*arguments)
            assert 0 <= n_exact <= draws.size
            assert (draws == mechanism.exact_rounded_gaussian(*arguments)).all()
        else:
            rate, rows = self.value(rng, 0.5), self.count(rng, small)
            found = mechanism.poisson_sample(self.key(rng), step, rate, rows)
            assert found.size <= rows
            assert (np.diff(found) > 0).all()

    def count(self, rng, small):
        # An honest request for gigabytes is no fault of the binding; only odd ones are made.
        return (
            rng.choice(small) if rng.random() > 0.1 else rng.choice((-1, 2.5, None, "3", 2**64, -(2**63), np.nan, True))
        )


class Inference(Binding):
    def feed(self, rng):
        steps, k, m = rng.choice((0, 1, 2, 50)), rng.choice((1, 2, 5)), rng.choice((1, 3))
        kind = rng.randrange(8)
        threads = self.threads(rng)
        if kind == 0:
            edges = self.edges(rng, steps)
            noise = self.array(rng, k) if rng.random() < 0.5 else self.array(rng, steps, k)
            positions, gradients = self.array(rng, steps, k), self.array(rng, steps, k)
            inference.trace_statistics(positions, gradients, noise, self.array(rng, k), edges, threads)
        elif kind == 1:
            inference.gram_statistics(
                self.array(rng, steps, k), self.array(rng, steps, m), self.array(rng, steps), threads
            )
        elif kind == 2:
            inference.collapsed_posteriors(self.problems(rng), threads)
        elif kind == 3:
            inference.log_marginal_inflation(self.value(rng, 10.0), self.value(rng, 5.0))
        elif kind == 4:
            draws, sims, repeats = rng.choice((1, 2, 17)), rng.choice((1, 3)), rng.choice((0, 1, 4))
            laboratory.tarp_counts(
                self.array(rng, draws, sims, k),
                self.array(rng, sims, k),
                self.array(rng, repeats, sims, k),
                self.array(rng, sims, k),
                threads,
            )
        elif kind == 5:
            laboratory.draw_moments(self.array(rng, steps, m, k), threads)
        elif kind == 6:
            components, levels = (self.array(rng, steps) for _ in range(3)), (self.array(rng, k) for _ in range(2))
            found = inference.mixture_quantiles(self.edges(rng, steps), *components, *levels)
            assert found.shape[0] == k
        else:
            form = rng.choice((0, 1, 2))
            hessian = self.array(rng, m, k) if form == 0 else self.array(rng, m, k, k)
            rate, noise = (np.abs(self.array(rng, k)) if rng.random() < 0.8 else self.array(rng, m, k) for _ in "ab")
            laboratory.stationary_covariance(
                hessian, rate, noise, self.value(rng, 0.1), self.value(rng, form), self.value(rng, True), threads
            )

    def edges(self, rng, steps):
        good = np.array(sorted({0, steps // 2, steps}))
        if rng.random() > 0.3:
            return good
        odd = [rng.choice((-1, 0, 1, steps, steps + 1, 2**62, -(2**63), 2**63 - 1)) for _ in range(rng.randrange(4))]
        return rng.choice((np.array(odd, dtype=np.int64), good.astype(float), good[::-1], good.astype(np.int32), None))

    def problems(self, rng):
        rows, fields = rng.choice((0, 1, 3)), rng.choice((16, 16, 8, 10, 11, 12, 13, 14, 15))
        return np.abs(numbers(rng, (rows, fields))) if rng.random() < 0.5 else self.array(rng, rows, fields)


class Study(Binding):
    documented = (TypeError, ValueError, MemoryError)

    def feed(self, rng):
        self.strange = rng.choice((0.0, 0.03, 0.1))
        steps, runs, rows = rng.choice((1, 2, 12)), rng.choice((1, 2)), rng.choice((0, 1, 5, 40))
        n = 1
        kind = rng.choice(("quadrature", "draws", "aligned"))
        glm = rng.random() < 0.4
        likelihood, width, intercept = rng.choice(("gaussian", "logistic")), rng.choice((1, 3)), rng.random() < 0.5
        if glm:
            n = width + intercept + (likelihood == "gaussian")
        settings = {
            "n_steps": self.value(rng, steps), "n_records": self.value(rng, 50), "sample_rate": self.value(rng, 0.5),
            "noise_multiplier": self.value(rng, 3.0), "max_grad_norm": self.value(rng, 1.0),
            "kind": self.value(rng, kind), "n_draws": self.value(rng, 2),
            "per_example": self.value(rng, rng.random() < 0.5),
            "fisher": self.value(rng, rng.random() < 0.5),
            "raw_ratio": self.value(rng, 0.2), "excursion": self.value(rng, 2.0),
            "grad_scale": np.ones(2 * n), "learning_rate": np.full(2 * n, 1e-3),
            "schedule": self.array(rng, steps), "start": self.array(rng, 2 * n),
        }  # fmt: skip
        if rng.random() < 0.05:
            del settings[rng.choice(list(settings))]
        edges = (
            np.array([0, steps])
            if rng.random() > 0.1
            else rng.choice((np.array([0]), np.array([0, steps + 1]), np.array([steps, 0]), np.array([0.0, steps])))
        )
        keys = [KEY] * runs if rng.random() > 0.05 else rng.choice(([], [b"x"], [None], [KEY, 3], None))
        common = {
            "settings": settings, "boundaries": edges, "keys": keys,
            "nodes": self.array(rng, 4), "weights": self.array(rng, 4),
            "n_threads": self.threads(rng), "keep_trace": self.value(rng, rng.random() < 0.5),
        }  # fmt: skip
        if glm:
            laboratory.simulate_glm(
                likelihood=likelihood, features=self.array(rng, runs, rows, width),
                response=self.array(rng, runs, rows), intercept=self.value(rng, intercept),
                prior_scale=self.value(rng, 1.0), variance_shape=self.value(rng, 2.0),
                variance_rate=self.value(rng, 2.0), second_moments=self.array(rng, width + intercept), **common,
            )  # fmt: skip
            return
        family = rng.choice(("exponential", "binomial", "sticks", "softmax"))
        grouped = rng.random() < 0.4
        counts = (
            np.array([[rng.choice((0, 1, 5, 2**31, -1)) for _ in range(3)] for _ in range(runs)])
            if grouped
            else np.empty((0, 0), np.int64)
        )
        laboratory.simulate_conjugate(
            family=self.value(rng, family), prior=self.array(rng, 2), n_trials=self.value(rng, 1.0),
            statistics=self.array(rng, 3, n) if grouped else self.array(rng, runs, rows, n), counts=counts, **common,
        )  # fmt: skip


BINDINGS = (StepSession, AffineSession, RandomNumbers, Inference, Study)
