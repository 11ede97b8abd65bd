//! What an embedder chooses, and why an adapter could not be opened.

use core::fmt;
use driver_mlx::{Config, Duration, Error, Gid, VlanId};
use ib_port::IpConfig;
use ib_port::ib_mgmt::sa::ClientConfig;

use crate::base::types::IaAddress;

/// An address and the port that has it.
pub type Neighbour = (IaAddress, Gid);

/// What the embedder chooses.
#[derive(Clone, Copy, Debug)]
pub struct AdapterConfig<'s> {
    /// The adapter's name: that of its IAs with RDMA-CM framing, and with `-dat` behind it of those with our own. An adapter `ib0` with
    /// an Ethernet port has the names `roce0` and `roce0-dat` too.
    pub name: &'s str,
    /// This port's address.
    pub address: IaAddress,
    /// Other ports' addresses that are not asked for by ARP. Without IP, the only ones that can be connected to.
    pub neighbours: &'s [Neighbour],
    /// IP over InfiniBand at this port's address, which then must be an IPv4 one; `None` for none.
    pub ip: Option<IpConfig>,
    /// VLAN of an Ethernet port; `None` for frames without a tag.
    pub vlan: Option<VlanId>,
    /// Source of all randomness.
    pub seed: u128,
    /// Differs from boot to boot.
    pub generation: u64,
    /// The HCA's settings. The completion event queue is longer than they say where the EVDs need
    /// that ([`Capacities::log_eq_size`](crate::Capacities::log_eq_size)).
    pub hca: Config,
    /// How long to wait for the port to become active; zero: not at all.
    pub activation_timeout: Duration,
    /// Completions that the CQ of every EVD has room for at least, beside what its EPs reserve, so that few EPs make it grow: 64 bytes of
    /// DMA memory each.
    pub min_completions: u32,
    /// How long an active side goes on asking for a service that nobody listens on, before it is NON_PEER_REJECTED: programs whose two
    /// sides start together connect before the other listens. Zero: not at all.
    pub service_patience: Duration,
    /// Questions to the subnet administrator.
    pub sa: ClientConfig,
}

impl<'s> AdapterConfig<'s> {
    /// Defaults beside what has none: a minute for the port, whose link may have to train before the subnet manager sweeps; one second and
    /// three tries for the subnet administrator; IP unless there is a static table of neighbours.
    pub fn new(name: &'s str, address: IaAddress, neighbours: &'s [Neighbour], seed: u128) -> Self {
        Self {
            name,
            address,
            neighbours,
            ip: (neighbours.is_empty() && address.is_ipv4()).then_some(IpConfig::DEFAULT),
            vlan: None,
            seed,
            generation: 0,
            hca: Config::DEFAULT,
            activation_timeout: Duration::from_secs(60),
            min_completions: 512,
            service_patience: Duration::ZERO,
            sa: ClientConfig::default(),
        }
    }
}

/// Why an adapter could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The HCA.
    Hca(Error),
    /// The port did not become active.
    PortNotActive {
        /// How long was waited, milliseconds.
        waited_ms: u64,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Hca(error) => error.fmt(f),
            OpenError::PortNotActive { waited_ms } => write!(
                f,
                "the port did not become active in {waited_ms} ms: no link, or no subnet manager on the fabric"
            ),
        }
    }
}

impl core::error::Error for OpenError {}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        OpenError::Hca(error)
    }
}
