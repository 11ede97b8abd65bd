//! `app=hca`: brings the HCA up, waits until its port is Active, makes and destroys one object of each kind, and takes it
//! down again.

use driver_mlx::{Hca, HcaStorage, Link};
use unikernel::choice::Choice;
use unikernel::failure::{Failure, conclude};
use unikernel::hca::BareMetal;
use unikernel::{Clock, ExitCode, Machine, Mutex, println, verbs};

use crate::cmdline::Options;

/// Blocks of 4 KiB that the driver can manage: a DMA region of up to 256 MiB, for 128 KiB of static memory.
const BLOCKS: usize = 65_536;

static STORAGE: Mutex<HcaStorage<BLOCKS>> = Mutex::new(HcaStorage::new());

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    if options.clear_bars {
        clear_bars(machine, options.hca);
    }
    conclude(verbs::run(machine, options.hca, options.dma_bytes, &mut *STORAGE.lock(), use_port))
}

/// Takes the BARs of an HCA away, and the windows of all bridges, as firmware leaves them that gives none.
fn clear_bars(machine: &Machine, choice: Choice) {
    const COMMAND: u16 = 0x04;
    const BARS: [u16; 2] = [0x10, 0x14];
    // Bases above limits, then the upper halves.
    const CLOSED: [(u16, u32); 4] = [(0x20, 0x0000_fff0), (0x24, 0x0000_fff0), (0x28, 0), (0x2c, 0)];
    let access = machine.config_space();
    let meant = machine.find_hca(choice);
    for (nth, hca) in machine.hcas().enumerate() {
        // Where the port's GUID says which, all of them will be asked.
        if meant.is_ok_and(|meant| meant == nth) || matches!(choice, Choice::Port(_)) {
            // SAFETY: no HCA is open. Memory decoding and bus mastering are off before the BARs are
            // 0.
            unsafe {
                access.write(hca.address(), COMMAND, 0);
                BARS.iter().for_each(|bar| access.write(hca.address(), *bar, 0));
            }
        }
    }
    for bridge in machine.pci().iter().filter(|function| function.secondary_bus().is_some()) {
        // SAFETY: the application has just begun, so that no driver operates a function behind the
        // bridge. A closed window overlaps nothing.
        unsafe {
            CLOSED.iter().for_each(|(register, value)| access.write(bridge.address(), *register, *value))
        };
    }
}

fn use_port(hca: &mut Hca<'_, BareMetal>, clock: Clock) -> Result<(), Failure> {
    let up = clock.now();
    let (major, minor, sub) = hca.firmware_version();
    let pages = hca.firmware_pages();
    println!("firmware {major}.{minor}.{sub}, holds {pages} pages; {} KiB free", hca.free_bytes() >> 10);
    let port = verbs::wait_active(hca, clock, |event| println!("event: {event:?}"))?;
    let (state, mtu, guid) = (port.state, port.mtu, port.port_guid.get());
    match port.link {
        Link::InfiniBand(link) => println!(
            "port {state:?}: lid {}, sm lid {}, mtu {mtu:?}, guid {guid:#018x}, gid {}, p_key {}",
            link.lid,
            link.sm_lid,
            hca.gid(0)?,
            hca.pkey(0)?
        ),
        Link::Ethernet(link) => println!(
            "port {state:?}: mac {}, frames of {} bytes, mtu {mtu:?}, guid {guid:#018x}",
            link.mac, link.mtu
        ),
    }
    println!("@step name=port_active us={}", (clock.now() - up).as_micros());
    Ok(())
}
