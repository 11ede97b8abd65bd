//! Applications, and modes of `app=rds`: their names on the command line.

/// List of the applications.
pub const APP_EXPECTED: &str = "one of hello, fault, idle, msix, hca, demo, ip, ping, tcp, rping, rds, echo, pair, remap, selftest, serve";
/// List of the modes.
pub const MODE_EXPECTED: &str = "ping, echo or stress";

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
    /// An IP host: answers pings and offers TCP and UDP services.
    Ip,
    /// Pings another IP host.
    Ping,
    /// A TCP client: sends a number of bytes and takes what comes back.
    Tcp,
    /// A side of rdmacm-utils' `rping`.
    Rping,
    /// Reliable Datagram Sockets: pings, an echo server, rds-stress.
    Rds,
    /// Sends messages to whoever sends them back, and compares.
    Echo,
    /// Two nodes in one machine that exchange messages.
    Pair,
    /// Switches DMA remapping on and off again.
    Remap,
    /// What the HCA can do without a partner, step by step.
    Selftest,
    /// Gives boot images to UEFI machines.
    Serve,
}

/// Modes of `app=rds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdsMode {
    /// Pings the peer.
    Ping,
    /// Sends back whatever comes, until `@quit` comes on the console.
    Echo,
    /// What rds-stress of rds-tools does, with a peer of either kind.
    Stress,
}

impl App {
    /// Returns whether the application, in this mode of `app=rds`, takes IPv6 addresses.
    pub fn speaks_ipv6(self, mode: Option<RdsMode>) -> bool {
        matches!(self, App::Rping | App::Rds | App::Echo) && mode != Some(RdsMode::Stress)
    }

    /// By name.
    pub const NAMES: [(&'static str, App); 16] = [
        ("hello", App::Hello),
        ("fault", App::Fault),
        ("idle", App::Idle),
        ("msix", App::Msix),
        ("hca", App::Hca),
        ("demo", App::Demo),
        ("ip", App::Ip),
        ("ping", App::Ping),
        ("tcp", App::Tcp),
        ("rping", App::Rping),
        ("rds", App::Rds),
        ("echo", App::Echo),
        ("pair", App::Pair),
        ("remap", App::Remap),
        ("selftest", App::Selftest),
        ("serve", App::Serve),
    ];
}

/// Modes of `app=rds`, by name.
pub const MODES: [(&str, RdsMode); 3] =
    [("ping", RdsMode::Ping), ("echo", RdsMode::Echo), ("stress", RdsMode::Stress)];
