//! Facts about a card as lines of text, from which `cargo xtask profile` makes a profile of the
//! emulated HCA.

use super::Hca;
use super::firmware::Firmware;
use super::memory::Memory;
use crate::caps::PortType;
use crate::cmd::input;
use crate::error::{CommandError, Error};
use crate::pci::{capability, find_capability};
use crate::platform::{Bar, Platform};
use core::fmt;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::hca_vport_context as vport;
use mlx5_prm::init_seg;
use mlx5_prm::management::{capability_reg, mgir_reg, mtcap_reg, pmlp_reg, pplm_reg, sltp_reg};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::registers::*;
use mlx5_prm::status::DeliveryStatus;
use mlx5_prm::value::{CapType, RegisterId};
use mlx5_prm::{Part, later};

/// Takes lines.
type Out<'o> = &'o mut dyn FnMut(fmt::Arguments<'_>);

/// Types of QUERY_HCA_CAP: those that have a name, and a few between them that newer firmware has.
const LAST_CAP_TYPE: u16 = CapType::ADV_VIRTUALIZATION.0;
/// Bytes of a line's data.
const LINE: usize = 32;
/// Bytes of the longest register below.
const LONGEST: usize = mgir_reg::SIZE;
/// Registers that can be read without an effect, and their bytes. Linux reads them too.
const REGISTERS: [(RegisterId, usize); 15] = [
    (RegisterId::PMLP, pmlp_reg::SIZE),
    (RegisterId::PMTU, pmtu_reg::SIZE),
    (RegisterId::PTYS, ptys_reg::SIZE),
    (RegisterId::PAOS, paos_reg::SIZE),
    (RegisterId::PFCC, pfcc_reg::SIZE),
    (RegisterId::PVLC, pvlc_reg::SIZE),
    (RegisterId::PPLM, pplm_reg::SIZE),
    (RegisterId::SLTP, sltp_reg::SIZE),
    (RegisterId::PCAM, capability_reg::SIZE),
    (RegisterId::MTCAP, mtcap_reg::SIZE),
    (RegisterId::MGIR, mgir_reg::SIZE),
    (RegisterId::MPEIN, mpein_reg::SIZE),
    (RegisterId::MFRL, mfrl_reg::SIZE),
    (RegisterId::MCAM, 0x48),
    (RegisterId::DTOR, later::DTOR_LEN),
];
/// Registers of a port have numbers below this, and the port's number in the same place.
const FIRST_OF_CARD: u16 = RegisterId::PCAM.0;
const LOCAL_PORT: mlx5_prm::Field = paos_reg::local_port;
/// `mgir_reg`: MAC address and up-time, of one card and one moment.
const MGIR_SECRETS: Part = Part { offset: 0x10, len: 0x10 };
/// `ptys_reg.proto_mask`.
const PROTOCOLS: [(PortType, u32); 2] = [(PortType::InfiniBand, 1), (PortType::Ethernet, 1 << 2)];
/// Dwords of BAR0: versions, queue sizes, features of the interface, health buffer, time-outs.
const SEGMENT: [(usize, usize); 5] = [
    (init_seg::FW_REV_OFFSET, 8),
    (init_seg::CMDQ_ADDR_L_SZ_OFFSET, 4),
    (init_seg::INITIALIZING_OFFSET, 4),
    (init_seg::HEALTH_BUFFER_OFFSET, 64),
    (init_seg::CMD_EXEC_TO_OFFSET, 8),
];
/// PCI configuration header: ids, revision and class, subsystem.
const CONFIG: [u16; 3] = [0x00, 0x08, 0x2c];
/// Bytes of the capabilities that say something of the card.
const CONFIG_CAPABILITIES: [(u8, u16); 2] = [(capability::EXPRESS, 0x34), (capability::MSIX, 0x0c)];

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<P: Platform> Hca<'_, P> {
    /// Reports what the card and its firmware say about themselves, without an effect on either:
    /// PCI configuration, initialization segment, all capabilities, registers, page numbers and
    /// times of bring-up. Hands `out` a line for each, which begins with `@dump`.
    ///
    /// GUIDs, MAC addresses and serial numbers are left out.
    ///
    /// # Errors
    /// Any [`Error`] but the refusal of a command, which is a line.
    pub fn dump(&mut self, out: Out<'_>) -> Result<(), Error> {
        out(format_args!("@dump version=1"));
        config(self.firmware.platform(), out);
        segment(self.firmware.bar(), out);
        let psid = core::str::from_utf8(self.psid()).unwrap_or("?").trim_end_matches('\0');
        out(format_args!("@dump psid={psid}"));
        let [boot, init] = self.firmware.start_pages();
        let log_max_qp = self.firmware.caps().log_max_qp;
        out(format_args!("@dump pages boot={boot} init={init} log_max_qp={log_max_qp}"));
        for time in self.steps() {
            out(format_args!("@dump step={} us={}", time.step.name(), time.took.as_micros()));
        }
        let Self { firmware, memory, .. } = self;
        for kind in 0..=LAST_CAP_TYPE {
            for current in [false, true] {
                capabilities(firmware, memory, CapType(kind), current, out)?;
            }
        }
        for (id, len) in REGISTERS {
            register(firmware, memory, id, len, out)?;
        }
        special_contexts(firmware, memory, out)?;
        if firmware.caps().port_type == PortType::InfiniBand && firmware.caps().ib_virt {
            vport_context(firmware, memory, out)?;
        }
        Ok(())
    }
}

