//! BTH opcodes (IBA volume 1, table 38).

/// The transport service in the opcode's upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram (no known device has it).
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet (RoCE).
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Anything else.
    Other(u8),
}

/// The operation in the opcode's lower five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// First packet of a SEND.
    SendFirst = 0x00,
    /// Middle packet of a SEND.
    SendMiddle = 0x01,
    /// Last packet of a SEND.
    SendLast = 0x02,
    /// Last packet of a SEND with immediate data.
    SendLastImm = 0x03,
    /// The only packet of a SEND.
    SendOnly = 0x04,
    /// The only packet of a SEND with immediate data.
    SendOnlyImm = 0x05,
    /// First packet of an RDMA WRITE.
    WriteFirst = 0x06,
    /// Middle packet of an RDMA WRITE.
    WriteMiddle = 0x07,
    /// Last packet of an RDMA WRITE.
    WriteLast = 0x08,
    /// Last packet of an RDMA WRITE with immediate data.
    WriteLastImm = 0x09,
    /// The only packet of an RDMA WRITE.
    WriteOnly = 0x0a,
    /// The only packet of an RDMA WRITE with immediate data.
    WriteOnlyImm = 0x0b,
    /// RDMA READ request.
    ReadRequest = 0x0c,
    /// First packet of an RDMA READ response.
    ReadResponseFirst = 0x0d,
    /// Middle packet of an RDMA READ response.
    ReadResponseMiddle = 0x0e,
    /// Last packet of an RDMA READ response.
    ReadResponseLast = 0x0f,
    /// The only packet of an RDMA READ response.
    ReadResponseOnly = 0x10,
    /// Acknowledge (positive or negative, by the AETH).
    Acknowledge = 0x11,
    /// Acknowledge of an atomic operation.
    AtomicAcknowledge = 0x12,
    /// Atomic compare and swap.
    CompareSwap = 0x13,
    /// Atomic fetch and add.
    FetchAdd = 0x14,
    /// Last packet of a SEND with invalidate.
    SendLastInvalidate = 0x16,
    /// The only packet of a SEND with invalidate.
    SendOnlyInvalidate = 0x17,
}

impl Operation {
    /// The operation of the lower five bits of an opcode, if it is a defined one.
    pub const fn from_bits(bits: u8) -> Option<Operation> {
        use Operation::*;
        Some(match bits {
            0x00 => SendFirst,
            0x01 => SendMiddle,
            0x02 => SendLast,
            0x03 => SendLastImm,
            0x04 => SendOnly,
            0x05 => SendOnlyImm,
            0x06 => WriteFirst,
            0x07 => WriteMiddle,
            0x08 => WriteLast,
            0x09 => WriteLastImm,
            0x0a => WriteOnly,
            0x0b => WriteOnlyImm,
            0x0c => ReadRequest,
            0x0d => ReadResponseFirst,
            0x0e => ReadResponseMiddle,
            0x0f => ReadResponseLast,
            0x10 => ReadResponseOnly,
            0x11 => Acknowledge,
            0x12 => AtomicAcknowledge,
            0x13 => CompareSwap,
            0x14 => FetchAdd,
            0x16 => SendLastInvalidate,
            0x17 => SendOnlyInvalidate,
            _ => return None,
        })
    }

    /// First, or only, packet of a SEND.
    pub const fn starts_send(self) -> bool {
        use Operation::*;
        matches!(self, SendFirst | SendOnly | SendOnlyImm | SendOnlyInvalidate)
    }

    /// Any packet of a SEND.
    pub const fn is_send(self) -> bool {
        use Operation::*;
        matches!(
            self,
            SendFirst
                | SendMiddle
                | SendLast
                | SendLastImm
                | SendOnly
                | SendOnlyImm
                | SendLastInvalidate
                | SendOnlyInvalidate
        )
    }

    /// Any packet of an RDMA WRITE.
    pub const fn is_write(self) -> bool {
        use Operation::*;
        matches!(self, WriteFirst | WriteMiddle | WriteLast | WriteLastImm | WriteOnly | WriteOnlyImm)
    }

    /// An atomic request.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// Any packet of an RDMA READ response.
    pub const fn is_read_response(self) -> bool {
        use Operation::*;
        matches!(self, ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly)
    }

