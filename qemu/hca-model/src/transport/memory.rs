//! Moving payload between packets and guest memory, through memory keys.

use mlx5_prm::value::AccessFlags;

use super::Context;
use super::state::{Payload, Piece, Sge};
use crate::object::mkey::{MkeyError, User};
use crate::object::qp::Qp;
use crate::seams::DmaFault;

/// Why memory could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The key does not allow it.
    Key(MkeyError),
    /// The key does, but nothing answers at the address.
    Dma(DmaFault),
    /// The scatter list is shorter than the data.
    Short,
}

impl From<MkeyError> for Fault {
    fn from(error: MkeyError) -> Self {
        Self::Key(error)
    }
}

impl From<DmaFault> for Fault {
    fn from(fault: DmaFault) -> Self {
        Self::Dma(fault)
    }
}

impl Fault {
    /// The field at fault and what is wrong, for the log.
    pub(super) fn describe(self, key: &'static str) -> (&'static str, String) {
        match self {
            Self::Key(error) => (error.field(), format!("{key}: {error:?}")),
            Self::Dma(fault) => (key, fault.to_string()),
            Self::Short => (key, "the scatter list is shorter than the data".to_owned()),
        }
    }
}

/// Who a QP is to memory keys.
pub(super) fn user(qp: &Qp) -> User {
    User { pd: qp.pd, qpn: qp.qpn, reserved_lkey: qp.reserved_lkey }
}

