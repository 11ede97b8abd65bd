//! `app=echo`: sends messages of all sizes by RDS to a port whose owner sends back what arrives, and compares every byte.

use core::net::SocketAddr;
use core::ops::ControlFlow;

use driver_mlx::{Duration, Wake};
use rds_nostd::{Arrival, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsStorage};
use unikernel::adapter::Adapter;
use unikernel::{Clock, ExitCode, Machine, Mutex, println};

use crate::cmdline::Options;
use crate::node::{self, Failure};

/// The longest message.
const MAX_LEN: usize = 8192;

static STORAGE: Mutex<RdsStorage<4, 4, 256>> = Mutex::new(RdsStorage::new());

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    let clock = machine.clock();
    let rds = RdsConfig { seed: machine.seed() as u64, ..RdsConfig::new(node::generation(machine)) };
    let port = options.port.ok_or(node::missing("port", "the port that answers"));
    let setup = port.and_then(|port| Ok(SocketAddr::new(node::peer(options)?, port)));
    node::run(machine, options, setup, |adapter, to| {
        work(adapter, clock, rds, *to, options.count, Duration::from_secs(options.stall_seconds))
    })
}

fn work(
    adapter: &mut Adapter<'_>,
    clock: Clock,
    config: RdsConfig,
    to: SocketAddr,
    count: u32,
    stall: Duration,
) -> Result<(), Failure> {
    node::wait_if_ip(adapter, clock)?;
    let mut storage = STORAGE.lock();
    let mut rds = Rds::start(adapter, storage.parts(), config).map_err(Failure::app)?;
    let socket = rds.bind(SocketAddr::new(adapter.address(), 0)).map_err(Failure::app)?;
    let (mut sent, mut answered, mut bytes) = (0, 0, 0);
    let mut buffer = [0; MAX_LEN];
    let mut give_up = clock.now() + stall;
    node::drive_on(adapter, clock, |adapter, now| {
        let Some(now) = now else {
            give_up = clock.now() + stall;
            return node::carry_on(rds.adapter_recovered(adapter), adapter);
        };
        let wake = rds.poll(adapter, now);
        // One at a time: the answer is compared with what was sent last.
        if sent == answered && sent < count {
            let message = fill(&mut buffer, sent);
            match rds.sendmsg(adapter, socket, Msg::to(&to, message)) {
                Ok(_) => sent += 1,
                Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => {}
                Err(error) => return Err(Failure::app(error)),
            }
        }
        let mut answer = [0; MAX_LEN];
        match rds.recvmsg(adapter, socket, &mut answer, MsgFlags::empty()) {
            Ok(Arrival::Message(message)) => {
                let right = fill(&mut buffer, answered) == answer.get(..message.len).unwrap_or_default();
                if !right || message.from != to {
                    return Err(Failure::app(format_args!("answer {answered} is not what was sent")));
                }
                answered += 1;
                bytes += message.len;
                give_up = now + stall;
            }
            Ok(_) | Err(RdsError::Again) if now < give_up => {}
            Ok(_) | Err(RdsError::Again) => {
                return Err(Failure::app(format_args!("no answer to message {answered} in time")));
            }
            Err(error) => return Err(Failure::app(error)),
        }
        if answered == count {
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(wake.earliest(Wake::At(give_up))))
    })?;
    println!("@echo messages={answered} bytes={bytes}");
    rds.close(adapter, socket).map_err(Failure::app)?;
    node::linger(adapter, clock)
}

/// Message `number`: lengths from 1 byte to the longest, bytes that differ from message to message.
fn fill(buffer: &mut [u8; MAX_LEN], number: u32) -> &[u8] {
    let len = 1 + (number as usize * 1237) % MAX_LEN;
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index as u32).wrapping_mul(31).wrapping_add(number.wrapping_mul(167)) as u8;
    }
    buffer.get(..len).unwrap_or_default()
}
