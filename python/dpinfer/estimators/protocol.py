"""scikit-learn's estimator protocol, without scikit-learn, and steps before an estimator that learn from records."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Self


class Estimator:
    """Parameters are the keyword arguments of ``__init__``, kept unchanged under their names."""

    # Further keyword arguments that ``__init__`` takes together, and their defaults.
    _options: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        """Show the options in the signature, where scikit-learn reads an estimator's parameters."""
        if "__init__" in vars(cls):
            written = inspect.signature(cls.__init__)
            named = [item for item in written.parameters.values() if item.kind is not item.VAR_KEYWORD]
            more = [inspect.Parameter(own, named[-1].kind, default=value) for own, value in cls._options.items()]
            cls.__init__.__signature__ = written.replace(parameters=[*named, *more])  # type: ignore[attr-defined]

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Return the default of every parameter."""
        named = inspect.signature(cls.__init__).parameters.values()
        return {item.name: item.default for item in named if item.name != "self"}

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return sorted(cls._defaults())

    def _keep_parameters(self, given: Mapping[str, Any]) -> None:
        """Keep the parameters as they were given: the local names of ``__init__``, `options` among them.

        Raises TypeError if an option is not one.
        """
        options = given["options"]
        for name in options:
            if name not in self._options:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
        for name, default in self._defaults().items():
            setattr(self, name, given.get(name, options.get(name, default)))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; `deep` is there for compatibility: no parameter is an estimator."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters and return the estimator; raise ValueError if a name is not a parameter."""
        names = self._parameter_names()
        for name in params:
            if name not in names:
                raise ValueError(f"{name!r} is not a parameter of {type(self).__name__}; it has {', '.join(names)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = self._defaults()
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not defaults[name] and repr(value) != repr(defaults[name])
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __sklearn_is_fitted__(self) -> bool:
        """Whether ``fit`` has been called."""
        return hasattr(self, "posterior_")

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags; called by scikit-learn only."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False, poor_score=True),
            input_tags=InputTags(sparse=False, allow_nan=False),
            non_deterministic=True,
        )


def not_fitted_error(estimator: object) -> Exception:
    """Return scikit-learn's ``NotFittedError`` if installed, else a :class:`ValueError` with the same text."""
    message = f"This {type(estimator).__name__} instance is not fitted yet; call 'fit' first."
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(message)
    error: Exception = NotFittedError(message)
    return error


def steps_that_learned(estimator: Any) -> tuple[str, ...]:
    """Return the names of steps that the pipelines that are fitting `estimator` now have fitted to all records.

    A pipeline does not inform its last step about earlier ones, so that this function searches the callers.
    """
    module = sys.modules.get("sklearn.pipeline")
    if module is None:
        return ()
    found: list[str] = []
    last, frame = estimator, sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, module.Pipeline) and caller.steps[-1][1] is last:
            found[:0] = [str(name) for name, step in caller.steps[:-1] if not _looks_at_single_rows(step)]
            last = caller
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def _looks_at_single_rows(step: Any) -> bool:
    """Whether a step's output for a row depends on that row alone."""
    from sklearn.compose import ColumnTransformer
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import FeatureUnion, Pipeline
    from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures
    from sklearn.utils import get_tags

    if step is None or isinstance(step, (str, FunctionTransformer, PolynomialFeatures, FrozenEstimator)):
        return True
    for kind, steps in ((Pipeline, "steps"), (FeatureUnion, "transformer_list"), (ColumnTransformer, "transformers")):
        if isinstance(step, kind):
            return all(_looks_at_single_rows(inner[1]) for inner in getattr(step, steps))
    return not get_tags(step).requires_fit
