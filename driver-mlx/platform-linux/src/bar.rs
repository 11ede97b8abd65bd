//! BAR0, mapped or behind a socket.

use crate::socket::Client;
use driver_mlx::{Bar, MmioBar};

/// A handle to BAR0. One that outlives its [`LinuxPlatform`](crate::LinuxPlatform) leads nowhere.
#[derive(Clone, Copy, Debug)]
pub struct LinuxBar(pub(crate) Registers);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Registers {
    Mapped(MmioBar),
    Socket(&'static Client),
}

impl Bar for LinuxBar {
    #[inline]
    fn len(&self) -> usize {
        match self.0 {
            Registers::Mapped(bar) => bar.len(),
            Registers::Socket(client) => client.bar_len(),
        }
    }

    #[inline]
    fn read32(&self, offset: usize) -> u32 {
        match self.0 {
            Registers::Mapped(bar) => bar.read32(offset),
            Registers::Socket(client) => client.bar_read32(offset),
        }
    }

    #[inline]
    fn write32(&self, offset: usize, value: u32) {
        match self.0 {
            Registers::Mapped(bar) => bar.write32(offset, value),
            Registers::Socket(client) => client.bar_write(offset, &value.to_be_bytes()),
        }
    }

    #[inline]
    fn write64(&self, offset: usize, value: u64) {
        match self.0 {
            Registers::Mapped(bar) => bar.write64(offset, value),
            Registers::Socket(client) => client.bar_write(offset, &value.to_be_bytes()),
        }
    }
}
