"""Flower as a line: its messages carry this protocol's bytes, and its secure aggregation is not used.

That clips floats and rounds them into 32 bits; the sums here are exact integers, which it cannot carry.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from dpinfer._validate import check_interval
from dpinfer.errors import BackendUnavailableError
from dpinfer.mechanism.silos.site import Site

_RECORD = "dpinfer"


class FlowerLine:
    """A line to the client apps of a Flower federation, from within its server app, whose grid it is given.

    `nodes` are the sites: by default every connected node.  A node that does not answer within `timeout`
    seconds is lost for that pass.
    """

    def __init__(self, grid: Any, nodes: Sequence[int] | None = None, *, timeout: float = 600.0) -> None:
        _flower("app")
        self._grid = grid
        self._nodes = sorted(grid.get_node_ids()) if nodes is None else list(nodes)
        self._timeout = check_interval("timeout", timeout, 0.0)
        self.n_sites = len(self._nodes)

    def exchange(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send each site its message, and return the replies of those that answered in time."""
        asked = [
            _flower("app").Message(_content(message=message), dst_node_id=self._nodes[place], message_type="query")
            for place, message in messages.items()
        ]
        found = {}
        for reply in self._grid.send_and_receive(asked, timeout=self._timeout):
            if not reply.has_error():
                found[self._nodes.index(reply.metadata.src_node_id)] = reply.content[_RECORD]["message"]
        return found


def site_app(make_site: Callable[[Any], Site]) -> Any:
    """Return a Flower client app that answers as a site.

    `make_site` gets the app's context, whose ``node_config`` identifies the site, and returns the site.  Flower may
    answer each message in another process: the site's state is kept in the context of its node.

    **Privacy.** The context's state is SECRET: it has the key of the session.
    """
    app = _flower("clientapp").ClientApp()

    def answer(message: Any, context: Any) -> Any:
        site = make_site(context)
        if _RECORD in context.state:
            site.load(context.state[_RECORD]["state"])
        reply = site.answer(message.content[_RECORD]["message"])
        context.state[_RECORD] = _flower("app").ConfigRecord({"state": site.save()})
        return _flower("app").Message(_content(message=reply), reply_to=message)

    app.query()(answer)
    return app


def _content(message: bytes) -> Any:
    app = _flower("app")
    return app.RecordDict({_RECORD: app.ConfigRecord({"message": message})})


def _flower(part: str) -> Any:
    """Return a part of Flower."""
    try:
        return import_module(f"flwr.{part}")
    except ImportError as error:
        raise BackendUnavailableError("this line needs Flower: pip install 'dpinfer[flower]'") from error
