//! Moving payload between packets and guest memory, through memory keys.

use mlx5_prm::value::AccessFlags;

use super::state::{Payload, Piece, Sge};
use crate::meter::Meter;
use crate::object::memic::DeviceMemory;
use crate::object::mkey::{MkeyError, Mkeys, User};
use crate::object::remote_access::Forbidden;
use crate::object::translation::{OCTOWORD, Segment, Segments};
use crate::object::umr::{Registrar, UmrError, UmrRequest};
use crate::run::{Data, Ranges};
use crate::seams::{DmaFault, GuestMemory};

/// Why memory could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The key does not allow it.
    Key(u32, MkeyError),
    /// The QP does not allow it.
    Forbidden(Forbidden),
    /// The address is outside the device's own memory.
    Outside,
    /// The key does, but nothing answers at the address.
    Dma(DmaFault),
    /// The scatter list is shorter than the data.
    Short,
}

impl From<Forbidden> for Fault {
    fn from(forbidden: Forbidden) -> Self {
        Self::Forbidden(forbidden)
    }
}

impl From<DmaFault> for Fault {
    fn from(fault: DmaFault) -> Self {
        Self::Dma(fault)
    }
}

impl Fault {
    /// Returns the field at fault and what is wrong, for the log. `kind` is `lkey` or `rkey`.
    #[cold]
    pub(super) fn describe(self, kind: &'static str) -> (&'static str, String) {
        let field = if kind == "rkey" { "mkc.rkey" } else { "wqe_data_seg.lkey" };
        match self {
            Self::Key(key, error) => (error.field(), format!("{kind} {key:#x} {}", error.words())),
            Self::Forbidden(forbidden) => {
                let (field, accesses) = forbidden.words();
                (field, format!("the QP does not allow {accesses}"))
            }
            Self::Outside => (field, "the address is outside the device's memory".to_owned()),
            Self::Dma(fault) => (field, fault.to_string()),
            Self::Short => (field, "the scatter list is shorter than the data".to_owned()),
        }
    }
}

/// Guest memory and the device's own, as memory keys show them.
pub(super) struct KeyedMemory<'a> {
    guest: &'a dyn GuestMemory,
    own: &'a DeviceMemory,
    keys: &'a mut Mkeys,
    /// Memory found last.
    segments: &'a mut Segments,
    meter: &'a mut Meter,
    /// Counter of payload bytes written.
    placed: &'a mut u64,
}

impl<'a> KeyedMemory<'a> {
    /// Makes the view.
    #[inline(always)]
    pub(super) fn new(
        guest: &'a dyn GuestMemory,
        own: &'a DeviceMemory,
        keys: &'a mut Mkeys,
        segments: &'a mut Segments,
        meter: &'a mut Meter,
        placed: &'a mut u64,
    ) -> Self {
        Self { guest, own, keys, segments, meter, placed }
    }
}

