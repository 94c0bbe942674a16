"""Sparse matrices and codes of categories: the bits of the dense rows, in every sum and in a release; refusals."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

import dpinfer as dpi
from dpinfer import mechanism
from dpinfer.accounting import Adjacency
from dpinfer.errors import RecordError
from dpinfer.lab.replays.mechanisms import own_logistic
from dpinfer.mechanism import CodedRows, RowSource, ShardedRows, _native
from dpinfer.testing import InsecureRNG

N, NO_TABLE = 900, {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
KINDS = ("second_moments", "scores", "curvature", "score_products")
CATEGORIES = [4, 2, 3]


def dense(rng, n, d):
    """Return rows of which one is zero, one is full, and of the others a fifth is not zero."""
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.2)
    X[0], X[-1] = 0.0, rng.normal(size=d)
    return X


def integers(kind, link, transform, loc, response, **rows):
    source = _native.RegressionRows(response=response, intercept=True, **rows)
    residuals = _native.Residuals(link=link, loc=loc, bound=0.8, **NO_TABLE)
    m = len(transform)
    total = _native.PartialSum(length=m if kind == "scores" else m * (m + 1) // 2, max_norm=2.5)
    where = {"transform": transform, "bound": 1.4}
    add = getattr(source, f"add_{kind}")
    add(total, **where) if kind == "second_moments" else add(total, residuals, **where)
    return total.integers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("link", "diagonal"), [("logistic", False), ("gaussian", True), ("poisson", False)])
def test_every_sum_has_the_bits_of_the_dense_rows(kind, link, diagonal, rng):
    """Directions around whole vectors and around what stays in registers; records around whole groups."""
    for n, d, m in ((1, 1, 1), (7, 6, 7), (8, 7, 8), (65, 9, 15), (33, 30, 64), (17, 40, 71), (40, 90, 91)):
        X, y = dense(rng, n, d), rng.integers(0, 2, n).astype(float)
        if n == 65:
            X[3, 0], X[5, 0], y[6] = np.nan, 1e200, np.inf
        transform, loc = rng.normal(size=(m, d + 1)) / 3.0, rng.normal(size=d + 1)
        if diagonal:
            transform *= np.eye(m, d + 1)
        for kept in (X, X.astype(np.float32)) if n != 65 else (X,):
            matrix = sparse.csr_array(kept)
            parts = {"features": matrix.data, "columns": matrix.indices, "starts": matrix.indptr.astype(np.int64)}
            whole = integers(kind, link, transform, loc, y, features=kept)
            for n_threads in (1, 3):
                found = integers(kind, link, transform, loc, y, n_features=d, n_threads=n_threads, **parts)
                np.testing.assert_array_equal(found, whole)
            assert n == 1 or np.any(whole != 0)
        # Power: another place of one number is seen.
        if d > 5:
            parts["columns"] = (parts["columns"] + 1) % d
            assert np.any(integers(kind, link, transform, loc, y, n_features=d, **parts) != whole)


def coded(rng, n=N, *, drop_first, numbers=2):
    """Return codes and numbers, and the dense rows that they stand for."""
    codes = np.column_stack([rng.integers(0, size, n) for size in CATEGORIES])
    numeric = rng.normal(size=(n, numbers))
    first = int(drop_first)
    columns = [codes[:, [j]] == np.arange(first, size) for j, size in enumerate(CATEGORIES)]
    X = np.column_stack([numeric, *columns]).astype(np.float64)
    rows = CodedRows(codes.astype(np.uint8), CATEGORIES, numeric if numbers else None, drop_first=drop_first)
    assert rows.n_features == X.shape[1]
    return rows, X


def run(X, y, n_features, **options):
    model = dpi.models.LogisticRegression(n_features, fit_intercept=True)
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N)
    defaults = {"plan": plan, "n_records": N, "random_source": InsecureRNG(5), "n_threads": 1}
    return dpi.run_newton(model, X, y, **(defaults | options))


def bits(release):
    arrays = {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}
    assert {"moments", "scores", "slope"} <= arrays.keys()
    return arrays


@pytest.mark.parametrize("drop_first", [False, True])
def test_codes_give_the_release_of_their_columns(drop_first, rng):
    rows, X = coded(rng, drop_first=drop_first)
    y = (X[:, 0] + X[:, 2] > rng.normal(size=N)).astype(float)
    whole = bits(run(X, y, X.shape[1]))
    assert bits(run(rows, y, X.shape[1])) == whole
    assert "private" in repr(rows)
    # Power: with the other convention the columns are others.
    other = CodedRows(rows._codes, CATEGORIES, rows._numeric, drop_first=not drop_first)
    with pytest.raises(RecordError, match=f"{X.shape[1]} columns"):
        run(other, y, X.shape[1])


def test_matrices_of_any_format_give_the_release_of_their_rows(rng):
    X = dense(rng, N, 6)
    y = (X[:, 0] > rng.normal(size=N)).astype(float)
    whole = bits(run(X, y, 6))
    matrix = sparse.csr_matrix(X)
    twice = sparse.coo_array((np.repeat(matrix.data / 2.0, 2), tuple(np.repeat(matrix.nonzero(), 2, axis=1))), X.shape)
    unsorted = matrix.copy()
    for first, last in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        for array in (unsorted.indices, unsorted.data):
            array[first:last] = array[first:last][::-1].copy()
    unsorted.has_sorted_indices = False
    kept = unsorted.indices.copy()
    room = sparse.csr_array((np.append(matrix.data, 7.0), np.append(matrix.indices, 0), matrix.indptr), X.shape)
    for given in (matrix, sparse.csr_array(X), matrix.tocsc(), twice, unsorted, room):
        assert bits(run(given, y, 6)) == whole
    # What was given is left as it was.
    np.testing.assert_array_equal(unsorted.indices, kept)
    single = X.astype(np.float32)
    assert bits(run(sparse.csr_array(single), y, 6)) == bits(run(single, y, 6))


def test_an_interrupted_run_knows_sparse_rows_again(rng, tmp_path):
    X = dense(rng, N, 6)
    matrix, y, place = sparse.csr_array(X), (X[:, 0] > 0.0).astype(float), tmp_path / "run"

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(matrix, y, 6, checkpoint=place, progress=stop)
    moved = matrix.copy()
    moved.indices[0] = (moved.indices[0] + 1) % 6
    for other in (matrix * 2.0, moved):
        with pytest.raises(RecordError, match="interrupted run"):
            run(other, y, 6, checkpoint=place)
    assert bits(run(matrix, y, 6, checkpoint=place)) == bits(run(X, y, 6))


def test_blocks_and_shards_may_be_sparse(rng):
    rows, X = coded(rng, drop_first=True)
    y = (X[:, 0] > rng.normal(size=N)).astype(float)
    whole = bits(run(X, y, X.shape[1]))

    def blocks():
        yield CodedRows(rows._codes[:300], CATEGORIES, rows._numeric[:300], drop_first=True), y[:300]
        yield sparse.csr_array(X[300:700]), y[300:700]
        yield X[700:], y[700:]

    assert bits(run(RowSource(blocks), None, X.shape[1])) == whole
    with ThreadPoolExecutor(2) as pool:
        assert bits(run(ShardedRows(pool, [RowSource(blocks)]), None, X.shape[1])) == whole
    assert bits(run(pickle.loads(pickle.dumps(rows)), y, X.shape[1])) == whole


def test_what_cannot_be_used_is_refused_before_anything_is_spent(rng, tmp_path):
    people = dpi.PrivacyLedger.create(tmp_path / "spent").add_dataset("people", budget=(50.0, 1e-3))
    options = {"ledger": people, "random_source": None}
    rows, X = coded(rng, drop_first=False)
    y, d = np.zeros(N), X.shape[1]
    model = dpi.models.LogisticRegression(d, fit_intercept=True)
    blanked = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N, adjacency=Adjacency.ZERO_OUT)
    for given in (rows, sparse.csr_array(X)):
        with pytest.raises(ValueError, match="plan must not be for 'zero_out' with sparse rows"):
            run(given, y, d, plan=blanked, **options)
        with pytest.raises(TypeError, match=r"not sparse: .* for the library's models and without units"):
            run(given, y, d, unit=mechanism.Units(np.arange(N), max_rows=1), **options)
        with pytest.raises(TypeError, match="y must be given"):
            run(given, None, d, **options)
        plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=3)
        with pytest.raises(TypeError, match="run_newton alone takes sparse"):
            dpi.run_dpvi(model, given, y, plan=plan, n_records=N, max_grad_norm=1.0, ledger=people)
        with pytest.raises(TypeError, match="run_newton alone takes sparse"):
            dpi.run_dp_sep(model, given, y, plan=plan, n_records=N, ledger=people)
    own = own_logistic()
    plan = dpi.plan_newton(own, target_epsilon=2.0, target_delta=1e-5, n_records=N)
    with pytest.raises(TypeError, match="not sparse"):
        dpi.run_newton(own, rows, y, plan=plan, n_records=N, ledger=people)
    assert not people.runs()
    for wrong, error in (
        ({"n_categories": []}, ValueError),
        ({"n_categories": [0]}, ValueError),
        ({"n_categories": [1], "drop_first": True}, ValueError),
        ({"n_categories": [2.0]}, TypeError),
    ):
        with pytest.raises(error, match="n_categories"):
            CodedRows(np.zeros(3, dtype=int), **wrong)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (CodedRows(np.array([0, 3, 8675309]), [4]), RecordError, "codes from 0"),
        (CodedRows(np.array([0, -1, 2]), [4]), RecordError, "codes from 0"),
        (CodedRows(np.array([0.0, 1.0, 2.0]), [4]), TypeError, "integers"),
        (CodedRows(np.zeros((3, 2), dtype=int), [4]), RecordError, "codes in 1 columns"),
        (CodedRows(np.zeros(3, dtype=int), [3], np.array([1.0, np.nan, 0.0])), RecordError, "X must be finite"),
        (CodedRows(np.zeros(3, dtype=int), [3], np.array([1.0, 0.0])), RecordError, "as many rows"),
        (CodedRows(np.zeros(3, dtype=int), [3], np.array(["a", "b", "c"])), TypeError, "real numbers"),
        (sparse.csr_array(np.array([[np.inf, 0.0, 1.0, 0.0]] * 3)), RecordError, "X must be finite"),
        (sparse.csr_array(np.eye(3)), RecordError, "4 columns, got 3"),
        (sparse.csr_array(np.eye(3, 4, dtype=complex)), TypeError, "complex numbers"),
        (sparse.csr_array(np.eye(2, 4)), RecordError, "y must be one-dimensional"),
    ],
)
def test_bad_rows_are_refused_without_a_word_of_them(given, error, message):
    model = dpi.models.LogisticRegression(4)
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=3)
    y = np.zeros(3)
    with pytest.raises(error, match=message) as caught:
        dpi.run_newton(model, given, y, plan=plan, n_records=3, random_source=InsecureRNG(1))
    assert "8675309" not in str(caught.value)


def test_a_matrix_whose_parts_disagree_is_refused():
    model = dpi.models.LogisticRegression(4)
    plan = dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=3)
    for damage in ("indices", "indptr"):
        matrix = sparse.csr_array(np.eye(3, 4))
        getattr(matrix, damage)[1] = 8675309
        with pytest.raises(RecordError, match="whose parts agree") as caught:
            dpi.run_newton(model, matrix, np.zeros(3), plan=plan, n_records=3, random_source=InsecureRNG(1))
        assert caught.value.__context__ is None


def test_the_kernel_looks_at_every_place():
    matrix = sparse.csr_array(np.eye(3, 4))
    good = {
        "features": matrix.data, "response": np.zeros(3), "intercept": False, "n_features": 4,
        "columns": matrix.indices, "starts": matrix.indptr.astype(np.int64),
    }  # fmt: skip
    assert _native.RegressionRows(**good).n_coef == 4
    for name, value, message in (
        ("columns", np.array([0, 1, 4], dtype=np.int32), "columns must be in"),
        ("columns", np.array([0, -1, 2], dtype=np.int32), "columns must be in"),
        ("columns", np.array([0, 1], dtype=np.int32), "must be .n_values"),
        ("starts", np.array([0, 2, 1, 3]), "starts must increase"),
        ("starts", np.array([1, 1, 2, 3]), "starts must increase"),
        ("starts", np.array([0, 1, 2, 4]), "starts must increase"),
        ("starts", np.array([0, 3]), "response must be"),
        ("n_features", 0, "n_features must be"),
        ("n_features", None, "given together"),
        ("features", np.ones((3, 1)), "must be .n_values"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.RegressionRows(**(good | {name: value}))
    with pytest.raises(TypeError):
        _native.RegressionRows(**(good | {"columns": matrix.indices.astype(np.int64)}))
