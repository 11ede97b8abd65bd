//! The command line: `key=value` words separated by white space, each key at most once.
//!
//! | key | value |
//! |---|---|
//! | `app` | which application runs: `hello`, `fault`, `idle`, `msix`, `hca`, `demo`, `verbs`, `ip`, `ping`, `tcp`, `rping`, `rds` |
//! | `ip` | the node's own IPv4 address, with `/` and the prefix length if it is not 24 |
//! | `gateway` | the router to other subnets; without it there is none |
//! | `peer` or `to` | the other node's IPv4 address |
//! | `neighbours` | `address/GID` pairs with commas between them: who is where on the fabric; the GID as an IPv6 address |
//! | `role` | with `app=demo`, `verbs`, `rping`, `rds mode=hash`, `rdma`, `congestion`, `bulk`: `server` or `client` |
//! | `mode` | with `app=rds`: `ping`, `echo`, `hash`, `rdma`, `congestion`, `bulk` |
//! | `seed` | with `app=demo`, `rds mode=hash`: a number that varies payloads and sizes, the same on both nodes; default 1 |
//! | `divide` | with `app=demo`: the demonstration's volume is divided by this; default 1 |
//! | `wait` | seconds to wait for the peer; default 60 |
//! | `peer_qpn`, `peer_psn`, `peer_lid`, `peer_rkey`, `peer_addr` | with `app=verbs`: the peer's numbers, else they come as a line on COM1 |
//! | `count` | with `app=ping`, `rping`, `rds`: how many; default 100 |
//! | `interval` | with `app=rds mode=ping`: milliseconds from one ping to the next; default 1000 |
//! | `size` | with `app=ping`, `rping`: payload bytes; default 64 |
//! | `port` | with `app=tcp`, `rping`: the port to connect to or listen on |
//! | `send` | with `app=tcp`, `rds mode=bulk`: bytes to send, suffix `K`, `M` or `G`; default 0 |
//! | `source` | with `app=ip`: bytes that its source service gives each client; default `16M` |
//! | `sessions` | with `app=rping role=server`: clients to serve one after the other; default 1 |
//! | `stall` | with `app=rping`, `rds`: seconds that nothing may move; default 30 |
//! | `verify` | with `app=rping`: `yes` (default) or `no`, whether both sides look at every byte |
//! | `dma` | bytes of the DMA region; suffix `K`, `M` or `G`; default `64M` |
//! | `kind` | with `app=fault`: which fault |

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use heapless::Vec;

/// Longest command line taken, in bytes.
pub const MAX_LEN_BYTES: usize = 4096;

/// The DMA region's size when `dma=` is not given.
pub const DEFAULT_DMA_BYTES: u64 = 64 << 20;

/// The most neighbours that a command line may name.
pub const MAX_NEIGHBOURS: usize = 16;

/// The most words about the peer of `app=verbs`.
pub const MAX_PEER_WORDS: usize = 6;

/// What the source service gives when `source=` is not given.
pub const DEFAULT_SOURCE_BYTES: u64 = 16 << 20;

/// An address and the port GID of whoever has it.
pub type Neighbour = (Ipv4Addr, Ipv6Addr);

/// Which side of the demonstration a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens.
    Server,
    /// Connects.
    Client,
}

/// The applications in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Prints what the machine is and ends.
    Hello,
    /// Raises the fault named by `kind=`.
    Fault,
    /// Waits on the timer a number of times and checks when it woke.
    Idle,
    /// Has a network card raise an MSI-X interrupt by software and waits for it.
    Msix,
    /// Brings the HCA up until its port is Active, and down again.
    Hca,
    /// One node of the demonstration: moves data to and from its peer by DAT and RDS, and checks it.
    Demo,
    /// A reliable connection on the driver alone, its numbers exchanged by hand; all operations both ways.
    Verbs,
    /// An IP host: answers pings and offers TCP and UDP services.
    Ip,
    /// Pings another IP host.
    Ping,
    /// A TCP client: sends a number of bytes and takes what comes back.
    Tcp,
    /// A side of rdmacm-utils' `rping`.
    Rping,
    /// Reliable Datagram Sockets: pings, an echo server, messages of all sizes.
    Rds,
}

