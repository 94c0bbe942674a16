"""Sites in this process, for tests, tutorials and studies."""

from collections.abc import Mapping, Sequence

from dpinfer.mechanism.silos.site import Site


class LocalLine:
    """A line to sites in this process.

    Parameters
    ----------
    sites : sequence of Site
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.n_sites = len(self.sites)

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Give each site its message, and return the replies."""
        return {place: self.sites[place].answer(message) for place, message in messages.items()}
