//! Accesses that a QP allows its peer, by its context (PRM, software context formats).

use mlx5_prm::contexts::qpc;

/// Accesses that a QP allows its peer. By default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAccess {
    read: bool,
    write: bool,
    atomic: bool,
    atomic_mode: u8,
}

/// Field of the context that forbids an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// `qpc.rre`.
    Read,
    /// `qpc.rwe`.
    Write,
    /// `qpc.rae`.
    Atomic,
    /// `qpc.atomic_mode`.
    AtomicMode,
}

impl Forbidden {
    /// Returns the field's name and the accesses that it forbids.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Read => ("qpc.rre", "RDMA reads"),
            Self::Write => ("qpc.rwe", "RDMA writes"),
            Self::Atomic => ("qpc.rae", "atomics"),
            Self::AtomicMode => ("qpc.atomic_mode", "atomics"),
        }
    }
}

impl RemoteAccess {
    /// Parses a context.
    #[must_use]
    pub fn parse(context: &[u8]) -> Self {
        Self {
            read: qpc::rre.is_set(context),
            write: qpc::rwe.is_set(context),
            atomic: qpc::rae.is_set(context),
            atomic_mode: qpc::atomic_mode.get32(context) as u8,
        }
    }

    /// Checks an RDMA read.
    ///
    /// # Errors
    /// The field that forbids it.
    #[inline]
    pub const fn check_read(self) -> Result<(), Forbidden> {
        if self.read { Ok(()) } else { Err(Forbidden::Read) }
    }

    /// Checks an RDMA write.
    ///
    /// # Errors
    /// The field that forbids it.
    #[inline]
    pub const fn check_write(self) -> Result<(), Forbidden> {
        if self.write { Ok(()) } else { Err(Forbidden::Write) }
    }

    /// Checks an atomic. `needs_mode` is true for a card that takes `qpc.atomic_mode` seriously.
    ///
    /// # Errors
    /// The field that forbids it.
    pub const fn check_atomic(self, needs_mode: bool) -> Result<(), Forbidden> {
        match self {
            Self { atomic: false, .. } => Err(Forbidden::Atomic),
            Self { atomic_mode: 0, .. } if needs_mode => Err(Forbidden::AtomicMode),
            _ => Ok(()),
        }
    }
}
