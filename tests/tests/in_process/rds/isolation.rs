//! RDS with a protection zone for each peer: a key offered to one peer is of no use to another.

use dat_nostd::{DmaBuffer, DmaSlice};
use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::{
    Control, Msg, RdmaArgs, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus, RdsConfig, RdsError, SocketHandle,
};

const LEN: usize = 6000;

/// Three nodes: node 0 offers memory, nodes 1 and 2 operate on it.
struct Ground {
    nodes: Nodes,
    sockets: [SocketHandle; 3],
    memory: [DmaBuffer; 3],
}

/// What node 0 offers.
fn region(memory: &[DmaBuffer; 3]) -> DmaSlice<'_> {
    memory[0].slice(100, LEN).expect("inside")
}

impl Ground {
    fn new(seed: u64, isolate_peers: bool) -> Self {
        let config = RdsConfig { seed, isolate_peers, ..RdsConfig::new(GENERATION) };
        let mut nodes = Nodes::with(seed, "none", 3, config);
        let sockets = [0, 1, 2].map(|node| nodes.bind(node, 4000 + node as u16));
        let memory = [0, 1, 2].map(|node| nodes.adapters[node].dma_alloc(16 << 10, 4096).expect("memory"));
        for (node, memory) in memory.iter().enumerate() {
            memory.write(0, &message(node, 7, 16 << 10)).expect("inside");
        }
        Self { nodes, sockets, memory }
    }

    /// Node 0 offers its region to `peer` with a message; the peer has the cookie then.
    fn offer(&mut self, peer: usize, flags: RdmaFlags) -> RdmaCookie {
        let control = Control { map: Some((region(&self.memory), flags)), ..Control::default() };
        let to = at(peer, 4000 + peer as u16);
        let (rds, adapter) = (&mut self.nodes.rds[0], &mut self.nodes.adapters[0]);
        let sent = rds.sendmsg(adapter, self.sockets[0], Msg::to(&to, b"use this").with(&control));
        let cookie = sent.expect("accepted").expect("mapped");
        let mut buffer = [0; 16];
        let message = self.nodes.receive(peer, self.sockets[peer], &mut buffer);
        assert_eq!(message.cookie, Some(cookie));
        cookie
    }

    /// Node `peer` writes or reads all of the region; how it ends.
    fn operate(&mut self, peer: usize, cookie: RdmaCookie, write: bool) -> RdmaStatus {
        let local = [self.memory[peer].slice(0, LEN).expect("inside")];
        let mut flags = RdmaFlags::NOTIFY_ME;
        flags.set(RdmaFlags::READWRITE, write);
        let user_token = 9;
        let args =
            RdmaArgs { cookie, remote_offset: 0, remote_bytes: LEN as u64, local: &local, flags, user_token };
        let control = Control { rdma: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut self.nodes.rds[peer], &mut self.nodes.adapters[peer]);
        rds.sendmsg(adapter, self.sockets[peer], Msg::to(&at(0, 4000), b"done").with(&control))
            .expect("accepted");
        let mut found = None;
        let socket = self.sockets[peer];
        self.nodes.until("the operation ends", |nodes| {
            found = nodes.rds[peer].take_notification(socket).expect("open");
            found.is_some()
        });
        let RdmaNotify { user_token: told, status } = found.expect("just found");
        assert_eq!(told, user_token);
        status
    }

    fn holds(&self, node: usize, at: usize, of: usize, from: usize) -> bool {
        let mut bytes = vec![0; LEN];
        self.memory[node].read(at, &mut bytes).expect("inside");
        bytes == message(of, 7, 16 << 10)[from..from + LEN]
    }

    fn close(self) {
        self.nodes.close_with(self.memory);
    }
}

#[test]
fn a_key_is_of_no_use_to_another_peer() {
    let mut ground = Ground::new(71, true);
    let cookie = ground.offer(1, RdmaFlags::empty());
    // The other peer is known and connected, and has a region of its own.
    let others = ground.offer(2, RdmaFlags::empty());
    for write in [true, false] {
        assert_eq!(ground.operate(2, cookie, write), RdmaStatus::RemoteError);
        assert!(ground.holds(0, 100, 0, 100) && ground.holds(2, 0, 2, 0), "touched");
    }
    assert_eq!(ground.operate(1, others, true), RdmaStatus::RemoteError);
    assert!(ground.holds(0, 100, 0, 100), "touched");
    assert_eq!(
        ground.nodes.rds[0].is_readable(ground.sockets[0]),
        Ok(false),
        "no message of a failed operation"
    );

    // Each can use its own, also on the connections made anew after the errors.
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::Success);
    assert!(ground.holds(1, 0, 0, 100), "read");
    ground.memory[1].write(0, &message(1, 7, LEN)).expect("inside");
    assert_eq!(ground.operate(1, cookie, true), RdmaStatus::Success);
    assert!(ground.holds(0, 100, 1, 0), "written");
    assert_eq!(ground.operate(2, others, true), RdmaStatus::Success);
    assert!(ground.holds(0, 100, 2, 0), "written");
    let mut buffer = [0; 16];
    for _ in 0..3 {
        ground.nodes.receive(0, ground.sockets[0], &mut buffer);
    }
    ground.close();
}

