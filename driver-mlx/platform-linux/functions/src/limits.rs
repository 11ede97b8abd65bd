//! Memory that a device may reach has to stay where it is: it is locked, which the kernel limits.

use crate::error::{Error, Result};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// `CAP_IPC_LOCK`: no limit holds.
const IPC_LOCK: u32 = 14;

/// Checks that this process may lock `need` bytes in addition to its locked memory.
///
/// # Errors
/// [`Error::LockedMemory`].
pub fn check_locked_memory(need: u64) -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    check(need, getrlimit(Resource::Memlock).current, &status)
}

/// `status`: `/proc/self/status`.
fn check(need: u64, limit: Option<u64>, status: &str) -> Result<()> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    let unlimited = capabilities.is_some_and(|mask| mask >> IPC_LOCK & 1 == 1);
    let locked = field("VmPin:").and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
    match limit {
        Some(limit) if !unlimited && need.saturating_add(locked.unwrap_or(0) * 1024) > limit => {
            Err(Error::LockedMemory { need, limit })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_for_whoever_may_not_lock_without_one() {
        let plain = "Name:\tx\nVmPin:\t    1024 kB\nCapEff:\t0000000000000000\n";
        let root = "Name:\tx\nCapEff:\t000001ffffffffff\n";
        const MIB: u64 = 1 << 20;
        assert!(check(8 * MIB, Some(8 * MIB), plain).unwrap_err().to_string().contains("ulimit -l"));
        assert!(check(7 * MIB, Some(8 * MIB), plain).is_ok());
        assert!(check(u64::MAX, Some(8 * MIB), plain).is_err());
        assert!(check(8 * MIB, None, plain).is_ok());
        assert!(check(9 * MIB, Some(8 * MIB), root).is_ok());
        assert!(check(9 * MIB, Some(8 * MIB), "").is_err(), "what cannot be read gives no right");
    }
}
