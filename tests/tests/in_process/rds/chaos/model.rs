//! What may arrive: the reference that a run is judged by.
//!
//! A stream is what one port sends to another, over all incarnations of both nodes. Each incarnation of the receiver gets, in
//! order and at most once, some of the stream. No incarnation gets what an earlier one got that ended in order and reached the
//! sender with its last acknowledgement. What it does not get, an earlier incarnation of the receiver has had, read or not,
//! or it is lost with its sender.

use crate::rds::chaos::ledger::Ledger;
use ib_types::Payload;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The number of the node that has this address.
fn node_of(address: IpAddr) -> usize {
    (0..16).find(|node| harness::dat::address(*node) == address).expect("an address of a node")
}

/// A message that RDS accepted.
#[derive(Debug)]
struct Sent {
    len: usize,
    /// The sender's incarnation.
    sender: u32,
    /// An RDMA operation went with it: then it may be lost with it.
    operation: bool,
    /// Its sender gave it up before anybody had it: it may arrive or not.
    given_up: bool,
    /// The receiver's incarnations that got it.
    got_by: Vec<u32>,
    /// A receiver that got the message ended in order and reached the sender, so the message must not come again.
    is_final: bool,
}

/// What a port sends to another.
#[derive(Debug, Default)]
struct Stream {
    sent: Vec<Sent>,
    /// The receiver's incarnation, and what it may get next.
    receiver: u32,
    next: usize,
}

/// All streams of a run.
#[derive(Debug, Default)]
pub struct Model {
    streams: BTreeMap<(SocketAddr, SocketAddr), Stream>,
    /// Pings sent and pongs received, by the pinging socket.
    pings: BTreeMap<(SocketAddr, SocketAddr), (u64, u64)>,
}

/// Payload of a message, but for its first byte.
fn payload(from: SocketAddr, to: SocketAddr, number: usize) -> Payload {
    let nodes = (node_of(from.ip()) as u64) << 8 | node_of(to.ip()) as u64;
    let ports = u64::from(from.port()) << 16 | u64::from(to.port());
    Payload::new(0, nodes << 32 | ports, number as u64)
}

/// Returns the first `len` bytes of a message. The first one is its number, so that short messages
/// differ, too.
pub fn content(from: SocketAddr, to: SocketAddr, number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    payload(from, to, number).fill(0, &mut bytes);
    if let Some(first) = bytes.first_mut() {
        *first = number as u8;
    }
    bytes
}

/// Returns whether `bytes` are those of a message. A stream is searched with this, so it allocates
/// nothing and ends at the first difference.
fn is_content(from: SocketAddr, to: SocketAddr, number: usize, bytes: &[u8]) -> bool {
    let Some((first, _)) = bytes.split_first() else { return true };
    let payload = payload(from, to, number);
    let (head, rest) = bytes.split_at(bytes.len().min(8));
    *first == number as u8
        && (1..head.len()).all(|place| head[place] == payload.byte(place))
        && payload.mismatch(8, rest).is_none()
}

impl Model {
    /// The number of the next message of a stream.
    pub fn next_number(&self, from: SocketAddr, to: SocketAddr) -> usize {
        self.streams.get(&(from, to)).map_or(0, |stream| stream.sent.len())
    }

    /// Whether a stream has had its empty message: of two, nobody could tell which one arrived.
    pub fn has_empty(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.streams.get(&(from, to)).is_some_and(|stream| stream.sent.iter().any(|sent| sent.len == 0))
    }

    /// RDS accepted the next message of a stream, perhaps with an RDMA operation; gives its number.
    pub fn accepted(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        sender: u32,
        len: usize,
        operation: bool,
    ) -> usize {
        let stream = self.streams.entry((from, to)).or_default();
        stream.sent.push(Sent {
            len,
            sender,
            operation,
            given_up: false,
            got_by: Vec::new(),
            is_final: false,
        });
        stream.sent.len() - 1
    }

