"""What a release states is derived from all that is in it, and its marks stay."""

import copy
import dataclasses
import json
import math
import pickle
import zipfile

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import (
    Composed,
    GaussianEvent,
    Guarantee,
    NonPrivateEvent,
    PureEvent,
    account,
    accountant,
    run_event,
)
from dpinfer.accounting.pld import prv_epsilon
from dpinfer.errors import InsecureReleaseError, ReleaseFormatError, UnfoundedEpsilonError
from dpinfer.inference import noise_aware_posterior
from dpinfer.release import GradientTrace, NetworkRelease, Part, SiteRelease, load_release

DELTA = 1e-5
RUN = run_event(4.0, 0.1, 30)
COUNTS = Part("category shares", GaussianEvent(8.0), "add_remove")
LEAK = "bounds were read from the private records"


def gradient_trace(**changes):
    rng = np.random.default_rng(5)
    params = rng.normal(size=(30, 4))
    fields = {
        "params": params,
        "positions": params,
        "noisy_gradients": params + rng.normal(size=(30, 4)),
        "noise_stddev": np.ones(4),
        "final_params": params[-1],
        "sample_rate": 0.1,
        "names": ("age", "dose"),
        "noise_multiplier": 4.0,
        "event": RUN,
        "delta": DELTA,
    }
    return GradientTrace(**(fields | changes))


def site_trace():
    return SiteRelease(
        loc=np.zeros((31, 1, 1)),
        precision=np.ones((31, 1, 1)),
        noisy_sums=np.zeros((30, 2)),
        damping=np.full(30, 0.1),
        floor=np.full(31, 0.5),
        prior_loc=np.zeros((1, 1)),
        noise_stddev=4.0,
        block_weight=1.0,
        sample_rate=0.1,
        n_records=100,
        prior_scale=1.0,
        names=("loc",),
        sites="centred",
        sampling="poisson",
        isotropic=False,
        max_site_norm=1.0,
        noise_multiplier=4.0,
        event=RUN,
        delta=DELTA,
    )


def network_trace():
    return NetworkRelease(
        loc=np.zeros((31, 1)),
        precision=np.ones((31, 1)),
        noise_variance=np.ones(31),
        noisy_sums=np.zeros((30, 3)),
        weights=np.ones((30, 3)),
        damping=np.full(30, 0.1),
        floor=np.full(31, 0.5),
        noise_stddev=4.0,
        sample_rate=0.1,
        n_records=100,
        prior_precision=1.0,
        names=("w",),
        max_site_norm=1.0,
        noise_multiplier=4.0,
        event=RUN,
        delta=DELTA,
    )


KINDS = {"gradient": gradient_trace, "sites": site_trace, "network": network_trace}


@pytest.fixture(params=KINDS)
def release(request):
    return KINDS[request.param]()


