//! The health buffer of the initialization segment, and what the health poll remembers of it. PRM, health buffer.

use crate::platform::Bar;
use crate::types::Instant;
use mlx5_prm::init_seg;
use mlx5_prm::status::HealthSyndrome;

/// What the health poll remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    pub(super) counter: Option<u32>,
    pub(super) equal: u32,
    /// When to look next.
    pub(super) next: Instant,
}

/// `nic_interface`, all three bits of it.
pub(super) fn interface_state<B: Bar>(bar: B) -> u8 {
    let word = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET) & init_seg::NIC_INTERFACE_MASK;
    (word >> init_seg::NIC_INTERFACE_SHIFT) as u8
}

/// The health buffer's own word for what is wrong. A device that is gone reads as all ones, which is no syndrome.
pub(super) fn health_syndrome(bar: impl Bar) -> HealthSyndrome {
    let word = bar.read32(init_seg::HEALTH_SYND_OFFSET);
    if word == init_seg::LINK_DEAD { HealthSyndrome(0) } else { HealthSyndrome((word >> 16) as u8) }
}
