//! The steps, in their order.

use super::data;
use super::report::{Level, Out, Summary, Verdict, step};
use super::stage::Stage;
use super::storage::Storage;
use core::fmt;
use driver_mlx::{
    Config, Cq, CqConfig, DeviceState, DmaRegion, Duration, Error, Hca, HostRegion, InitParams, Instant,
    Link, LinkState, Pd, Platform, PortState, Psn, QKey, QpConfig, SendFlags, SendOp,
};

/// Looks at the health counter, and their distance.
const COUNTER_LOOKS: u32 = 10;
const COUNTER_DISTANCE: Duration = Duration::from_millis(100);
/// How long the port may take to become Active: a link that trains and a sweep of the subnet manager.
const ACTIVE_LIMIT: Duration = Duration::from_secs(60);
/// How often the port is asked meanwhile.
const ACTIVE_POLL: Duration = Duration::from_millis(500);
/// How long completions may take.
const COMPLETION_LIMIT: Duration = Duration::from_secs(2);
/// Requests without a packet.
const NOPS: u64 = 255;
const CQ_ENTRIES: u32 = 512;

/// What a run without memory is told.
pub(super) const MEMORY_WANTED: &str = "there is no memory for the device";

/// Tries the driver's levels one after the other; one that fails ends it. [`layers`](super::layers) goes on, with memory of its own.
/// Also writes the lines of [`Hca::dump`] if `dump` is set.
pub fn run<P: Platform + Copy>(
    platform: P,
    memory: Option<(DmaRegion, HostRegion)>,
    storage: &mut Storage<P::Bar>,
    (config, dump): (&Config, bool),
    out: Out<'_>,
) -> Summary {
    let mut summary = Summary::new();
    let mut level = Level::Found;
    let ended = found(platform, out).and_then(|()| {
        summary.set(level, Verdict::Passed);
        level = Level::Commands;
        let memory = memory.ok_or(Stage::Wrong(MEMORY_WANTED))?;
        life(platform, memory, storage, (config, dump), (&mut level, &mut summary), out)
    });
    match ended {
        Ok(()) => summary.set(level, Verdict::Passed),
        Err(stage) => summary.told(level, &stage, platform.bar(), storage.adapter.history(), out),
    }
    summary
}

fn found<P: Platform + Copy>(platform: P, out: Out<'_>) -> Result<(), Stage> {
    let began = platform.now();
    let Some(state) = DeviceState::read(platform.bar()) else {
        return Err(Stage::Wrong(
            "registers read as all ones: memory decoding is off, the function sleeps (D3), or the bus is down",
        ));
    };
    out(format_args!("{state}"));
    out(format_args!("{}", state.health));
    let mut moved = 0;
    let mut last = state.health_counter;
    for _ in 0..COUNTER_LOOKS {
        let end = platform.now() + COUNTER_DISTANCE;
        while platform.now() < end {
            platform.idle(end);
        }
        let Some(state) = DeviceState::read(platform.bar()) else {
            return Err(Stage::Wrong(
                "registers read as all ones after they did not: the bus goes up and down",
            ));
        };
        moved += u32::from(state.health_counter != last);
        last = state.health_counter;
    }
    // A counter that stands still before bring-up is a fact to know, not a fault.
    step(out, "health_counter", began, platform.now(), format_args!("moved={moved} looks={COUNTER_LOOKS}"));
    Ok(())
}

/// One life of the HCA, from bring-up to tear-down.
fn life<P: Platform + Copy>(
    platform: P,
    (region, host): (DmaRegion, HostRegion),
    storage: &mut Storage<P::Bar>,
    (config, dump): (&Config, bool),
    (level, summary): (&mut Level, &mut Summary),
    out: Out<'_>,
) -> Result<(), Stage> {
    let began = platform.now();
    let mut hca = Hca::bring_up(platform, region, host, storage.adapter.hca(), config)?;
    for time in hca.steps() {
        out(format_args!("@step name={} us={}", time.step.name(), time.took.as_micros()));
    }
    let (major, minor, sub) = hca.firmware_version();
    let psid = core::str::from_utf8(hca.psid()).unwrap_or("?").trim_end_matches('\0');
    step(
        out,
        "bring_up",
        began,
        platform.now(),
        format_args!(
            "round=1 firmware={major}.{minor}.{sub} psid={psid} pages={} free_kib={}",
            hca.firmware_pages(),
            hca.free_bytes() >> 10
        ),
    );
    out(format_args!("{:?}", hca.caps()));
    let dumped = if dump { hca.dump(out) } else { Ok(()) };
    let outcome = dumped.map_err(Stage::from).and_then(|()| levels(&mut hca, level, summary, out));
    let began = platform.now();
    let pages = hca.firmware_pages();
    // What failed before it is what is told.
    let down = hca.tear_down();
    step(out, "tear_down", began, platform.now(), format_args!("round=1 pages_back={pages}"));
    outcome.and(down.map_err(|error| {
        *level = Level::Commands;
        error.into()
    }))
}

