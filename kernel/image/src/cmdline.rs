//! The command line of this image: which application runs, and what it is told. [`KEYS`] is the list.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use apps::Role;
use heapless::Vec;
use unikernel::Key;
use unikernel::choice::Choice;
use unikernel::options::{self, Error};

use crate::names::{APP_EXPECTED, App, MODE_EXPECTED, MODES, RdsMode};

/// The DMA memory's size when `dma=` is not given.
pub const DEFAULT_DMA_BYTES: u64 = 64 << 20;

/// The most neighbours that a command line may name.
pub const MAX_NEIGHBOURS: usize = 16;

/// What the source service gives when `source=` is not given.
pub const DEFAULT_SOURCE_BYTES: u64 = 16 << 20;

const U32: &str = "a number from 1 to 4294967295";
const SIZE: &str = "a number of bytes, as in 16M";
const MTU: &str = "a number of bytes from 576 to 9000";
const SECONDS: &str = "a decimal number of 1 or more";

/// Keys of the command line.
pub const KEYS: [Key; 29] = [
    Key::new("app", APP_EXPECTED, "which application runs"),
    Key::new(
        "ip",
        "an IP address, perhaps with / and a prefix length",
        "the node's own; the prefix length is 24, or 64 of IPv6, if none is given",
    ),
    Key::new("gateway", "an IPv4 address", "the router to other subnets; without it there is none"),
    Key::new("peer", "an IP address", "the other node"),
    Key::new("to", "an IP address", "the same as peer"),
    Key::new(
        "neighbours",
        "address/GID pairs (10.0.0.2/fe80::2), at most 16, with commas between them",
        "who is where on the fabric; the GID as an IPv6 address",
    ),
    Key::new("role", "server or client", "with app=demo, rping"),
    Key::new("mode", MODE_EXPECTED, "with app=rds: what it does"),
    Key::new(
        "seed",
        "a decimal number",
        "with app=demo: varies payloads and sizes, the same on both nodes; default 1",
    ),
    Key::new("divide", SECONDS, "with app=demo: divides the demonstration's volume; default 1"),
    Key::new("wait", SECONDS, "seconds to wait for the peer; default 60"),
    Key::new("count", U32, "with app=ping, rping, rds, echo, pair: how many; default 100"),
    Key::new(
        "interval",
        "a decimal number",
        "with app=rds mode=ping: milliseconds from one to the next; default 1000",
    ),
    Key::new("size", "a number of at most 32 bits", "with app=ping, rping: payload bytes; default 64"),
    Key::new(
        "port",
        "a port from 1 to 65535",
        "with app=tcp, rping, echo: the port to connect to or listen on",
    ),
    Key::new("send", SIZE, "with app=tcp: bytes to send; default 0"),
    Key::new("source", SIZE, "with app=ip: bytes that its source service gives each client; default 16M"),
    Key::new("sessions", U32, "with app=rping role=server: clients to serve one after the other; default 1"),
    Key::new("stall", SECONDS, "with app=rping, rds, echo: seconds that nothing may move; default 30"),
    Key::new(
        "grace",
        SECONDS,
        "with app=rds, echo: seconds from one recovery of the HCA to the next; default 60",
    ),
    Key::new("verify", "yes or no", "with app=rping: whether both sides look at every byte; default yes"),
    Key::new("dma", "a size of 4K or more in whole 4K blocks", "memory that the HCA reaches; default 64M"),
    Key::new(
        "hca",
        "a decimal number, a PCI address as in 3b:00.0, or a port's GUID as in 0x248a070300abcdef",
        "which HCA, of several; default 0, the first; app=selftest lists them",
    ),
    Key::new(
        "bars",
        "keep or clear",
        "with app=hca: clear takes its BARs and the windows of the bridges above away first; default keep",
    ),
    Key::new("mtu", MTU, "the largest payload of an Ethernet port's frames; default 1500"),
    Key::new(
        "vlan",
        "a number from 1 to 4094",
        "the VLAN of an Ethernet port; without it frames have no tag",
    ),
    Key::new("dump", "yes or no", "with app=selftest: prints what `cargo xtask profile` reads; default no"),
    Key::new("kind", "a name", "with app=fault: which fault"),
    Key::new(
        "switches",
        "switches of rds-stress with commas between them, as in -q1K,-d8,-t2,-T10",
        "with app=rds mode=stress: without to= the other side has the switches, and here are -p and -c",
    ),
];

const YES_OR_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];

