//! The socket calls of RDS as Linux and as rds(3SOCKET) have them: profiles, buffers, flags of calls, interfaces, masked atomics.

use driver_mlx::PortType;
use harness::dat::HCA;
use harness::rds::{GENERATION, Nodes, at, message};
use rds_nostd::{
    Arrival, AtomicArgs, AtomicOp, Control, Interface, InterfaceFlags, Msg, MsgFlags, PollMask, Profile,
    RdmaArgs, RdmaFlags, RdmaStatus, RdsConfig, RdsError,
};

#[test]
fn sockets_are_those_of_a_profile() {
    let mut nodes = Nodes::new(81, "none");
    let (rds, adapter) = (&mut nodes.rds[0], &nodes.adapters[0]);
    for profile in [Profile::Linux, Profile::Solaris] {
        let (family, kind) = (profile.address_family(), profile.socket_type());
        let mut ask = |family, kind, protocol| rds.socket_of(adapter, profile, family, kind, protocol);
        assert_eq!(ask(2, kind, 0), Err(RdsError::AddressFamily));
        assert_eq!(ask(family, 1, 0), Err(RdsError::SocketType));
        assert_eq!(ask(family, kind, 17), Err(RdsError::Protocol));
        let socket = ask(family, kind, 0).expect("right");
        assert_eq!(rds.profile(socket), Ok(profile));
    }
    // The node has room for four.
    for _ in 0..2 {
        rds.socket_of(adapter, Profile::Linux, 21, 5, 0).expect("room");
    }
    assert_eq!(rds.socket_of(adapter, Profile::Linux, 21, 5, 0), Err(RdsError::TooManySockets));
    nodes.close();
}

#[test]
fn buffers_are_what_each_system_says() {
    let config = RdsConfig { profile: Profile::Solaris, ..RdsConfig::new(GENERATION) };
    let mut nodes = Nodes::with(82, "none", 2, config);
    let (linux, solaris) = (nodes.bind(0, 4000), nodes.bind(0, 4001));
    nodes.bind(1, 5000);
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    rds.set_profile(linux, Profile::Linux).expect("open");

    assert_eq!((rds.sndbuf(linux), rds.rcvbuf(linux)), (Ok(212_992), Ok(212_992)), "as Linux begins");
    assert_eq!((rds.sndbuf(solaris), rds.rcvbuf(solaris)), (Ok(106_496), Ok(106_496)));
    for (asked, told) in [(5000, 10_000), (1, 4608), (1 << 30, 425_984)] {
        rds.set_sndbuf(linux, asked).expect("open");
        assert_eq!(rds.sndbuf(linux), Ok(told));
        rds.set_rcvbuf(adapter, linux, asked).expect("open");
        assert_eq!(rds.rcvbuf(linux), Ok(told.max(2304)).map(|told| if asked == 1 { 2304 } else { told }));
        rds.set_sndbuf(solaris, asked).expect("open");
        rds.set_rcvbuf(adapter, solaris, asked).expect("open");
        assert_eq!((rds.sndbuf(solaris), rds.rcvbuf(solaris)), (Ok(asked), Ok(asked)));
    }

    // A message longer than the send buffer: not on Linux.
    for socket in [linux, solaris] {
        nodes.rds[0].set_sndbuf(socket, 5000).expect("open");
    }
    assert_eq!(nodes.send(0, linux, at(1, 5000), &message(0, 1, 5000)), Ok(5000), "just fits");
    assert_eq!(nodes.send(0, linux, at(1, 5000), &message(0, 1, 5001)), Err(RdsError::MessageSize));
    assert_eq!(nodes.send(0, solaris, at(1, 5000), &message(0, 1, 9000)), Ok(9000));
    assert_eq!(
        nodes.send(0, solaris, at(1, 5000), &message(0, 1, 1)),
        Err(RdsError::Again),
        "it is full now"
    );
    let longest = nodes.rds[0].longest_message();
    let longer = nodes.send(0, solaris, at(1, 5000), &message(0, 1, longest + 1));
    assert_eq!(longer, Err(RdsError::MessageSize));

    // Full or not, the seed's poll tells OUT.
    let out = PollMask::OUT | PollMask::WRNORM;
    assert_eq!(nodes.rds[0].poll_mask(solaris), Ok(out));
    assert_eq!(nodes.rds[0].poll_mask(linux).map(|mask| mask & out), Ok(PollMask::empty()));
    nodes.until("both are acknowledged", |nodes| {
        [linux, solaris].iter().all(|&socket| nodes.rds[0].unacknowledged(socket) == Ok(0))
    });
    assert_eq!(nodes.rds[0].poll_mask(linux).map(|mask| mask & out), Ok(out));
    nodes.close();
}

