//! Snapshots of the HCAs' state.

use super::seat::{Seat, Work};
use hca_model::Census;
use hca_model::recorder::Failures;
use hca_model::world::Node;
use mlx5_prm::value::{PortPhysicalState, PortState};
use rdma_fabric::counters::FabricCounters;
use rdma_fabric::ethernet::{self, Switch, SwitchCounters};
use rdma_fabric::infiniband::Flow;
use rdma_fabric::infiniband::PortCounters;
use rdma_fabric::losses::LossTable;

/// Summary of a run.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Packet counters.
    pub fabric: FabricCounters,
    /// Packets retransmitted by the HCAs.
    pub retransmitted: u64,
    /// Number of refusals of each HCA.
    pub refusals: Vec<u64>,
    /// Final states of the HCAs.
    pub hcas: Vec<HcaState>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Losses by flow.
    pub losses: LossTable<Flow>,
    /// The Ethernet switch.
    pub ethernet: EthernetSummary,
    /// Reason why the capture is incomplete, if it is.
    pub capture_error: Option<String>,
}

/// Summary of the Ethernet switch.
#[derive(Debug, Clone)]
pub struct EthernetSummary {
    /// Frames by what happened to them.
    pub counters: FabricCounters,
    /// Frames by their way through the switch.
    pub switch: SwitchCounters,
    /// Losses by flow.
    pub losses: LossTable<ethernet::Flow>,
}

impl EthernetSummary {
    /// Returns the current numbers of a switch.
    #[must_use]
    pub fn of(switch: &Switch) -> Self {
        let (counters, losses) = (switch.counters(), switch.losses().clone());
        Self { counters, switch: switch.switch_counters(), losses }
    }
}

/// State of an HCA.
#[derive(Clone, Debug)]
pub struct HcaState {
    /// True if a client is connected.
    pub connected: bool,
    /// True if the device does not respond: reads return all ones.
    pub killed: bool,
    /// Failure caused by its client, if any.
    pub failure: Option<String>,
    /// True if it keeps its state when its client resets it or disconnects.
    pub warm: bool,
    /// Number of resets to the power-on state.
    pub resets: u64,
    /// True if its cable is plugged in.
    pub cable: bool,
    /// True if its link is up.
    pub link_up: bool,
    /// True if the subnet manager has set its port to Active.
    pub active: bool,
    /// LID; 0 for none.
    pub lid: u16,
    /// P_Keys, without empty table entries.
    pub pkeys: Vec<u16>,
    /// GUID of its port.
    pub port_guid: u64,
    /// Number of refusals.
    pub refusals: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Object counts.
    pub census: Census,
    /// Counters of the port.
    pub counters: PortCounters,
    /// The last failures of its QPs.
    pub qp_failures: Failures,
    /// Work for its clients.
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
            qp_failures: hca.qp_failures().clone(),
            work: seat.work(),
        }
    }
}
