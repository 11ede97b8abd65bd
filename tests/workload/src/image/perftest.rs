//! `program=perftest`: the server of `ib_write_bw -R`.

use unikernel::adapter::{self, NAME};
use unikernel::failure::Failure;
use unikernel::{Machine, Options, println};
use workload::perftest::{PORT, PerftestServer};

use super::rds::{TABLES, node};
use driver_mlx::Duration;

/// Bytes that are looked at: perftest's usual length of a write.
const LOOKED_AT: usize = 65_536;

pub(super) fn serve(machine: &mut Machine, options: &Options<'static>) -> Result<(), Failure> {
    let (node, clock) = (node(options)?, machine.clock());
    let limit = Duration::from_secs(options.value("stall")?.unwrap_or(60));
    adapter::run(machine, &node, &mut *TABLES.lock(), |adapter| {
        if adapter.ip().is_some() {
            adapter::wait_ip_up(adapter, clock)?;
        }
        let mut server = PerftestServer::start(adapter, NAME, limit).map_err(Failure::app)?;
        println!("@perftest listening port={PORT}");
        let driven =
            adapter::drive(adapter, clock, |adapter, now| server.poll(adapter, now).map_err(Failure::app));
        let (messages, filled) = server.report(LOOKED_AT);
        println!("@perftest messages={messages} filled={filled} of={LOOKED_AT}");
        let closed = server.close(adapter).map_err(Failure::app);
        driven.and(closed)
    })
}