/// What `app=rds` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdsMode {
    /// Pings the peer.
    Ping,
    /// Sends back whatever comes, until `@quit` comes on the console.
    Echo,
    /// Messages of all sizes from the client to the server, each checked.
    Hash,
    /// The client's operations on the server's memory.
    Rdma,
    /// The client fills a port that the server does not read.
    Congestion,
    /// The client writes many bytes into memory that the server offers.
    Bulk,
}

impl App {
    const NAMES: [(&'static str, App); 12] = [
        ("hello", App::Hello),
        ("fault", App::Fault),
        ("idle", App::Idle),
        ("msix", App::Msix),
        ("hca", App::Hca),
        ("demo", App::Demo),
        ("verbs", App::Verbs),
        ("ip", App::Ip),
        ("ping", App::Ping),
        ("tcp", App::Tcp),
        ("rping", App::Rping),
        ("rds", App::Rds),
    ];
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    /// The application to run.
    pub app: App,
    /// The node's own address.
    pub ip: Option<Ipv4Addr>,
    /// Bits of the own address that name its subnet.
    pub prefix_len: u8,
    /// The router to other subnets.
    pub gateway: Option<Ipv4Addr>,
    /// The other node's address.
    pub peer: Option<Ipv4Addr>,
    /// Who is where on the fabric.
    pub neighbours: Vec<Neighbour, MAX_NEIGHBOURS>,
    /// The side of `app=demo`, `app=verbs`, `app=rping`, `app=rds`.
    pub role: Option<Role>,
    /// What `app=rds` does.
    pub mode: Option<RdsMode>,
    /// Varies what `app=demo` sends.
    pub seed: u64,
    /// Divides the volume of `app=demo`; not 0.
    pub divide: u64,
    /// Seconds to wait for the peer.
    pub wait_seconds: u64,
    /// The words of `app=verbs`' peer, as `qpn=1`.
    pub peer_words: Vec<&'a str, MAX_PEER_WORDS>,
    /// How many pings or messages.
    pub count: u32,
    /// Milliseconds from one ping of `app=rds` to the next.
    pub interval_millis: u64,
    /// Bytes of a ping.
    pub size: u32,
    /// The port of `app=tcp` and `app=rping`.
    pub port: Option<u16>,
    /// Bytes that `app=tcp` and `app=rds` send.
    pub send_bytes: u64,
    /// Bytes that `app=ip`'s source service gives.
    pub source_bytes: u64,
    /// Clients that the server of `app=rping` serves.
    pub sessions: u32,
    /// Seconds that nothing may move in `app=rping` and `app=rds`.
    pub stall_seconds: u64,
    /// Whether `app=rping` compares.
    pub verify: bool,
    /// Size of the DMA region in bytes, a multiple of 4096.
    pub dma_bytes: u64,
    /// The fault that `app=fault` raises.
    pub kind: Option<&'a str>,
}

/// What is wrong with a command line. Displays as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<'a> {
    /// Longer than [`MAX_LEN_BYTES`].
    TooLong,
    /// Not UTF-8.
    NotText,
    /// A word without `=`.
    NotKeyValue(&'a str),
    /// A key that does not exist.
    UnknownKey(&'a str),
    /// A key given twice.
    Twice(&'a str),
    /// A value that the key does not take.
    BadValue {
        /// The key.
        key: &'a str,
        /// What was given.
        value: &'a str,
        /// What would do.
        expected: &'static str,
    },
    /// A key that must be there.
    Missing {
        /// The key.
        key: &'static str,
        /// What would do.
        expected: &'static str,
    },
}

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::TooLong => write!(f, "command line: longer than {MAX_LEN_BYTES} bytes"),
            Error::NotText => write!(f, "command line: not UTF-8"),
            Error::NotKeyValue(word) => write!(f, "command line: `{word}` is not of the form key=value"),
            Error::UnknownKey(key) => {
                write!(f, "command line: unknown key `{key}`; known: {KEYS}")
            }
            Error::Twice(key) => write!(f, "command line: `{key}` is given twice"),
            Error::BadValue { key, value, expected } => {
                write!(f, "command line: {key}={value} is not {expected}")
            }
            Error::Missing { key, expected } => {
                write!(f, "command line: {key}= is missing; it takes {expected}")
            }
        }
    }
}

