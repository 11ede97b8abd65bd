//! NIC vport and RoCE address commands.

use crate::cmd::port::own_vport;
use crate::cmd::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::port::{LOG_MAX_LIST, LOG_MAX_VLANS, Promiscuous};
use ib_types::MacAddress;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{mac_address_layout, nic_vport_context as context};
use mlx5_prm::value::NicVportList;

/// Bytes of an entry of the lists.
const ENTRY: usize = mac_address_layout::SIZE;
/// A VLAN in its entry.
const VLAN: Field = Field::bits(0, 11, 0);

fn put_mac(entry: &mut [u8], mac: MacAddress) {
    let (high, low) = mac.halves();
    mac_address_layout::mac_addr_47_32.set(entry, high);
    mac_address_layout::mac_addr_31_0.set(entry, low);
}

fn mac_of(entry: &[u8]) -> MacAddress {
    let [_, _, mac @ ..] = entry.first_chunk::<ENTRY>().copied().unwrap_or([0; ENTRY]);
    MacAddress(mac)
}

impl Device {
    pub(in crate::cmd) fn query_nic_vport_context(&self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        use query_nic_vport_context_in as given;
        own_vport(
            given::other_vport.is_set(input),
            given::vport_number.get32(input),
            None,
            "query_nic_vport_context_in",
        )?;
        let (vport, port) = (&self.vport, &self.port);
        let list = NicVportList(given::allowed_list_type.get32(input) as u8);
        let macs = |macs: &[MacAddress]| {
            let entry = |mac: &MacAddress| {
                let mut entry = [0; ENTRY];
                put_mac(&mut entry, *mac);
                entry
            };
            macs.iter().flat_map(entry).collect::<Vec<u8>>()
        };
        let entries = match list {
            NicVportList::UC => macs(&vport.unicast),
            NicVportList::MC => macs(&vport.multicast),
            NicVportList::VLAN => vport
                .vlans
                .iter()
                .flat_map(|vlan| {
                    let mut entry = [0; ENTRY];
                    VLAN.set(&mut entry, *vlan);
                    entry
                })
                .collect(),
            other => {
                return Err(Refusal::param(
                    "query_nic_vport_context_in.allowed_list_type",
                    format!("{other}"),
                ));
            }
        };
        let shown = query_nic_vport_context_out::nic_vport_context.of_mut(output);
        for (field, value) in [
            (context::min_wqe_inline_mode, u64::from(vport.min_inline_mode)),
            (context::disable_mc_local_lb, u64::from(vport.no_multicast_loopback)),
            (context::disable_uc_local_lb, u64::from(vport.no_unicast_loopback)),
            (context::roce_en, u64::from(vport.roce)),
            (context::mtu, u64::from(vport.mtu)),
            (context::system_image_guid, port.system_image_guid),
            (context::port_guid, port.port_guid),
            (context::node_guid, port.node_guid),
            (context::qkey_violation_counter, u64::from(port.qkey_violations)),
            (context::promisc_uc, u64::from(vport.promiscuous.unicast)),
            (context::promisc_mc, u64::from(vport.promiscuous.multicast)),
            (context::promisc_all, u64::from(vport.promiscuous.all)),
            (context::allowed_list_type, u64::from(list.0)),
            (context::allowed_list_size, (entries.len() / ENTRY) as u64),
        ] {
            field.set(shown, value);
        }
        put_mac(context::permanent_address.of_mut(shown), vport.permanent_address);
        output.truncate(query_nic_vport_context_out::nic_vport_context.offset + context::SIZE);
        output.extend(entries);
        Ok(())
    }