/// Returns how firmware refused a command, `None` if it did not.
fn refusal(result: Result<(), Error>) -> Result<Option<CommandError>, Error> {
    match result {
        Ok(()) => Ok(None),
        Err(Error::Command(error)) if error.delivery == DeliveryStatus::OK => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// Reports the lines of `bytes` that are not all zero.
fn lines(bytes: &[u8], name: fmt::Arguments<'_>, out: Out<'_>) {
    for (index, line) in bytes.chunks(LINE).enumerate().filter(|(_, line)| line.iter().any(|&b| b != 0)) {
        out(format_args!("@dump {name} at={:#x} {}", index * LINE, Hex(line)));
    }
}

fn config<P: Platform>(platform: &P, out: Out<'_>) {
    let mut dword = |offset: u16| {
        if let Some(value) = platform.read_config(offset) {
            out(format_args!("@dump config at={offset:#x} {value:08x}"));
        }
    };
    CONFIG.into_iter().for_each(&mut dword);
    let read = |offset| platform.read_config(offset).unwrap_or(0);
    for (id, len) in CONFIG_CAPABILITIES {
        let at = find_capability(read, id);
        at.into_iter().flat_map(|at| (at..at + len).step_by(4)).for_each(&mut dword);
    }
}

fn segment(bar: impl Bar, out: Out<'_>) {
    for offset in SEGMENT.into_iter().flat_map(|(at, len)| (at..at + len).step_by(4)) {
        out(format_args!("@dump segment at={offset:#x} {:08x}", bar.read32(offset)));
    }
}

fn capabilities<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    kind: CapType,
    current: bool,
    out: Out<'_>,
) -> Result<(), Error> {
    let query = input::<{ query_hca_cap_in::SIZE }>(Opcode::QUERY_HCA_CAP, kind.query_op_mod(current));
    let mut block = [0; query_hca_cap_out::SIZE];
    let which = if current { "current" } else { "max" };
    match refusal(firmware.exec(memory, &query, &mut block))? {
        Some(error) => out(format_args!("@dump cap={:#x} {which} refused status={}", kind.0, error.status.0)),
        None => {
            lines(query_hca_cap_out::capability.of(&block), format_args!("cap={:#x} {which}", kind.0), out)
        }
    }
    Ok(())
}

fn register<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    id: RegisterId,
    len: usize,
    out: Out<'_>,
) -> Result<(), Error> {
    const HEAD: usize = access_register_in::register_data.offset;
    let mut command = input::<{ HEAD + LONGEST }>(Opcode::ACCESS_REG, 1);
    access_register_in::register_id.set(&mut command, id.0);
    let data = command.get_mut(HEAD..).unwrap_or_default();
    if id.0 < FIRST_OF_CARD {
        LOCAL_PORT.set(data, 1u32);
    }
    if id == RegisterId::PTYS {
        let port_type = firmware.caps().port_type;
        let mask = PROTOCOLS.into_iter().find(|(kind, _)| *kind == port_type).map_or(0, |(_, mask)| mask);
        ptys_reg::proto_mask.set(data, mask);
    }
    let mut answer = [0; HEAD + LONGEST];
    let end = (HEAD + len).min(answer.len());
    let (command, answer) = (&command[..end], &mut answer[..end]);
    let refused = refusal(firmware.exec(memory, command, answer))?;
    let register = answer.get_mut(HEAD..).unwrap_or_default();
    if id == RegisterId::MGIR {
        MGIR_SECRETS.of_mut(register).fill(0);
    }
    match refused {
        Some(error) => out(format_args!("@dump register={:#x} refused status={}", id.0, error.status.0)),
        None => lines(register, format_args!("register={:#x}", id.0), out),
    }
    Ok(())
}

fn special_contexts<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    out: Out<'_>,
) -> Result<(), Error> {
    let query = input::<{ query_special_contexts_in::SIZE }>(Opcode::QUERY_SPECIAL_CONTEXTS, 0);
    let mut answer = [0; query_special_contexts_out::SIZE];
    firmware.exec(memory, &query, &mut answer)?;
    lines(&answer[8..], format_args!("special"), out);
    Ok(())
}

fn vport_context<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    out: Out<'_>,
) -> Result<(), Error> {
    let mut query = input::<{ query_hca_vport_context_in::SIZE }>(Opcode::QUERY_HCA_VPORT_CONTEXT, 0);
    if firmware.caps().num_ports == 2 {
        query_hca_vport_context_in::port_num.set(&mut query, 1u32);
    }
    let mut answer = [0; query_hca_vport_context_out::SIZE];
    firmware.exec(memory, &query, &mut answer)?;
    let context = query_hca_vport_context_out::hca_vport_context.of(&answer);
    out(format_args!(
        "@dump vport has_smi={} capability_mask={:#x} lid={:#x}",
        vport::has_smi.get32(context),
        vport::cap_mask1.get32(context),
        vport::lid.get32(context)
    ));
    Ok(())
}
