"""The compiled session over a network's records, for private runs and the audit.

**Privacy.** A session holds the records.  Only sums with noise leave the mechanism.
"""

from dpinfer._arrays import FloatArray
from dpinfer.mechanism import _native


def open_network_session(
    features: FloatArray,
    response: FloatArray,
    *,
    n_hidden: int,
    scales: tuple[float, float],
    sample_rate: float,
    max_norm: float,
    key: bytes,
    n_threads: int,
) -> _native.NetworkSession:
    """Return a session; `scales` are the public scales of the hidden and the output weights.

    **Privacy.** The session reads the records.
    """
    return _native.NetworkSession(
        features=features,
        response=response,
        n_hidden=n_hidden,
        hidden_scale=scales[0],
        output_scale=scales[1],
        sample_rate=sample_rate,
        max_norm=max_norm,
        key=key,
        n_threads=n_threads,
    )
