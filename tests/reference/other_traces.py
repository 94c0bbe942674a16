"""Logistic regressions trained by Opacus, JAX-Privacy and TF-Privacy, recorded as docs/any-model.md says."""

import re
import textwrap
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "any-model.md"


def documented(name, **space):
    """Return a function that the page prints, executed from its text."""
    code = re.search(rf"^    def {name}\(.*?(?=^\S)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    space["np"] = np
    exec(textwrap.dedent(code[0]), space)
    return space[name]


def sigmoid(eta):
    return 1.0 / (1.0 + np.exp(-eta))


def clipped_sum(X, y, w, norm):
    """The sum of the records' clipped gradients of the loss."""
    gradients = X * (sigmoid(X @ w) - y)[:, None]
    return np.sum(gradients * np.minimum(1.0, norm / np.linalg.norm(gradients, axis=1))[:, None], axis=0)


def by_opacus(X, y, *, noise_multiplier, norm, rate, steps, learning_rate, seed=1):
    """Return the trace of an Opacus run, in double precision; rate 1 takes all records in every step."""
    import opacus
    import torch

    torch.manual_seed(seed)
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    model = torch.nn.Linear(X.shape[1], 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    model, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
        data_loader=torch.utils.data.DataLoader(data, batch_size=round(rate * len(y))),
        noise_multiplier=noise_multiplier,
        max_grad_norm=norm,
        poisson_sampling=rate < 1.0,
    )
    trace = {"params": [], "gradients": []}
    documented("record", torch=torch)(optimizer, trace)
    while len(trace["params"]) < steps:
        for features, response in loader:
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(features)[:, 0], response).backward()
            optimizer.step()
    return trace


def by_jax_privacy(X, y, *, noise_multiplier, norm, rate, steps, learning_rate, seed=1):
    """Return the trace of a run with JAX-Privacy's clipped gradients and Gaussian noise, in single precision."""
    import jax
    import jax_privacy
    from jax import numpy as jnp
    from jax_privacy import noise_addition

    def loss(params, features, response):
        eta = features @ params["w"]
        return jnp.sum(jax.nn.softplus(eta) - response * eta)

    size = round(rate * len(y))
    gradient = jax_privacy.clipped_grad(loss, l2_clip_norm=norm, batch_argnums=(1, 2), normalize_by=size)
    stddev = noise_multiplier * gradient.sensitivity()
    privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(seed))
    params = {"w": jnp.zeros(X.shape[1])}
    state, rng = privatizer.init(params), np.random.default_rng(seed)
    trace, flat = {"params": [], "gradients": [], "stddev": size * stddev}, documented("flat", jax=jax)
    for _ in range(steps):
        # A batch of one size, sampled records first; the others have a gradient of zero.
        chosen = np.flatnonzero(rng.random(len(y)) < rate)
        features, response = np.zeros_like(X, dtype=np.float32), np.full(len(y), 0.5, dtype=np.float32)
        features[: chosen.size], response[: chosen.size] = X[chosen], y[chosen]
        noisy, state = privatizer.update(gradient(params, features, response), state)
        trace["params"].append(flat(params))
        trace["gradients"].append(size * flat(noisy))
        params = jax.tree.map(lambda value, step: value - learning_rate * step, params, noisy)
    return trace


def by_tf_privacy(X, y, *, noise_multiplier, norm, rate, steps, learning_rate, seed=1):
    """Return the trace of a run with TF-Privacy's Keras optimizer, in single precision."""
    import tensorflow as tf
    import tensorflow_privacy

    tf.random.set_seed(seed)
    size, rng = len(y), np.random.default_rng(seed)
    optimizer = tensorflow_privacy.DPKerasSGDOptimizer(
        l2_norm_clip=norm,
        noise_multiplier=noise_multiplier,
        num_microbatches=size,
        # Of a sum over all records divided by their number, while others here divide by the expected batch.
        learning_rate=learning_rate / rate,
    )
    features, response = tf.constant(X, tf.float32), tf.constant(y, tf.float32)
    weight = tf.Variable(tf.zeros(X.shape[1]))
    trace = {"params": [], "gradients": [], "stddev": noise_multiplier * norm}
    documented("watch")(optimizer, trace, size)
    for _ in range(steps):
        # A record that is not sampled has a loss of zero.
        sampled = tf.cast(rng.random(size) < rate, tf.float32)

        def losses(sampled=sampled):
            eta = tf.linalg.matvec(features, weight)
            return sampled * tf.nn.sigmoid_cross_entropy_with_logits(labels=response, logits=eta)

        optimizer.minimize(losses, var_list=[weight])
    return trace


TRAINERS = {"opacus": by_opacus, "jax_privacy": by_jax_privacy, "tensorflow_privacy": by_tf_privacy}
