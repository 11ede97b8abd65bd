//! The permission to use the reserved lkey.

/// The permission to name memory by the reserved key, in [`QpConfig::reserved_lkey`](crate::QpConfig::reserved_lkey).
///
/// ```compile_fail,E0133
/// let _ = driver_mlx::ReservedLKey::allow();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReservedLKey(());

impl ReservedLKey {
    /// The permission.
    ///
    /// # Safety
    /// Work requests of a queue pair made with it can name every address that the device reaches. Each one that names the reserved key
    /// must stay within memory that is mapped, that no Rust reference covers, and that no thread accesses without atomics, until the
    /// request is completed or the queue pair destroyed.
    pub const unsafe fn allow() -> Self {
        Self(())
    }
}
