//! `selftest.efi`: tests all ConnectX cards of a machine that has no operating system. Its report is in the file `selftest.txt` beside it.
#![cfg_attr(target_os = "uefi", no_std, no_main)]

efi::start!(program(Some("selftest.txt"), efi::selftest::run));
