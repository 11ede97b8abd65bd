//! `app=pair`: two HCAs of one machine, each a node of its own, driven by one loop: the first sends messages by RDS and the second sends
//! them back, and every byte is compared.

use core::net::{Ipv4Addr, SocketAddr};

use driver_mlx::{Duration, Instant, Wake};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage, SocketHandle};
use unikernel::adapter::{self, Adapter, Prepared, Storage};
use unikernel::choice::Choice;
use unikernel::{Clock, ExitCode, Machine, Mutex, println};

use crate::cmdline::Options;
use crate::node::{self, Failure};

const PORT: u16 = 4000;
const MAX_LEN: usize = 4096;

static ADAPTERS: [Mutex<Storage>; 2] = [const { Mutex::new(Storage::new()) }; 2];
static SOCKETS: [Mutex<RdsStorage<2, 4, 256>>; 2] = [const { Mutex::new(RdsStorage::new()) }; 2];

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    adapter::conclude(both(machine, options))
}

fn both(machine: &mut Machine, options: &Options<'_>) -> Result<(), Failure> {
    let first = options.ip.and_then(node::v4).ok_or(node::missing("ip", "the first node's IPv4 address"))?;
    let second = node::peer_v4(options)?;
    let clock = machine.clock();
    let config = RdsConfig { seed: machine.seed() as u64, ..RdsConfig::new(node::generation(machine)) };
    let mut prepare = |nth, ip| {
        let hca = Choice::Nth(nth);
        Prepared::new(machine, &adapter::Node { hca, ..adapter::Node::new(ip) })
    };
    let (one, other) = (prepare(0, first)?, prepare(1, second)?);
    let [tables, other_tables] = &ADAPTERS;
    one.run(&mut *tables.lock(), |one| {
        other.run(&mut *other_tables.lock(), |other| {
            work((one, first), (other, second), clock, config, (options.count, options.stall_seconds))
        })
    })
}

/// One of the nodes.
struct Side<'a, 's> {
    adapter: &'a mut Adapter<'s>,
    rds: Rds<'a>,
    socket: SocketHandle,
}

impl Side<'_, '_> {
    /// Polls what lies below, and says when to do so again.
    #[inline(never)]
    fn poll(&mut self, now: Instant) -> Wake {
        self.adapter.poll(now).earliest(self.rds.poll(self.adapter, now))
    }

    /// A message, if one has come.
    #[inline(never)]
    fn take(&mut self, buffer: &mut [u8]) -> Result<Option<(SocketAddr, usize)>, Failure> {
        match self.rds.recvmsg(self.adapter, self.socket, buffer, MsgFlags::empty()) {
            Ok(Arrival::Message(message)) => Ok(Some((message.from, message.len))),
            Ok(_) | Err(RdsError::Again) => Ok(None),
            Err(error) => Err(Failure::app(error)),
        }
    }

    /// Whether the message was taken to be sent.
    #[inline(never)]
    fn give(&mut self, to: SocketAddr, message: &[u8]) -> Result<bool, Failure> {
        match self.rds.sendmsg(self.adapter, self.socket, Msg::to(&to, message)) {
            Ok(_) => Ok(true),
            Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => Ok(false),
            Err(error) => Err(Failure::app(error)),
        }
    }
}

fn work(
    (one, first): (&mut Adapter<'_>, Ipv4Addr),
    (other, second): (&mut Adapter<'_>, Ipv4Addr),
    clock: Clock,
    config: RdsConfig,
    (count, stall_seconds): (u32, u64),
) -> Result<(), Failure> {
    adapter::wait_ip_up(one, clock)?;
    adapter::wait_ip_up(other, clock)?;
    let [sockets, other_sockets] = &SOCKETS;
    let (mut storage, mut other_storage) = (sockets.lock(), other_sockets.lock());
    let mut rds = Rds::start(one, storage.parts(), config).map_err(Failure::app)?;
    let socket = rds.bind((first, PORT).into()).map_err(Failure::app)?;
    let mut sender = Side { adapter: one, rds, socket };
    let mut rds = Rds::start(other, other_storage.parts(), config).map_err(Failure::app)?;
    let socket = rds.bind((second, PORT).into()).map_err(Failure::app)?;
    let mut echo = Side { adapter: other, rds, socket };

    let (mut sent, mut answered, mut bytes) = (0, 0, 0);
    let mut waiting = None;
    let (mut message, mut there, mut back) = ([0; MAX_LEN], [0; MAX_LEN], [0; MAX_LEN]);
    let stall = Duration::from_secs(stall_seconds);
    let mut give_up = clock.now() + stall;
    while answered < count {
        let now = clock.now();
        let wake = sender.poll(now).earliest(echo.poll(now));
        if waiting.is_none() {
            waiting = echo.take(&mut there)?;
        }
        if let Some((to, len)) = waiting
            && echo.give(to, there.get(..len).unwrap_or_default())?
        {
            waiting = None;
        }
        if let Some((from, len)) = sender.take(&mut back)? {
            if from != (second, PORT).into() || back.get(..len) != Some(fill(&mut message, answered)) {
                return Err(Failure::app(format_args!("answer {answered} is not what was sent")));
            }
            (answered, bytes) = (answered + 1, bytes + len);
            give_up = now + stall;
        }
        if sent == answered && sent < count && sender.give((second, PORT).into(), fill(&mut message, sent))? {
            sent += 1;
        }
        if now > give_up {
            return Err(Failure::app(format_args!("no answer to message {answered} in time")));
        }
        // Both have to agree to sleep: an interrupt of either ends it.
        let asleep = |side: &mut Side<'_, '_>| side.adapter.prepare_idle(clock.now());
        if !wake.is_due(now) && asleep(&mut sender) && asleep(&mut echo) {
            clock.idle(wake.deadline(now).map_or(give_up, |at| at.min(give_up)));
        }
    }
    println!("@pair messages={answered} bytes={bytes}");
    Ok(())
}

/// Message `number`: lengths from 1 byte to the longest, bytes that differ from message to message.
fn fill(buffer: &mut [u8; MAX_LEN], number: u32) -> &[u8] {
    let len = 1 + (number as usize * 1237) % MAX_LEN;
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index as u32).wrapping_mul(31).wrapping_add(number.wrapping_mul(167)) as u8;
    }
    buffer.get(..len).unwrap_or_default()
}
