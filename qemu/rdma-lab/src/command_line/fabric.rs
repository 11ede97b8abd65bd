//! Options that several commands have: of the fabric, of QEMU, of the unikernel.

use crate::accelerator;
use hca_model::DeviceSpec;
use hca_serve::product::command_line::{FAULTS, SEED, fresh_seed};
use hca_serve::product::options::Argument;
use rdma_fabric::faults::Faults;
use std::path::PathBuf;

/// Settings of a fabric of emulated HCAs.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// Card and quirks of the HCAs.
    pub kind: DeviceSpec,
    /// File for all packets, in pcapng.
    pub capture: Option<PathBuf>,
    /// Packet faults to inject.
    pub faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
    /// Lets every node manage the fabric.
    pub open: bool,
}

impl Default for Fabric {
    /// A fabric without faults, with a new seed.
    fn default() -> Self {
        Self {
            kind: DeviceSpec::default(),
            capture: None,
            faults: Faults::default(),
            seed: fresh_seed(),
            open: false,
        }
    }
}

/// Returns the options that set a fabric. `profile` says whose cards `--profile` selects.
pub fn arguments<T: AsMut<Fabric>>(profile: &str) -> [Argument<T>; 5] {
    [
        Argument::value("--profile CARD[,HABIT[=VALUE]]...", profile, |command: &mut T, value| {
            command.as_mut().kind = value.parse()?;
            Ok(())
        }),
        Argument::value("--pcap FILE", "all packets, for Wireshark", |command: &mut T, value| {
            command.as_mut().capture = Some(value.path());
            Ok(())
        }),
        Argument::value("--faults SPEC", FAULTS, |command: &mut T, value| {
            command.as_mut().faults = value.parse()?;
            Ok(())
        }),
        Argument::value("--seed N", SEED, |command: &mut T, value| {
            command.as_mut().seed = value.number()?;
            Ok(())
        }),
        Argument::flag(
            "--open-fabric",
            "everybody may configure the switch and all ports, as with `ibportstate`",
            |command: &mut T| command.as_mut().open = true,
        ),
    ]
}

/// Name of QEMU's accelerator, if the user gave one.
#[derive(Clone, Debug, Default)]
pub struct Accelerator(Option<String>);

impl Accelerator {
    /// Returns whether the user gave a name.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the name, [`accelerator::AUTO`] by default.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.as_deref().unwrap_or(accelerator::AUTO)
    }
}

/// Returns the option that selects QEMU's accelerator.
pub fn accelerator<T: AsMut<Accelerator>>() -> Argument<T> {
    Argument::value(
        "--accel NAME",
        "QEMU's accelerator: auto (KVM where a guest runs well under it, TCG elsewhere), kvm, tcg (auto)",
        |command: &mut T, value| {
            command.as_mut().0 = Some(value.text()?);
            Ok(())
        },
    )
}

/// Meaning of `--image`.
pub(super) const IMAGE: &str =
    "a unikernel of yours; without it `cargo xtask`, in a checkout, builds the project's own";
