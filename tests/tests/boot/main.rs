//! Unikernels under QEMU.

mod apps;
mod demo;
mod efi;
mod ends;
mod firmware;
mod ground;
mod log;
mod machines;
mod newcomer;
mod ports;
mod rdmaboot;
mod recovery;
mod screens;
mod slots;
mod template;
mod uefi;
mod unikernel;
