//! The table of RoCE addresses. The driver keeps a copy, because a reset clears the device's table
//! and connections name its entries by index.

use super::ethernet::modify_vport;
use crate::cmd::input;
use crate::error::Error;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::platform::Platform;
use crate::types::{Gid, MacAddress, VlanId};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{nic_vport_context as vport, roce_addr_layout as layout};
use mlx5_prm::opcode::Opcode;

/// Entries of the device's table that the driver uses. Cards have 128 or more.
pub(super) const ADDRESSES: usize = 16;
/// `roce_addr_layout.roce_version`: version 2. `roce_l3_type`: IPv4 and IPv6.
const VERSION_2: u32 = 2;
const IPV4: u32 = 0;
const IPV6: u32 = 1;

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    gid: Gid,
    vlan: Option<VlanId>,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct AddressTable {
    entries: [Option<Address>; ADDRESSES],
}

impl Address {
    pub(super) const fn new(gid: Gid, vlan: Option<VlanId>) -> Self {
        Self { gid, vlan }
    }
}

impl AddressTable {
    /// Returns the index of an address, or of the first entry without one.
    pub(super) fn find(&self, wanted: Option<Address>) -> Option<usize> {
        self.entries.iter().position(|entry| *entry == wanted)
    }

    /// Returns the address at an index. Entries that are not in use are zero.
    pub(super) fn gid(&self, index: u16) -> Result<Gid, Error> {
        let limit = Error::Limit {
            what: "roce_address_table_size",
            asked: u64::from(index),
            limit: ADDRESSES as u64,
        };
        let entry = self.entries.get(usize::from(index)).ok_or(limit)?;
        Ok(entry.map_or(Gid::ZERO, |address| address.gid))
    }

    /// Enables RoCE where there is RoCE, and sets the addresses of the table.
    pub(super) fn start<P: Platform>(
        &self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        mac: MacAddress,
    ) -> Result<(), Error> {
        if firmware.caps().roce.is_none() {
            return Ok(());
        }
        modify_vport(
            firmware,
            memory,
            |select| modify_nic_vport_field_select::roce_en.set(select, true),
            |context| vport::roce_en.set(context, true),
        )?;
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(address) = entry {
                set_address(firmware, memory, index, Some((mac, address)))?;
            }
        }
        Ok(())
    }

    /// Sets an entry, or clears it.
    pub(super) fn set<P: Platform>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
        index: usize,
        address: Option<(MacAddress, Address)>,
    ) -> Result<(), Error> {
        set_address(firmware, memory, index, address.as_ref().map(|(mac, address)| (*mac, address)))?;
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = address.map(|(_, address)| address);
        }
        Ok(())
    }
}

/// SET_ROCE_ADDRESS of an entry: an address, or none. Linux deletes an entry with its version kept
/// and IPv6 (drivers/infiniband/hw/mlx5/main.c, set_roce_addr).
fn set_address<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    index: usize,
    address: Option<(MacAddress, &Address)>,
) -> Result<(), Error> {
    let mut set = input::<{ set_roce_address_in::SIZE }>(Opcode::SET_ROCE_ADDRESS, 0);
    set_roce_address_in::roce_address_index.set(&mut set, index as u32);
    let entry = set_roce_address_in::roce_address.of_mut(&mut set);
    layout::roce_version.set(entry, VERSION_2);
    let mapped = address.is_some_and(|(_, address)| address.gid.ipv4().is_some());
    layout::roce_l3_type.set(entry, if mapped { IPV4 } else { IPV6 });
    if let Some((mac, address)) = address {
        let gid = layout::source_l3_address.of_mut(entry);
        gid.iter_mut().zip(address.gid.0).for_each(|(to, from)| *to = from);
        let (high, low) = mac.halves();
        layout::source_mac_47_32.set(entry, high);
        layout::source_mac_31_0.set(entry, low);
        if let Some(vlan) = address.vlan {
            layout::vlan_valid.set(entry, true);
            layout::vlan_id.set(entry, vlan.get());
        }
    }
    firmware.exec(memory, &set, &mut [0; set_roce_address_out::SIZE])
}
