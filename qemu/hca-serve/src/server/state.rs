//! What is to be known of each HCA, at one moment.

use super::seat::{Seat, Work};
use hca_model::Census;
use hca_model::fabric::{FabricCounters, LossTable};
use hca_model::port::PortCounters;
use hca_model::world::Node;
use mlx5_prm::value::{PortPhysicalState, PortState};

/// What was seen until the end.
#[derive(Debug, Clone)]
pub struct Summary {
    /// What happened to packets.
    pub fabric: FabricCounters,
    /// Packets that the HCAs sent again.
    pub retransmitted: u64,
    /// How many times each HCA refused something.
    pub refusals: Vec<u64>,
    /// The HCAs at the end.
    pub hcas: Vec<HcaState>,
    /// How long they were served.
    pub seconds: f64,
    /// What was lost, by flow.
    pub losses: LossTable,
    /// Why the capture is not complete, if it is not.
    pub capture_error: Option<String>,
}

/// One HCA.
#[derive(Clone, Debug)]
pub struct HcaState {
    /// Whether a client is connected.
    pub connected: bool,
    /// Whether the device answers nothing: reads give all ones.
    pub killed: bool,
    /// Why it failed, if it did by its client's doing.
    pub failure: Option<String>,
    /// Whether it stays as it is when its client resets it or leaves.
    pub warm: bool,
    /// How often it went back to its state at power-on.
    pub resets: u64,
    /// Whether its cable is plugged in.
    pub cable: bool,
    /// Whether its link is up.
    pub link_up: bool,
    /// Whether the subnet manager has made its port Active.
    pub active: bool,
    /// Its LID; 0 for none.
    pub lid: u16,
    /// Its P_Keys, without empty entries of the table.
    pub pkeys: Vec<u16>,
    /// Its port's GUID.
    pub port_guid: u64,
    /// What it refused so far.
    pub refusals: u64,
    /// Packets that it sent again.
    pub retransmitted: u64,
    /// The objects that it holds.
    pub census: Census,
    /// The port's counters.
    pub counters: PortCounters,
    /// What was done for its clients.
    pub work: Work,
}

impl HcaState {
    pub(super) fn of(seat: &Seat, node: &Node) -> Self {
        let hca = &node.hca;
        Self {
            connected: seat.is_connected(),
            killed: hca.is_killed(),
            failure: seat.failed.filter(|_| hca.is_killed()).map(|failure| failure.to_string()),
            warm: hca.is_warm(),
            resets: hca.resets(),
            cable: hca.port().cable,
            link_up: !hca.is_killed() && hca.port().physical_state == PortPhysicalState::LINK_UP,
            active: !hca.is_killed() && hca.port().state == PortState::ACTIVE,
            lid: hca.port().lid,
            pkeys: hca.port().pkeys.iter().copied().filter(|pkey| *pkey != 0).collect(),
            port_guid: hca.port().port_guid,
            refusals: hca.log().refusals(),
            retransmitted: hca.counters().retransmitted,
            census: hca.census(),
            counters: hca.port().counters,
            work: seat.work(),
        }
    }
}
