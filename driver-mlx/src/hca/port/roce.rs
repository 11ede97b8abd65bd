//! Addresses of RoCE v2, as an HCA's owner sets them.

use super::table::{ADDRESSES, Address};
use crate::error::Error;
use crate::hca::Hca;
use crate::platform::Platform;
use crate::types::{Gid, MacAddress, VlanId};

impl<P: Platform> Hca<'_, P> {
    /// Gives an Ethernet port an address of RoCE v2: an IPv6 address, or an IPv4-mapped one
    /// ([`Gid::from_ipv4`]), on a VLAN or on none. Returns the index of its entry, which
    /// [`Grh::source_gid_index`](crate::Grh::source_gid_index) names. An address that is there
    /// already keeps its entry. Addresses outlive a recovery, at the same index.
    ///
    /// # Errors
    /// [`Error::MissingCapability`] without RoCE, [`Error::Limit`] if the table is full,
    /// [`Error::InvalidArgument`] for a group's address, for none, and on a function without MAC
    /// address; any [`Error`] of a command.
    pub fn add_roce_address(&mut self, gid: Gid, vlan: Option<VlanId>) -> Result<u8, Error> {
        let Self { firmware, memory, port, .. } = self;
        let roce = firmware.caps().roce.ok_or(Error::MissingCapability("roce"))?;
        let has_version = if gid.ipv4().is_some() { roce.ipv4 } else { roce.ipv6 };
        if !has_version {
            return Err(Error::MissingCapability("l3_type"));
        }
        if gid.is_zero() || gid.is_multicast() || gid.is_ipv4_multicast() {
            return Err(Error::InvalidArgument("gid"));
        }
        if port.mac == MacAddress::default() {
            return Err(Error::InvalidArgument("permanent_address"));
        }
        let address = Address::new(gid, vlan);
        if let Some(index) = port.addresses.find(Some(address)) {
            return Ok(index as u8);
        }
        let limit = ADDRESSES.min(usize::from(roce.address_table_size));
        let full =
            Error::Limit { what: "roce_address_table_size", asked: limit as u64 + 1, limit: limit as u64 };
        let index = port.addresses.find(None).filter(|index| *index < limit).ok_or(full)?;
        port.addresses.set(firmware, memory, index, Some((port.mac, address)))?;
        Ok(index as u8)
    }

    /// Takes an address of [`Hca::add_roce_address`] back. Another address may get its index, so
    /// connections from this address must have been closed. Returns whether there was such an
    /// address.
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn remove_roce_address(&mut self, gid: Gid, vlan: Option<VlanId>) -> Result<bool, Error> {
        let Self { firmware, memory, port, .. } = self;
        let Some(index) = port.addresses.find(Some(Address::new(gid, vlan))) else { return Ok(false) };
        port.addresses.set(firmware, memory, index, None)?;
        Ok(true)
    }

    /// Returns the index of an address of an Ethernet port.
    #[must_use]
    pub fn roce_address_index(&self, gid: Gid, vlan: Option<VlanId>) -> Option<u8> {
        self.port.addresses.find(Some(Address::new(gid, vlan))).map(|index| index as u8)
    }
}