impl core::error::Error for Error<'_> {}

const APP_EXPECTED: &str = "one of hello, fault, idle, msix, hca, demo, verbs, ip, ping, tcp, rping, rds";
const KEYS: &str = "app, ip, gateway, peer, to, neighbours, role, mode, seed, divide, wait, peer_qpn, peer_psn, peer_lid, \
                    peer_rkey, peer_addr, count, interval, size, port, send, source, sessions, stall, \
                    verify, dma, kind";

impl<'a> Options<'a> {
    /// Parses the whole command line.
    ///
    /// # Errors
    /// The first thing that is wrong, see [`Error`].
    pub fn parse(text: &'a str) -> Result<Self, Error<'a>> {
        if text.len() > MAX_LEN_BYTES {
            return Err(Error::TooLong);
        }
        let (mut app, mut ip, mut peer, mut dma, mut kind) = (None, None, None, None, None);
        let (mut neighbours, mut role, mut seed, mut divide, mut wait) = (None, None, None, None, None);
        let (mut gateway, mut count, mut size, mut port) = (None, None, None, None);
        let (mut send, mut source, mut verify, mut peer_words) = (None, None, None, Vec::new());
        let (mut sessions, mut stall, mut mode, mut interval) = (None, None, None, None);
        for word in text.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').ok_or(Error::NotKeyValue(word))?;
            match key {
                "app" => once(&mut app, key, parse_app(value))?,
                "ip" => once(&mut ip, key, parse_ip_and_prefix(key, value))?,
                "gateway" => once(&mut gateway, key, parse_ip(key, value))?,
                "peer" | "to" => once(&mut peer, key, parse_ip(key, value))?,
                "neighbours" => once(&mut neighbours, key, parse_neighbours(value))?,
                "role" => once(&mut role, key, parse_role(value))?,
                "mode" => once(&mut mode, key, parse_mode(value))?,
                "seed" => once(&mut seed, key, parse_number(key, value, 0))?,
                "divide" => once(&mut divide, key, parse_number(key, value, 1))?,
                "wait" => once(&mut wait, key, parse_number(key, value, 1))?,
                "peer_qpn" | "peer_psn" | "peer_lid" | "peer_gid" | "peer_rkey" | "peer_addr" => {
                    let word = word.strip_prefix("peer_").unwrap_or(word);
                    peer_words.push(word).map_err(|_| Error::Twice(key))?;
                }
                "count" => once(&mut count, key, parse_u32(key, value, 1))?,
                "interval" => once(&mut interval, key, parse_number(key, value, 0))?,
                "size" => once(&mut size, key, parse_u32(key, value, 0))?,
                "port" => once(&mut port, key, parse_port(key, value))?,
                "send" => once(&mut send, key, parse_bytes(key, value))?,
                "source" => once(&mut source, key, parse_bytes(key, value))?,
                "sessions" => once(&mut sessions, key, parse_u32(key, value, 1))?,
                "stall" => once(&mut stall, key, parse_number(key, value, 1))?,
                "verify" => once(&mut verify, key, parse_yes(key, value))?,
                "dma" => once(&mut dma, key, parse_dma(value))?,
                "kind" => once(&mut kind, key, Ok(value))?,
                _ => return Err(Error::UnknownKey(key)),
            }
        }
        Ok(Options {
            app: app.ok_or(Error::Missing { key: "app", expected: APP_EXPECTED })?,
            ip: ip.map(|(address, _)| address),
            prefix_len: ip.map_or(DEFAULT_PREFIX_LEN, |(_, len)| len),
            gateway,
            peer,
            neighbours: neighbours.unwrap_or_default(),
            role,
            mode,
            seed: seed.unwrap_or(1),
            divide: divide.unwrap_or(1),
            wait_seconds: wait.unwrap_or(60),
            peer_words,
            count: count.unwrap_or(100),
            interval_millis: interval.unwrap_or(1000),
            size: size.unwrap_or(64),
            port,
            send_bytes: send.unwrap_or(0),
            source_bytes: source.unwrap_or(DEFAULT_SOURCE_BYTES),
            sessions: sessions.unwrap_or(1),
            stall_seconds: stall.unwrap_or(30),
            verify: verify.unwrap_or(true),
            dma_bytes: dma.unwrap_or(DEFAULT_DMA_BYTES),
            kind,
        })
    }

