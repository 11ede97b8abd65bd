//! The firmware's internal commands, behind the gateway of configuration space: what tools and boot loaders do to a card
//! without a command queue. A mailbox of dwords, a control register that starts the command and shows its end.
//!
//! Two commands exist: access to the registers that ACCESS_REG reaches too, and what there is.

use crate::device::Device;
use crate::log::Subject;
use mlx5_prm::value::RegisterId;

/// The control register's address in the space.
const CONTROL: u32 = 0;
/// Where the size of the mailbox is read.
const MAILBOX_SIZE: u32 = 0x1000;
/// Where the mailbox begins.
const MAILBOX: u32 = 0x10_0000;
/// Bytes of the mailbox.
const SIZE: usize = 0x400;

/// Bit of the control register: the command runs.
const BUSY: u32 = 1;
/// Opcode of register access.
const REGISTER_ACCESS: u32 = 0x9001;
/// Opcode that asks what internal commands can do.
const QUERY_CAPABILITIES: u32 = 0x8400;
/// Any register can be reached; PCAM and MCAM are among them.
const CAPABILITIES: u32 = 1 << 29 | 1 << 27 | 1 << 26;
/// Statuses in the control register.
const STATUS_OK: u32 = 0;
const STATUS_INVALID_OPCODE: u32 = 1;
/// Statuses in the header of a register access: what is wrong with it.
const NO_REGISTER: u8 = 4;
const NO_METHOD: u8 = 6;
const BAD_PARAMETER: u8 = 7;

/// Kinds of the records (TLVs) in the mailbox: operation, register.
const OPERATION: u8 = 1;
const REGISTER: u8 = 3;
/// Bytes of the operation record, and of the register record's header.
const OPERATION_LEN: usize = 16;
const HEADER_LEN: usize = 4;
/// Methods of an operation.
const READ: u8 = 1;
const WRITE: u8 = 2;

/// The registers and the mailbox.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    control: u32,
    /// Big-endian, as registers are.
    mailbox: Vec<u8>,
}

impl Default for Gateway {
    fn default() -> Self {
        Self { control: 0, mailbox: vec![0; SIZE] }
    }
}

impl Gateway {
    fn place(address: u32) -> Option<usize> {
        address.checked_sub(MAILBOX).filter(|offset| offset.is_multiple_of(4)).map(|offset| offset as usize)
    }

    /// The dword at `address`; zero where nothing is.
    pub(crate) fn read(&self, address: u32) -> u32 {
        match address {
            CONTROL => self.control,
            MAILBOX_SIZE => SIZE as u32,
            _ => Self::place(address)
                .and_then(|offset| self.mailbox.get(offset..)?.first_chunk())
                .map_or(0, |dword| u32::from_be_bytes(*dword)),
        }
    }

    /// Writes a dword; the command begins when it sets the busy bit.
    pub(crate) fn write(&mut self, address: u32, value: u32) {
        if address == CONTROL {
            self.control = value;
        } else if let Some(dword) =
            Self::place(address).and_then(|offset| self.mailbox.get_mut(offset..)?.first_chunk_mut())
        {
            *dword = value.to_be_bytes();
        }
    }

    /// Whether a command was begun and not carried out.
    pub(crate) const fn is_busy(&self) -> bool {
        self.control & BUSY != 0
    }

    fn finish(&mut self, status: u32) {
        self.control = self.control & !0xffff | status << 8;
    }

    /// Carries the command out that waits.
    pub(crate) fn run(&mut self, device: &mut Device) {
        let opcode = self.control >> 16;
        if opcode == QUERY_CAPABILITIES {
            self.mailbox.fill(0);
            // Dwords of the answer: what internal commands can do.
            if let Some(answer) = self.mailbox.first_chunk_mut() {
                *answer = CAPABILITIES.to_be_bytes();
            }
            self.finish(STATUS_OK);
            return;
        }
        if opcode != REGISTER_ACCESS {
            self.finish(STATUS_INVALID_OPCODE);
            device.log.refuse(Subject::Device, "icmd.opcode", format!("{opcode:#x} is not supported"));
            return;
        }
        let status = access(device, &mut self.mailbox);
        // The answer's header: response, with its status.
        if let Some([high, low]) = self.mailbox.get_mut(2..4).and_then(|bytes| bytes.first_chunk_mut()) {
            (*high, *low) = (1 << 7 | status, 0);
        }
        self.finish(STATUS_OK);
    }
}

