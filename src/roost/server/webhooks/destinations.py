"""Which addresses webhooks may reach: those of an allow-list, and never what trusts a caller because of its address.

An entry is a network (CIDR), or `public`: all addresses that are routed on the internet. The server's own addresses
need an entry of their own, because its ports trust this machine.
"""

import ipaddress
import socket
from collections.abc import Iterable

from roost.model.errors import Invalid

PUBLIC = "public"
ENTRIES_MAX = 100

#: Metadata services of clouds, which have secrets; 169.254.169.254 and the like are refused as link-local.
METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")))
NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Destinations:
    def __init__(self, entries: Iterable[str] = (PUBLIC,)) -> None:
        """Raises Invalid."""
        entries = tuple(entries)
        if len(entries) > ENTRIES_MAX:
            raise Invalid("webhook_allow", f"an allow-list has at most {ENTRIES_MAX} entries, not {len(entries):,}")
        self._public = PUBLIC in entries
        try:
            self._networks = [ipaddress.ip_network(entry) for entry in entries if entry != PUBLIC]
        except ValueError as error:
            message = f"an entry is `{PUBLIC}` or a network like 10.1.2.0/24: {error}"
            raise Invalid("webhook_allow", message) from None

    def refusal(self, address: Address) -> str:
        """Why an address is refused; "": it is not. An IPv4 address within an IPv6 address is checked instead of it."""
        inner: Address | None = None
        if isinstance(address, ipaddress.IPv6Address):
            inner = address.ipv4_mapped or address.sixtofour
            if address in NAT64:
                inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return self.refusal(inner)
        if address.is_link_local or address in METADATA:
            return f"{address} is link-local or a cloud's metadata service: nothing is posted there"
        if address.is_unspecified or address.is_multicast or (address.is_reserved and not address.is_private):
            return f"{address} is no address of a host"
        found = [network for network in self._networks if address in network]
        if _is_own(address):
            if any(network.is_loopback or network.num_addresses == 1 for network in found):
                return ""
            own = f"{address}/{address.max_prefixlen}"
            return f"{address} is the server's own machine; only a server with --webhook-allow {own} posts there"
        if found or (self._public and address.is_global):
            return ""
        return f"{address} is in no network that webhooks may reach; --webhook-allow adds one"


def literal_of(host: str) -> Address | None:
    """The address that a host is without being resolved."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host)
    except ValueError:
        return None


def _is_own(address: Address) -> bool:
    """Only an address of this machine can be bound to. Nothing is sent."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
