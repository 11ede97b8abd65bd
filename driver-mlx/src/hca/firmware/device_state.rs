//! What the initialization segment says: who the device is, how it is, and what its firmware has to report of itself.

use crate::platform::Bar;
use core::fmt;
use mlx5_prm::init_seg;
use mlx5_prm::later;
use mlx5_prm::status::HealthSyndrome;
use mlx5_prm::value::NicInterface;

/// The initialization segment at one moment. It can be read at any time, before bring-up and after a failure too; nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct DeviceState {
    /// Firmware version: major, minor, sub-minor. The major number tells the generation.
    pub firmware_version: (u16, u16, u16),
    /// Command interface revision; 5 is the only one there is.
    pub interface_revision: u16,
    /// Where the command queue is, as the last owner said; 0 if there was none since the reset.
    pub command_queue: u64,
    /// State of the interface: 0 full driver, 1 disabled, 2 no-DRAM NIC, 7 in reset.
    pub nic_interface: u8,
    /// log2 of the command queue's entries.
    pub log_cmdq_size: u8,
    /// log2 of the bytes of one.
    pub log_cmdq_stride: u8,
    /// Firmware is still starting.
    pub initializing: bool,
    /// This side is a BlueField's own processor.
    pub embedded_cpu: bool,
    /// Software may reset the firmware.
    pub reset_supported: bool,
    /// How far a coordinated firmware reset is: 0 idle.
    pub reset_state: u8,
    /// The counter that moves while firmware runs, 24 bits.
    pub health_counter: u32,
    /// What firmware says of itself.
    pub health: HealthBuffer,
}

/// The health buffer. One per card: a neighbour function's trouble shows here too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct HealthBuffer {
    /// Arguments of the assertion that failed, for the vendor.
    pub assert_var: [u32; later::ASSERT_VARS],
    /// Where it failed.
    pub assert_exit_ptr: u32,
    /// Its caller.
    pub assert_callra: u32,
    /// The card's seconds at the time.
    pub time: u32,
    /// Firmware version, packed.
    pub fw_version: u32,
    /// Silicon.
    pub hw_id: u32,
    /// Firmware asks the driver for a reset.
    pub reset_wanted: bool,
    /// Only switching the power off helps.
    pub power_cycle_wanted: bool,
    /// Severity, 0 emergency to 7 debug, if `severity_valid`.
    pub severity: u8,
    /// Whether there is a severity.
    pub severity_valid: bool,
    /// Which of the card's processors.
    pub irisc_index: u8,
    /// The class of the error; 0 is none.
    pub syndrome: HealthSyndrome,
    /// Firmware's own code.
    pub ext_syndrome: u16,
}

impl HealthBuffer {
    /// The buffer as it reads now.
    pub fn read(bar: impl Bar) -> Self {
        let dword = |offset: usize| bar.read32(init_seg::HEALTH_BUFFER_OFFSET + offset);
        let flags = bar.read32(init_seg::HEALTH_RFR_OFFSET);
        let synd = bar.read32(init_seg::HEALTH_SYND_OFFSET);
        Self {
            assert_var: core::array::from_fn(|index| bar.read32(later::ASSERT_VAR_OFFSET + 4 * index)),
            assert_exit_ptr: dword(0x20),
            assert_callra: dword(0x24),
            time: dword(0x2c),
            fw_version: dword(0x30),
            hw_id: dword(0x34),
            reset_wanted: flags & later::HEALTH_RFR != 0,
            power_cycle_wanted: flags & later::HEALTH_CRR != 0,
            severity: (flags >> 24) as u8 & 7,
            severity_valid: flags & 1 << 27 != 0,
            irisc_index: (synd >> 24) as u8,
            syndrome: HealthSyndrome((synd >> 16) as u8),
            ext_syndrome: synd as u16,
        }
    }
}