/// Carries out the register access in `mailbox`; answers its status.
fn access(device: &mut Device, mailbox: &mut [u8]) -> u8 {
    let Some((operation, register)) = mailbox.split_at_mut_checked(OPERATION_LEN) else {
        return BAD_PARAMETER;
    };
    let (&mut [kind, _, _, _, id_high, id_low, method, ..], Some((header, data))) =
        (operation, register.split_at_mut_checked(HEADER_LEN))
    else {
        return BAD_PARAMETER;
    };
    let id = RegisterId(u16::from_be_bytes([id_high, id_low]));
    let of_record = |kind: u8| kind >> 3;
    let write = match method & 0x7f {
        READ => false,
        WRITE => true,
        _ => return NO_METHOD,
    };
    if of_record(kind) != OPERATION || header.first().is_none_or(|kind| of_record(*kind) != REGISTER) {
        device.log.refuse(Subject::Device, "icmd.tlv", "no register access");
        return BAD_PARAMETER;
    }
    // Tools ask for what there may be: no register is no mistake of theirs.
    if let Err(missing) = device.register_size(id) {
        device.log.info(Subject::Device, missing.text);
        return NO_REGISTER;
    }
    match device.access(id, write, data) {
        Ok(()) => STATUS_OK as u8,
        Err(refusal) => {
            device.log.refuse(Subject::Device, refusal.field, refusal.text);
            BAD_PARAMETER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::Hca;
    use crate::profile::Profile;
    use mlx5_prm::registers::ptys_reg;

    /// Where the capability lies.
    const BASE: usize = 0xc0;

    fn config32(hca: &Hca, register: usize) -> u32 {
        let mut bytes = [0; 4];
        hca.config_read(BASE + register, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn put(hca: &mut Hca, address: u32, value: u32) {
        hca.config_write(BASE + 0x14, &value.to_le_bytes());
        hca.config_write(BASE + 0x10, &(address | 1 << 31).to_le_bytes());
        assert_eq!(config32(hca, 0x10) >> 31, 0, "written");
    }

    fn get(hca: &mut Hca, address: u32) -> u32 {
        hca.config_write(BASE + 0x10, &address.to_le_bytes());
        assert_eq!(config32(hca, 0x10) >> 31, 1, "read");
        config32(hca, 0x14)
    }

    /// A register access as boot loaders make it; answers the control register, the header's status and the register.
    fn ask(hca: &mut Hca, opcode: u32, id: u32, method: u32, register: &[u32]) -> (u32, u32, Vec<u32>) {
        hca.config_write(BASE + 4, &3u16.to_le_bytes());
        assert!(get(hca, MAILBOX_SIZE) >= 0x100);
        put(hca, CONTROL, opcode << 16);
        let len = register.len() as u32 + 1;
        let head = [1 << 27 | 4 << 16, id << 16 | method << 8 | 1, 0, 0, 3 << 27 | len << 16];
        let words = head.iter().chain(register);
        for (word, place) in words.zip((MAILBOX..).step_by(4)) {
            put(hca, place, *word);
        }
        put(hca, CONTROL, opcode << 16 | BUSY);
        let control = get(hca, CONTROL);
        let status = get(hca, MAILBOX) >> 8 & 0x7f;
        let data = (0..register.len() as u32).map(|i| get(hca, MAILBOX + 20 + 4 * i)).collect();
        (control, status, data)
    }

    #[test]
    fn a_boot_loader_reads_and_writes_the_ports_speeds() {
        let mut hca = Hca::new(Profile::node(0));
        let mut register = [0; 16];
        // Port 1, InfiniBand.
        register[0] = 1 << 16 | 1;
        let id = u32::from(RegisterId::PTYS.0);
        let (control, status, answer) = ask(&mut hca, REGISTER_ACCESS, id, 1, &register);
        assert_eq!((control, status), (REGISTER_ACCESS << 16, 0));
        let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(ptys_reg::ib_proto_capability.get32(&bytes), 0x37);
        let (_, status, _) = ask(&mut hca, REGISTER_ACCESS, id, 2, &register);
        assert_eq!(status, 0);
    }

    #[test]
    fn tools_learn_that_any_register_can_be_reached() {
        let mut hca = Hca::new(Profile::node(0));
        let (control, ..) = ask(&mut hca, QUERY_CAPABILITIES, 0, 1, &[]);
        assert_eq!(control, QUERY_CAPABILITIES << 16);
        assert_eq!(get(&mut hca, MAILBOX), CAPABILITIES);
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let mut hca = Hca::new(Profile::node(0));
        assert_eq!(ask(&mut hca, 0x8007, 0x5004, 1, &[0; 16]).0 & 0xffff, STATUS_INVALID_OPCODE << 8);
        for (id, method, register) in
            [(0x9999, 1, 1 << 16 | 1), (0x5004, 3, 1 << 16 | 1), (0x5004, 1, 9 << 16 | 1)]
        {
            let mut words = [0; 16];
            words[0] = register;
            assert_ne!(ask(&mut hca, REGISTER_ACCESS, id, method, &words).1, 0, "{id:#x} {method}");
        }
        assert_eq!(get(&mut hca, MAILBOX + SIZE as u32), 0);
        put(&mut hca, MAILBOX + SIZE as u32, 1);
    }
}