    /// Sent by a responder: READ response, acknowledge, atomic acknowledge.
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Operation::Acknowledge | Operation::AtomicAcknowledge)
    }

    /// First packet of a message of several packets.
    pub const fn is_first(self) -> bool {
        matches!(self, Operation::SendFirst | Operation::WriteFirst | Operation::ReadResponseFirst)
    }

    /// Neither first nor last packet of a message.
    pub const fn is_middle(self) -> bool {
        matches!(self, Operation::SendMiddle | Operation::WriteMiddle | Operation::ReadResponseMiddle)
    }

    /// Ends a message: last, only, or a request that is one packet by nature.
    pub const fn ends_message(self) -> bool {
        !self.is_first() && !self.is_middle()
    }

    /// Whether immediate data (ImmDt) is present.
    pub const fn has_imm(self) -> bool {
        use Operation::*;
        matches!(self, SendLastImm | SendOnlyImm | WriteLastImm | WriteOnlyImm)
    }

    /// Whether an RETH is present.
    pub const fn has_reth(self) -> bool {
        use Operation::*;
        matches!(self, WriteFirst | WriteOnly | WriteOnlyImm | ReadRequest)
    }

    /// Whether an AETH is present.
    pub const fn has_aeth(self) -> bool {
        use Operation::*;
        matches!(
            self,
            ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge | AtomicAcknowledge
        )
    }

    /// Whether an IETH (the R_Key to invalidate) is present.
    pub const fn has_ieth(self) -> bool {
        matches!(self, Operation::SendLastInvalidate | Operation::SendOnlyInvalidate)
    }
}

