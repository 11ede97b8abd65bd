//! What every object has: a kind, and the consumer's context. DAT 1.2, context management.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::handle::*;
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};

/// Does the same with the table of whatever kind the handle says.
macro_rules! by_kind {
    ($self:ident, $handle:ident, $objects:ident, $table:ident, $method:ident) => {
        match $handle.kind() {
            Some(HandleType::Ia) => $self.$objects().$table().$method(IaHandle::from_bits($handle.bits())),
            Some(HandleType::Ep) => $self.$objects().$table().$method(EpHandle::from_bits($handle.bits())),
            Some(HandleType::Evd) => $self.$objects().$table().$method(EvdHandle::from_bits($handle.bits())),
            Some(HandleType::Cr) => $self.$objects().$table().$method(CrHandle::from_bits($handle.bits())),
            Some(HandleType::Lmr) => $self.$objects().$table().$method(LmrHandle::from_bits($handle.bits())),
            Some(HandleType::Psp) => $self.$objects().$table().$method(PspHandle::from_bits($handle.bits())),
            Some(HandleType::Pz) => $self.$objects().$table().$method(PzHandle::from_bits($handle.bits())),
            Some(HandleType::Rsp) => $self.$objects().$table().$method(RspHandle::from_bits($handle.bits())),
            Some(HandleType::Cno) => $self.$objects().$table().$method(CnoHandle::from_bits($handle.bits())),
            Some(HandleType::Rmr) => $self.$objects().$table().$method(RmrHandle::from_bits($handle.bits())),
            Some(HandleType::Srq) => $self.$objects().$table().$method(SrqHandle::from_bits($handle.bits())),
            None => Err(DatReturn::error(ReturnType::InvalidHandle, Subtype::InvalidHandle1)),
        }
    };
}

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_set_consumer_context`: 64 bits that the provider keeps with an object of any kind and never looks at.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn set_consumer_context(&mut self, handle: impl Into<Handle>, context: u64) -> DatResult<()> {
        let handle = handle.into();
        *by_kind!(self, handle, objects_mut, table_mut, context_mut)? = context;
        Ok(())
    }

    /// `dat_get_consumer_context`; 0 if none was set.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn get_consumer_context(&self, handle: impl Into<Handle>) -> DatResult<u64> {
        let handle = handle.into();
        by_kind!(self, handle, objects, table, context)
    }

    /// `dat_get_handle_type`, of a live object.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn get_handle_type(&self, handle: impl Into<Handle>) -> DatResult<HandleType> {
        let handle = handle.into();
        by_kind!(self, handle, objects, table, context)?;
        handle.kind().ok_or(DatReturn::error(ReturnType::InvalidHandle, Subtype::InvalidHandle1))
    }
}
