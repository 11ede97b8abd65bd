//! Two hosts on a wire of their own: pings, services and their client, with and without loss.

use super::*;
use crate::Status;
use core::net::Ipv4Addr;
use core::ops::ControlFlow;
use dat_nostd::net::smoltcp::iface::SocketStorage;
use dat_nostd::net::{Host, LinkConfig, PacketBuffers, PacketLink};
use driver_mlx::{Duration, Instant, Wake};
use std::boxed::Box;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SECOND: Duration = Duration::from_secs(1);
const START: Instant = Instant::from_nanos(1_000_000_000);
const MTU: usize = 2044;

type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// One end of the wire; every `lose`-th packet sent is lost (0 for none).
struct End {
    to_here: Queue,
    to_there: Queue,
    address: Ipv4Addr,
    lose: u32,
    sent: u32,
}

impl PacketLink for End {
    fn config(&mut self) -> Option<LinkConfig> {
        Some(LinkConfig { address: self.address, prefix_len: 24, gateway: None, mtu: MTU })
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let packet = self.to_here.borrow_mut().pop_front()?;
        buffer[..packet.len()].copy_from_slice(&packet);
        Some(packet.len())
    }

    fn can_send(&mut self) -> bool {
        self.to_there.borrow().len() < 64
    }

    fn send(&mut self, packet: &[u8]) {
        assert!(packet.len() <= MTU, "{} bytes", packet.len());
        self.sent += 1;
        if self.lose == 0 || !self.sent.is_multiple_of(self.lose) {
            self.to_there.borrow_mut().push_back(packet.to_vec());
        }
    }

    fn join(&mut self, _: Ipv4Addr) -> bool {
        false
    }

    fn leave(&mut self, _: Ipv4Addr) {}
}

fn wire(lose: u32) -> (End, End) {
    let (one, two) = (Queue::default(), Queue::default());
    let end = |address, to_here: &Queue, to_there: &Queue| End {
        address,
        to_here: Rc::clone(to_here),
        to_there: Rc::clone(to_there),
        lose,
        sent: 0,
    };
    (end(A, &one, &two), end(B, &two, &one))
}

fn host(link: &mut End) -> Host<'static> {
    let seed = u64::from(link.address.octets()[3]);
    Host::new(link, Box::leak(Box::new(PacketBuffers::new())), seed, Instant::ORIGIN).expect("is up")
}

/// A host with services at A; `client` polls the host at B until it says that it is done.
fn run(
    lose: u32,
    source: u64,
    mut client: impl FnMut(&mut Host<'_>, &mut End, Instant) -> Status,
) -> Vec<Served> {
    let (mut a, mut b) = wire(lose);
    let (mut server, mut other) = (host(&mut a), host(&mut b));
    let storage = Box::leak(Box::new(ServicesStorage::new()));
    let slots = Box::leak(Box::new(ServicesSlots::new()));
    let mut services = Services::new(storage, slots, source);
    let mut served = Vec::new();
    let mut now = START;
    let mut done_at = None;
    loop {
        let wake = services.poll(&mut server, &mut a, now, &mut |client| served.push(*client));
        let wake = wake.earliest(match client(&mut other, &mut b, now) {
            ControlFlow::Continue(wake) => wake,
            ControlFlow::Break(()) => Wake::At(*done_at.get_or_insert(now) + SECOND),
        });
        if done_at.is_some_and(|at| now >= at + SECOND) {
            return served;
        }
        assert!(now < START + SECOND * 1000, "it does not end");
        let busy = !a.to_here.borrow().is_empty() || !b.to_here.borrow().is_empty();
        let soon = now + Duration::from_micros(1);
        now = if busy { soon } else { wake.deadline(now).unwrap_or(Instant::MAX).max(soon) };
    }
}

fn transfer(lose: u32, port: u16, send: u64, source: u64) -> (ClientReport, Vec<Served>) {
    let config = ClientConfig {
        to: A,
        port,
        send,
        seed: 3,
        connect_timeout: SECOND * 10,
        stall_timeout: SECOND * 100,
    };
    let storage = Box::leak(Box::new(ClientStorage::new()));
    let slot = Box::leak(Box::new(SocketStorage::EMPTY));
    let mut client = Client::new(storage, slot, config, START);
    let mut done = false;
    let served = run(lose, source, |host, link, now| {
        if !done {
            match client.poll(host, link, now).unwrap_or_else(|error| panic!("{error}")) {
                ControlFlow::Continue(wake) => return ControlFlow::Continue(wake),
                ControlFlow::Break(()) => done = true,
            }
        }
        ControlFlow::Break(())
    });
    (client.report(), served)
}

#[test]
fn every_service_answers_as_it_should() {
    const LEN: u64 = 1_000_003;
    for lose in [0, 50] {
        for (service, send) in
            [(Service::Echo, LEN), (Service::Discard, LEN), (Service::Source, 0), (Service::Hash, LEN)]
        {
            let (report, served) = transfer(lose, service.port(), send, LEN);
            assert!(report.is(Expect::of_port(service.port())), "{service:?}: {report:?}");
            assert_eq!(report.sent, send);
            let [served] = served.as_slice() else { panic!("{service:?}: {served:?}") };
            assert_eq!((served.service, served.peer, served.bytes), (service, B, LEN));
            let digest = if send == 0 { report.received_sha256 } else { report.sent_sha256 };
            assert_eq!(served.sha256, digest);
        }
    }
}

#[test]
fn a_port_without_a_service_refuses() {
    let config =
        ClientConfig { to: A, port: 80, send: 1, seed: 3, connect_timeout: SECOND, stall_timeout: SECOND };
    let storage = Box::leak(Box::new(ClientStorage::new()));
    let slot = Box::leak(Box::new(SocketStorage::EMPTY));
    let mut client = Client::new(storage, slot, config, START);
    let mut error = None;
    run(0, 0, |host, link, now| match client.poll(host, link, now) {
        Ok(ControlFlow::Continue(wake)) => ControlFlow::Continue(wake),
        Ok(ControlFlow::Break(())) => panic!("nobody listens there"),
        Err(refusal) => {
            error = Some(refusal);
            ControlFlow::Break(())
        }
    });
    assert!(matches!(error, Some(ClientError::NotConnected { refused: true, .. })), "{error:?}");
}

fn ping(to: Ipv4Addr, lose: u32, size: usize) -> PingReport {
    let config =
        PingConfig { to, count: 100, size, ident: 7, interval: Duration::from_millis(1), timeout: SECOND };
    let storage = Box::leak(Box::new(PingStorage::new()));
    let slot = Box::leak(Box::new(SocketStorage::EMPTY));
    let mut ping = Ping::new(storage, slot, config);
    run(lose, 0, |host, link, now| ping.poll(host, link, now));
    *ping.report()
}

#[test]
fn pings_are_answered_with_what_was_sent() {
    for size in [0, 1, 56, 2000] {
        let report = ping(A, 0, size);
        assert_eq!((report.sent, report.received, report.lost, report.wrong), (100, 100, 0, 0));
        assert!(report.min <= report.max && report.sum >= 100 * report.min);
    }
}

#[test]
fn lost_pings_are_counted() {
    let report = ping(A, 10, 56);
    assert_eq!((report.sent, report.received + report.lost), (100, 100));
    assert!((5..40).contains(&report.lost), "{report:?}");
    let nobody = ping(Ipv4Addr::new(10, 0, 0, 9), 0, 56);
    assert_eq!((nobody.sent, nobody.received, nobody.lost), (100, 0, 100));
}
