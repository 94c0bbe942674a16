"""``dpinfer account``: the guarantee for a given noise."""

import argparse
import sys
from typing import Any

from dpinfer.accounting import PrivacyPlan
from dpinfer.accounting.guarantee import rounded_up
from dpinfer.cli.arguments import EXIT_DONE, integer, interval, positive, public_arguments


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "account",
        help="the privacy guarantee of a given noise",
        description="Certify the epsilon of T steps of the Poisson-subsampled Gaussian mechanism, and convert it to "
        "Gaussian DP, zCDP and bounds on membership attacks. Reads no data.",
    )
    add = parser.add_argument
    add("--noise-multiplier", type=positive, required=True, metavar="S", help="noise sd over the clipping norm")
    add("--sample-rate", type=interval(0, 1, high_open=False), required=True, metavar="Q", help="Poisson rate")
    add("--steps", type=integer(1), required=True, metavar="T", help="number of steps")
    add("--delta", type=interval(0, 1), required=True, metavar="D", help="well below 1/N")
    add("--accountant", choices=("pld", "prv", "rdp"), default="pld", help="accountant (default: %(default)s)")
    add(
        "--adjacency",
        choices=("add_remove", "zero_out", "replace_one"),
        default="add_remove",
        help="definition of neighbouring data sets (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the certified epsilon, and the same guarantee in other terms."""
    with public_arguments():
        plan = PrivacyPlan.from_noise_multiplier(
            noise_multiplier=args.noise_multiplier,
            sample_rate=args.sample_rate,
            n_steps=args.steps,
            delta=args.delta,
            adjacency=args.adjacency,
            accountant=args.accountant,
        )
    relation = args.adjacency.replace("_", "-")
    engine = plan.accountant if plan.fallback is None else f"{plan.fallback}, for {plan.accountant}"
    write = sys.stdout.write
    write(f"epsilon <= {rounded_up(plan.epsilon, 6)} at delta = {plan.delta:g} ({relation}, accountant {engine})\n")
    rows = plan.guarantee.terms()[1:]
    width = max((len(name) for name, _ in rows), default=0)
    write("".join(f"  {name:<{width}}  {text}\n" for name, text in rows))
    return EXIT_DONE
