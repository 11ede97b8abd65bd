//! From the machine to a running HCA: what an application on the driver's verbs begins with, and [`adapter`](crate::adapter) too.

use driver_mlx::report::Report;
use driver_mlx::{
    AsyncEvent, Config, Duration, Error, Hca, HcaParts, HcaStorage, LinkState, Platform, PortState, Wake,
};

use crate::choice::Choice;
use crate::failure::Failure;
use crate::hca::{self, BareMetal, Hardware};
use crate::{Clock, Machine, println};

/// MSI-X vector 0 for asynchronous events, 1 for completions.
pub const CONFIG: Config = Config { async_vector: 0, completion_vector: 1, ..Config::DEFAULT };
/// The vectors of [`CONFIG`].
pub const VECTORS: u16 = 2;

/// How long the subnet manager may take to bring the port to Active.
const ACTIVE_LIMIT: Duration = Duration::from_secs(60);
/// How often the port is asked, should its event be missed.
const ASK: Duration = Duration::from_millis(100);

/// Lets `attempt` bring the HCA up and use it. One that somebody left in a state that it cannot be brought up from
/// ([`Failure::BringUp`]) is reset, and `attempt` has a second go.
pub(crate) fn with_one_reset(
    machine: &mut Machine,
    hardware: &Hardware,
    attempt: &mut dyn FnMut(&mut Machine) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match attempt(machine) {
        Err(Failure::BringUp(error)) if error.wants_reset() => {
            println!("hca at {}: {error}: function-level reset", hardware.function().address());
            hardware.reset()?;
            attempt(machine)
        }
        result => result,
    }
}

/// Switches on the HCA that is meant, with the [`VECTORS`] of [`CONFIG`]. One that is meant by its port's GUID is found by asking: HCAs are
/// brought up, one after the other, with `dma_bytes` of memory and the driver's part of `storage`, and taken down again. Those that are not
/// it are said to be others, and cannot be opened any more; the memory is not given back.
///
/// # Errors
/// There is no such HCA; what there is of Mellanox's, and why it is or is not taken, is printed then. There is too little memory to ask
/// with.
pub fn open<S: ?Sized>(
    machine: &mut Machine,
    choice: Choice,
    dma_bytes: u64,
    storage: &mut S,
    parts: for<'a> fn(&'a mut S) -> HcaParts<'a>,
) -> Result<Hardware, Failure> {
    let Choice::Port(guid) = choice else { return Ok(machine.open_hca(choice, VECTORS)?) };
    let mut spare = None;
    for nth in 0..machine.hcas().count() {
        let asked = machine.open_hca(nth, VECTORS).map_err(Failure::from).and_then(|hardware| {
            let config = Config { physical_function: hardware.is_physical(), ..CONFIG };
            let mut port = 0;
            with_one_reset(machine, &hardware, &mut |machine| {
                let memory = spare.take().map_or_else(|| machine.dma(dma_bytes), Ok)?;
                let (guid, memory) = hca::port_guid(&hardware, memory, parts(storage), &config)?;
                (port, spare) = (guid, Some(memory));
                Ok(())
            })?;
            Ok((hardware, port))
        });
        match asked {
            Ok((hardware, port)) if port == guid => return Ok(hardware),
            Ok((_, port)) => println!("hca {nth}: not taken: its port's GUID is {port:#018x}"),
            Err(error @ Failure::Memory(_)) => return Err(error),
            Err(error) => println!("hca {nth}: not taken: {error}"),
        }
    }
    machine.list_hcas();
    Err(Failure::Platform(hca::Error::NoHca(choice)))
}

/// Brings an HCA of the machine up with `dma_bytes` of memory, at most a page for each of `BLOCKS`, lets `work` use it, and takes
/// it down. An HCA that somebody left in a state that it cannot be brought up from is reset once.
///
/// # Errors
/// [`Failure`]: there is no such HCA, too little memory, it does not come up or go down, or `work`'s own. What the device did last is
/// printed where the failure is the device's.
pub fn run<const BLOCKS: usize>(
    machine: &mut Machine,
    choice: Choice,
    dma_bytes: u64,
    storage: &mut HcaStorage<BLOCKS>,
    mut work: impl FnMut(&mut Hca<'_, BareMetal>, Clock) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let hardware = open(machine, choice, dma_bytes, storage, HcaStorage::parts)?;
    let function = hardware.function();
    println!("hca at {}: {:04x}:{:04x}", function.address(), function.vendor(), function.device());
    let result = with_one_reset(machine, &hardware, &mut |machine| {
        let (region, host) = hca::regions(machine.dma(dma_bytes)?)?;
        let clock = machine.clock();
        let config = Config { physical_function: hardware.is_physical(), ..CONFIG };
        let start = clock.now();
        let mut hca = Hca::bring_up(hardware.platform(), region, host, storage.parts(), &config)
            .map_err(Failure::BringUp)?;
        for time in hca.steps() {
            println!("@step name={} us={}", time.step.name(), time.took.as_micros() as u64);
        }
        println!("@step name=bring_up us={}", (clock.now() - start).as_micros() as u64);
        let outcome = match (work(&mut hca, clock), hca.fatal()) {
            (_, Some(cause)) => Err(Failure::DeviceLost(Error::Fatal(cause))),
            (outcome, None) => outcome,
        };
        let down = clock.now();
        let closed = hca.tear_down().map_err(Failure::Hca);
        println!("@step name=tear_down us={}", (clock.now() - down).as_micros() as u64);
        outcome.and(closed)
    });
    if let Some(error) = result.as_ref().err().and_then(Failure::of_device) {
        println!("{}", Report::new(error, hardware.platform().bar(), storage.history()));
    }
    result
}

/// Waits until the subnet manager has brought the port to Active, and answers what it is then; `told` sees what happens meanwhile.
///
/// # Errors
/// It is not Active in a minute; a driver call fails.
pub fn wait_active(
    hca: &mut Hca<'_, BareMetal>,
    clock: Clock,
    mut told: impl FnMut(AsyncEvent),
) -> Result<PortState, Failure> {
    let limit = clock.now() + ACTIVE_LIMIT;
    loop {
        let port = hca.port()?;
        if port.state == LinkState::Active {
            return Ok(port);
        }
        let began = clock.now();
        if began > limit {
            return Err(Failure::app(format_args!(
                "HCA: the port is {:?}, not Active, after {} s: is there a subnet manager?",
                port.state,
                ACTIVE_LIMIT.as_secs()
            )));
        }
        hca.arm_events();
        let wake = hca.poll(began).earliest(Wake::At(began + ASK));
        clock.idle(wake.deadline(began).unwrap_or(began));
        let _ = hca.poll(clock.now());
        while let Some(event) = hca.next_event() {
            told(event);
        }
    }
}
