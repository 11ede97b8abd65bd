//! Links that go away for a moment, with a subnet manager of somebody else's: both ends begin anew, and it is told.

use ib_mgmt::mad::{attr, method};
use ib_mgmt::sa::{Notice, trap};
use ib_mgmt::smp::{PortInfo, Smp, SwitchInfo, port_state};
use mlx5_prm::datapath::CqeOpcode;
use mlx5_prm::value::{PortState, ServiceType};

use super::bed::{Bed, Handle};
use super::management::{ask, management_qp};
use rdma_fabric::infiniband::FabricConfig;

const SWITCH_LID: u16 = 9;
const FIRST_LID: u16 = 4;

/// Two nodes; software behind QP0 of the first is the subnet manager.
struct Subnet {
    bed: Bed,
    manager: (Handle, u64, u32),
}

impl Subnet {
    /// Everything programmed, and every port Active.
    fn new() -> Self {
        let mut bed = Bed::unmanaged(2, FabricConfig { subnet_manager: false, ..FabricConfig::default() });
        let manager = management_qp(&mut bed, 0, ServiceType::QP0);
        let mut subnet = Self { bed, manager };
        let mut info = PortInfo::zeroed();
        info.set_lid(SWITCH_LID).set_master_sm_lid(FIRST_LID);
        subnet.set(attr::PORT_INFO, 0, info.as_bytes());
        let mut routes = [255; 64];
        routes[usize::from(SWITCH_LID)] = 0;
        for node in 0..2 {
            routes[usize::from(FIRST_LID) + node] = node as u8 + 1;
            subnet.activate(node);
        }
        subnet.set(attr::LINEAR_FORWARDING, 0, &routes);
        subnet.acknowledge();
        assert!(!subnet.switch_info().port_state_change());
        subnet
    }

    /// Brings both ends of a node's link up.
    fn activate(&mut self, node: usize) {
        for state in [port_state::ARMED, port_state::ACTIVE] {
            let port = &mut self.bed.hca(node).device.port;
            let mut info = port.port_info();
            info.set_lid(FIRST_LID + node as u16).set_master_sm_lid(FIRST_LID);
            info.set_port_state(state).set_port_phys_state(0);
            let mut smp = Smp::lid_routed(method::SET, attr::PORT_INFO, 1, 1);
            assert!(port.agent(smp.set_data(info.as_bytes()).as_bytes(), false, 0).is_some());
            let mut info = PortInfo::zeroed();
            self.set(attr::PORT_INFO, node as u32 + 1, info.set_port_state(state).as_bytes());
        }
        assert_eq!(self.states(node), (PortState::ACTIVE, port_state::ACTIVE));
    }

    /// Asks an agent on a directed route.
    fn ask(&mut self, path: &[u8], method: u8, attribute: u16, modifier: u32, data: &[u8]) -> [u8; 64] {
        let mut smp = Smp::directed_route(method, attribute, modifier, 5, path);
        let mut whole = [0; 64];
        whole[..data.len()].copy_from_slice(data);
        smp.set_hop_pointer(1).set_data(&whole);
        let (reply, _) = ask(&mut self.bed, &mut self.manager, 0xffff, smp.as_bytes());
        assert_eq!(reply.status() & 0x7fff, 0);
        *Smp::from_mad(&reply).data()
    }

    fn set(&mut self, attribute: u16, modifier: u32, data: &[u8]) {
        self.ask(&[1], method::SET, attribute, modifier, data);
    }

    fn switch_info(&mut self) -> SwitchInfo {
        let data = self.ask(&[1], method::GET, attr::SWITCH_INFO, 0, &[]);
        SwitchInfo::from_bytes(*data.first_chunk().unwrap())
    }

    /// The manager has taken note of the change.
    fn acknowledge(&mut self) {
        let mut clear = SwitchInfo::zeroed();
        self.set(attr::SWITCH_INFO, 0, clear.set_port_state_change(true).as_bytes());
    }

    /// The states of a node's port and of the switch's at the other end of its cable.
    fn states(&mut self, node: usize) -> (PortState, u8) {
        let data = self.ask(&[1], method::GET, attr::PORT_INFO, node as u32 + 1, &[]);
        (self.bed.hca(node).device.port.state, PortInfo::from_bytes(data).port_state())
    }

    /// The next trap at the manager: the number.
    fn trap(&mut self) -> u16 {
        let manager = self.manager.clone();
        assert_eq!(self.bed.wait(&manager.0).opcode, CqeOpcode::RESP_SEND);
        let mad = self.bed.guests[0].read(manager.1 + 40, 256);
        self.bed.receive(&mut self.manager.0, &[(manager.1, 296, manager.2)]);
        let smp = Smp::from_bytes(mad.try_into().unwrap());
        assert_eq!((smp.method(), smp.attr_id()), (method::TRAP, attr::NOTICE));
        let mut notice = [0; Notice::LEN];
        notice[..64].copy_from_slice(smp.data());
        self.silence(smp);
        Notice::from_bytes(notice).trap_number()
    }

    fn silence(&mut self, mut trap: Smp) {
        trap.set_method(method::TRAP_REPRESS);
        let mut request = super::requests::Request::new(mlx5_prm::datapath::SendOpcode::SEND, &[]);
        request.inline = Some(trap.as_bytes().to_vec());
        let vector = super::management::vector(0, 0, SWITCH_LID);
        self.bed.post_with_av(&mut self.manager.0, &request, Some(vector));
        self.bed.ring(&self.manager.0);
        let manager = self.manager.0.clone();
        assert_eq!(self.bed.wait(&manager).opcode, CqeOpcode::REQ);
    }
}

#[test]
fn a_reset_is_seen_at_both_ends_and_told() {
    let mut subnet = Subnet::new();
    subnet.bed.hca(1).reset();
    assert_eq!(subnet.trap(), trap::LINK_STATE);
    assert_eq!(subnet.states(1), (PortState::INIT, port_state::INIT));
    assert!(subnet.switch_info().port_state_change());
    // And the manager brings it up again.
    subnet.acknowledge();
    subnet.activate(1);
    assert!(!subnet.switch_info().port_state_change());
}

#[test]
fn a_port_told_to_train_anew_is_seen_at_both_ends_and_told() {
    // By its own agent, and by the switch's at the other end.
    for (path, modifier) in [(&[1, 2][..], 0), (&[1][..], 2)] {
        let mut subnet = Subnet::new();
        let mut info = PortInfo::from_bytes(subnet.ask(path, method::GET, attr::PORT_INFO, modifier, &[]));
        info.set_port_state(port_state::DOWN).set_port_phys_state(0);
        subnet.ask(path, method::SET, attr::PORT_INFO, modifier, info.as_bytes());
        assert_eq!(subnet.trap(), trap::LINK_STATE);
        assert_eq!(subnet.states(1), (PortState::INIT, port_state::INIT));
        assert!(subnet.switch_info().port_state_change());
        assert_eq!(subnet.states(0), (PortState::ACTIVE, port_state::ACTIVE), "nobody else's concern");
    }
}

#[test]
fn a_cable_out_and_in_between_two_looks_counts() {
    let mut subnet = Subnet::new();
    let port = &mut subnet.bed.hca(1).device.port;
    port.set_cable(false);
    port.set_cable(true);
    assert_eq!(subnet.trap(), trap::LINK_STATE);
    assert_eq!(subnet.states(1), (PortState::INIT, port_state::INIT));
}