/// An address and the port GID of whoever has it.
pub type Neighbour = (IpAddr, Ipv6Addr);

/// Parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    /// The application to run.
    pub app: App,
    /// The node's own address. An IPv4 one for applications that speak no IPv6.
    pub ip: Option<IpAddr>,
    /// Bits of the own address that name its subnet.
    pub prefix_len: u8,
    /// The router to other subnets.
    pub gateway: Option<Ipv4Addr>,
    /// The other node's address, of the same family.
    pub peer: Option<IpAddr>,
    /// Who is where on the fabric.
    pub neighbours: Vec<Neighbour, MAX_NEIGHBOURS>,
    /// The side of `app=demo`, `app=rping`, `app=rds`.
    pub role: Option<Role>,
    /// Mode of `app=rds`.
    pub mode: Option<RdsMode>,
    /// Varies what `app=demo` sends.
    pub seed: u64,
    /// Divides the volume of `app=demo`; not 0.
    pub divide: u64,
    /// Seconds to wait for the peer.
    pub wait_seconds: u64,
    /// How many pings or messages.
    pub count: u32,
    /// Milliseconds from one ping of `app=rds` to the next.
    pub interval_millis: u64,
    /// Bytes of a ping.
    pub size: u32,
    /// The port of `app=tcp` and `app=rping`.
    pub port: Option<u16>,
    /// Bytes that `app=tcp` sends.
    pub send_bytes: u64,
    /// Bytes that `app=ip`'s source service gives.
    pub source_bytes: u64,
    /// Clients that the server of `app=rping` serves.
    pub sessions: u32,
    /// Seconds that nothing may move in `app=rping` and `app=rds`.
    pub stall_seconds: u64,
    /// Seconds from one recovery of the HCA to the next.
    pub grace_seconds: u64,
    /// Whether `app=rping` compares.
    pub verify: bool,
    /// Size of the DMA region in bytes, a multiple of 4096.
    pub dma_bytes: u64,
    /// Which of the HCAs.
    pub hca: Choice,
    /// Largest payload of an Ethernet port's frames, bytes.
    pub mtu: u16,
    /// VLAN of an Ethernet port.
    pub vlan: Option<u16>,
    /// Whether `app=hca` takes its BARs away first.
    pub clear_bars: bool,
    /// `app=selftest` prints the lines of `Hca::dump`.
    pub dump: bool,
    /// The fault that `app=fault` raises.
    pub kind: Option<&'a str>,
    /// rds-stress's switches.
    pub switches: &'a str,
}

impl<'a> Options<'a> {
    /// Parses the whole command line.
    ///
    /// # Errors
    /// The first thing that is wrong, see [`Error`].
    pub fn parse(text: &'a str) -> Result<Self, Error<'a>> {
        let words = options::Options::parse(text, &KEYS)?;
        if words.get("peer").is_some() && words.get("to").is_some() {
            return Err(Error::Twice("to"));
        }
        let value = Values(words);
        let ip = value.judged("ip", parse_ip_and_prefix)?;
        let peer = words.value("peer")?;
        let peer = if peer.is_some() { peer } else { words.value("to")? };
        let app = value
            .judged("app", |name| named(&App::NAMES, name))?
            .ok_or(Error::Missing { key: "app", expected: APP_EXPECTED })?;
        let mode = value.judged("mode", |name| named(&MODES, name))?;
        for (key, address) in [("ip", ip.map(|(address, _)| address)), ("peer", peer)] {
            let key = if words.get(key).is_some() { key } else { "to" };
            if let (Some(IpAddr::V6(_)), Some(value)) = (address, words.get(key))
                && !app.speaks_ipv6(mode)
            {
                return Err(Error::BadValue {
                    key,
                    value,
                    expected: "an IPv4 address, which this application needs",
                });
            }
        }
        Ok(Options {
            app,
            ip: ip.map(|(address, _)| address),
            prefix_len: ip.map_or(DEFAULT_PREFIX_LEN, |(_, len)| len),
            gateway: words.value("gateway")?,
            peer,
            neighbours: parse_neighbours(words.get("neighbours"))?,
            role: value.judged("role", |name| named(&ROLES, name))?,
            mode,
            seed: words.value("seed")?.unwrap_or(1),
            divide: value.at_least_1("divide")?.unwrap_or(1),
            wait_seconds: value.at_least_1("wait")?.unwrap_or(60),
            count: value.at_least_1("count")?.unwrap_or(100),
            interval_millis: words.value("interval")?.unwrap_or(1000),
            size: words.value("size")?.unwrap_or(64),
            port: value.at_least_1("port")?,
            send_bytes: words.bytes("send")?.unwrap_or(0),
            source_bytes: words.bytes("source")?.unwrap_or(DEFAULT_SOURCE_BYTES),
            sessions: value.at_least_1("sessions")?.unwrap_or(1),
            stall_seconds: value.at_least_1("stall")?.unwrap_or(30),
            grace_seconds: words.value("grace")?.unwrap_or(60),
            clear_bars: value
                .judged("bars", |name| named(&[("clear", true), ("keep", false)], name))?
                .unwrap_or(false),
            verify: value.judged("verify", |name| named(&YES_OR_NO, name))?.unwrap_or(true),
            dma_bytes: value.judged("dma", whole_blocks)?.unwrap_or(DEFAULT_DMA_BYTES),
            hca: words.value("hca")?.unwrap_or(Choice::Nth(0)),
            mtu: value
                .judged("mtu", |mtu| mtu.parse().ok().filter(|mtu| MTUS.contains(mtu)))?
                .unwrap_or(1500),
            vlan: value.judged("vlan", |vlan| vlan.parse().ok().filter(|vlan| (1..=4094).contains(vlan)))?,
            dump: value.judged("dump", |name| named(&YES_OR_NO, name))?.unwrap_or(false),
            kind: words.get("kind"),
            switches: words.get("switches").unwrap_or(""),
        })
    }
}

const ROLES: [(&str, Role); 2] = [("server", Role::Server), ("client", Role::Client)];

fn named<T: Copy>(names: &[(&str, T)], wanted: &str) -> Option<T> {
    names.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
}

/// Values that are judged beyond what their type says.
struct Values<'a>(options::Options<'a>);

