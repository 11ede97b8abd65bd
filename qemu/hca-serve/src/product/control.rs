//! Control socket that accepts commands while HCAs are served: one JSON object per line, each with
//! a JSON line as reply.
//!
//! Every process that may write to the socket may use all commands. The socket belongs to the user
//! (mode 0600).

use super::report;
use crate::error::{Error, IoContext, Result};
use crate::server::Handle;
use crate::server::listener::{SocketFile, listen};
use hca_model::world::{Node, World};
use rdma_fabric::faults::Faults;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest line, in bytes.
const LINE: u64 = 1 << 16;
/// Limit of simultaneous connections.
const CONNECTIONS: usize = 16;
/// Limit of P_Keys of a port.
const PKEYS: usize = 32;

/// Descriptions of the commands, for the reply to `help`.
pub const HELP: [&str; 16] = [
    r#"{"do":"help"}"#,
    r#"{"do":"state"}                                 each HCA: client, link, LID, P_Keys, GUID, objects, counters, failure; cables of other servers; M_Key"#,
    r#"{"do":"counters"}                              what happened to packets"#,
    r#"{"do":"losses"}                                what was lost, by flow"#,
    r#"{"do":"qps","hca":0}                           each QP of an HCA: state, peer, why it failed"#,
    r#"{"do":"qp","hca":0,"qpn":"0x48"}               a QP's last events, and its peer's failure if that is served here"#,
    r#"{"do":"cable","hca":0,"plugged":false}         pulls a cable, or plugs it in"#,
    r#"{"do":"faults","spec":"loss=1%","seed":7}      from now on; "none" ends them; without a seed the random numbers go on"#,
    r#"{"do":"latency","microseconds":10}             from any port to any other"#,
    r#"{"do":"partitions","hca":0,"pkeys":["0xffff","0x8001"]}   the port's P_Key table; bit 15 is full membership"#,
    r#"{"do":"lid","hca":0,"lid":9}                   the port's LID; a port that has it gets this one's in exchange"#,
    r#"{"do":"ipoib_mtu","bytes":4096}                of the broadcast group, for ports that join from now on"#,
    r#"{"do":"kill","hca":0}                          its registers read all ones, its link is down; the socket stays open"#,
    r#"{"do":"revive","hca":0}                        as at power-on"#,
    r#"{"do":"copies","on":false}                     RC requests between the HCAs go as packets always; on: where nobody watches, payload is copied"#,
    r#"{"do":"warm","hca":0,"on":true}                it stays as it is when its client resets it or leaves, as at a kexec"#,
];

/// A command.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Help {},
    State {},
    Counters {},
    Losses {},
    Qps { hca: usize },
    Qp { hca: usize, qpn: Number },
    Cable { hca: usize, plugged: bool },
    Faults { spec: String, seed: Option<u64> },
    Latency { microseconds: u64 },
    Partitions { hca: usize, pkeys: Vec<String> },
    Lid { hca: usize, lid: u16 },
    IpoibMtu { bytes: u32 },
    Kill { hca: usize },
    Revive { hca: usize },
    Copies { on: bool },
    Warm { hca: usize, on: bool },
}

/// A number, or text such as `0x48`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Value(u32),
    Text(String),
}

impl Number {
    fn value(&self) -> core::result::Result<u32, String> {
        match self {
            Self::Value(value) => Ok(*value),
            Self::Text(text) => {
                let digits = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
                digits.ok_or_else(|| format!("`{text}` is no number such as 72 or \"0x48\""))
            }
        }
    }
}

/// Control socket. Dropping it closes the socket.
#[derive(Debug)]
pub struct Control {
    listener: OwnedFd,
    _file: SocketFile,
}

impl Control {
    /// Accepts commands at `path` for the HCAs of `handle`.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn start(path: &Path, handle: Handle) -> Result<Self> {
        let (listener, file) = listen(path, Some(0o600))?;
        let descriptor = listener.try_clone().context("cannot use the socket", path)?.into();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &handle))
            .map_err(|error| Error::Serve(format!("cannot start a thread: {error}")))?;
        Ok(Self { listener: descriptor, _file: file })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Unblocks `accept`. An error means that it has returned already.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