    /// A port's messages, to one destination or all, were cancelled.
    pub fn gave_up(&mut self, from: SocketAddr, to: Option<SocketAddr>) {
        let theirs = self.streams.iter_mut().filter(|((source, _), _)| *source == from);
        for (_, stream) in theirs.filter(|((_, destination), _)| to.is_none_or(|to| to == *destination)) {
            for sent in stream.sent.iter_mut().filter(|sent| sent.got_by.is_empty()) {
                sent.given_up = true;
            }
        }
    }

    pub fn pinged(&mut self, from: SocketAddr, to: SocketAddr) {
        self.pings.entry((from, to)).or_default().0 += 1;
    }

    /// A socket of the receiver's incarnation `receiver` got a message, or died with it unread; gives its number.
    pub fn got(&mut self, from: SocketAddr, to: SocketAddr, receiver: u32, bytes: &[u8]) -> usize {
        if from.port() == 0 {
            let (pings, pongs) = self.pings.entry((to, from)).or_default();
            *pongs += 1;
            // An incarnation of the responder may have died before its acknowledgement was heard, but not its answer.
            assert!(bytes.is_empty() && *pongs <= *pings * 8, "{to} got {pongs} pongs for {pings} pings");
            return *pongs as usize;
        }
        let stream =
            self.streams.get_mut(&(from, to)).unwrap_or_else(|| panic!("nobody at {from} sends to {to}"));
        if stream.receiver != receiver {
            assert!(stream.receiver < receiver, "an incarnation of {to} that is dead receives");
            (stream.receiver, stream.next) = (receiver, 0);
        }
        let is_it =
            |(number, sent): (usize, &Sent)| sent.len == bytes.len() && is_content(from, to, number, bytes);
        let Some(skipped) = stream.sent.iter().enumerate().skip(stream.next).position(is_it) else {
            let known: Vec<usize> = (0..stream.next).filter(|n| is_it((*n, &stream.sent[*n]))).collect();
            panic!(
                "{from} to {to}: {} bytes that are none of messages {}..{}, but those of {known:?}, which incarnation {receiver} has had",
                bytes.len(),
                stream.next,
                stream.sent.len()
            );
        };
        let number = stream.next + skipped;
        let sender = stream.sent[number].sender;
        for missing in stream.next..number {
            let sent = &stream.sent[missing];
            assert!(
                sent.operation
                    || sent.given_up
                    || sent.sender < sender
                    || sent.got_by.iter().any(|before| *before < receiver),
                "{from} to {to}: incarnation {receiver} got message {number} of incarnation {sender}, but nobody got {missing} before it"
            );
        }
        assert!(
            !stream.sent[number].is_final,
            "{from} to {to}: message {number} came again to incarnation {receiver} after an orderly end"
        );
        stream.sent[number].got_by.push(receiver);
        stream.next = number + 1;
        number
    }

    /// Notes that an incarnation of a node ended in order, and reached all peers except `unreached` with its last acknowledgement.
    pub fn ended(&mut self, node: usize, incarnation: u32, unreached: &[IpAddr]) {
        for ((from, to), stream) in &mut self.streams {
            if node_of(to.ip()) == node && !unreached.contains(&from.ip()) {
                let got = stream.sent.iter_mut().filter(|sent| sent.got_by.contains(&incarnation));
                got.for_each(|sent| sent.is_final = true);
            }
        }
    }

    /// At the end: whatever the living sent has arrived, but for messages whose operations failed. `incarnations` are those that
    /// live, by node.
    pub fn check_complete(&self, incarnations: &[u32], ledger: &Ledger) {
        for ((from, to), stream) in &self.streams {
            for (number, sent) in stream.sent.iter().enumerate() {
                let sender_lives = sent.sender == incarnations[node_of(from.ip())];
                assert!(
                    !sent.got_by.is_empty()
                        || sent.given_up
                        || !sender_lives
                        || !ledger.must_arrive(&(*from, *to, number)),
                    "{from} to {to}: message {number} of {} bytes from incarnation {} is lost",
                    sent.len,
                    sent.sender
                );
            }
        }
    }

    /// Messages that were accepted, and that were received.
    pub fn counts(&self) -> (usize, usize) {
        let all = || self.streams.values().flat_map(|stream| &stream.sent);
        (all().count(), all().map(|sent| sent.got_by.len()).sum())
    }
}
