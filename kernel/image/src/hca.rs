//! `app=hca`: brings the HCA up, waits until its port is Active, makes and destroys one object of each kind, and takes it
//! down again.

use dat_nostd::{Duration, Instant, Wake};
use driver_mlx::report::Report;
use driver_mlx::{Config, Error, Hca, HcaStorage, LinkState, Platform};
use unikernel::ExitCode;
use unikernel::Mutex;

use unikernel::Clock;
use unikernel::Machine;
use unikernel::hca::{self, BareMetal, Hardware};
use unikernel::memory::NoMemory;
use unikernel::pci::ConfigAccess as _;
use unikernel::println;

use crate::cmdline::Options;

/// Blocks of 4 KiB that the driver can manage: a DMA region of up to 256 MiB, for 128 KiB of static memory.
const BLOCKS: usize = 65_536;
/// MSI-X vector 0 for asynchronous events, 1 for completions.
const CONFIG: Config = Config { async_vector: 0, completion_vector: 1, ..Config::DEFAULT };
const VECTORS: u16 = 2;
/// How long the subnet manager may take to bring the port to Active.
const ACTIVE_LIMIT_NANOS: u64 = 30_000_000_000;
/// How often the port is asked, should its event be missed.
const ASK_NANOS: u64 = 100_000_000;

static STORAGE: Mutex<HcaStorage<BLOCKS>> = Mutex::new(HcaStorage::new());

pub fn run(machine: &mut Machine, options: &Options<'_>) -> ExitCode {
    if options.clear_bars {
        clear_bars(machine, options.hca);
    }
    let hardware = match machine.open_hca(options.hca, VECTORS) {
        Ok(hardware) => hardware,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::NoDevice;
        }
    };
    println!(
        "hca at {}: {:04x}:{:04x}",
        hardware.function().address,
        hardware.function().vendor,
        hardware.function().device
    );
    let mut result = up_and_down(machine, &hardware, options);
    if let Err(Failure::Hca(error)) = &result
        && error.wants_reset()
        && !matches!(error, Error::Fatal(_))
    {
        println!("hca: {error}: function-level reset");
        result = hardware
            .reset(machine.config_space())
            .map_err(Failure::Platform)
            .and_then(|()| up_and_down(machine, &hardware, options));
    }
    match result {
        Ok(()) => {
            println!("@done verified=true");
            ExitCode::Success
        }
        Err(failure) => {
            let code = match failure {
                Failure::Hca(error) => {
                    println!("error: HCA: {error}");
                    println!("{}", Report::new(&error, hardware.platform().bar(), STORAGE.lock().history()));
                    if error == Error::NotPresent { ExitCode::DeviceLost } else { ExitCode::Failed }
                }
                Failure::Platform(error) => {
                    println!("error: {error}");
                    ExitCode::NoDevice
                }
                Failure::Memory(error) => {
                    println!("error: {error}");
                    ExitCode::Machine
                }
                Failure::NotActive(state) => {
                    println!(
                        "error: HCA: the port is {state:?}, not Active, after 30 s: is there a subnet manager?"
                    );
                    ExitCode::Failed
                }
            };
            println!("@done verified=false");
            code
        }
    }
}

/// Takes the BARs of the `nth` HCA away, and the windows of all bridges, as firmware leaves them that gives none.
fn clear_bars(machine: &Machine, nth: usize) {
    const COMMAND: u16 = 0x04;
    const BARS: [u16; 2] = [0x10, 0x14];
    // Bases above limits, then the upper halves.
    const CLOSED: [(u16, u32); 4] = [(0x20, 0x0000_fff0), (0x24, 0x0000_fff0), (0x28, 0), (0x2c, 0)];
    let access = machine.config_space();
    if let Some(hca) = machine.hcas().nth(nth) {
        access.write(hca.address, COMMAND, 0);
        BARS.iter().for_each(|bar| access.write(hca.address, *bar, 0));
    }
    for bridge in machine.pci().iter().filter(|function| function.secondary_bus.is_some()) {
        CLOSED.iter().for_each(|(register, value)| access.write(bridge.address, *register, *value));
    }
}

enum Failure {
    Hca(Error),
    Platform(hca::Error),
    Memory(NoMemory),
    NotActive(LinkState),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Hca(error)
    }
}

fn up_and_down(machine: &mut Machine, hardware: &Hardware, options: &Options<'_>) -> Result<(), Failure> {
    let memory = machine.dma(options.dma_bytes).map_err(Failure::Memory)?;
    let (region, host) = hca::regions(memory).map_err(Failure::Platform)?;
    let clock = machine.clock();
    let mut storage = STORAGE.lock();
    let start = clock.now();
    let config = Config { physical_function: hardware.is_physical(), ..CONFIG };
    let mut hca = Hca::bring_up(hardware.platform(), region, host, storage.parts(), &config)?;
    let up = clock.now();
    for time in hca.steps() {
        println!("@step name={} us={}", time.step.name(), time.took.as_micros());
    }
    println!("@step name=bring_up us={}", (up - start) / 1000);
    let (major, minor, sub) = hca.firmware_version();
    let pages = hca.firmware_pages();
    println!("firmware {major}.{minor}.{sub}, holds {pages} pages; {} KiB free", hca.free_bytes() >> 10);

    let outcome = use_port(&mut hca, clock);
    println!("@step name=port_active us={}", (clock.now() - up) / 1000);
    let down = clock.now();
    hca.tear_down()?;
    println!("@step name=tear_down us={}", (clock.now() - down) / 1000);
    outcome
}

fn use_port(hca: &mut Hca<'_, BareMetal>, clock: Clock) -> Result<(), Failure> {
    let limit = clock.now() + ACTIVE_LIMIT_NANOS;
    let mut port = hca.port()?;
    while port.state != LinkState::Active {
        let now = clock.now();
        if now > limit {
            return Err(Failure::NotActive(port.state));
        }
        hca.arm_events();
        let now = Instant::from_nanos(now);
        let wake = hca.poll(now).earliest(Wake::At(now + Duration::from_nanos(ASK_NANOS)));
        clock.idle(wake.deadline(now).unwrap_or(now).as_nanos());
        let _ = hca.poll(Instant::from_nanos(clock.now()));
        while let Some(event) = hca.next_event() {
            println!("event: {event:?}");
        }
        port = hca.port()?;
    }
    println!(
        "port {:?}: lid {}, sm lid {}, mtu {:?}, guid {:#018x}, gid {}, p_key {}",
        port.state,
        port.lid,
        port.sm_lid,
        port.mtu,
        port.port_guid.get(),
        hca.gid(0)?,
        hca.pkey(0)?
    );
    Ok(())
}
