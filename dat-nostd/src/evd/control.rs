//! Event dispatchers: query, notification, size, software events. DAT 1.2, event management.

use driver_mlx::Platform;

use crate::adapter::Adapter;
use crate::base::attr::EvdParameters;
use crate::base::handle::{CnoHandle, EvdHandle, Typed};
use crate::base::ret::{DatResult, DatReturn, ReturnType, Subtype};
use crate::base::types::{EvdFlags, EvdState};
use crate::evd::{MAX_QLEN, Notification, software_events};

impl<'s, P: Platform> Adapter<'s, P> {
    /// `dat_evd_query`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn evd_query(&self, evd: EvdHandle) -> DatResult<EvdParameters> {
        let evd = self.objects().get(evd)?;
        let mut state = if evd.enabled { EvdState::ENABLED } else { EvdState::DISABLED };
        state |= if evd.waitable { EvdState::WAITABLE } else { EvdState::UNWAITABLE };
        state |= match evd.notification {
            Notification::Threshold => EvdState::CONFIG_THRESHOLD,
            Notification::Unsignalled => EvdState::CONFIG_NOTIFY,
            Notification::Solicited => EvdState::CONFIG_SOLICITED,
        };
        Ok(EvdParameters {
            ia: evd.ia,
            evd_qlen: evd.qlen(),
            evd_state: state,
            cno: evd.cno,
            evd_flags: evd.flags,
        })
    }

    /// `dat_evd_modify_cno`: from now on notifying arrivals trigger this CNO, or none.
    ///
    /// # Errors
    /// INVALID_HANDLE (EVD, CNO).
    pub fn evd_modify_cno(&mut self, evd: EvdHandle, cno: Option<CnoHandle>) -> DatResult<()> {
        let state = self.objects().get(evd)?;
        let (before, seen) = (state.cno, state.position());
        self.objects().cnos().check(cno, state.ia)?;
        if before == cno {
            return Ok(());
        }
        let state = self.objects_mut().get_mut(evd)?;
        state.cno = cno;
        // What was looked at before belongs to the CNO of that time.
        state.announced = seen;
        self.objects_mut().cnos_mut().attach(cno);
        self.objects_mut().cnos_mut().detach(before);
        Ok(())
    }

    /// `dat_evd_enable`: arrivals trigger the CNO.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn evd_enable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.objects_mut().get_mut(evd)?.enabled = true;
        Ok(())
    }

    /// `dat_evd_disable`.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn evd_disable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.objects_mut().get_mut(evd)?.enabled = false;
        Ok(())
    }

    /// `dat_evd_set_unwaitable`: an open wait ends with INVALID_STATE, and so do later ones.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn evd_set_unwaitable(&mut self, evd: EvdHandle) -> DatResult<()> {
        let state = self.objects_mut().evds_mut().settled(evd)?;
        state.waitable = false;
        if let Some(wait) = &mut state.wait {
            wait.interrupted = true;
            self.objects_mut().evds_mut().ready(evd.any().slot());
        }
        Ok(())
    }

    /// `dat_evd_clear_unwaitable`. A wait that `evd_set_unwaitable` has ended stays ended.
    ///
    /// # Errors
    /// INVALID_HANDLE.
    pub fn evd_clear_unwaitable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.objects_mut().get_mut(evd)?.waitable = true;
        Ok(())
    }

    /// `dat_evd_post_se`.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER if the EVD takes no software events; QUEUE_FULL, and the event is not queued.
    pub fn evd_post_se(&mut self, evd: EvdHandle, value: u64) -> DatResult<()> {
        if !self.objects().get(evd)?.flags.contains(EvdFlags::SOFTWARE) {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg1));
        }
        self.delivery().post_software(evd, value)
    }

    /// `dat_evd_resize`. At least `min_qlen` events fit afterwards; events queued or on their way are kept. What attached EPs
    /// may cause at once stays possible, so a CQ does not become smaller than that.
    ///
    /// # Errors
    /// INVALID_HANDLE; INVALID_PARAMETER for a length of 0; INVALID_STATE if more events than that are queued;
    /// INSUFFICIENT_RESOURCES.
    pub fn evd_resize(&mut self, handle: EvdHandle, min_qlen: u32) -> DatResult<()> {
        const FULL: DatReturn = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceTevd);
        let evd = self.objects().get(handle)?;
        if min_qlen == 0 || min_qlen > i32::MAX as u32 {
            return Err(DatReturn::error(ReturnType::InvalidParameter, Subtype::InvalidArg2));
        }
        if min_qlen > MAX_QLEN {
            return Err(FULL);
        }
        if evd.completions() + evd.queue.len() > min_qlen {
            return Err(DatReturn::error(ReturnType::InvalidState, Subtype::InvalidStateEvdInUse));
        }
        self.device().usable()?;
        let software = software_events(evd.flags, min_qlen);
        let before = evd.queue.limit();
        if !self.objects_mut().evds_mut().resize_queue(handle, software) {
            return Err(FULL);
        }
        if let Err(error) = self.queue_pairs().resize_cq(handle, min_qlen) {
            // Going back asks for no more than there was.
            let _ = self.objects_mut().evds_mut().resize_queue(handle, before);
            return Err(error);
        }
        Ok(())
    }
}
