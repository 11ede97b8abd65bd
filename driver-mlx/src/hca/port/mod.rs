//! The port of an HCA.

mod counters;
mod ethernet;
mod frames;
mod infiniband;
mod raw_packet;
mod roce;
mod speed;
mod state;
mod table;

pub use counters::{PortCounters, Traffic};
pub(super) use ethernet::min_inline_mode;
pub(super) use infiniband::{gid, pkey, pkeys};
pub use state::{EthernetLink, InfiniBandLink, Link, LinkState, PortState};

use super::firmware::{Firmware, access_register, optional};
use super::memory::Memory;
use crate::caps::PortType;
use crate::error::{Error, Step};
use crate::platform::Platform;
use crate::qp::Qp;
use crate::types::{Gid, MacAddress};
use frames::FrameFilter;
use mlx5_prm::registers::paos_reg;
use mlx5_prm::value::RegisterId;
use state::PORT;
use table::AddressTable;

/// `paos_reg.admin_status`: switched off.
const ADMIN_DOWN: u32 = 2;

/// Port 1, and what is remembered of it.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// The trace reports that the link's MTU is assumed.
    mtu_is_assumed: bool,
    /// MAC address of the function, as bring-up read it.
    mac: MacAddress,
    /// Addresses of RoCE, which outlive a reset.
    addresses: AddressTable,
    /// Frames that the raw-packet QP receives. Its groups outlive a reset.
    frames: FrameFilter,
}

impl Port {
    /// Brings the port up.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(super) fn start<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<(), Error> {
        firmware.enter(Step::Port);
        match firmware.caps().port_type {
            PortType::InfiniBand => {
                switch_on(firmware, memory)?;
                self.state(firmware, memory).map(|_| ())
            }
            PortType::Ethernet => {
                self.mac = ethernet::start(firmware, memory)?;
                switch_on(firmware, memory)?;
                self.addresses.start(firmware, memory, self.mac)
            }
        }
    }

    /// Forgets what a reset has erased.
    pub(super) fn begin_generation(&mut self) {
        self.mtu_is_assumed = false;
        self.frames.begin_generation();
    }

    /// As [`Hca::port`](crate::Hca::port).
    pub(super) fn state<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Result<PortState, Error> {
        match firmware.caps().port_type {
            PortType::InfiniBand => self.infiniband_state(firmware, memory),
            PortType::Ethernet => ethernet::state(firmware, memory),
        }
    }

    /// Ends what leads frames to `qp`, the raw-packet QP.
    pub(super) fn stop_frames<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        qp: &Qp<P::Bar>,
    ) -> Result<(), Error> {
        self.frames.stop(firmware, memory, qp)
    }

    /// As [`Hca::gid`](crate::Hca::gid), of an Ethernet port.
    fn roce_gid(&self, index: u16) -> Result<Gid, Error> {
        self.addresses.gid(index)
    }
}

/// Switches the port on if it is switched off. INIT_HCA starts the link of one that is on. A
/// function that owns no port is refused.
fn switch_on<P: Platform>(firmware: &mut Firmware<'_, P>, memory: &mut Memory<'_>) -> Result<(), Error> {
    if !firmware.config().physical_function {
        return Ok(());
    }
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