impl<'a> Values<'a> {
    fn judged<T>(
        &self,
        key: &'static str,
        judge: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error<'a>> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let expected = KEYS.iter().find(|known| known.name == key).map_or("", |known| known.takes);
        judge(value).map(Some).ok_or(Error::BadValue { key, value, expected })
    }

    fn at_least_1<T: FromStr + PartialOrd + From<u8>>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, Error<'a>> {
        self.judged(key, |value| value.parse().ok().filter(|number| *number >= T::from(1)))
    }
}

/// Payloads of frames that hosts have to take (RFC 791), up to what they call jumbo.
const MTUS: core::ops::RangeInclusive<u16> = 576..=9000;

/// The prefix length when none is given.
const DEFAULT_PREFIX_LEN: u8 = 24;
const DEFAULT_PREFIX_LEN_V6: u8 = 64;

fn parse_ip_and_prefix(value: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = value.split_once('/').map_or((value, None), |(address, len)| (address, Some(len)));
    let address = address.parse().ok()?;
    let (default, longest) = match address {
        IpAddr::V4(_) => (DEFAULT_PREFIX_LEN, 32),
        IpAddr::V6(_) => (DEFAULT_PREFIX_LEN_V6, 128),
    };
    let len = len.map_or(Some(default), |len| len.parse().ok())?;
    (1..=longest).contains(&len).then_some((address, len))
}

fn parse_neighbours(value: Option<&str>) -> Result<Vec<Neighbour, MAX_NEIGHBOURS>, Error<'_>> {
    let bad = |value| Error::BadValue {
        key: "neighbours",
        value,
        expected: "address/GID pairs (10.0.0.2/fe80::2), at most 16, with commas between them",
    };
    let mut neighbours = Vec::new();
    for pair in value.iter().flat_map(|value| value.split(',')) {
        let (address, gid) = pair.split_once('/').ok_or(bad(pair))?;
        let neighbour = (address.parse().map_err(|_| bad(pair))?, gid.parse().map_err(|_| bad(pair))?);
        neighbours.push(neighbour).map_err(|_| bad(pair))?;
    }
    Ok(neighbours)
}