impl Context<'_, '_> {
    /// Reads `out.len()` bytes at `va` of `key`.
    #[inline(always)]
    pub(super) fn read_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        need: AccessFlags,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        self.meter.charge_bytes(out.len() as u64);
        if let Some(address) = self.mkeys.recent(key, user, va, out.len() as u64, need) {
            return Ok(self.io.memory.read(address, out)?);
        }
        self.read_translated(user, key, va, need, out)
    }

    #[inline(never)]
    fn read_translated(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        need: AccessFlags,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let mut segments = core::mem::take(&mut self.device.segments);
        let result = (|| {
            self.mkeys.translate(key, user, va, out.len() as u64, need, &mut segments)?;
            let mut rest = out;
            for segment in &segments.list {
                let len = (segment.len as usize).min(rest.len());
                let (part, tail) = rest.split_at_mut(len);
                if segment.own {
                    self.memic.read(segment.address, part).ok_or(MkeyError::Bounds)?;
                } else {
                    self.io.memory.read(segment.address, part)?;
                }
                rest = tail;
            }
            Ok(())
        })();
        if result.is_ok() && segments.list.len() == 1 {
            self.mkeys.remember(key, user, va, need);
        }
        self.meter.charge(segments.take_steps());
        self.device.segments = segments;
        result
    }

    /// Writes `data` at `va` of `key`.
    #[inline(always)]
    pub(super) fn write_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        need: AccessFlags,
        data: &[u8],
    ) -> Result<(), Fault> {
        self.meter.charge_bytes(data.len() as u64);
        if let Some(address) = self.mkeys.recent(key, user, va, data.len() as u64, need) {
            self.io.memory.write(address, data)?;
            self.device.counters.bytes_placed += data.len() as u64;
            return Ok(());
        }
        self.write_translated(user, key, va, need, data)
    }

    #[inline(never)]
    fn write_translated(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        need: AccessFlags,
        data: &[u8],
    ) -> Result<(), Fault> {
        let mut segments = core::mem::take(&mut self.device.segments);
        let result = (|| {
            self.mkeys.translate(key, user, va, data.len() as u64, need, &mut segments)?;
            let mut rest = data;
            for segment in &segments.list {
                let (part, tail) = rest.split_at(rest.len().min(segment.len as usize));
                if segment.own {
                    self.memic.write(segment.address, part).ok_or(MkeyError::Bounds)?;
                } else {
                    self.io.memory.write(segment.address, part)?;
                }
                rest = tail;
            }
            self.device.counters.bytes_placed += data.len() as u64;
            Ok(())
        })();
        if result.is_ok() && segments.list.len() == 1 {
            self.mkeys.remember(key, user, va, need);
        }
        self.meter.charge(segments.take_steps());
        self.device.segments = segments;
        result
    }

    /// Changes the 8 bytes at `va` of `key` to what `change` makes of them, if to anything. Answers what they were. In the device's own
    /// memory no access of anybody comes between.
    pub(super) fn update_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        change: impl FnOnce([u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<[u8; 8], Fault> {
        let need = AccessFlags::ATOMIC;
        let mut segments = core::mem::take(&mut self.device.segments);
        let translated = self.mkeys.translate(key, user, va, 8, need, &mut segments);
        let own = segments.list.first().filter(|segment| segment.own && segment.len == 8);
        let own = own.map(|segment| segment.address);
        self.meter.charge(segments.take_steps());
        self.device.segments = segments;
        translated?;
        if let Some(at) = own {
            self.meter.charge_bytes(8);
            return Ok(self.memic.update(at, change).ok_or(MkeyError::Bounds)?);
        }
        let mut old = [0; 8];
        self.read_key(user, key, va, need, &mut old)?;
        if let Some(new) = change(old) {
            self.write_key(user, key, va, need, &new)?;
        }
        Ok(old)
    }

    /// Whether `key` gives `need` on `len` bytes at `va`, without translating them.
    pub(super) fn check_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        len: u64,
        need: AccessFlags,
    ) -> Result<(), MkeyError> {
        let result = self.mkeys.translate(key, user, va, 0, need, &mut self.device.segments);
        self.meter.charge(self.device.segments.take_steps());
        result?;
        let mkey = self.mkeys.get(key).ok_or(MkeyError::Missing)?;
        if !mkey.length64 {
            let offset = va.checked_sub(mkey.start_addr).ok_or(MkeyError::Bounds)?;
            if offset.checked_add(len).is_none_or(|end| end > mkey.len) {
                return Err(MkeyError::Bounds);
            }
        }
        Ok(())
    }

    /// Fills `out` with the bytes at `offset` of a gather list.
    pub(super) fn gather(
        &mut self,
        user: User,
        list: &[Sge],
        mut offset: u64,
        mut out: &mut [u8],
    ) -> Result<(), Fault> {
        for sge in list {
            if out.is_empty() {
                break;
            }
            if offset >= sge.len {
                offset -= sge.len;
                continue;
            }
            let len = out.len().min(usize::try_from(sge.len - offset).unwrap_or(usize::MAX));
            let (part, rest) = out.split_at_mut(len);
            self.read_key(user, sge.lkey, sge.address.wrapping_add(offset), AccessFlags::LOCAL_READ, part)?;
            out = rest;
            offset = 0;
        }
        if out.is_empty() { Ok(()) } else { Err(Fault::Short) }
    }

    /// Fills `out` with a send WQE's data from `offset` on.
    pub(super) fn gather_payload(
        &mut self,
        user: User,
        payload: &Payload,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        match payload {
            Payload::Gather(list) => self.gather(user, list, offset, out),
            Payload::Inline(data) => {
                let rest = usize::try_from(offset).ok().and_then(|offset| data.get(offset..));
                let data = rest.and_then(|rest| rest.get(..out.len())).ok_or(Fault::Short)?;
                out.copy_from_slice(data);
                Ok(())
            }
            Payload::Mixed(mixed) => self.gather_pieces(user, &mixed.inline, &mixed.pieces, offset, out),
        }
    }

    #[cold]
    #[inline(never)]
    fn gather_pieces(
        &mut self,
        user: User,
        inline: &[u8],
        pieces: &[Piece],
        mut offset: u64,
        mut out: &mut [u8],
    ) -> Result<(), Fault> {
        for piece in pieces {
            let whole = piece.len();
            if offset >= whole {
                offset -= whole;
                continue;
            }
            let len = out.len().min(usize::try_from(whole - offset).unwrap_or(usize::MAX));
            let (part, rest) = out.split_at_mut(len);
            match piece {
                Piece::Inline(range) => {
                    let data = inline.iter().skip(usize::from(range.start) + offset as usize);
                    part.iter_mut().zip(data).for_each(|(byte, data)| *byte = *data);
                }
                Piece::Memory(sge) => self.gather(user, core::slice::from_ref(sge), offset, part)?,
            }
            out = rest;
            offset = 0;
            if out.is_empty() {
                break;
            }
        }
        if out.is_empty() { Ok(()) } else { Err(Fault::Short) }
    }

    /// Puts `data` at `offset` of a scatter list.
    pub(super) fn scatter(
        &mut self,
        user: User,
        list: &[Sge],
        mut offset: u64,
        mut data: &[u8],
    ) -> Result<(), Fault> {
        for sge in list {
            if data.is_empty() {
                break;
            }
            if offset >= sge.len {
                offset -= sge.len;
                continue;
            }
            let len = data.len().min(usize::try_from(sge.len - offset).unwrap_or(usize::MAX));
            let (part, rest) = data.split_at(len);
            self.write_key(user, sge.lkey, sge.address.wrapping_add(offset), AccessFlags::LOCAL_WRITE, part)?;
            data = rest;
            offset = 0;
        }
        if data.is_empty() { Ok(()) } else { Err(Fault::Short) }
    }
}