    /// As [`Options::parse`], from the bytes that the loader passed.
    ///
    /// # Errors
    /// As for [`Options::parse`], and [`Error::NotText`].
    pub fn parse_bytes(bytes: &'a [u8]) -> Result<Self, Error<'a>> {
        Self::parse(core::str::from_utf8(bytes).map_err(|_| Error::NotText)?)
    }
}

fn once<'a, T>(slot: &mut Option<T>, key: &'a str, value: Result<T, Error<'a>>) -> Result<(), Error<'a>> {
    if slot.is_some() {
        return Err(Error::Twice(key));
    }
    *slot = Some(value?);
    Ok(())
}

fn parse_app(value: &str) -> Result<App, Error<'_>> {
    App::NAMES.iter().find(|(name, _)| *name == value).map(|(_, app)| *app).ok_or(Error::BadValue {
        key: "app",
        value,
        expected: APP_EXPECTED,
    })
}

fn parse_ip<'a>(key: &'a str, value: &'a str) -> Result<Ipv4Addr, Error<'a>> {
    value.parse().map_err(|_| Error::BadValue { key, value, expected: "an IPv4 address" })
}

/// The prefix length when none is given.
const DEFAULT_PREFIX_LEN: u8 = 24;

fn parse_ip_and_prefix<'a>(key: &'a str, value: &'a str) -> Result<(Ipv4Addr, u8), Error<'a>> {
    let bad = Error::BadValue { key, value, expected: "an IPv4 address, perhaps with / and a prefix length" };
    match value.split_once('/') {
        None => Ok((value.parse().map_err(|_| bad)?, DEFAULT_PREFIX_LEN)),
        Some((address, len)) => {
            let len = len.parse().ok().filter(|len| (1..=32).contains(len)).ok_or(bad)?;
            Ok((address.parse().map_err(|_| bad)?, len))
        }
    }
}

fn parse_port<'a>(key: &'a str, value: &'a str) -> Result<u16, Error<'a>> {
    let bad = Error::BadValue { key, value, expected: "a port from 1 to 65535" };
    value.parse().ok().filter(|port| *port != 0).ok_or(bad)
}

fn parse_u32<'a>(key: &'a str, value: &'a str, least: u64) -> Result<u32, Error<'a>> {
    let number = parse_number(key, value, least)?;
    u32::try_from(number).map_err(|_| Error::BadValue { key, value, expected: "a number of at most 32 bits" })
}

fn parse_bytes<'a>(key: &'a str, value: &'a str) -> Result<u64, Error<'a>> {
    parse_size(value).ok_or(Error::BadValue { key, value, expected: "a number of bytes, as in 16M" })
}

fn parse_yes<'a>(key: &'a str, value: &'a str) -> Result<bool, Error<'a>> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(Error::BadValue { key, value, expected: "yes or no" }),
    }
}

fn parse_role(value: &str) -> Result<Role, Error<'_>> {
    match value {
        "server" => Ok(Role::Server),
        "client" => Ok(Role::Client),
        _ => Err(Error::BadValue { key: "role", value, expected: "server or client" }),
    }
}

fn parse_mode(value: &str) -> Result<RdsMode, Error<'_>> {
    match value {
        "ping" => Ok(RdsMode::Ping),
        "echo" => Ok(RdsMode::Echo),
        "hash" => Ok(RdsMode::Hash),
        "rdma" => Ok(RdsMode::Rdma),
        "congestion" => Ok(RdsMode::Congestion),
        "bulk" => Ok(RdsMode::Bulk),
        _ => Err(Error::BadValue {
            key: "mode",
            value,
            expected: "ping, echo, hash, rdma, congestion or bulk",
        }),
    }
}

fn parse_number<'a>(key: &'a str, value: &'a str, least: u64) -> Result<u64, Error<'a>> {
    let expected = if least == 0 { "a decimal number" } else { "a decimal number of 1 or more" };
    value.parse().ok().filter(|number| *number >= least).ok_or(Error::BadValue { key, value, expected })
}