/// A BTH opcode. Any byte can be held; [`Opcode::operation`] says whether it is a defined one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// RC SEND first.
    pub const RC_SEND_FIRST: Opcode = Opcode(0x00);
    /// RC SEND middle.
    pub const RC_SEND_MIDDLE: Opcode = Opcode(0x01);
    /// RC SEND last.
    pub const RC_SEND_LAST: Opcode = Opcode(0x02);
    /// RC SEND last with immediate.
    pub const RC_SEND_LAST_IMM: Opcode = Opcode(0x03);
    /// RC SEND only.
    pub const RC_SEND_ONLY: Opcode = Opcode(0x04);
    /// RC SEND only with immediate.
    pub const RC_SEND_ONLY_IMM: Opcode = Opcode(0x05);
    /// RC RDMA WRITE first.
    pub const RC_WRITE_FIRST: Opcode = Opcode(0x06);
    /// RC RDMA WRITE middle.
    pub const RC_WRITE_MIDDLE: Opcode = Opcode(0x07);
    /// RC RDMA WRITE last.
    pub const RC_WRITE_LAST: Opcode = Opcode(0x08);
    /// RC RDMA WRITE last with immediate.
    pub const RC_WRITE_LAST_IMM: Opcode = Opcode(0x09);
    /// RC RDMA WRITE only.
    pub const RC_WRITE_ONLY: Opcode = Opcode(0x0a);
    /// RC RDMA WRITE only with immediate.
    pub const RC_WRITE_ONLY_IMM: Opcode = Opcode(0x0b);
    /// RC RDMA READ request.
    pub const RC_READ_REQUEST: Opcode = Opcode(0x0c);
    /// RC RDMA READ response first.
    pub const RC_READ_RESPONSE_FIRST: Opcode = Opcode(0x0d);
    /// RC RDMA READ response middle.
    pub const RC_READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);
    /// RC RDMA READ response last.
    pub const RC_READ_RESPONSE_LAST: Opcode = Opcode(0x0f);
    /// RC RDMA READ response only.
    pub const RC_READ_RESPONSE_ONLY: Opcode = Opcode(0x10);
    /// RC acknowledge.
    pub const RC_ACKNOWLEDGE: Opcode = Opcode(0x11);
    /// RC atomic acknowledge.
    pub const RC_ATOMIC_ACKNOWLEDGE: Opcode = Opcode(0x12);
    /// RC compare and swap.
    pub const RC_COMPARE_SWAP: Opcode = Opcode(0x13);
    /// RC fetch and add.
    pub const RC_FETCH_ADD: Opcode = Opcode(0x14);
    /// RC SEND last with invalidate.
    pub const RC_SEND_LAST_INVALIDATE: Opcode = Opcode(0x16);
    /// RC SEND only with invalidate.
    pub const RC_SEND_ONLY_INVALIDATE: Opcode = Opcode(0x17);
    /// UD SEND only.
    pub const UD_SEND_ONLY: Opcode = Opcode(0x64);
    /// UD SEND only with immediate.
    pub const UD_SEND_ONLY_IMM: Opcode = Opcode(0x65);
    /// RoCE congestion notification packet.
    pub const CNP: Opcode = Opcode(0x81);

    /// The opcode of an operation on a transport.
    pub const fn new(transport: Transport, operation: Operation) -> Opcode {
        let service = match transport {
            Transport::Rc => 0x00,
            Transport::Uc => 0x20,
            Transport::Rd => 0x40,
            Transport::Ud => 0x60,
            Transport::Cnp => 0x80,
            Transport::Xrc => 0xa0,
            Transport::Other(bits) => bits & 0xe0,
        };
        Opcode(service | operation as u8)
    }

    /// The transport service.
    pub const fn transport(self) -> Transport {
        match self.0 & 0xe0 {
            0x00 => Transport::Rc,
            0x20 => Transport::Uc,
            0x40 => Transport::Rd,
            0x60 => Transport::Ud,
            0x80 => Transport::Cnp,
            0xa0 => Transport::Xrc,
            other => Transport::Other(other),
        }
    }

    /// The operation, when the transport service defines it.
    pub const fn operation(self) -> Option<Operation> {
        let Some(op) = Operation::from_bits(self.0 & 0x1f) else { return None };
        let legal = match self.transport() {
            Transport::Rc | Transport::Xrc => true,
            Transport::Uc => (op as u8) <= Operation::WriteOnlyImm as u8,
            Transport::Ud => matches!(op, Operation::SendOnly | Operation::SendOnlyImm),
            Transport::Rd | Transport::Cnp | Transport::Other(_) => false,
        };
        if legal { Some(op) } else { None }
    }

    /// The standard's name for the operation; `"?"` for an undefined opcode.
    pub const fn name(self) -> &'static str {
        use Operation::*;
        if self.0 == Opcode::CNP.0 {
            return "CNP";
        }
        let Some(op) = self.operation() else { return "?" };
        match op {
            SendFirst => "SEND first",
            SendMiddle => "SEND middle",
            SendLast => "SEND last",
            SendLastImm => "SEND last with immediate",
            SendOnly => "SEND only",
            SendOnlyImm => "SEND only with immediate",
            WriteFirst => "RDMA WRITE first",
            WriteMiddle => "RDMA WRITE middle",
            WriteLast => "RDMA WRITE last",
            WriteLastImm => "RDMA WRITE last with immediate",
            WriteOnly => "RDMA WRITE only",
            WriteOnlyImm => "RDMA WRITE only with immediate",
            ReadRequest => "RDMA READ request",
            ReadResponseFirst => "RDMA READ response first",
            ReadResponseMiddle => "RDMA READ response middle",
            ReadResponseLast => "RDMA READ response last",
            ReadResponseOnly => "RDMA READ response only",
            Acknowledge => "acknowledge",
            AtomicAcknowledge => "atomic acknowledge",
            CompareSwap => "compare and swap",
            FetchAdd => "fetch and add",
            SendLastInvalidate => "SEND last with invalidate",
            SendOnlyInvalidate => "SEND only with invalidate",
        }
    }
}

impl core::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#04x} ({:?} {})", self.0, self.transport(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips_and_only_defined_ones_have_an_operation() {
        let mut defined = 0;
        for byte in 0..=255u8 {
            let opcode = Opcode(byte);
            if let Some(op) = opcode.operation() {
                defined += 1;
                assert_eq!(Opcode::new(opcode.transport(), op), opcode);
            }
        }
        // 23 RC, 12 UC, 2 UD, 23 XRC.
        assert_eq!(defined, 60);
        assert_eq!(Opcode(0x15).operation(), None);
        assert_eq!(Opcode(0x66).operation(), None);
    }
}