impl KeyedMemory<'_> {
    /// Returns the key that ends scatter lists, if the device names one.
    pub(super) fn terminator(&self) -> Option<u32> {
        self.keys.terminator
    }

    /// Changes a key by UMR. A refusal is the field at fault and what is wrong.
    pub(super) fn reregister(&mut self, who: &Registrar, request: &UmrRequest<'_>) -> Result<(), UmrError> {
        let changed = self.keys.reregister(who, request);
        let steps = changed.as_ref().map_or((request.list.len() / OCTOWORD) as u64, |entries| *entries);
        self.meter.charge(steps);
        changed.map(|_| ())
    }

    /// Invalidates a key on behalf of a peer (IBTA 9.4.1.1.3).
    pub(super) fn invalidate(&mut self, user: User, rkey: u32) -> Result<(), Fault> {
        let allowed = match self.keys.get(rkey) {
            None => Err(MkeyError::Missing),
            Some(mkey) if mkey.pd != user.pd => Err(MkeyError::Pd),
            Some(mkey) if mkey.qpn.is_some_and(|qpn| qpn != user.qpn) => Err(MkeyError::Qp),
            Some(mkey) if !mkey.remote_invalidate => Err(MkeyError::Access),
            Some(mkey) if mkey.free => Err(MkeyError::Free),
            Some(_) => Ok(()),
        };
        allowed.map_err(|error| Fault::Key(rkey, error))?;
        if let Some(((), entries)) = self.keys.change(rkey >> 8, |mkey| mkey.free = true) {
            self.meter.charge(entries);
        }
        Ok(())
    }

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
        self.find_key(user, key, va, out.len(), need)?;
        self.read_found(out)
    }

    /// Writes `data` at `va` of `key`.
    #[inline(always)]
    pub(super) fn write_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        need: AccessFlags,
        data: &Data<'_>,
    ) -> Result<(), Fault> {
        self.find_key(user, key, va, data.len(), need)?;
        self.write_found(data)
    }

    /// Finds the memory behind `len` bytes at `va` of `key`.
    #[inline(always)]
    pub(super) fn find_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        len: usize,
        need: AccessFlags,
    ) -> Result<(), Fault> {
        self.segments.list.clear();
        self.find(user, key, va, len as u64, need).map_err(|error| Fault::Key(key, error))
    }

    /// Finds the memory behind `len` bytes at `offset` of a list of SGEs.
    #[inline(always)]
    pub(super) fn find_list(
        &mut self,
        user: User,
        list: &[Sge],
        mut offset: u64,
        len: usize,
        need: AccessFlags,
    ) -> Result<(), Fault> {
        self.segments.list.clear();
        let mut left = len as u64;
        for sge in list {
            if left == 0 {
                break;
            }
            let there = u64::from(sge.len);
            if offset >= there {
                offset -= there;
                continue;
            }
            let part = left.min(there - offset);
            self.find(user, sge.lkey, sge.address.wrapping_add(offset), part, need)
                .map_err(|error| Fault::Key(sge.lkey, error))?;
            left -= part;
            offset = 0;
        }
        if left == 0 { Ok(()) } else { Err(Fault::Short) }
    }

    /// The memory found last, which has `len` bytes.
    pub(super) fn found(&self, len: usize) -> Ranges<'_> {
        Ranges::new(self.guest, &self.segments.list, len)
    }

    /// Adds the memory behind `len` bytes at `va` of `key` to that found before.
    #[inline(always)]
    fn find(&mut self, user: User, key: u32, va: u64, len: u64, need: AccessFlags) -> Result<(), MkeyError> {
        self.meter.charge_bytes(len);
        if let Some(address) = self.keys.recent(key, user, va, len, need) {
            self.segments.push(address, len);
            return Ok(());
        }
        self.reborrowed().translate(user, key, va, len, need)
    }

    /// Returns the same view for a call, so that this one can stay in registers.
    #[inline(always)]
    fn reborrowed(&mut self) -> KeyedMemory<'_> {
        let Self { guest, own, keys, segments, meter, placed } = self;
        KeyedMemory { guest: *guest, own, keys, segments, meter, placed }
    }

    #[inline(never)]
    fn translate(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        len: u64,
        need: AccessFlags,
    ) -> Result<(), MkeyError> {
        let segments = &mut *self.segments;
        let before = segments.list.len();
        let result = self.keys.translate(key, user, va, len, need, segments);
        self.meter.charge(segments.take_steps());
        if result.is_ok() && segments.list.len() == before + 1 {
            self.keys.remember(key, user, va, need);
        }
        result
    }

    /// Reads the memory found last, which is as long as `out`.
    fn read_found(&self, mut out: &mut [u8]) -> Result<(), Fault> {
        for segment in &self.segments.list {
            let len = (segment.len as usize).min(out.len());
            let (part, rest) = out.split_at_mut(len);
            if segment.own {
                self.own.read(segment.address, part).ok_or(Fault::Outside)?;
            } else {
                self.guest.read(segment.address, part)?;
            }
            out = rest;
        }
        Ok(())
    }

    /// Writes the memory found last, which is as long as `data`.
    #[inline(always)]
    fn write_found(&mut self, data: &Data<'_>) -> Result<(), Fault> {
        match data {
            Data::Memory(from) => from.copy_to(&self.found(from.len()))?,
            Data::Bytes(bytes) => {
                let mut rest = *bytes;
                for segment in &self.segments.list {
                    let (part, tail) = rest.split_at(rest.len().min(segment.len as usize));
                    if segment.own {
                        self.own.write(segment.address, part).ok_or(Fault::Outside)?;
                    } else {
                        self.guest.write(segment.address, part)?;
                    }
                    rest = tail;
                }
            }
        }
        *self.placed += data.len() as u64;
        Ok(())
    }

    /// Changes the 8 bytes at `va` of `key` to the result of `change`, if it has one. Returns the
    /// bytes before. In the device's own memory the change is atomic.
    pub(super) fn update_key(
        &mut self,
        user: User,
        key: u32,
        va: u64,
        change: impl FnOnce([u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<[u8; 8], Fault> {
        self.find_key(user, key, va, 8, AccessFlags::ATOMIC)?;
        if let [Segment { address, own: true, .. }] = self.segments.list.as_slice() {
            return self.own.update(*address, change).ok_or(Fault::Outside);
        }
        let mut old = [0; 8];
        self.read_found(&mut old)?;
        if let Some(new) = change(old) {
            self.write_found(&Data::Bytes(&new))?;
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
        let result = self.keys.translate(key, user, va, 0, need, self.segments);
        self.meter.charge(self.segments.take_steps());
        result?;
        let mkey = self.keys.get(key).ok_or(MkeyError::Missing)?;
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
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        self.find_list(user, list, offset, out.len(), AccessFlags::LOCAL_READ)?;
        self.read_found(out)
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
            Payload::Gather(list) => self.gather(user, list.as_slice(), offset, out),
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
        offset: u64,
        data: &Data<'_>,
    ) -> Result<(), Fault> {
        self.find_list(user, list, offset, data.len(), AccessFlags::LOCAL_WRITE)?;
        self.write_found(data)
    }
}