    pub(in crate::cmd) fn modify_nic_vport_context(&mut self, input: &[u8]) -> Outcome {
        use modify_nic_vport_field_select as select;
        let given = modify_nic_vport_context_in::nic_vport_context.of(input);
        let selected = modify_nic_vport_context_in::field_select.of(input);
        own_vport(
            modify_nic_vport_context_in::other_vport.is_set(input),
            modify_nic_vport_context_in::vport_number.get32(input),
            None,
            "modify_nic_vport_context_in",
        )?;
        for (field, name) in [
            (select::affiliation, "affiliation"),
            (select::node_guid, "node_guid"),
            (select::port_guid, "port_guid"),
            (select::permanent_address, "permanent_address"),
        ] {
            if field.is_set(selected) {
                let field = format!("modify_nic_vport_field_select.{name}");
                return Err(Refusal::param(field, "the function may not change it"));
            }
        }
        // Checked before anything changes.
        let list =
            if select::addresses_list.is_set(selected) { Some(allowed_list(input, given)?) } else { None };
        let vport = &mut self.vport;
        if select::mtu.is_set(selected) {
            vport.mtu = context::mtu.get32(given) as u16;
        }
        if select::min_inline.is_set(selected) {
            vport.min_inline_mode = context::min_wqe_inline_mode.get32(given) as u8;
        }
        if select::disable_uc_local_lb.is_set(selected) {
            vport.no_unicast_loopback = context::disable_uc_local_lb.is_set(given);
        }
        if select::disable_mc_local_lb.is_set(selected) {
            vport.no_multicast_loopback = context::disable_mc_local_lb.is_set(given);
        }
        if select::promisc.is_set(selected) {
            vport.promiscuous = Promiscuous {
                unicast: context::promisc_uc.is_set(given),
                multicast: context::promisc_mc.is_set(given),
                all: context::promisc_all.is_set(given),
            };
        }
        if select::roce_en.is_set(selected) {
            vport.roce = context::roce_en.is_set(given);
        }
        match list {
            Some(Allowed::Unicast(list)) => vport.unicast = list,
            Some(Allowed::Multicast(list)) => vport.multicast = list,
            Some(Allowed::Vlans(list)) => vport.vlans = list,
            None => {}
        }
        Ok(())
    }

    pub(in crate::cmd) fn query_roce_address(&self, input: &[u8], output: &mut [u8]) -> Outcome {
        let index = query_roce_address_in::roce_address_index.get32(input);
        let field = "query_roce_address_in.roce_address_index";
        let entry = self.vport.roce_address(index as usize).ok_or_else(|| Refusal::missing(field, index))?;
        query_roce_address_out::roce_address.of_mut(output).copy_from_slice(&entry);
        Ok(())
    }

    pub(in crate::cmd) fn set_roce_address(&mut self, input: &[u8]) -> Outcome {
        let index = set_roce_address_in::roce_address_index.get32(input);
        let entry = set_roce_address_in::roce_address.of(input);
        if self.vport.set_roce_address(index as usize, entry) {
            return Ok(());
        }
        Err(Refusal::missing("set_roce_address_in.roce_address_index", index))
    }
}

/// A list that MODIFY_NIC_VPORT_CONTEXT sets.
enum Allowed {
    Unicast(Vec<MacAddress>),
    Multicast(Vec<MacAddress>),
    Vlans(Vec<u16>),
}

fn allowed_list(input: &[u8], given: &[u8]) -> Result<Allowed, Refusal> {
    let list = NicVportList(context::allowed_list_type.get32(given) as u8);
    let count = context::allowed_list_size.get32(given) as usize;
    let start = modify_nic_vport_context_in::nic_vport_context.offset + context::SIZE;
    let entries = input.get(start..).unwrap_or_default().as_chunks::<ENTRY>().0;
    let most = match list {
        NicVportList::UC | NicVportList::MC => 1 << LOG_MAX_LIST,
        NicVportList::VLAN => 1 << LOG_MAX_VLANS,
        other => return Err(Refusal::param("nic_vport_context.allowed_list_type", format!("{other}"))),
    };
    if count > most || count > entries.len() {
        let text = format!("{count}, at most {most}, with {} in the input", entries.len());
        return Err(Refusal::param("nic_vport_context.allowed_list_size", text));
    }
    let entries = entries.iter().take(count);
    Ok(match list {
        NicVportList::UC => Allowed::Unicast(entries.map(|entry| mac_of(entry)).collect()),
        NicVportList::MC => Allowed::Multicast(entries.map(|entry| mac_of(entry)).collect()),
        _ => Allowed::Vlans(entries.map(|entry| VLAN.get32(entry) as u16).collect()),
    })
}
