//! What happened in a run, for whoever has to find out why it failed.

use crate::rds::chaos::ledger::Kind;
use crate::rds::chaos::node::Stage;
use rds_nostd::{RdmaCookie, RdmaStatus};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Events kept.
const KEPT: usize = 400;

/// Something that happened, with the node that it happened to.
#[derive(Clone, Debug)]
#[allow(dead_code)] // The fields are there to be printed.
pub enum Event {
    Booted {
        node: usize,
        incarnation: u32,
        free_frames: usize,
    },
    Died {
        node: usize,
        incarnation: u32,
        orderly: bool,
    },
    /// A program closed a socket, or cancelled what it sent.
    Whim {
        from: SocketAddr,
        closes: bool,
    },
    Faults(String),
    Cable {
        node: usize,
        plugged: bool,
    },
    Sent {
        from: SocketAddr,
        to: SocketAddr,
        number: usize,
        len: usize,
    },
    Received {
        from: SocketAddr,
        to: SocketAddr,
        number: usize,
        len: usize,
    },
    Unread {
        from: SocketAddr,
        to: SocketAddr,
        number: usize,
        len: usize,
    },
    Offered {
        number: usize,
        from: SocketAddr,
        to: SocketAddr,
        cookie: RdmaCookie,
        kind: Kind,
        withheld: bool,
    },
    Operation {
        number: usize,
        offer: usize,
        from: SocketAddr,
        to: SocketAddr,
        silent: bool,
    },
    Ended {
        number: usize,
        status: RdmaStatus,
    },
    Stage(Stage),
}

/// The last events of a run; printed if the run panics.
#[derive(Debug, Default)]
pub struct Trace(RefCell<VecDeque<(u64, Event)>>);

impl Trace {
    pub fn note(&self, now: u64, event: Event) {
        let mut events = self.0.borrow_mut();
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back((now, event));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last {KEPT} events, with their time in microseconds:");
            for (now, event) in self.0.borrow().iter() {
                eprintln!("{:>10}.{:03} {event:?}", now / 1000, now % 1000);
            }
        }
    }
}
