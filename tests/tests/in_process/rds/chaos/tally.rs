//! What happened in all, as numbers that can be added and passed on by a line of text.

use std::fmt;

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Clone, Debug, Default)]
        pub struct Tally {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Tally {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Reads what `Display` wrote; None for any other line.
            pub fn parse(line: &str) -> Option<Self> {
                let mut words = line.strip_prefix("tally:")?.split_whitespace();
                $(
                    let $name = words.next()?.strip_prefix(concat!(stringify!($name), "="))?.parse().ok()?;
                )*
                Some(Self { $($name,)* })
            }
        }

        impl fmt::Display for Tally {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tally:")?;
                $(write!(f, concat!(" ", stringify!($name), "={}"), self.$name)?;)*
                Ok(())
            }
        }
    };
}

tally! {
    /// Messages accepted, and received by all incarnations.
    sent,
    received,
    /// Of nodes.
    boots,
    deaths,
    /// Deaths that nobody hears of, times in which a node does nothing, and nodes with two types of service.
    silent,
    stalls,
    services,
    /// Worlds with ports of both media.
    mixed,
    /// Cables pulled.
    cuts,
    /// Peers that knew larger numbers than a boot began with.
    raised,
    /// Connections lost, and attempts that crossed.
    resets,
    raced,
    /// Messages sent again, and those of them that had arrived before.
    again,
    old,
    /// Messages refused because of a congested port.
    congested,
    /// RDMA operations that succeeded, and those that did not.
    operations,
    failed_operations,
    /// Operations that began when access to their offer had ended.
    denied,
    /// Offers of registered memory as windows.
    windows,
    virtual_ms,
}