fn accept(listener: &UnixListener, handle: &Handle) {
    let open = Arc::new(AtomicUsize::new(0));
    while let Ok((stream, _)) = listener.accept() {
        let (handle, counted) = (handle.clone(), Arc::clone(&open));
        if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
            open.fetch_sub(1, Ordering::AcqRel);
            let refused = json!({ "ok": false, "error": "too many connections: close one" });
            let _ = writeln!(&stream, "{refused}");
            continue;
        }
        let _ = std::thread::Builder::new().name("control client".into()).spawn(move || {
            // An error means that the client has disconnected.
            let _ = converse(&stream, &handle);
            counted.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

fn converse(stream: &UnixStream, handle: &Handle) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.by_ref().take(LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n") || (line.len() as u64) < LINE;
        if !line.trim_ascii().is_empty() {
            let answer = if whole {
                answer(&line, handle)
            } else {
                json!({ "ok": false, "error": format!("a line has at most {LINE} bytes") })
            };
            writeln!(&*stream, "{answer}")?;
        }
        if !whole {
            return Ok(());
        }
    }
}

/// Carries out a line and returns the reply.
#[must_use]
pub fn answer(line: &[u8], handle: &Handle) -> Value {
    let outcome = match serde_json::from_slice(line) {
        Ok(command) => carry_out(command, handle),
        Err(error) => Err(format!("{error}; {{\"do\":\"help\"}} lists what there is")),
    };
    match outcome {
        Ok(Value::Object(mut members)) => {
            members.insert("ok".into(), true.into());
            Value::Object(members)
        }
        Ok(_) => json!({ "ok": true }),
        Err(error) => json!({ "ok": false, "error": error }),
    }
}

/// Reply of a command, or its error.
type Outcome = core::result::Result<Value, String>;
/// Action of a command in the server's thread.
type Task = Box<dyn FnOnce(&mut World, u64) -> Outcome + Send>;

fn carry_out(command: Command, handle: &Handle) -> Outcome {
    let ended = || "nothing is served any more".to_owned();
    let world = |task: Task| handle.with_world(task).ok_or_else(ended)?;
    let own = !matches!(
        command,
        Command::Counters {}
            | Command::Losses {}
            | Command::Faults { .. }
            | Command::Latency { .. }
            | Command::Partitions { .. }
            | Command::Lid { .. }
            | Command::IpoibMtu { .. }
    );
    if let Some(place) = handle.fabric_elsewhere().filter(|_| !own) {
        return Err(format!("the fabric is that of the server at {place}: ask there"));
    }
    match command {
        Command::Help {} => Ok(json!({ "commands": HELP })),
        Command::State {} => {
            let hcas: Vec<Value> = handle.states().ok_or_else(ended)?.iter().map(report::hca).collect();
            let activity = handle.activity().ok_or_else(ended)?;
            let cables: Vec<Value> = handle.cables().ok_or_else(ended)?.iter().map(report::cable).collect();
            let key = handle.with_world(|world, _| world.medium.fabric().config().m_key).ok_or_else(ended)?;
            let mut state = json!({ "hcas": hcas, "cables": cables, "server": report::activity(&activity) });
            if key != 0 && handle.fabric_elsewhere().is_none() {
                state["m_key"] = json!(format!("{key:#018x}"));
            }
            Ok(state)
        }
        Command::Counters {} => world(Box::new(|world, _| {
            let (fabric, switch) = (world.medium.fabric(), world.medium.switch());
            Ok(json!({
                "fabric": report::fabric(&fabric.counters()),
                "copied": fabric.copied() + switch.copied(),
                "ethernet": report::ethernet(&switch.counters(), switch.switch_counters()),
            }))
        })),
        Command::Losses {} => world(Box::new(|world, _| {
            let (fabric, switch) = (world.medium.fabric(), world.medium.switch());
            let losses: Vec<Value> = fabric.losses().iter().map(report::flow).collect();
            let ethernet: Vec<Value> = switch.losses().iter().map(report::ethernet_flow).collect();
            Ok(json!({ "losses": losses, "ethernet": ethernet }))
        })),
        Command::Qps { hca } => world(Box::new(move |world, _| {
            let hca = &node(world, hca)?.hca;
            Ok(json!({ "qps": hca.qp_records().map(|record| report::qp(&record)).collect::<Vec<_>>() }))
        })),
        Command::Qp { hca, qpn } => {
            let qpn = qpn.value()?;
            world(Box::new(move |world, _| explain(world, hca, qpn)))
        }
        Command::Cable { hca, plugged } => world(Box::new(move |world, _| {
            node(world, hca)?;
            world.set_cable(hca, plugged);
            Ok(Value::Null)
        })),
        Command::Faults { spec, seed } => {
            let faults: Faults = spec.parse().map_err(|error| format!("{error}"))?;
            world(Box::new(move |world, _| {
                if let Some(seed) = seed {
                    world.medium.reseed(seed);
                }
                world.medium.set_faults(faults);
                Ok(json!({ "faults": faults.to_string(), "seed": world.medium.fabric().config().seed }))
            }))
        }
        Command::Latency { microseconds } => {
            if microseconds > 10_000_000 {
                return Err("a latency is at most 10 s".into());
            }
            world(Box::new(move |world, _| {
                world.medium.set_latency(microseconds * 1000);
                Ok(Value::Null)
            }))
        }
        Command::Partitions { hca, pkeys } => {
            if pkeys.is_empty() || pkeys.len() > PKEYS {
                return Err(format!("a port has 1 to {PKEYS} P_Keys"));
            }
            let pkeys = pkeys.iter().map(|text| pkey(text)).collect::<core::result::Result<Vec<_>, _>>()?;
            world(Box::new(move |world, now| {
                let port = node(world, hca)?.port;
                world.medium.fabric_mut().set_partitions(port, &pkeys, now);
                Ok(Value::Null)
            }))
        }
        Command::Lid { hca, lid } => world(Box::new(move |world, now| {
            let port = node(world, hca)?.port;
            if world.medium.fabric_mut().set_lid(port, lid, now) {
                Ok(Value::Null)
            } else {
                Err(format!("{lid} is no LID of a port: give 2 to 49151"))
            }
        })),
        Command::IpoibMtu { bytes } => {
            let code = [256, 512, 1024, 2048, 4096].iter().position(|size| *size == bytes);
            let code = code.ok_or("an MTU is 256, 512, 1024, 2048 or 4096")? as u8 + 1;
            world(Box::new(move |world, _| {
                world.medium.fabric_mut().set_ipoib_mtu(code);
                Ok(Value::Null)
            }))
        }
        Command::Kill { hca } => with_hca(&world, hca, hca_model::Hca::kill),
        Command::Revive { hca } => with_hca(&world, hca, hca_model::Hca::revive),
        Command::Copies { on } => world(Box::new(move |world, _| {
            world.set_packets_only(!on);
            Ok(Value::Null)
        })),
        Command::Warm { hca, on } => with_hca(&world, hca, move |hca| hca.set_warm(on)),
    }
}

fn with_hca(
    world: &dyn Fn(Task) -> Outcome,
    hca: usize,
    act: impl FnOnce(&mut hca_model::Hca) + Send + 'static,
) -> Outcome {
    world(Box::new(move |world, _| {
        node(world, hca)?;
        if let Some(hca) = world.hca_mut(hca) {
            act(hca);
        }
        Ok(Value::Null)
    }))
}

/// Returns the last events of a QP, and the failure of its peer if that is served here.
fn explain(world: &World, hca: usize, qpn: u32) -> Outcome {
    let hca = &node(world, hca)?.hca;
    let missing = || format!("there is no QP {qpn:#x}: {{\"do\":\"qps\"}} lists them");
    let record = hca.qp_record(qpn).ok_or_else(missing)?;
    let mut value = report::qp_events(&record);
    if let Some((address, qpn)) = record.peer {
        let found = world.nodes().iter().enumerate().find(|(_, node)| node.hca.has_address(address));
        if let Some((index, record)) = found.and_then(|(i, node)| Some((i, node.hca.qp_record(qpn)?))) {
            value["peer"] = report::qp(&record);
            value["peer"]["hca"] = index.into();
        }
    }
    Ok(value)
}

fn node(world: &World, hca: usize) -> core::result::Result<&Node, String> {
    let count = world.nodes().len();
    let missing = || format!("there is no HCA {hca}: they are numbered from 0, and there are {count}");
    world.nodes().get(hca).ok_or_else(missing)
}

/// Parses a P_Key such as `0x8001`.
fn pkey(text: &str) -> core::result::Result<u16, String> {
    let digits = text.strip_prefix("0x").ok_or(());
    let key = digits.and_then(|digits| u16::from_str_radix(digits, 16).map_err(drop));
    match key {
        Ok(key) if key & 0x7fff != 0 => Ok(key),
        _ => Err(format!("`{text}` is no P_Key such as \"0x8001\"")),
    }
}