fn levels<P: Platform>(
    hca: &mut Hca<'_, P>,
    level: &mut Level,
    summary: &mut Summary,
    out: Out<'_>,
) -> Result<(), Stage> {
    summary.set(*level, Verdict::Passed);
    *level = Level::Objects;
    let began = hca.now();
    let pd = hca.alloc_pd()?;
    let mut cq = hca.create_cq(&CqConfig { entries: CQ_ENTRIES, eq: 0 })?;
    let mut qp = hca.create_qp(&QpConfig {
        max_send_wr: NOPS as u32 + 1,
        ..QpConfig::ud(pd, cq.number(), QKey::new(1))
    })?;
    step(out, "objects", began, hca.now(), format_args!("pd cq qp"));
    summary.set(*level, Verdict::Passed);

    *level = Level::Nop;
    let began = hca.now();
    hca.modify_to_init(&mut qp, &InitParams { port: 1, pkey_index: 0, access: driver_mlx::Access::empty() })?;
    hca.modify_to_rts_datagram(&mut qp, Psn::new(0))?;
    cq.arm(false);
    for id in 0..NOPS {
        let doorbell = qp
            .post_send(SendOp::Nop, &[], id, SendFlags::SIGNALED)
            .map_err(|_| Stage::Wrong("a send queue of this size takes no more"))?;
        qp.ring(doorbell);
    }
    let mut done = 0;
    wait(hca, COMPLETION_LIMIT, |hca| {
        while let Some(retired) =
            cq.poll(|cqe| qp.retire(cqe)).map_err(|_| Stage::Wrong("a completion makes no sense"))?
        {
            match retired {
                Some(driver_mlx::Completion::Sent(_)) => done += 1,
                _ => return Err(Stage::Wrong("a request without a packet failed")),
            }
        }
        let _ = hca.poll(hca.now());
        Ok((done == NOPS).then_some(()))
    })?
    .ok_or(Stage::Wrong("no completion in 2 s: doorbell record, byte order, UAR page or DMA"))?;
    step(out, "nop", began, hca.now(), format_args!("requests={NOPS}"));
    let began = hca.now();
    wait(hca, COMPLETION_LIMIT, |hca| Ok((hca.poll_completions(|_| ()) > 0).then_some(())))?
        .ok_or(Stage::Wrong("completions, but no event of them in 2 s: event queue or its arming"))?;
    step(out, "completion_event", began, hca.now(), format_args!("eq=0"));
    hca.destroy_qp(qp)?;
    summary.set(*level, Verdict::Passed);

    *level = Level::Data;
    let outcome = both_ways(hca, pd, &mut cq, summary, out);
    hca.destroy_cq(cq)?;
    hca.dealloc_pd(pd)?;
    outcome
}

/// Moves data inside the card and by its port. Either is enough if the card or the cable lacks the
/// other.
fn both_ways<P: Platform>(
    hca: &mut Hca<'_, P>,
    pd: Pd,
    cq: &mut Cq<P::Bar>,
    summary: &mut Summary,
    out: Out<'_>,
) -> Result<(), Stage> {
    let inside = data::inside(hca, pd, cq, out)?;
    let port = active(hca, out);
    if port.is_ok() {
        summary.port_is_active();
    }
    match port.and_then(|port| data::by_port(hca, pd, cq, &port, out)) {
        Err(Stage::Missing(why)) if inside => {
            out(format_args!("data by the port: {why}"));
            Ok(())
        }
        outcome => outcome,
    }
}

/// Facts of one kind of port, for the line of a step.
struct Shown<'a>(&'a Link);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Link::InfiniBand(link) => {
                write!(f, "lid={} sm_lid={} grh_required={}", link.lid, link.sm_lid, link.grh_required)
            }
            Link::Ethernet(link) => write!(f, "mac={} frame={}", link.mac, link.mtu),
        }
    }
}

/// Waits until the port is Active.
fn active<P: Platform>(hca: &mut Hca<'_, P>, out: Out<'_>) -> Result<PortState, Stage> {
    let began = hca.now();
    let mut shown = None;
    loop {
        let port = hca.port()?;
        let now = hca.now();
        if shown != Some(port.state) {
            shown = Some(port.state);
            step(
                out,
                "port",
                began,
                now,
                format_args!(
                    "state={:?} mtu={} guid={:#018x} {}",
                    port.state,
                    port.mtu.bytes(),
                    port.port_guid.get(),
                    Shown(&port.link)
                ),
            );
        }
        if port.state == LinkState::Active {
            return Ok(port);
        }
        if now - began >= ACTIVE_LIMIT {
            return Err(Stage::Missing(match port.state {
                LinkState::Down => "the port is Down after a minute: no cable, or the other end is off",
                _ => "the port has a link and is not Active after a minute: no subnet manager",
            }));
        }
        let _ = hca.poll(now);
        let next = now + ACTIVE_POLL;
        while hca.now() < next {
            hca.idle(next);
        }
    }
}

/// Asks again and again, for as long as `limit`.
pub(super) fn wait<P: Platform, T>(
    hca: &mut Hca<'_, P>,
    limit: Duration,
    mut ask: impl FnMut(&mut Hca<'_, P>) -> Result<Option<T>, Stage>,
) -> Result<Option<T>, Stage> {
    let end = hca.now() + limit;
    loop {
        if let Some(answer) = ask(hca)? {
            return Ok(Some(answer));
        }
        let now: Instant = hca.now();
        if let Some(cause) = hca.fatal() {
            return Err(Stage::Hca(Error::Fatal(cause)));
        }
        if now >= end {
            return Ok(None);
        }
        hca.idle(now + Duration::from_micros(50));
    }
}
