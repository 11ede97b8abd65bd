//! BAR0, mapped or behind a socket.

use crate::socket::Client;
use driver_mlx::{Bar, DoorbellRegister, MmioBar, MmioDoorbellRegister};

/// A handle to BAR0. After its [`LinuxPlatform`](crate::LinuxPlatform) is dropped, it accesses no
/// device.
#[derive(Clone, Copy, Debug)]
pub struct LinuxBar(pub(crate) Registers);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Registers {
    Mapped(MmioBar),
    Socket(&'static Client),
}

/// The register of one queue. A register that outlives its
/// [`LinuxPlatform`](crate::LinuxPlatform) leads nowhere.
#[derive(Debug)]
pub struct LinuxDoorbellRegister(Register);

#[derive(Debug)]
enum Register {
    Mapped(MmioDoorbellRegister),
    Socket(&'static Client, usize),
}

impl DoorbellRegister for LinuxDoorbellRegister {
    #[inline]
    fn ring(&mut self, value: u64) {
        match &mut self.0 {
            Register::Mapped(register) => register.ring(value),
            Register::Socket(client, offset) => client.bar_write(*offset, &value.to_be_bytes()),
        }
    }

    fn write(&mut self, offset: usize, value: u64) {
        match &mut self.0 {
            Register::Mapped(register) => register.write(offset, value),
            Register::Socket(client, start) => client.bar_write(*start + offset, &value.to_be_bytes()),
        }
    }
}

impl Bar for LinuxBar {
    type DoorbellRegister = LinuxDoorbellRegister;

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
    unsafe fn write32(&self, offset: usize, value: u32) {
        match self.0 {
            // SAFETY: this function's contract.
            Registers::Mapped(bar) => unsafe { bar.write32(offset, value) },
            Registers::Socket(client) => client.bar_write(offset, &value.to_be_bytes()),
        }
    }

    unsafe fn doorbell_register(&self, offset: usize, len: usize) -> LinuxDoorbellRegister {
        LinuxDoorbellRegister(match self.0 {
            // SAFETY: this function's contract.
            Registers::Mapped(bar) => Register::Mapped(unsafe { bar.doorbell_register(offset, len) }),
            Registers::Socket(client) => Register::Socket(client, offset),
        })
    }
}