def rewrite(path, change):
    """Change what a saved release says about itself."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members.pop("release.json"))
    change(document)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("release.json", json.dumps(document))
        for name, content in members.items():
            archive.writestr(name, content)


def test_one_of_two_equal_parts_cannot_be_lost():
    part = Part("counts", PureEvent(0.5, "add_remove"), "add_remove")
    release = dpi.run_statistic(dpi.models.BetaBernoulli(), np.ones(9), epsilon=1.0, n_records=9).with_parts(part, part)
    assert release.epsilon == pytest.approx(2.0)
    with pytest.raises(ValueError, match="other_parts can only be added to"):
        release.replace(other_parts=(part,))
    with pytest.raises(ValueError, match="other_parts can only be added to"):
        dataclasses.replace(release, other_parts=(part,), certified_epsilon=release.certified_epsilon)


def test_epsilon_is_that_of_all_parts_together(release, tmp_path):
    alone = account(RUN, delta=DELTA).epsilon
    joint = account(Composed((COUNTS.event, RUN)), delta=DELTA).epsilon
    assert release.epsilon == alone < joint
    both = release.with_parts(COUNTS)
    assert both.epsilon == joint
    assert both.parts[0].name == COUNTS.name
    assert both.parts[1:] == release.parts
    assert f"together with {COUNTS.name}" in both.guarantee
    both.save(tmp_path / "r")
    for other in (load_release(tmp_path / "r"), copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert (other.epsilon, other.parts, other.guarantee) == (both.epsilon, both.parts, both.guarantee)
        assert other.guarantee in repr(other)


def test_a_part_without_a_guarantee_leaves_none(release):
    both = release.with_parts(Part("means", NonPrivateEvent(), "add_remove"))
    assert both.epsilon == both.guarantee.epsilon == math.inf
    assert "No privacy guarantee" in both.guarantee


def test_parts_under_another_relation_do_not_compose(release):
    with pytest.raises(ValueError, match="add_remove"):
        release.with_parts(Part("shares", GaussianEvent(8.0), "replace_one"))
    for parts in ("shares", [COUNTS.event], COUNTS):
        with pytest.raises(TypeError, match="other_parts"):
            release.replace(other_parts=parts)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.9999, 1.02, 3.0, math.inf])
def test_an_epsilon_that_does_not_follow_is_refused(release, tmp_path, factor):
    wrong = release.epsilon * factor if factor else 0.0
    with pytest.raises(UnfoundedEpsilonError, match="certified_epsilon must follow"):
        dataclasses.replace(release, certified_epsilon=wrong)
    with pytest.raises(UnfoundedEpsilonError, match="certified_epsilon must follow"):
        release.replace(certified_epsilon=wrong)
    path = tmp_path / "r"
    release.save(path)
    rewrite(path, lambda document: document["release"].update(certified_epsilon=None if factor > 9 else wrong))
    with pytest.raises(ReleaseFormatError, match="certified_epsilon must follow from the events"):
        load_release(path)


def test_an_epsilon_that_follows_is_accepted_and_never_lowered(release, tmp_path):
    exact = release.epsilon
    for stated in (exact, exact * (1.0 + 1e-3), exact * (1.0 - 1e-12)):
        assert release.replace(certified_epsilon=stated).epsilon == max(stated, exact)
    path = tmp_path / "r"
    release.save(path)
    rewrite(path, lambda document: document.update(version=2))
    assert load_release(path).epsilon == exact


def test_a_file_that_loses_a_part_is_refused(release, tmp_path):
    path = tmp_path / "r"
    release.with_parts(COUNTS).save(path)
    rewrite(path, lambda document: document["release"].update(other_parts=[]))
    with pytest.raises(ReleaseFormatError, match="certified_epsilon must follow from the events"):
        load_release(path)


def test_what_epsilon_follows_from_may_change_and_epsilon_with_it(release):
    stricter = release.replace(delta=1e-7)
    assert stricter.epsilon == account(RUN, delta=1e-7).epsilon > release.epsilon
    assert release.replace(accountant="rdp").epsilon == account(RUN, delta=DELTA, accountant="rdp").epsilon
    assert release.replace(event=NonPrivateEvent()).epsilon == math.inf
    assert release.replace(delta=0.0).epsilon == math.inf


def test_loading_does_not_wait_for_the_slow_accountant(tmp_path, monkeypatch):
    path = tmp_path / "r"
    release = gradient_trace(accountant="prv")
    assert release.epsilon == account(RUN, delta=DELTA, accountant="prv").epsilon > gradient_trace().epsilon
    release.save(path)
    asked = []
    accountant._certify.cache_clear()
    monkeypatch.setattr(accountant, "prv_epsilon", lambda steps, delta: asked.append(1) or prv_epsilon(steps, delta))
    assert load_release(path).epsilon == release.epsilon
    assert asked == []
    # What is below the certified bound, or far above it, is computed again, and refused.
    for factor in (0.5, 1.5):
        rewrite(path, lambda document, factor=factor: document["release"].update(certified_epsilon=0.53 * factor))
        with pytest.raises(ReleaseFormatError, match="'prv' certifies"):
            load_release(path)
    assert asked


def test_the_event_is_the_traces_own():
    for event in (run_event(8.0, 0.1, 30), run_event(4.0, 0.05, 30), run_event(4.0, 0.1, 29), GaussianEvent(4.0)):
        with pytest.raises(ValueError, match="event must be that of the trace"):
            gradient_trace(event=event)
    # A trace may be cut: what was paid for all of its steps stays.
    assert gradient_trace(event=run_event(4.0, 0.1, 31)).epsilon > gradient_trace().epsilon


def test_marks_of_leakage_stay(release, tmp_path):
    marked = release.with_leaks(LEAK).with_leaks("classes were read from y", LEAK)
    assert marked.leaks == (LEAK, "classes were read from y")
    marked.save(tmp_path / "r")
    for other in (marked, load_release(tmp_path / "r"), copy.deepcopy(marked), marked.replace(delta=1e-6)):
        assert other.leaks == marked.leaks
        assert other.epsilon == other.guarantee.epsilon == math.inf
        for text in (other.guarantee, repr(other)):
            assert LEAK in text
            assert "NOT PRIVATE" in text
            assert "this holds" not in text
    with pytest.raises(ValueError, match="leaks can only be added to"):
        marked.replace(leaks=(LEAK,))
    assert release.with_parts(COUNTS).other_parts == (COUNTS,)
    with pytest.raises(ValueError, match="other_parts can only be added to"):
        release.with_parts(COUNTS).replace(other_parts=())
    with pytest.raises(ValueError, match="secure must stay False"):
        release.replace(secure=False).replace(secure=True)


def test_a_copy_field_by_field_keeps_its_marks(release):
    """``dataclasses.replace`` passes every field to the constructor, and knows nothing of marks."""
    marked = release.with_leaks(LEAK).with_parts(COUNTS).replace(secure=False)
    for change, text in (
        ({"secure": True}, "secure must stay False"),
        ({"leaks": ()}, "leaks can only be added to"),
        ({"leaks": ("another",)}, "leaks can only be added to"),
        ({"other_parts": ()}, "other_parts can only be added to"),
    ):
        with pytest.raises(ValueError, match=text):
            dataclasses.replace(marked, **change)
        with pytest.raises(ValueError, match=text):
            marked.replace(**change)
    # A copy that loses nothing is made, and marks may be added.
    assert dataclasses.replace(marked).leaks == (LEAK,)
    assert dataclasses.replace(release, leaks=(LEAK,), secure=False).leaks == (LEAK,)


@pytest.mark.parametrize(
    ("name", "value"), [("secure", True), ("leaks", ()), ("other_parts", ()), ("certified_epsilon", 0.01)]
)
def test_nothing_is_stated_of_a_release_whose_fields_were_changed_in_place(release, name, value):
    marked = release.with_leaks(LEAK).with_parts(COUNTS).replace(secure=False)
    object.__setattr__(marked, name, value)
    with pytest.raises(ValueError, match=name):
        _ = marked.epsilon
    with pytest.raises(ValueError, match=name):
        _ = marked.guarantee


@pytest.mark.parametrize("leaks", [LEAK, 3, [1], ("",), ("two\nlines",), ("\x1b[31mred",), ("x" * 1001,)])
def test_marks_are_short_lines_of_text(release, leaks):
    with pytest.raises((TypeError, ValueError), match="leaks"):
        release.replace(leaks=leaks)


def test_nothing_is_promised_where_something_leaks_or_noise_is_seeded(release):
    for bad in (release.with_leaks(LEAK), release.replace(secure=False)):
        guarantee = bad.guarantee
        assert not guarantee.holds
        assert (guarantee.epsilon_at(1e-6), guarantee.mu, guarantee.rho) == (math.inf, math.inf, math.inf)
        assert guarantee.delta_at(1.0) == 1.0
        assert guarantee.true_positive_rate([0.0, 0.01]).tolist() == [1.0, 1.0]
        assert guarantee.trade_off(0.5) == 0.0
        assert guarantee.terms() == []
    both = release.with_leaks(LEAK).replace(secure=False)
    assert LEAK in both.guarantee
    with pytest.raises(InsecureReleaseError):
        _ = both.epsilon


def test_a_guarantee_survives_copies_and_plain_data(release):
    for made in (release, release.with_parts(COUNTS), release.with_leaks(LEAK), release.replace(secure=False)):
        guarantee = made.guarantee
        data = json.loads(json.dumps(guarantee.to_dict()))
        for again in (copy.deepcopy(guarantee), pickle.loads(pickle.dumps(guarantee)), Guarantee.from_dict(data)):
            assert again == guarantee
            assert vars(again) == vars(guarantee)
    data = release.guarantee.to_dict()
    for change in ({"epsilon": 0.1}, {"epsilon": None}, {"event": GaussianEvent(1.0).to_dict()}):
        with pytest.raises(UnfoundedEpsilonError):
            Guarantee.from_dict(data | change)
    bad = (
        {"more": 1},
        {"leaks": "x"},
        {"secure": 1},
        {"delta": 2.0},
        {"adjacency": "x"},
        {"accountant": "x"},
        {"event": 3},
    )
    for change in (*bad, {"epsilon": "1"}, {"released": None}):
        with pytest.raises((TypeError, ValueError)):
            Guarantee.from_dict(data | change)


def test_what_is_computed_from_a_release_states_the_same():
    release = gradient_trace().with_parts(COUNTS).with_leaks(LEAK)
    posterior = noise_aware_posterior(release, approximation="averaged", burn_in=5)
    for text in (repr(posterior), str(posterior.summary()), posterior.guarantee):
        assert str(release.guarantee) in text
    assert posterior.guarantee.leaks == (LEAK,)
    clean = noise_aware_posterior(gradient_trace(), approximation="averaged", burn_in=5)
    assert "membership attack with 1% false positives: at most" in str(clean.summary())


def test_moments_that_no_part_accounts_for_are_named():
    model = dpi.models.LogisticRegression(
        1, feature_names=("age",), feature_moments=np.eye(2), feature_moments_known=True
    )
    release = gradient_trace(names=("age", "intercept"), model_spec=model.to_dict())
    assert "the whole trace (given its model's feature moments, taken as public) and for" in release.guarantee
    assert "taken as public" not in release.with_parts(COUNTS).guarantee
    assert "taken as public" not in gradient_trace().guarantee


def test_files_of_the_first_version_are_read(tmp_path):
    def age(document):
        header = document["release"]
        document["version"] = 1
        header["settings"]["accountant"] = header.pop("accountant")
        for name in ("other_parts", "leaks"):
            del header[name]

    path = tmp_path / "r"
    fresh = gradient_trace(settings={"loss": "split"})
    fresh.save(path)
    rewrite(path, age)
    old = load_release(path)
    assert (old.epsilon, old.accountant, old.leaks, dict(old.settings)) == (fresh.epsilon, "pld", (), {"loss": "split"})
    # It would have said the same with and without the counts.
    model = dpi.models.LogisticRegression(
        1, feature_names=("age",), feature_moments=np.eye(2), feature_moments_known=True
    )
    gradient_trace(names=("age", "intercept"), model_spec=model.to_dict()).save(path)
    rewrite(path, age)
    assert "did not count the shares" in load_release(path).guarantee


def test_a_file_cannot_make_loading_account_for_ever(tmp_path):
    path = tmp_path / "r"
    gradient_trace().save(path)
    many = [Part("counts", run_event(1.0 + 1e-6 * n, 0.1, 7), "add_remove").to_dict() for n in range(200)]
    rewrite(path, lambda document: document["release"].update(other_parts=many))
    with pytest.raises(ReleaseFormatError, match="more private parts than"):
        load_release(path)


def test_damaged_parts_are_refused(tmp_path):
    path = tmp_path / "r"
    good = COUNTS.to_dict()
    for parts in (None, "x", [1], [{}], [good | {"more": 1}], [good | {"adjacency": "x"}], [good | {"name": "a\nb"}]):
        gradient_trace().save(path)
        rewrite(path, lambda document, parts=parts: document["release"].update(other_parts=parts))
        with pytest.raises(ReleaseFormatError):
            load_release(path)