fn parse_neighbours(value: &str) -> Result<Vec<Neighbour, MAX_NEIGHBOURS>, Error<'_>> {
    let bad = |value| Error::BadValue {
        key: "neighbours",
        value,
        expected: "address/GID pairs (10.0.0.2/fe80::2), at most 16, with commas between them",
    };
    let mut neighbours = Vec::new();
    for pair in value.split(',') {
        let (address, gid) = pair.split_once('/').ok_or(bad(pair))?;
        let neighbour = (address.parse().map_err(|_| bad(pair))?, gid.parse().map_err(|_| bad(pair))?);
        neighbours.push(neighbour).map_err(|_| bad(value))?;
    }
    Ok(neighbours)
}

fn parse_dma(value: &str) -> Result<u64, Error<'_>> {
    let bad = Error::BadValue { key: "dma", value, expected: "a size of 4K or more in whole 4K blocks" };
    let bytes = parse_size(value).ok_or(bad)?;
    if bytes == 0 || bytes % 4096 != 0 { Err(bad) } else { Ok(bytes) }
}

/// A decimal number with an optional binary suffix `K`, `M` or `G`; nothing when it is not one or does not
/// fit in 64 bits.
#[must_use]
pub fn parse_size(value: &str) -> Option<u64> {
    let (digits, unit) = match value.as_bytes().last()? {
        b'K' | b'k' => (value.get(..value.len() - 1)?, 1 << 10),
        b'M' | b'm' => (value.get(..value.len() - 1)?, 1 << 20),
        b'G' | b'g' => (value.get(..value.len() - 1)?, 1 << 30),
        _ => (value, 1u64),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn all_keys() {
        let text = " app=fault  kind=stack\tip=10.0.0.1 peer=10.0.0.2 dma=3M\n";
        assert_eq!(
            Options::parse(text).unwrap(),
            Options {
                app: App::Fault,
                ip: Some(Ipv4Addr::new(10, 0, 0, 1)),
                prefix_len: 24,
                gateway: None,
                peer: Some(Ipv4Addr::new(10, 0, 0, 2)),
                neighbours: Vec::new(),
                role: None,
                mode: None,
                seed: 1,
                divide: 1,
                wait_seconds: 60,
                peer_words: Vec::new(),
                count: 100,
                interval_millis: 1000,
                size: 64,
                port: None,
                send_bytes: 0,
                source_bytes: 16 << 20,
                sessions: 1,
                stall_seconds: 30,
                verify: true,
                dma_bytes: 3 << 20,
                kind: Some("stack"),
            }
        );
    }

    #[test]
    fn a_demonstration() {
        let text =
            "app=demo role=client neighbours=10.0.0.1/fe80::1,10.0.0.2/fe80::5:6 seed=7 divide=8 wait=5";
        let options = Options::parse(text).unwrap();
        assert_eq!((options.app, options.role), (App::Demo, Some(Role::Client)));
        assert_eq!((options.seed, options.divide, options.wait_seconds), (7, 8, 5));
        let pair = |address: &str, gid: &str| (address.parse().unwrap(), gid.parse().unwrap());
        assert_eq!(options.neighbours, [pair("10.0.0.1", "fe80::1"), pair("10.0.0.2", "fe80::5:6")]);
    }

    #[test]
    fn an_ip_host_and_its_clients() {
        let options = Options::parse("app=ip ip=10.1.2.3/16 gateway=10.1.0.1 source=1M").unwrap();
        assert_eq!((options.ip, options.prefix_len), (Some(Ipv4Addr::new(10, 1, 2, 3)), 16));
        assert_eq!((options.gateway, options.source_bytes), (Some(Ipv4Addr::new(10, 1, 0, 1)), 1 << 20));
        let options = Options::parse("app=tcp ip=10.0.0.1 to=10.0.0.2 port=7 send=16M").unwrap();
        assert_eq!((options.peer, options.port), (Some(Ipv4Addr::new(10, 0, 0, 2)), Some(7)));
        assert_eq!(options.send_bytes, 16 << 20);
        let options = Options::parse("app=rping role=client count=5 size=65535 verify=no").unwrap();
        assert_eq!((options.count, options.size, options.verify), (5, 65535, false));
    }

    #[test]
    fn reliable_datagram_sockets() {
        let options = Options::parse("app=rds mode=ping to=10.0.0.2 count=1000 interval=5").unwrap();
        assert_eq!((options.app, options.mode), (App::Rds, Some(RdsMode::Ping)));
        assert_eq!((options.count, options.interval_millis), (1000, 5));
        let options = Options::parse("app=rds mode=hash role=server seed=9").unwrap();
        assert_eq!((options.mode, options.role, options.seed), (Some(RdsMode::Hash), Some(Role::Server), 9));
    }

    #[test]
    fn the_peer_of_verbs_keeps_its_words() {
        let options = Options::parse("app=verbs peer_qpn=41 peer_psn=0 peer_lid=3").unwrap();
        assert_eq!(options.peer_words, ["qpn=41", "psn=0", "lid=3"]);
    }

    #[test]
    fn defaults() {
        let options = Options::parse("app=idle").unwrap();
        assert_eq!((options.app, options.dma_bytes), (App::Idle, 64 << 20));
        assert_eq!((options.ip, options.peer, options.kind), (None, None, None));
    }

    #[test]
    fn each_mistake_is_one_line_that_names_it() {
        let cases = [
            ("", "app= is missing; it takes one of hello, fault, idle, msix, hca, demo, verbs,"),
            ("app", "`app` is not of the form key=value"),
            (
                "app=hello colour=red",
                "unknown key `colour`; known: app, ip, gateway, peer, to, neighbours, role, mode,",
            ),
            ("app=hello app=hello", "`app` is given twice"),
            (
                "app=hullo",
                "app=hullo is not one of hello, fault, idle, msix, hca, demo, verbs, ip, ping, tcp, rping, rds",
            ),
            ("app=hello ip=10.0.0", "ip=10.0.0 is not an IPv4 address"),
            ("app=ip ip=10.0.0.1/0", "ip=10.0.0.1/0 is not an IPv4 address, perhaps with /"),
            ("app=ip ip=10.0.0.1/33", "ip=10.0.0.1/33 is not an IPv4 address, perhaps with /"),
            ("app=ping peer=10.0.0.1 to=10.0.0.2", "`to` is given twice"),
            ("app=ping count=0", "count=0 is not a decimal number of 1 or more"),
            ("app=ping size=4294967296", "size=4294967296 is not a number of at most 32 bits"),
            ("app=tcp port=0", "port=0 is not a port"),
            ("app=tcp port=65536", "port=65536 is not a port"),
            ("app=tcp send=x", "send=x is not a number of bytes"),
            ("app=rping verify=maybe", "verify=maybe is not yes or no"),
            ("app=demo role=both", "role=both is not server or client"),
            ("app=rds mode=pong", "mode=pong is not ping, echo, hash, rdma, congestion or bulk"),
            ("app=rds interval=x", "interval=x is not a decimal number"),
            ("app=demo divide=0", "divide=0 is not a decimal number of 1 or more"),
            ("app=demo seed=x", "seed=x is not a decimal number"),
            ("app=demo neighbours=10.0.0.1", "neighbours=10.0.0.1 is not address/GID pairs"),
            ("app=demo neighbours=10.0.0.1/1.2", "neighbours=10.0.0.1/1.2 is not address/GID pairs"),
            ("app=hello dma=", "dma= is not a size of 4K or more in whole 4K blocks"),
            ("app=hello dma=0", "dma=0 is not a size"),
            ("app=hello dma=5000", "dma=5000 is not a size"),
            ("app=hello dma=-4K", "dma=-4K is not a size"),
            ("app=hello dma=99999999999G", "dma=99999999999G is not a size"),
        ];
        for (text, expected) in cases {
            let line = Options::parse(text).unwrap_err().to_string();
            assert!(line.contains(expected), "{text:?}: {line}");
            assert!(line.starts_with("command line: ") && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn length_and_encoding() {
        let long = "x".repeat(MAX_LEN_BYTES + 1);
        assert_eq!(Options::parse(&long), Err(Error::TooLong));
        assert_eq!(Options::parse_bytes(b"app=\xff"), Err(Error::NotText));
    }

    #[test]
    fn sizes() {
        let cases = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4K", Some(4096)),
            ("64m", Some(64 << 20)),
            ("2G", Some(2 << 30)),
            ("K", None),
            ("+4K", None),
            ("4KK", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("18014398509481984K", None),
            ("4é", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }
}