#[test]
fn flags_of_calls() {
    let mut nodes = Nodes::new(83, "none");
    let (sender, receiver) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let sent = message(0, 1, 5000);
    let none = MsgFlags::empty();

    // sendmsg: nothing but DONTWAIT and MORE; the address is looked at before the socket.
    let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
    for flag in [
        MsgFlags::OOB,
        MsgFlags::PEEK,
        MsgFlags::from_bits_retain(0x4000),
        MsgFlags::from_bits_retain(0x2000),
    ] {
        let refused = rds.sendmsg(adapter, sender, Msg::to(&at(1, 5000), b"x").flags(flag));
        assert_eq!(refused, Err(RdsError::NotSupported), "{flag:?}");
    }
    assert_eq!(rds.sendmsg(adapter, sender, Msg::new(b"x")), Err(RdsError::NotConnected));
    let unbound = rds.socket().expect("a free one");
    let nowhere = "0.0.0.0:1".parse().expect("an address");
    assert_eq!(rds.sendmsg(adapter, unbound, Msg::to(&nowhere, b"x")), Err(RdsError::InvalidArgument));
    assert_eq!(rds.sendmsg(adapter, unbound, Msg::to(&at(1, 5000), b"x")), Err(RdsError::NotConnected));
    rds.connect(sender, at(1, 5000)).expect("unicast");
    assert_eq!(rds.sendmsg(adapter, sender, Msg::new(&sent).flags(MsgFlags::DONTWAIT)), Ok(None));
    assert_eq!(rds.sendmsg(adapter, sender, Msg::new(b"")), Ok(None));

    nodes.until("both arrived", |nodes| nodes.rds[1].counters().recv_queued == 2);
    let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
    let mut buffer = vec![0; 8000];
    let mut receive = |len: usize, flags: MsgFlags| {
        buffer.fill(0xee);
        let got = rds.recvmsg(adapter, receiver, &mut buffer[..len], flags)?;
        if let Arrival::Message(message) = got {
            assert_eq!(message.from, at(0, 4000));
            let whole: &[u8] = if message.message_len == 0 { &[] } else { &sent };
            assert!(
                buffer[..message.len] == whole[..message.len]
                    && buffer[message.len..].iter().all(|&b| b == 0xee)
            );
        }
        Ok::<_, RdsError>((got.value(flags), got.flags(), got != Arrival::Nothing))
    };
    let trunc = MsgFlags::TRUNC;
    assert_eq!(receive(8000, MsgFlags::OOB), Ok((0, none, false)));
    assert_eq!(receive(8000, MsgFlags::PEEK), Ok((5000, none, true)));
    assert_eq!(receive(4100, MsgFlags::PEEK), Ok((4100, trunc, true)));
    assert_eq!(receive(0, MsgFlags::PEEK | trunc), Ok((5000, trunc, true)));
    // Read for good, cut: the rest is gone.
    assert_eq!(receive(10, trunc | MsgFlags::DONTWAIT), Ok((5000, trunc, true)));
    assert_eq!(receive(10, MsgFlags::PEEK), Ok((0, none, true)));
    assert_eq!(receive(0, none), Ok((0, none, true)), "a message of no bytes");
    assert_eq!(receive(10, MsgFlags::PEEK), Err(RdsError::Again));
    assert_eq!(receive(10, none), Err(RdsError::Again));
    nodes.close();
}

#[test]
fn interfaces_are_loopback_and_the_port() {
    let nodes = Nodes::new(84, "none");
    let (rds, adapter) = (&nodes.rds[0], &nodes.adapters[0]);
    let (name, other, mtu) = match adapter.port_type() {
        PortType::InfiniBand => ("ib0", "ib1", adapter.mtu() - 4),
        PortType::Ethernet => ("roce0", "ib0", u32::from(HCA.ethernet_mtu)),
    };
    let [lo, ib] = rds.interfaces(adapter);
    assert_eq!((lo.name, lo.address), ("lo0", "127.0.0.1".parse().expect("an address")));
    assert!(lo.flags.contains(InterfaceFlags::UP | InterfaceFlags::LOOPBACK | InterfaceFlags::RUNNING));
    assert_eq!((ib.name, ib.address, ib.mtu), (name, adapter.address(), mtu));
    let flags =
        InterfaceFlags::UP | InterfaceFlags::BROADCAST | InterfaceFlags::MULTICAST | InterfaceFlags::IPV4;
    assert_eq!(ib.flags, flags | InterfaceFlags::RUNNING);
    assert_eq!(rds.interface(adapter, name).map(|Interface { mtu, .. }| mtu), Ok(ib.mtu));
    assert_eq!(rds.interface(adapter, "lo0"), Ok(lo));
    assert_eq!(rds.interface(adapter, other), Err(RdsError::NoInterface));
    nodes.close();
}

