//! The port of an HCA.

mod counters;
mod infiniband;

pub use counters::{PortCounters, Traffic};
pub(super) use infiniband::{gid, pkey, pkeys};

use super::firmware::{Firmware, access_register, optional};
use super::memory::Memory;
use crate::error::{Error, Step};
use crate::platform::Platform;
use crate::types::{Lid, Mtu};
use ib_types::{Guid, ServiceLevel};
use mlx5_prm::registers::paos_reg;
use mlx5_prm::value::RegisterId;

/// The only port that is used.
const PORT: u32 = 1;
/// `paos_reg.admin_status`: switched off.
const ADMIN_DOWN: u32 = 2;

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PortState {
    /// State of the link.
    pub state: LinkState,
    /// Base LID, assigned by the subnet manager; 0 before.
    pub lid: Lid,
    /// LID mask count: the port has 2^lmc LIDs.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// Service level to reach the subnet manager with.
    pub sm_sl: ServiceLevel,
    /// Largest delay in the subnet: 4.096 us times 2 to this power.
    pub subnet_timeout: u8,
    /// MTU in force on the link; 2048 bytes if a virtual function cannot read it.
    pub mtu: Mtu,
    /// Speed of the link in Mb/s; 0 if it is down, or unknown to a virtual function.
    pub speed: u32,
    /// The port has no LID of its own: every packet needs a GRH.
    pub grh_required: bool,
    /// Prefix of GID 0.
    pub gid_prefix: u64,
    /// GUID of the port.
    pub port_guid: Guid,
    /// GUID of the HCA.
    pub node_guid: Guid,
    /// Capability mask of the port (IBTA 1.3, 14.2.5.6).
    pub capability_mask: u32,
}

/// InfiniBand port state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum LinkState {
    /// No link.
    Down,
    /// Link is up; the subnet manager has not configured it.
    Init,
    /// Configured; management datagrams only.
    Armed,
    /// Data may flow.
    Active,
}

/// Port 1, and what is remembered of it.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// The trace reports that the link's MTU is assumed.
    mtu_is_assumed: bool,
}

impl Port {
    /// Brings the port up.
    pub(super) fn start<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<(), Error> {
        firmware.enter(Step::Port);
        if firmware.config().physical_function {
            switch_on(firmware, memory)?;
        }
        self.state(firmware, memory).map(|_| ())
    }

    /// Forgets what the trace reports of a device that was reset.
    pub(super) fn begin_generation(&mut self) {
        *self = Self::default();
    }
}

/// Switches the port on if it is switched off. INIT_HCA starts the link of one that is on. A
/// function that owns no port is refused.
fn switch_on<P: Platform>(firmware: &mut Firmware<'_, P>, memory: &mut Memory<'_>) -> Result<(), Error> {
    let mut register = [0; paos_reg::SIZE];
    paos_reg::local_port.set(&mut register, PORT);
    if !optional(access_register::<32, P>(firmware, memory, RegisterId::PAOS, false, &mut register))?
        || paos_reg::admin_status.get32(&register) != ADMIN_DOWN
    {
        return Ok(());
    }
    let mut register = [0; paos_reg::SIZE];
    paos_reg::local_port.set(&mut register, PORT);
    paos_reg::admin_status.set(&mut register, 1u32);
    paos_reg::ase.set(&mut register, 1u32);
    optional(access_register::<32, P>(firmware, memory, RegisterId::PAOS, true, &mut register)).map(|_| ())
}