impl DeviceState {
    /// The segment as it reads now; `None` if the device does not answer (all ones).
    pub fn read(bar: impl Bar) -> Option<Self> {
        if bar.read32(init_seg::HEALTH_FW_VERSION_OFFSET) == init_seg::LINK_DEAD {
            return None;
        }
        let version = bar.read32(init_seg::FW_REV_OFFSET);
        let revision = bar.read32(init_seg::CMD_INTERFACE_REV_OFFSET);
        let high = bar.read32(init_seg::CMDQ_ADDR_H_OFFSET);
        let low = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET);
        let status = bar.read32(init_seg::INITIALIZING_OFFSET);
        Some(Self {
            firmware_version: (version as u16, (version >> 16) as u16, revision as u16),
            interface_revision: (revision >> 16) as u16,
            command_queue: u64::from(high) << 32 | u64::from(low & CMDQ_ADDRESS_MASK),
            nic_interface: nic_interface_of(low),
            log_cmdq_size: (low >> 4) as u8 & 0xf,
            log_cmdq_stride: low as u8 & 0xf,
            initializing: status & init_seg::INITIALIZING != 0,
            embedded_cpu: status & later::EMBEDDED_CPU != 0,
            reset_supported: status & init_seg::FW_RESET_SUPPORTED != 0,
            reset_state: (status >> 12) as u8 & 0xf,
            health_counter: bar.read32(init_seg::HEALTH_COUNTER_OFFSET) & 0xff_ffff,
            health: HealthBuffer::read(bar),
        })
    }

    /// Whether a driver seems to have left the device without stopping it: its command queue is still in force. It may still access that
    /// driver's memory: reset the function before bus mastering is switched on.
    #[must_use]
    pub fn left_running(&self) -> bool {
        self.nic_interface == NicInterface::FULL_DRIVER.0 && self.command_queue != 0
    }
}

/// The bits of the command queue's address in the dword at [`init_seg::CMDQ_ADDR_L_SZ_OFFSET`].
pub(super) const CMDQ_ADDRESS_MASK: u32 = 0xffff_f000;

const fn nic_interface_of(low: u32) -> u8 {
    ((low & init_seg::NIC_INTERFACE_MASK) >> init_seg::NIC_INTERFACE_SHIFT) as u8
}

/// `nic_interface`, all three bits of it.
pub(super) fn interface_state<B: Bar>(bar: B) -> u8 {
    nic_interface_of(bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET))
}

/// Whether registers read as all ones: the device is gone, or cannot be reached at the moment.
pub(super) fn is_away<B: Bar>(bar: B) -> bool {
    bar.read32(init_seg::HEALTH_FW_VERSION_OFFSET) == init_seg::LINK_DEAD
}

/// The health buffer's own word for what is wrong. A device that is gone reads as all ones, which is no syndrome.
pub(super) fn health_syndrome(bar: impl Bar) -> HealthSyndrome {
    let word = bar.read32(init_seg::HEALTH_SYND_OFFSET);
    if word == init_seg::LINK_DEAD { HealthSyndrome(0) } else { HealthSyndrome((word >> 16) as u8) }
}

impl fmt::Display for HealthBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { syndrome, ext_syndrome, irisc_index, time, hw_id, fw_version, .. } = self;
        write!(f, "health: synd {syndrome}, ext_synd {ext_syndrome:#x}, irisc {irisc_index}, ")?;
        if self.severity_valid {
            write!(f, "severity {}, ", self.severity)?;
        }
        let asks = |asked: bool, what: &'static str| if asked { what } else { "" };
        write!(
            f,
            "time {time} s, hw_id {hw_id:#x}, fw_ver {fw_version:#x}{}{}; assert_var",
            asks(self.reset_wanted, ", asks for a reset (rfr)"),
            asks(self.power_cycle_wanted, ", only switching the power off helps (crr)"),
        )?;
        for var in self.assert_var {
            write!(f, " {var:#010x}")?;
        }
        write!(f, ", exit_ptr {:#x}, callra {:#x}", self.assert_exit_ptr, self.assert_callra)
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, sub_minor) = self.firmware_version;
        write!(
            f,
            "device: firmware {major}.{minor}.{sub_minor}, command interface {}, nic_interface {}, initializing {}, command queue \
             {:#x} of 2^{} entries of 2^{} bytes, reset state {}, health counter {:#x}{}",
            self.interface_revision,
            self.nic_interface,
            u8::from(self.initializing),
            self.command_queue,
            self.log_cmdq_size,
            self.log_cmdq_stride,
            self.reset_state,
            self.health_counter,
            if self.embedded_cpu { ", embedded CPU" } else { "" },
        )
    }
}