fn whole_blocks(value: &str) -> Option<u64> {
    options::parse_size(value).filter(|bytes| *bytes != 0 && bytes % 4096 == 0)
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
                ip: Some(Ipv4Addr::new(10, 0, 0, 1).into()),
                prefix_len: 24,
                gateway: None,
                peer: Some(Ipv4Addr::new(10, 0, 0, 2).into()),
                neighbours: Vec::new(),
                role: None,
                mode: None,
                seed: 1,
                divide: 1,
                wait_seconds: 60,
                count: 100,
                interval_millis: 1000,
                size: 64,
                port: None,
                send_bytes: 0,
                source_bytes: 16 << 20,
                sessions: 1,
                stall_seconds: 30,
                grace_seconds: 60,
                verify: true,
                dump: false,
                clear_bars: false,
                dma_bytes: 3 << 20,
                hca: Choice::Nth(0),
                mtu: 1500,
                vlan: None,
                kind: Some("stack"),
                switches: "",
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
        assert_eq!((options.ip, options.prefix_len), (Some(Ipv4Addr::new(10, 1, 2, 3).into()), 16));
        assert_eq!((options.gateway, options.source_bytes), (Some(Ipv4Addr::new(10, 1, 0, 1)), 1 << 20));
        let options = Options::parse("app=tcp ip=10.0.0.1 to=10.0.0.2 port=7 send=16M").unwrap();
        assert_eq!((options.peer, options.port), (Some(Ipv4Addr::new(10, 0, 0, 2).into()), Some(7)));
        assert_eq!(options.send_bytes, 16 << 20);
        let options = Options::parse("app=rping role=client count=5 size=65535 verify=no").unwrap();
        assert_eq!((options.count, options.size, options.verify), (5, 65535, false));
    }

    #[test]
    fn reliable_datagram_sockets() {
        let options = Options::parse("app=rds mode=ping to=10.0.0.2 count=1000 interval=5").unwrap();
        assert_eq!((options.app, options.mode), (App::Rds, Some(RdsMode::Ping)));
        assert_eq!((options.count, options.interval_millis), (1000, 5));
        let options =
            Options::parse("app=rds mode=stress to=10.0.0.2 switches=-q4K,-T5,--rdma-use-once=1").unwrap();
        assert_eq!((options.mode, options.switches), (Some(RdsMode::Stress), "-q4K,-T5,--rdma-use-once=1"));
    }

    #[test]
    fn ipv6_where_applications_speak_it() {
        let options = Options::parse("app=rping role=client ip=fd78::9 to=fd78::1 mtu=9000").unwrap();
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert_eq!((options.ip, options.prefix_len), (address("fd78::9"), 64));
        assert_eq!((options.peer, options.mtu), (address("fd78::1"), 9000));
        assert!(Options::parse("app=rds mode=ping ip=fd78::9 to=fd78::1").is_ok());
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
            ("", "app= is missing; it takes one of hello, fault, idle, msix, hca, demo,"),
            ("app", "`app` is not of the form key=value"),
            (
                "app=hello colour=red",
                "unknown key `colour`; known: app, ip, gateway, peer, to, neighbours, role, mode,",
            ),
            ("app=hello app=hello", "`app` is given twice"),
            (
                "app=hullo",
                "app=hullo is not one of hello, fault, idle, msix, hca, demo, ip, ping, tcp, rping, rds, echo, pair, remap, selftest, serve",
            ),
            ("app=hello ip=10.0.0", "ip=10.0.0 is not an IP address"),
            ("app=ip ip=10.0.0.1/0", "ip=10.0.0.1/0 is not an IP address, perhaps with /"),
            ("app=ip ip=10.0.0.1/33", "ip=10.0.0.1/33 is not an IP address, perhaps with /"),
            ("app=rping ip=fd78::1/129", "ip=fd78::1/129 is not an IP address, perhaps with /"),
            ("app=demo ip=fd78::1", "ip=fd78::1 is not an IPv4 address, which this application needs"),
            ("app=rds mode=stress to=fd78::1", "to=fd78::1 is not an IPv4 address, which this application"),
            ("app=hca vlan=4095", "vlan=4095 is not a number from 1 to 4094"),
            ("app=hca mtu=575", "mtu=575 is not a number of bytes from 576 to 9000"),
            ("app=ping peer=10.0.0.1 to=10.0.0.2", "`to` is given twice"),
            ("app=ping count=0", "count=0 is not a number from 1 to 4294967295"),
            ("app=ping size=4294967296", "size=4294967296 is not a number of at most 32 bits"),
            ("app=tcp port=0", "port=0 is not a port"),
            ("app=tcp port=65536", "port=65536 is not a port"),
            ("app=tcp send=x", "send=x is not a number of bytes"),
            ("app=rping verify=maybe", "verify=maybe is not yes or no"),
            ("app=demo role=both", "role=both is not server or client"),
            ("app=rds mode=pong", "mode=pong is not ping, echo or stress"),
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
}