#[test]
fn memory_is_offered_for_a_destination_only() {
    let mut ground = Ground::new(72, true);
    let (region, socket) = (region(&ground.memory), ground.sockets[0]);
    let none = RdmaFlags::empty();
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    assert_eq!(rds.get_mr(adapter, socket, region, none), Err(RdsError::NotSupported));
    let nowhere = "0.0.0.0:4000".parse().expect("an address");
    assert_eq!(rds.get_mr_for_dest(adapter, socket, nowhere, region, none), Err(RdsError::InvalidArgument));
    let cookie = rds.get_mr_for_dest(adapter, socket, at(1, 4001), region, none).expect("offered");
    // It cannot be sent to anybody else.
    let control = Control { dest: Some(cookie), ..Control::default() };
    let refused = rds.sendmsg(adapter, socket, Msg::to(&at(2, 4002), b"x").with(&control));
    assert_eq!(refused, Err(RdsError::InvalidArgument));
    rds.sendmsg(adapter, socket, Msg::to(&at(1, 4001), b"x").with(&control)).expect("its own");
    let mut buffer = [0; 16];
    assert_eq!(ground.nodes.receive(1, ground.sockets[1], &mut buffer).cookie, Some(cookie));
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::Success);
    assert!(ground.holds(1, 0, 0, 100), "read");
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    rds.free_mr(adapter, socket, cookie).expect("its own");
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::RemoteError);
    ground.close();
}

/// The attempt of another peer does not use a region up that is for one use.
#[test]
fn a_region_for_one_use_is_for_its_peer() {
    let mut ground = Ground::new(73, true);
    let cookie = ground.offer(1, RdmaFlags::USE_ONCE);
    let others = ground.offer(2, RdmaFlags::empty());
    assert_eq!(ground.operate(2, others, false), RdmaStatus::Success);
    assert_eq!(ground.operate(2, cookie, false), RdmaStatus::RemoteError);
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::Success, "still there");
    let mut buffer = [0; 16];
    for _ in 0..2 {
        ground.nodes.receive(0, ground.sockets[0], &mut buffer);
    }
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::RemoteError, "used up");
    ground.close();
}

#[test]
fn without_isolation_one_key_is_for_all() {
    let mut ground = Ground::new(74, false);
    let cookie = ground.offer(1, RdmaFlags::empty());
    assert_eq!(ground.operate(2, cookie, false), RdmaStatus::Success);
    assert!(ground.holds(2, 0, 0, 100), "read");
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    let region = ground.memory[0].slice(0, 10).expect("inside");
    rds.get_mr(adapter, ground.sockets[0], region, RdmaFlags::empty()).expect("offered to all");
    ground.close();
}

/// A zone is the peer's: all its connections are in it, whatever their type of service.
#[test]
fn a_peers_types_of_service_share_its_zone() {
    let mut ground = Ground::new(75, true);
    let cookie = ground.offer(1, RdmaFlags::empty());
    let urgent = ground.nodes.bind(1, 4100);
    ground.nodes.rds[1].set_type_of_service(urgent, 5).expect("new");
    ground.sockets[1] = urgent;
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::Success);
    assert!(ground.holds(1, 0, 0, 100), "read");
    let types: Vec<u8> = ground.nodes.rds[0].connections_info().map(|info| info.tos).collect();
    assert_eq!(types, [0, 5]);
    // But another peer's is another, also with that type.
    let others = ground.nodes.bind(2, 4100);
    ground.nodes.rds[2].set_type_of_service(others, 5).expect("new");
    ground.sockets[2] = others;
    assert_eq!(ground.operate(2, cookie, false), RdmaStatus::RemoteError);
    ground.close();
}

/// The place of a peer that never came up is another's only when nothing is offered to the first any more; then nothing of
/// its zone is left to it.
#[test]
fn places_are_used_again_when_nothing_is_offered() {
    let mut ground = Ground::new(76, true);
    let (region, socket) = (region(&ground.memory), ground.sockets[0]);
    let none = RdmaFlags::empty();
    let (rds, adapter) = (&mut ground.nodes.rds[0], &mut ground.nodes.adapters[0]);
    // The node has room for four peers.
    for node in 10..30 {
        let cookie = rds.get_mr_for_dest(adapter, socket, at(node, 5000), region, none).expect("offered");
        rds.free_mr(adapter, socket, cookie).expect("its own");
    }
    let mut offered = Vec::new();
    for node in 40..44 {
        offered.push(rds.get_mr_for_dest(adapter, socket, at(node, 5000), region, none).expect("offered"));
    }
    let full = rds.get_mr_for_dest(adapter, socket, at(44, 5000), region, none);
    assert_eq!(full, Err(RdsError::NoBufferSpace));
    assert_eq!(rds.sendmsg(adapter, socket, Msg::to(&at(1, 4001), b"x")), Err(RdsError::NoBufferSpace));
    rds.free_mr(adapter, socket, offered[2]).expect("its own");
    // A peer that is there takes the place, and its own memory works.
    let cookie = ground.offer(1, none);
    assert_eq!(ground.operate(1, offered[0], false), RdmaStatus::RemoteError);
    assert_eq!(ground.operate(1, cookie, false), RdmaStatus::Success);
    assert!(ground.holds(1, 0, 0, 100), "read");
    ground.close();
}