/// Masked atomics: those that equal plain ones are done, all others refused before anything happens.
#[test]
fn masked_atomics_are_plain_or_refused() {
    let mut nodes = Nodes::new(85, "none");
    let (requester, owner) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let memory = [0, 1].map(|node| nodes.adapters[node].dma_alloc(4096, 4096).expect("memory"));
    let region = memory[1].slice(0, 64).expect("inside");
    let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
    let cookie = rds.get_mr(adapter, owner, region, RdmaFlags::PEER_ATOMICS).expect("offered");
    memory[1].write(8, &7u64.to_ne_bytes()).expect("inside");
    let word = |node: usize, offset: usize| {
        let mut bytes = [0; 8];
        memory[node].read(offset, &mut bytes).expect("inside");
        u64::from_ne_bytes(bytes)
    };
    let all = u64::MAX;
    let swap = |compare_mask, swap_mask| AtomicOp::MaskedCompareSwap {
        compare: 7,
        swap: 100,
        compare_mask,
        swap_mask,
    };
    let cases = [
        (swap(0xff, all), None),
        (swap(all, 0xff), None),
        (AtomicOp::MaskedFetchAdd { add: 5, nocarry_mask: 0x8000_0000 }, None),
        (swap(all, all), Some((7, 100))),
        (AtomicOp::MaskedFetchAdd { add: 5, nocarry_mask: 0 }, Some((100, 105))),
    ];
    for (op, expected) in cases {
        let local = memory[0].slice(0, 8).expect("inside");
        let flags = RdmaFlags::NOTIFY_ME;
        let args = AtomicArgs { cookie, remote_offset: 8, local, op, flags, user_token: 1 };
        let control = Control { atomic: Some(args), ..Control::default() };
        let before = word(1, 8);
        let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
        let sent = rds.sendmsg(adapter, requester, Msg::to(&at(1, 5000), b"x").with(&control));
        let Some((old, new)) = expected else {
            assert_eq!(sent, Err(RdsError::NotSupported), "{op:?}");
            assert_eq!((rds.unacknowledged(requester), word(1, 8)), (Ok(0), before), "{op:?}");
            continue;
        };
        assert_eq!(sent, Ok(None), "{op:?}");
        nodes.until("the operation ends", |nodes| {
            let notify = nodes.rds[0].take_notification(requester).expect("open");
            assert!(notify.is_none_or(|notify| notify.status == RdmaStatus::Success));
            notify.is_some()
        });
        assert_eq!((word(0, 0), word(1, 8)), (old, new), "{op:?}");
    }
    let counters = nodes.rds[0].counters();
    assert_eq!((counters.atomic_cswp, counters.atomic_fadd), (1, 1));
    nodes.close_with(memory);
}

/// SILENT without payload sends nothing, with payload it does; RECVERR counts as it stood when the message was accepted.
#[test]
fn silence_and_errors_of_operations() {
    let mut nodes = Nodes::new(86, "none");
    let (requester, owner) = (nodes.bind(0, 4000), nodes.bind(1, 5000));
    let memory = [0, 1].map(|node| nodes.adapters[node].dma_alloc(4096, 4096).expect("memory"));
    let (rds, adapter) = (&mut nodes.rds[1], &mut nodes.adapters[1]);
    let region = memory[1].slice(0, 64).expect("inside");
    let cookie = rds.get_mr(adapter, owner, region, RdmaFlags::empty()).expect("offered");
    let local = [memory[0].slice(0, 64).expect("inside")];
    let operate = |nodes: &mut Nodes, remote_offset: u64, payload: &[u8], user_token: u64| {
        let flags = RdmaFlags::SILENT | RdmaFlags::READWRITE;
        let args = RdmaArgs { cookie, remote_offset, remote_bytes: 64, local: &local, flags, user_token };
        let control = Control { rdma: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut nodes.rds[0], &mut nodes.adapters[0]);
        rds.sendmsg(adapter, requester, Msg::to(&at(1, 5000), payload).with(&control)).expect("accepted");
    };
    operate(&mut nodes, 0, b"", 1);
    operate(&mut nodes, 0, b"heard", 2);
    let mut buffer = [0; 16];
    assert_eq!(nodes.receive(1, owner, &mut buffer).len, 5, "nothing before it");
    // A failure that nobody asked to hear of; then one that was asked for only afterwards; then one in time.
    operate(&mut nodes, 1, b"", 3);
    nodes.rds[0].set_receive_errors(requester, true).expect("open");
    nodes.until("it failed", |nodes| nodes.rds[0].counters().conn_reset == 1);
    assert_eq!(nodes.rds[0].take_notification(requester), Ok(None));
    operate(&mut nodes, 1, b"", 4);
    nodes.rds[0].set_receive_errors(requester, false).expect("open");
    let mut told = None;
    nodes.until("it failed", |nodes| {
        told = nodes.rds[0].take_notification(requester).expect("open");
        told.is_some()
    });
    let told = told.expect("just found");
    assert_eq!((told.user_token, told.status), (4, RdmaStatus::RemoteError));
    nodes.close_with(memory);
}
