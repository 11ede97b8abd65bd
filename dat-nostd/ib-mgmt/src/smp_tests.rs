//! Literal bytes and round trips of the subnet management attributes.

use super::*;
use crate::mad::attr;
use crate::view::tests::assert_disjoint;
use proptest::prelude::*;

#[test]
fn records_do_not_overlap() {
    assert_disjoint(Smp::fields(), 256);
    assert_disjoint(NodeInfo::fields(), NodeInfo::LEN);
    assert_disjoint(PortInfo::fields(), PortInfo::LEN);
    assert_disjoint(SwitchInfo::fields(), SwitchInfo::LEN);
    assert_disjoint(SmInfo::fields(), SmInfo::LEN);
}

#[test]
fn port_info_bytes() {
    let mut info = PortInfo::zeroed();
    info.set_gid_prefix(Gid::DEFAULT_PREFIX)
        .set_lid(0x0102)
        .set_master_sm_lid(0x0304)
        .set_link_width_active(2)
        .set_link_speed_supported(7)
        .set_port_state(port_state::ACTIVE)
        .set_port_phys_state(phys_state::LINK_UP)
        .set_link_down_default_state(2)
        .set_lmc(3)
        .set_neighbor_mtu(5)
        .set_master_sm_sl(1)
        .set_mtu_cap(5)
        .set_subnet_timeout(18)
        .set_client_reregister(true)
        .set_link_speed_ext_active(2);
    let b = info.as_bytes();
    assert_eq!(b[8..20], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(b[31..37], [2, 0x74, 0x52, 3, 0, 0x51]);
    assert_eq!((b[41], b[51], b[62]), (5, 0x92, 0x20));
}

#[test]
fn node_info_bytes() {
    let mut info = NodeInfo::zeroed();
    info.set_node_type(node_type::CA).set_num_ports(1).set_node_guid(0x1122_3344_5566_7788);
    info.set_device_id(0x1017).set_local_port_num(1).set_vendor_id(0x02c9);
    let b = info.as_bytes();
    assert_eq!(b[2..4], [1, 1]);
    assert_eq!(b[12..20], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    assert_eq!(b[30..32], [0x10, 0x17]);
    assert_eq!(b[36..40], [1, 0, 0x02, 0xc9]);
}

#[test]
fn smp_regions() {
    let mut smp = Smp::directed_route(method::GET, attr::NODE_INFO, 0, 9, &[1, 7]);
    let (mut data, mut way_back) = ([0; 64], [0; 64]);
    data[0] = 0xaa;
    way_back[63] = 0xbb;
    smp.set_data(&data).set_return_path(&way_back);
    let b = smp.as_bytes();
    assert_eq!((b[1], b[6], b[7]), (0x81, 0, 2));
    assert_eq!(b[32..36], [0xff; 4]);
    assert_eq!((b[64], b[129], b[130], b[255]), (0xaa, 1, 7, 0xbb));
    let reply = smp.to_response(0);
    assert_eq!((reply.method(), reply.status()), (0x81, 0x8000));
    let lid = Smp::lid_routed(method::GET, attr::PORT_INFO, 1, 3).to_response(0x0c);
    assert_eq!((lid.mgmt_class(), lid.status(), lid.attr_mod()), (1, 0x0c, 1));
    assert_eq!(Smp::from_mad(&lid.to_mad()), lid);
}

#[test]
fn tables() {
    let pkeys = PKeyTable(core::array::from_fn(|i| 0x8000 | i as u16));
    assert_eq!(pkeys.to_bytes()[2..4], [0x80, 1]);
    assert_eq!(PKeyTable::from_bytes(&pkeys.to_bytes()), pkeys);
    let sl = SlToVl(core::array::from_fn(|i| i as u8));
    assert_eq!(sl.to_bytes(), [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    assert_eq!(SlToVl::from_bytes(&sl.to_bytes()), sl);
    let arb = VlArbitration(core::array::from_fn(|i| VlArbEntry { vl: i as u8 % 16, weight: i as u8 }));
    assert_eq!(VlArbitration::from_bytes(&arb.to_bytes()), arb);
    let guids = GuidInfo([7, 0, 9, 0, 0, 0, 0, 0]);
    assert_eq!(GuidInfo::from_bytes(&guids.to_bytes()), guids);
    let gids: Vec<Gid> = guids.gids(1).collect();
    assert_eq!(gids, [Gid::new(1, 7), Gid::new(1, 9)]);
    assert!(pkeys_match(0xffff, 0x7fff) && !pkeys_match(0x7fff, 0x7fff) && !pkeys_match(0x8001, 0x8002));
}

#[test]
fn descriptions_are_cut_to_valid_text() {
    assert_eq!(NodeDescription::new("node 1").as_str(), "node 1");
    let long = NodeDescription::new(&"é".repeat(40));
    assert_eq!(long.as_str().chars().count(), 32);
    assert_eq!(NodeDescription([0xff; 64]).as_str(), "");
}

proptest! {
    #[test]
    fn port_info_accessors_survive_any_bytes(bytes in proptest::array::uniform32(any::<u8>()), lmc: u8, mtu: u8) {
        let mut raw = [0u8; 64];
        raw[..32].copy_from_slice(&bytes);
        raw[32..].copy_from_slice(&bytes);
        let mut info = PortInfo::from_bytes(raw);
        let _ = format!("{info:?} {:?}", info.capabilities());
        info.set_lmc(lmc).set_neighbor_mtu(mtu);
        prop_assert_eq!((info.lmc(), info.neighbor_mtu()), (lmc & 7, mtu & 15));
        prop_assert_eq!(&info.as_bytes()[..34], &raw[..34]);
    }
}
