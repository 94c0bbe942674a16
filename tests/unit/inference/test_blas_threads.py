"""A posterior is computed with one thread of BLAS, and leaves the process as it was."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import dpinfer as dpi
from dpinfer.inference import fit
from dpinfer.models import BetaBernoulli
from dpinfer.release import StatisticRelease


@pytest.fixture
def blas():
    """The libraries of linear algebra, with two threads each where there is room for two."""
    import scipy.linalg  # noqa: F401

    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    before = [library.num_threads for library in libraries]
    for library in libraries:
        library.set_num_threads(2)
    yield lambda: [library.num_threads for library in libraries]
    for library, threads in zip(libraries, before, strict=True):
        library.set_num_threads(threads)


def test_a_posterior_has_one_thread(blas, monkeypatch):
    before, seen = blas(), []
    if max(before) < 2:
        pytest.skip("BLAS has one thread here")

    def watched(release, request):
        seen.append(blas())
        raise ArithmeticError("enough")

    room = replace(fit.ROOMS[StatisticRelease](), posterior=watched)
    monkeypatch.setitem(fit.ROOMS, StatisticRelease, lambda: room)
    release = dpi.run_statistic(BetaBernoulli(), np.ones(20), epsilon=1.0, n_records=20)
    with pytest.raises(ArithmeticError, match="enough"):
        dpi.noise_aware_posterior(release)
    assert seen == [[1] * len(before)]
    assert blas() == before
